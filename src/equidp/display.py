"""Tables of results as one value, and its renderers: terminal, HTML and Markdown."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape as html_escape
from typing import Any, Literal, NamedTuple, final

from markupsafe import Markup
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Column as RichColumn, Table as RichTable

_BETWEEN = 3  # characters beside each column on a terminal: padding, and a line
_NARROWEST = 4  # characters of a column of values
_LONG = 16  # characters of a word that HTML breaks where a screen is narrow
_SHORTEST = 12  # characters that a name keeps at least before it is broken

Kind = Literal["name", "label", "text", "number", "verdict"]


class Interval(NamedTuple):
    """A value and the ends of its interval. Without an interval both ends are NaN.

    Example:
        >>> Interval(0.9, 0.88, 0.92).high
        0.92
    """

    value: float
    low: float = math.nan
    high: float = math.nan


class Noted(NamedTuple):
    """A value with a note in small print, such as "± 0.1"."""

    value: float
    note: str


Cell = str | int | float | Interval | Noted


@final
@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        heading: text above the cells.
        kind: "name" and "label" name the row and come first, "text" and "verdict" are left-aligned, "number"
            is right-aligned. A terminal wraps long names, never labels or numbers. In HTML, a verdict's word
            is its class.
        show: formats a number, and both ends of an interval. Texts stay as they are.
        bar: whether HTML also draws the values, which are shares, and their intervals as bars from 0 to 1.

    Example:
        >>> Column("accuracy, %", show="{:.1f}".format).parts(Interval(91.25, 90, 93))
        ('91.2', '90.0 to 93.0')
    """

    heading: str
    kind: Kind = "number"
    show: Callable[[Any], str] = str
    bar: bool = False

    def parts(self, cell: Cell, ends: str = "{} to {}") -> tuple[str, str]:
        """Text of a cell, and its small print: the ends of an interval in this form, a note, or ""."""
        if isinstance(cell, str):
            return cell, ""
        if isinstance(cell, Noted):
            return self.show(cell.value), cell.note
        if isinstance(cell, Interval):
            note = "" if math.isnan(cell.low) else ends.format(self.show(cell.low), self.show(cell.high))
            return self.show(cell.value), note
        return self.show(cell), ""

    @property
    def names_row(self) -> bool:
        """True if the column's cells name their rows."""
        return self.kind in ("name", "label")


def shown_epsilon(epsilon: float) -> float:
    """Epsilon as it is shown: rounded up to three decimals, so never below the value; infinite stays.

    >>> shown_epsilon(2.9991), shown_epsilon(float("inf"))
    (3.0, inf)
    """
    return math.ceil(1000 * epsilon) / 1000 if math.isfinite(epsilon) else epsilon


def points(value: float) -> str:
    """Text of a share in percentage points, to a tenth; a dash for NaN.

    >>> points(0.12345), points(-0.0), points(float("nan"))
    ('12.3', '0.0', '–')
    """
    return "–" if math.isnan(value) else f"{round(100 * value, 1) + 0.0:.1f}"


def measured_number(value: float) -> str:
    """Text of a measured number to three digits, zeros at the end among them; from 1,000 on without decimals.

    >>> [measured_number(each) for each in (0.581, 0.57, 2.0, 999.7, -0.00494, float("nan"))]
    ['0.581', '0.570', '2.00', '1,000', '-0.00494', '–']
    """
    return three_digits(value, "#.3g").removesuffix(".")


def three_digits(value: float, form: str) -> str:
    """Text of a number in a form of three digits; from 1,000 on without decimals.

    >>> [three_digits(each, ".3g") for each in (0.57, 1234.5, float("-inf"))]
    ['0.57', '1,230', '-∞']
    """
    if not math.isfinite(value):
        return "–" if math.isnan(value) else "∞" if value > 0 else "-∞"
    rounded = format(value, form)
    return f"{float(rounded):,.0f}" if 1000 <= abs(float(rounded)) < 1e9 else rounded


