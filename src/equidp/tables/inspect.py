"""Inspection of a table: findings by column, and the lines of run.toml that settle them.

A column is parsed as a recipe says, by the function that reads tables for training, and its findings settle
the recipe, until nothing is left to settle: what reading by the final recipe would say is shown too.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from equidp._extras import require_extra
from equidp.errors import DataWarning
from equidp.tables.cells import number_text
from equidp.tables.checks import problems_of
from equidp.tables.columns import Columns, check_names, rows_problem
from equidp.tables.copies import copies_sentences, find_copies
from equidp.tables.findings import USUAL_ROWS_PER_PERSON, Finding, Kind, Level, phrase, sentence
from equidp.tables.parse import MANY_CATEGORIES, RARE_ROWS, Parsed, parse
from equidp.tables.positive import named_positive
from equidp.tables.read import notes_of, read, with_format
from equidp.tables.recipe import DATE, TEXT, Recipe, toml_key, toml_value
from equidp.tables.signals import Signal, rank_signals

with require_extra("tables"):
    import pandas as pd
    import pyarrow as pa

PRIVACY_NOTE = (
    "This was read from the table without privacy: it is confidential. It names columns, counts, AUCs, "
    f"powers of ten, codes for missing values from a fixed list, and classes and groups of {RARE_ROWS} rows "
    "or more; no other cell of any row."
)
_DROP = (("drop", ""),)
_MEANING = ("kind", "format", "fold", "missing", "thousands", "decimal")
"""Fields that change what the cells of a column mean, so that it is parsed again."""


@dataclass(frozen=True)
class ColumnReport:
    """One column: how it would be read by the proposed recipe, and what to know about it.

    Attributes:
        name: of the column.
        kind: "number", "category", "date", "text" (too many to be categories), "constant" or "empty".
        missing: rows without a value.
        distinct: number of different values.
        span: powers of ten that numbers lie between, such as "0 to 100"; "" for others.
        findings: what to know, with the lines that settle it.
        names: frequent values and their rows, the most frequent first; of a target or group alone.
        rare: number of values in fewer than `RARE_ROWS` rows.
    """

    name: str
    kind: str
    missing: int = 0
    distinct: int = 0
    span: str = ""
    findings: tuple[Finding, ...] = ()
    names: tuple[tuple[str, int], ...] = ()
    rare: int = 0

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the words for each finding, and the lines that the recipe takes; "" for none."""
        for found in self.findings:
            stated = found.lines(self.name)
            if stated and not found.sure:
                says = phrase(found)
                yield f"{says} If not: {stated}" if says.endswith("?") else f"{says}: check ({stated})", ""
            else:
                yield phrase(found), stated


@dataclass(frozen=True)
class Persons:
    """Rows of people, by a column that names them.

    Attributes:
        column: that names them.
        count: of different names.
        rows_each: rows of a person, on average.
        several: share of the people who have more than one row.
    """

    column: str
    count: int
    rows_each: float
    several: float


@dataclass(frozen=True)
class TableReport:
    """Findings of `inspect_table`. The report names no cell of a row but for frequent classes and groups.

    Attributes:
        path: of the file.
        rows: number of rows.
        columns: one report for each column, in the order of the file.
        recipe: settles all findings that have lines, beside what was given.
        persons: how rows belong to people; None where no column seems to name them.
        problems: what stands in the way of the table with this recipe; empty without target and group.
        notes: sentences on rows that repeat others.
        signals: what each input tells of the target alone, the largest first; empty without a target.
    """

    path: str
    rows: int
    columns: tuple[ColumnReport, ...]
    recipe: Recipe
    persons: Persons | None
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    signals: tuple[Signal, ...] = ()

    def reasons(self) -> dict[tuple[str, str], str]:
        """Return why the recipe has a line: by field and column."""
        return {
            (option, report.name): phrase(found)
            for report in self.columns
            for found in report.findings
            if found.sure
            for option, _ in found.options
        }

    def to_plain(self) -> dict[str, Any]:
        """Return the report as plain values, for JSON."""
        columns = [
            {
                **{name: value for name, value in vars(report).items() if name != "findings"},
                "findings": [{"says": says, "lines": lines} for says, lines in report.lines()],
            }
            for report in self.columns
        ]
        persons = None if self.persons is None else vars(self.persons)
        plain = {**vars(self), "columns": columns, "persons": persons, "recipe": self.recipe.to_plain()}
        plain["signals"] = [vars(each) for each in self.signals]
        return {**plain, "note": PRIVACY_NOTE}


