"""Findings on a column of a table: one table of kinds, each with what it says, what to do, and its level.

A `Finding` is a value: its kind, its numbers, and the lines of run.toml that settle it. Reading rejects a
table or warns by findings. `equidp inspect` shows the same ones and writes their lines. To add a kind, add an
entry of `Kind`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any

from equidp.tables.recipe import toml_key, toml_value

USUAL_ROWS_PER_PERSON = 4
"""Proposed maximum of rows per person if nothing is known about people."""


class Level(StrEnum):
    """Consequences of a finding when a table is read."""

    PROBLEM = "problem"
    """The table is rejected until it is settled."""
    DOUBT = "doubt"
    """A warning."""
    HINT = "hint"
    """None. Only `equidp inspect` shows it."""


@dataclass(frozen=True)
class Entry:
    """Words of a kind of findings.

    Templates are filled in from the finding. {rows} is "3 rows", {count} and {of} are numbers, and {share} is
    "3 of 9 rows" if `of` is given. {detail} and {other} are its texts, and {first} is ", the first in row 4"
    if that is known. {lines} are the lines of run.toml that settle it. {text}, {number}, {fold}, {drop} and
    {person} are lines for other answers.

    Attributes:
        says: what the column is found to do, such as "holds one value in all rows".
        advice: consequence, and what to do.
        level: usual level.
        subject: subject of the sentence.
    """

    says: str
    advice: str = ""
    level: Level = Level.DOUBT
    subject: str = "column"


class Kind(Enum):
    """Kinds of findings, with their words."""

    # Cells that are not read as they are written, or that may mean something else.
    ODD_TYPE = Entry(
        "holds values of type {detail}",
        "; expected numbers or texts. Spread it over columns, or drop it ({drop})",
        Level.PROBLEM,
    )
    UNREADABLE = Entry(
        "{detail}, but {count} of its {of} values are not{other}",
        "{first}; say what it holds ({lines}), or correct the file",
    )
    STAND_IN = Entry(
        "holds {detail} in {share}{other}",
        "; if it stands for a missing value, say so ({lines})",
    )
    ABSENT = Entry("holds {detail}, which count as missing{other}", "; if it is a value, say so ({lines})")
    MISSING_TEXT = Entry(
        "holds the text {detail!r} in {rows}, which are one category with those without a value",
        "; if that is meant, say so ({lines})",
    )
    MARKS = Entry(
        "holds numbers with {detail}, in {count} of its {of} values",
        "{other}, taken as categories; say so ({lines})",
    )
    SEVERAL_MARKS = Entry(
        "holds numbers with several marks ({detail})",
        ", which are read as they stand, 12.5% as 12.5; if they measure different things, write them in one "
        "unit, or drop it ({lines})",
    )
    CODES = Entry(
        "{detail} in {rows}",
        "{first}{other}: numbers lose that. If it is a code, as a ZIP code is, say so ({text}); if it is a "
        "number, say that ({number})",
    )
    DATES = Entry(
        "holds {detail}{other}",
        "; say so ({lines}), keep texts ({text}) or numbers ({number}) as they are, or leave it out ({drop}) "
        "and name another column",
    )
    # Values that no model can use, or that a range clips.
    BEYOND = Entry("holds {detail} in {rows}", "; fix them, or settle it ({lines})", Level.PROBLEM)
    OUTSIDE = Entry(
        "holds numbers outside of its public range, {detail}, in {count} of {of} rows",
        ", which count as its nearer end; if not meant, give another range ({lines})",
    )
    # Columns that are no good as inputs, classes or groups.
    SPELLINGS = Entry(
        "has {of} different values, or {count} if capitals, spaces, leading zeros and '.0' at the end do not "
        "count",
        "{other}; if they are the same, say so ({lines}); if they differ, say that ({text})",
        subject="{detail}",
    )
    ROW_NAMES = Entry(
        "holds another {detail} in each of its {count} rows", "; if it names the rows, drop it ({lines})"
    )
    MANY_TEXTS = Entry(
        "holds {of} different texts in {rows}, an input for each",
        ". Names of rows and free texts: drop it ({drop}). Names of people: promise epsilon to them "
        "({person}). Categories, at most 1,000: say so ({text}), in one spelling each ({fold})",
    )
    MANY_CLASSES = Entry(
        "holds {of} different numbers, each a class of its own",
        "; if it measures something, bin it into few classes",
        subject="target",
    )
    EMPTY = Entry("holds {detail}", " ({lines})", Level.HINT)
    RARE = Entry(
        "has {detail}, in {rows}",
        "; metrics may omit them, and no model learns them: correct slips in the file, or merge them with "
        "others",
        Level.HINT,
        "{other}",
    )
    POSITIVE = Entry("holds {detail!r} as the rarer class: the positive one?", " ({lines})", Level.HINT)
    LEAK = Entry(
        "tells the target by itself, with an AUC of {detail}: is it known before the outcome?",
        level=Level.HINT,
    )
    PERSONS = Entry(
        "seems to name people, {of} of them in {rows}",
        ", and is an input. Epsilon holds for one row: a person with several is protected less. Promise it "
        "to people ({person}); if it names none, drop it ({drop})",
    )


@dataclass(frozen=True)
class Finding:
    """Something to know about a column.

    Attributes:
        kind: kind of finding.
        options: (field, value) of run.toml that settle it, together: of the column's section, or drop,
            person, rows_per_person and positive of [table]. (): none does.
        rows: number of rows or values that it concerns.
        of: number of rows or values among which they are.
        detail: a word, code, format or limit, by its kind.
        other: second name, or what else there is. "": none.
        first: first row that it concerns, from 0; -1 if it is not known.
        sure: False if the lines are to be checked first, so that `equidp inspect` does not take them.
        level: consequence for reading the table; by default the usual level of its kind.
    """

    kind: Kind
    options: tuple[tuple[str, str], ...] = ()
    rows: int = 0
    of: int = 0
    detail: str = ""
    other: str = ""
    first: int = -1
    sure: bool = True
    level: Level = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.level is None:
            object.__setattr__(self, "level", self.kind.value.level)

    def settles_by(self, *options: str) -> bool:
        """Return True if one of these fields settles it."""
        return any(option in options for option, _ in self.options)

    def lines(self, column: str) -> str:
        """Return the lines of run.toml that settle it, as `lines` does, or "" without any."""
        return lines(column, self.options)


def lines(column: str, options: Sequence[tuple[str, str]]) -> str:
    """Return lines of run.toml on a column: the section, and then its fields.

    >>> print(lines("lab", (("kind", "number"), ("decimal", ","))))
    [column.lab] kind = "number", decimal = ","
    >>> print(lines("patient's zip", (("drop", ""),)))
    [table] drop = ["patient's zip"]
    """
    if not options:
        return ""
    of_table = options[0][0] in ("drop", "person", "positive")
    section = "[table]" if of_table else f"[column.{toml_key(column)}]"
    return f"{section} {', '.join(_line(column, field, value) for field, value in options)}"


def _line(column: str, field: str, value: str) -> str:
    if field == "range":
        return "range = [LOW, HIGH]"
    if field == "rows_per_person":
        return f"{field} = {value}"
    if (field, value) == ("format", "iso"):
        return 'kind = "date"'
    values: dict[str, Any] = {"drop": [column], "person": column, "fold": True}
    values |= {"missing": [value], "known": [value]}
    return f"{field} = {toml_value(values.get(field, value))}"


def count_phrase(rows: int) -> str:
    """Return a number of rows in words."""
    return f"{rows:,} {'row' if rows == 1 else 'rows'}"


def phrase(found: Finding) -> str:
    """Return what a column does, such as "holds numbers with leading zeros"; name no cell but fixed words."""
    return _fill(found.kind.value.says, found, "")


def sentence(found: Finding, name: str) -> str:
    """Return the warning or the reason against training on this finding, for a column of any name.

    >>> print(sentence(Finding(Kind.EMPTY, (("drop", ""),), detail="one value in all rows"), "country"))
    column 'country' holds one value in all rows ([table] drop = ["country"]).
    """
    entry = found.kind.value
    return f"{_fill(entry.subject, found, name)} {name!r} {phrase(found)}{_fill(entry.advice, found, name)}."


def _fill(template: str, found: Finding, name: str) -> str:
    person = (("person", ""), ("rows_per_person", str(USUAL_ROWS_PER_PERSON)))
    return template.format(
        rows=count_phrase(found.rows),
        count=f"{found.rows:,}",
        of=f"{found.of:,}",
        share=f"{found.rows:,} of {count_phrase(found.of)}" if found.of else count_phrase(found.rows),
        detail=found.detail,
        other=found.other,
        first=f", the first in row {found.first + 1:,}" if found.first >= 0 else "",
        lines=found.lines(name),
        text=lines(name, (("kind", "text"),)),
        number=lines(name, (("kind", "number"),)),
        drop=lines(name, (("drop", ""),)),
        fold=lines(name, (("fold", ""),)),
        person=lines(name, person),
    )