@final
@dataclass(frozen=True)
class Table:
    """A table of results, independent of the output format.

    Attributes:
        columns: columns. The ones that name the row come first.
        rows: rows with one cell per column.
        caption: line above the table.
        notes: sentences below the table.
        total: first cell of the row about all other rows together, which is emphasised.

    Raises:
        ValueError: a row has another length.

    Example:
        >>> columns = (Column("group", "name"), Column("accuracy, %", show="{:.1f}".format))
        >>> table = Table(columns, [("A & B", Interval(91.25, 90, 93)), ("all", 92)], total="all")
        >>> print(table.to_markdown())
        | group | accuracy, % |
        | --- | ---: |
        | A &amp; B | 91.2 [90.0, 93.0] |
        | all | 92.0 |
        <BLANKLINE>
        >>> table.print(Console(width=40, no_color=True), lines=False)
        group  accuracy, %
        A & B  91.2 (90.0 to 93.0)
        all    92.0
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    notes: Sequence[str] = ()
    total: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"A row has {len(row)} cells; there are {len(self.columns)} columns.")

    def texts(self, ends: str = "({} to {})") -> list[list[str]]:
        """Rows of texts, with the ends of intervals in this form."""
        return [
            [
                " ".join(filter(None, column.parts(cell, ends)))
                for column, cell in zip(self.columns, row, strict=True)
            ]
            for row in self.rows
        ]

    def to_html(self, *, heads: bool = True) -> Markup:
        """Return an HTML table element, without caption and notes. All texts are escaped.

        Args:
            heads: whether to include the headings.
        """
        headings = Markup().join(
            Markup("<th{}>{}</th>{}").format(
                _html_class(column.kind, ""),
                column.heading,
                Markup('<th class="left barred">0 to 100</th>' if column.bar else ""),
            )
            for column in self.columns
        )
        body = Markup("\n").join(
            Markup("<tr{}>{}</tr>").format(
                Markup(' class="all"') if self.total and row[0] == self.total else "",
                Markup().join(map(_html_cell, self.columns, row)),
            )
            for row in self.rows
        )
        head = Markup("<thead><tr>{}</tr></thead>\n").format(headings) if heads else ""
        return Markup("<table>\n{}<tbody>\n{}\n</tbody></table>").format(head, body)

    def to_markdown(self) -> str:
        """Return a Markdown table, without caption and notes; `|` and HTML characters are escaped."""
        rules = ["---:" if column.kind == "number" else "---" for column in self.columns]
        rows = [[column.heading for column in self.columns], *self.texts("[{}, {}]")]
        head, *body = [[markdown_text(text) for text in row] for row in rows]
        return "".join(f"| {' | '.join(row)} |\n" for row in [head, rules, *body])

    def print(self, console: Console | None = None, *, lines: bool = True, split: bool = False) -> None:
        """Print the table on a terminal of any width, without truncating values.

        Args:
            console: output. None: standard output.
            lines: whether to print a rule under the headings.
            split: whether to print columns that do not fit as further tables, each with the names of the
                rows. Otherwise, lines that do not fit continue on the next line.
        """
        console = console or Console()
        for part in self._split(console.width) if split else [self]:
            _print_rich(part._rich(lines), console)
        for note in self.notes:
            console.print(escape(note), highlight=False, style="dim")

    def _split(self, width: int) -> Iterator[Table]:
        """Tables with as many columns each as fit next to the names of the rows."""
        texts = [[column.heading for column in self.columns], *self.texts()]
        count = sum(column.names_row for column in self.columns)
        lengths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        named = sum(min(length, width // (2 * count)) + _BETWEEN for length in lengths[:count])
        left = list(range(count, len(self.columns)))
        while left:
            own = (_numbers_width([row[at] for row in texts]) + _BETWEEN for at in left)
            fitting = max(1, sum(end <= width - 1 - named for end in itertools.accumulate(own)))
            chosen = [*range(count), *left[:fitting]]
            yield replace(
                self,
                columns=[self.columns[at] for at in chosen],
                rows=[[row[at] for at in chosen] for row in self.rows],
            )
            left = left[fitting:]

    def _rich(self, lines: bool) -> RichTable:
        table = RichTable(
            title=escape(self.caption) or None, title_justify="left", box=SIMPLE_HEAD if lines else None
        )
        texts = self.texts()
        for at, column in enumerate(self.columns):
            if column.kind == "number":
                width = _numbers_width([column.heading, *(row[at] for row in texts)])
                table.add_column(escape(column.heading), justify="right", min_width=width)
            else:
                table.add_column(escape(column.heading), no_wrap=column.kind == "label", overflow="fold")
        for row in texts:
            style = "bold" if self.total and row[0] == self.total else None
            table.add_row(*map(escape, row), style=style)
        return table


def _numbers_width(texts: Sequence[str]) -> int:
    """Characters of the longest word of a heading, the first text, or of the longest value."""
    heading, *numbers = texts
    return max(_NARROWEST, *map(cell_len, [*heading.split(), *numbers]))


def _print_rich(table: RichTable, console: Console) -> None:
    """Print with names broken within words if the table would be wider than the terminal."""
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


def _least_width(column: RichColumn, cells: Sequence[Measurement]) -> int:
    """Characters of its longest word, and no more than `_SHORTEST` if words may be broken."""
    needed = max(each.maximum if column.no_wrap else each.minimum for each in cells)
    breaks = not column.no_wrap and column.justify == "left"
    return max(min(needed, _SHORTEST) if breaks else needed, column.min_width or 0)


def _html_class(kind: Kind, text: str) -> Markup:
    """Class of a cell at the left; names have none, since they are heads of rows."""
    if kind not in ("text", "verdict"):
        return Markup()
    long = "long" if any(len(word) > _LONG for word in text.split()) else ""
    more = text.replace(" ", "-") if kind == "verdict" else long
    return Markup(' class="{}"').format(f"left {more}".rstrip())


def _html_cell(column: Column, cell: Cell) -> Markup:
    value, note = column.parts(cell)
    if column.names_row:
        return Markup("<th>{}</th>").format(value)
    small = Markup(" <small>{}</small>").format(note) if note else ""
    bar = Markup('<td class="barred">{}</td>').format(_html_bar(column.heading, cell)) if column.bar else ""
    head = Markup(' data-head="{}"').format(column.heading)
    content = Markup("<span>{}{}</span>").format(value, small) if small else value
    return Markup("<td{}{}>{}</td>{}").format(_html_class(column.kind, value), head, content, bar)


def _html_bar(name: str, cell: Cell) -> Markup:
    """A bar from 0 to 1 with a mark at a share and a band over its interval, or empty without a share."""
    if not isinstance(cell, Interval) or math.isnan(cell.value):
        return Markup()
    value, low, high = (f"{100 * end:.1f}" for end in cell)
    band = '<i style="left:{}%;right:calc(100% - {}%)"></i>'
    return Markup('<span class="bar" role="img" aria-label="{} {}">{}<b style="left:{}%"></b></span>').format(
        name, value, Markup("" if math.isnan(cell.low) else band).format(low, high), value
    )


def markdown_text(text: object) -> str:
    """Text that cannot break out of a Markdown table, nor be taken for HTML."""
    return html_escape(str(text).replace("\\", "\\\\"), quote=False).replace("|", "\\|").replace("\n", " ")