def inspect(
    file: str | PathLike[str], *, recipe: Recipe | str | PathLike[str] | None = None, **options: Any
) -> TableReport:
    """Show what is in a table before it is used, and a recipe that settles it, as `equidp inspect` does.

    Reads the whole table without privacy, finds separator and charset, and shows no cell of a row.

    Args:
        file: a CSV or Parquet file, compressed or not, or a folder of Parquet files.
        recipe: what is known already, or a TOML file that says it.
        options: fields of `Recipe` that override it, such as target, group and person.

    Raises:
        DataError: the file cannot be read, or lacks columns that were named.
        SettingError: an option that cannot be.

    >>> import pandas as pd
    >>> path = getfixture("tmp_path") / "people.csv"
    >>> columns = {"age": [20, 30, 40, 50] * 50, "sex": ["f", "m"] * 100, "ill": ["yes", "no"] * 100}
    >>> pd.DataFrame(columns).to_csv(path, index=False)
    >>> report = inspect(path, target="ill", group="sex")
    >>> report.rows, report.problems
    (200, ())
    """
    if options.get("person") is not None:
        options = {"rows_per_person": USUAL_ROWS_PER_PERSON, **options}
    return inspect_table(file, Recipe.of(recipe, options))


def inspect_table(path: str | PathLike[str], recipe: Recipe = Recipe()) -> TableReport:
    """Read a whole table without privacy, and return what to know about it and a recipe for it.

    Finds the separator and the charset by itself. What the recipe says of a column is taken as it is.

    Args:
        path: a CSV or Parquet file, compressed or not, or a folder of Parquet files.
        recipe: what is known already, such as target and group. Without a column of people, one is looked
            for.

    Raises:
        DataError: the file cannot be read, or lacks columns that were named.

    >>> import pandas as pd
    >>> path = getfixture("tmp_path") / "people.csv"
    >>> pd.DataFrame({"id": range(200), "lab": ["1,5", "2"] * 100}).to_csv(path, index=False, sep=";")
    >>> inspect_table(path).recipe.to_plain()
    {'drop': ['id'], 'sep': ';', 'columns': {'lab': {'decimal': ','}}}
    """
    file = Path(path)
    recipe = with_format(file, recipe)
    cells = read(file, recipe)
    for note in notes_of(cells):
        warnings.warn(note, DataWarning, stacklevel=2)
    names = [name for name in cells.column_names if name]
    check_names(names, recipe.named_columns())
    parsed = {}
    reports = []
    for name in names:
        report, parsed[name] = _settle(name, cells[name], recipe)
        reports.append(report)
    asked = recipe
    recipe, reports = _with_person(recipe, reports)
    reports = [_with_role(report, recipe) for report in reports]
    recipe = _with_options(recipe, {report.name: report.findings for report in reports})
    inputs = [each for each in reports if each.name not in (*recipe.drop, recipe.target)]
    if any(report.missing for report in inputs):
        recipe = replace(recipe, missing="category")
    problems: list[str] = []
    if recipe.target and recipe.group:
        used = Columns.of(cells.select([name for name in names if name not in recipe.drop]), recipe)
        problems = [*rows_problem(cells.num_rows), *problems_of(used, recipe), *_people_problems(used)]
    table = pd.DataFrame({name: each.values for name, each in parsed.items() if each.values is not None})
    signals = rank_signals(table.drop(columns=[name for name in asked.drop if name in table]), recipe)
    reports = _with_leaks(reports, signals)
    return TableReport(
        str(path),
        cells.num_rows,
        tuple(reports),
        recipe,
        _persons(recipe, reports, parsed),
        tuple(problems),
        tuple(copies_sentences(find_copies(table, recipe.person))),
        signals,
    )


def inspect_column(name: str, cells: pa.ChunkedArray, recipe: Recipe) -> ColumnReport:
    """Return what there is to know about a column of `read`.

    >>> report = inspect_column("zip", pa.chunked_array([["01067", "99084"] * 20]), Recipe())
    >>> report.kind, report.findings[0].lines("zip")
    ('category', '[column.zip] kind = "text"')
    """
    return _settle(name, cells, recipe)[0]


