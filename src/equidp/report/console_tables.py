"""Prints tables so that each row says whose it is, in a terminal of any width."""

from __future__ import annotations

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
    group            accuracy, %
    Region=Mitte,    71.3 (65.0 to 77.0)
    all
    """
    console = console or Console()
    least = 0
    for column in table.columns:
        column.overflow, column.min_width = "fold", _least_width(console, column)
        least += column.min_width + _BETWEEN
    if least > console.width:
        console = Console(
            file=console.file, width=least, force_terminal=console.is_terminal, no_color=console.no_color
        )
    console.print(table)


def _least_width(console: Console, column: Column) -> int:
    """Characters that a column needs: of its longest word, and no more than a name's where it may break."""
    wide = console.options.update(max_width=10_000)
    cells = [Measurement.get(console, wide, each) for each in (column.header, *column.cells)]
    needed = max(each.maximum if column.no_wrap else each.minimum for each in cells)
    breaks = not column.no_wrap and column.justify == "left"
    return max(min(needed, _SHORTEST) if breaks else needed, column.min_width or 0)
