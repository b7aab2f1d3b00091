"""Prints tables so that each row says whose it is, in a terminal of any width."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table

_BETWEEN = 3  # characters beside each column: padding, and a line
_SHORTEST = 12  # characters that a name keeps at least


def print_table(table: Table, console: Console | None = None) -> None:
    """Prints a table whole: where it cannot be as narrow as the terminal, its lines run on in the next.

    Nothing is cut off: what is too long for its column goes on below, in columns of names in parts of words.

    >>> table = Table("group", box=None, padding=(0, 1, 0, 0))
    >>> table.add_column("accuracy, %", no_wrap=True)
    >>> table.add_row("Region=Mitte, all", "71.3 (65.0 to 77.0)")
    >>> print_table(table, Console(width=20))
    group        accuracy, %
    Region=Mitte 71.3 (65.0 to 77.0)
    , all
    """
    console = console or Console()
    wide = console.options.update(max_width=10_000)
    least, most = [], []
    for column in table.columns:
        column.overflow = "fold"
        cells = [Measurement.get(console, wide, each) for each in (column.header, *column.cells)]
        most.append(max(each.maximum for each in cells))
        least.append(_least_width(column, cells))
    room = console.width - _BETWEEN * len(most) - 1
    if sum(most) > room:
        spare = max(0, room - sum(least))
        for column, low, high in zip(table.columns, least, most, strict=True):
            column.width = low + min(spare, max(0, high - low))
            spare -= column.width - low
    if sum(least) > room:
        width = sum(least) + _BETWEEN * len(least) + 1
        console = Console(
            file=console.file, width=width, force_terminal=console.is_terminal, no_color=console.no_color
        )
    console.print(table)


def _least_width(column: Column, cells: Sequence[Measurement]) -> int:
    """Characters that a column needs: of its longest word, and no more than a name's where it may break."""
    needed = max(each.maximum if column.no_wrap else each.minimum for each in cells)
    breaks = not column.no_wrap and column.justify == "left"
    return max(min(needed, _SHORTEST) if breaks else needed, column.min_width or 0)