def _settle(name: str, cells: pa.ChunkedArray, recipe: Recipe) -> tuple[ColumnReport, Parsed]:
    """Parse a column by its recipe and its own findings, until nothing is left to settle."""
    solved: dict[str, Finding] = {}
    while True:
        parsed = parse(name, cells, recipe)
        left = {phrase(each): each for each in parsed.findings if phrase(each) not in solved}
        if any(each.kind is Kind.UNREADABLE for each in solved.values()):  # they count as missing now
            left = {words: each for words, each in left.items() if each.kind is not Kind.UNREADABLE}
        changes = _changes_of_meaning(left)
        if not changes or name in recipe.drop:
            break
        solved |= changes
        recipe = _with_options(recipe, {name: [*changes.values()]})
    stated = ["drop"] if name in recipe.drop else ["range"] if name in recipe.ranges else []
    findings = [each for each in (solved | left).values() if not each.settles_by(*stated)]
    if name in recipe.drop:
        findings = [each for each in findings if not each.options]
    return _report_of(name, parsed, tuple(findings), recipe), parsed


def _changes_of_meaning(found: Mapping[str, Finding]) -> dict[str, Finding]:
    """Return the findings, by their words, that settle the meaning of a column next."""
    changes = {words: each for words, each in found.items() if each.sure and each.settles_by(*_MEANING)}
    for words, each in changes.items():
        if ("kind", TEXT) in each.options or each.settles_by("format"):  # by itself
            return {words: each}
    crowded = {words: each for words, each in changes.items() if each.kind is Kind.TOO_MANY_TEXTS}
    return {words: each for words, each in changes.items() if words not in crowded} or crowded


def _report_of(name: str, parsed: Parsed, found: tuple[Finding, ...], recipe: Recipe) -> ColumnReport:
    """Return the report of a column from its final values."""
    if parsed.values is None:
        return ColumnReport(name, "text", findings=found)
    kinds, counts = {each.kind for each in found}, parsed.values.value_counts()
    if parsed.numeric:
        kind = "date" if recipe.column(name).kind == DATE else "number"
    else:
        counts = counts[counts > 0]
        kind = "text" if kinds & {Kind.TOO_MANY_TEXTS, Kind.ROW_NAMES, Kind.FREE_TEXT} else "category"
    if Kind.EMPTY in kinds:
        kind = "constant" if len(counts) else "empty"
    span = ""
    if kind == "number" and len(counts) and not kinds & {Kind.BEYOND, Kind.ROW_NAMES}:
        span = f"{_decade(counts.index.min(), -1)} to {_decade(counts.index.max(), 1)}"
    names: list[tuple[str, int]] = []
    labels = recipe.roles_of(name) & {"target", "group"}
    if labels:
        frequent = counts[counts >= RARE_ROWS][:MANY_CATEGORIES]
        named = map(number_text, frequent.index) if parsed.numeric else frequent.index
        names = list(zip(named, map(int, frequent), strict=True))
    rare = int((counts < RARE_ROWS).sum()) if kind == "category" or labels else 0
    missing = int(parsed.values.isna().sum())
    return ColumnReport(name, kind, missing, len(counts), span, found, tuple(names), rare)


def _decade(value: float, towards: int) -> str:
    """The next power of ten below (towards=-1) or above (1), or 0: it tells no row's value."""
    if value == 0:
        return "0"
    outwards = (value > 0) == (towards > 0)
    power = math.log10(abs(value))
    tens = 10.0 ** (math.ceil(power) if outwards else math.floor(power))
    if abs(value) < 1:
        tens = 1.0 if outwards else 0.0
    return f"{math.copysign(tens, value) if tens else 0:,.0f}"


def _with_person(recipe: Recipe, reports: list[ColumnReport]) -> tuple[Recipe, list[ColumnReport]]:
    """Return the recipe with the first column that names people with several rows, if one does for sure."""
    named = [
        report.name
        for report in reports
        if report.name not in recipe.drop
        and any(each.kind is Kind.PERSONS and each.sure for each in report.findings)
    ]
    if recipe.person is not None or not named:
        return recipe, reports
    person = {"person": named[0], "rows_per_person": USUAL_ROWS_PER_PERSON}
    further = [
        replace(report, findings=tuple(each for each in report.findings if each.kind is not Kind.PERSONS))
        if report.name in named[1:]
        else report
        for report in reports
    ]
    return recipe.with_changes(person), further


def _persons(recipe: Recipe, reports: Sequence[ColumnReport], parsed: Mapping[str, Parsed]) -> Persons | None:
    """Return rows by person: by the recipe's column, one that may name people, or one that names rows."""
    kinds = (Kind.PERSONS, Kind.ROW_NAMES)
    found = (each.name for kind in kinds for each in reports if any(f.kind is kind for f in each.findings))
    name = recipe.person or next(found, None)
    if name is None or (values := parsed[name].values) is None:
        return None
    counts = values.value_counts().to_numpy()
    counts = counts[counts > 0]
    if not len(counts):
        return None
    return Persons(name, len(counts), float(counts.mean()), float(np.mean(counts > 1)))


def _with_leaks(reports: Sequence[ColumnReport], signals: Sequence[Signal]) -> list[ColumnReport]:
    """Return the reports, with a finding on each column that tells the target by itself."""
    told = {each.column: f"{each.auc:.3f}" for each in signals if each.suspicious}
    leaks = {name: Finding(Kind.LEAK, _DROP, detail=auc, sure=False) for name, auc in told.items()}
    return [
        replace(report, findings=(*report.findings, leaks[report.name])) if report.name in leaks else report
        for report in reports
    ]


def _people_problems(read: Columns) -> list[str]:
    """Return a sentence for each input that may name people: what is protected must be said."""
    doubts = read.findings(Level.DOUBT)
    return [sentence(found, name) for name, found in doubts if found.kind is Kind.PERSONS]


def _with_role(report: ColumnReport, recipe: Recipe) -> ColumnReport:
    """Return the report of a column, with what follows from its role."""
    found = list(report.findings)
    if report.name == recipe.target:
        classes = [name for name, _ in report.names]
        two = report.distinct == len(classes) == 2
        if recipe.positive is None and two and named_positive(classes) is None:
            found.append(Finding(Kind.POSITIVE, (("positive", classes[-1]),), detail=classes[-1]))
    if report.name == recipe.person:
        found = [each for each in found if not each.settles_by("drop")]
    if any(each.sure and each.settles_by("drop") for each in found):  # nothing else is worth saying
        found = [each for each in found if not each.options or (each.sure and each.settles_by("drop"))]
    return replace(report, findings=tuple(found))


def _with_options(recipe: Recipe, findings: Mapping[str, Sequence[Finding]]) -> Recipe:
    """Return the recipe with the lines of all findings that need no check, by column."""
    given: dict[str, Any] = {"drop": [], "columns": {}}
    for name, found in findings.items():
        missing = [*recipe.column(name).missing]
        for option, value in (each for one in found if one.sure for each in one.options):
            if option == "drop":
                given["drop"].append(name)
            elif option == "positive":
                given["positive"] = value
            elif option not in ("range", "person", "rows_per_person"):
                missing += [value] if option == "missing" and value not in missing else []
                stated = {"missing": missing, "fold": True}.get(option, value)
                given["columns"].setdefault(name, {})[option] = stated
    return recipe.with_changes(given)


_REASONS = {
    "missing": "some columns lack values",
    "rows_per_person": "at most so many rows of a person are trained on; a public number",
}
"""Reasons for lines of [table] that no column has."""


def recipe_toml(report: TableReport) -> str:
    """Return [table] and [column.NAME] of a report, with the reason for each line."""
    plain, reasons = report.recipe.to_plain(), report.reasons()
    columns = plain.pop("columns", {})
    lines = [
        f"# How equidp reads {Path(report.path).name}. Look through it: all of it counts as public.",
        "",
        "[table]",
    ]
    for option, example in (("target", '"COLUMN"'), ("group", '["COLUMN"]')):
        if option not in plain:
            lines.append(f"# {option} = {example}  # to be named")
    for option, value in plain.items():
        if option == "drop":
            lines.append(f"{option} = [")
            lines += [f"    {toml_value(name)},{_comment(reasons.get((option, name)))}" for name in value]
            lines.append("]")
        else:
            column = value if option == "person" else report.recipe.target or ""
            why = _REASONS.get(option) or reasons.get((option, column))
            lines.append(f"{option} = {toml_value(value)}{_comment(why)}")
    if report.recipe.person is None:
        lines += _people_to_check(report)
    for name, stated in columns.items():
        lines += ["", f"[column.{toml_key(name)}]"]
        for option, value in stated.items():
            why = reasons.get(("format" if value == DATE else option, name))
            lines.append(f"{option} = {toml_value(value)}{_comment(why)}")
    return "\n".join([*lines, ""])


def _people_to_check(report: TableReport) -> list[str]:
    """Return commented lines for a column that may name people with several rows each."""
    for column in report.columns:
        for found in column.findings:
            if found.kind is Kind.PERSONS:
                return [
                    f"# person = {toml_value(column.name)}{_comment(phrase(found))}: epsilon holds for a row "
                    "until you say so",
                    f"# rows_per_person = {USUAL_ROWS_PER_PERSON}",
                ]
    return []


def _comment(why: str | None) -> str:
    return "" if why is None else f"  # {why}"
