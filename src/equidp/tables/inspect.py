"""Inspection of a table: findings by column, and a recipe that settles them.

A column is read as a recipe says, by the functions that read tables for training, and its findings settle the
recipe, until nothing is left to settle: what reading by the final recipe would say is shown too.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from equidp._extras import require_extra
from equidp.errors import DataError, DataWarning
from equidp.tables.cells import is_time, number_text
from equidp.tables.checks import (
    MANY_CATEGORIES,
    MANY_CLASSES,
    MOST_ROWS_OF_ONE,
    RARE_ROWS,
    decisive_findings,
    fall_together,
    may_name_people,
    noun_of_dates,
    other_order,
    problems_of,
    table_findings,
    value_findings,
    value_hints,
    written_dates,
)
from equidp.tables.columns import check_names, interpret_cells, rows_problem
from equidp.tables.findings import USUAL_ROWS_PER_PERSON, Finding, Kind, Level, names_people, phrase
from equidp.tables.interpret import ColumnRecipe, Floats, Values, date_options, examine, interpret
from equidp.tables.positive import named_positive
from equidp.tables.read import Cells, check_read_twice, read_cells, with_format
from equidp.tables.recipe import BY_COLUMN, Recipe, as_key

with require_extra("tables"):
    import pandas as pd

_MEANING = ("categorical", "numeric", "date", "fold", "na", "thousands", "decimal")
"""Options that change what the cells of a column mean, so that it is read again."""
_DECISIVE = ("categorical", "date")
"""Options of which one settles a column's meaning by itself."""


@dataclass(frozen=True)
class ColumnReport:
    """One column: how it would be read by the proposed recipe, and what to know about it.

    Attributes:
        name: of the column.
        kind: "number", "category", "date", "text" (too many to be categories), "constant" or "empty".
        missing: rows without a value.
        distinct: number of different values.
        span: powers of ten that numbers lie between, such as "0 to 100"; "" for others.
        findings: what to know, with the options that settle it.
        names: frequent values and their rows, the most frequent first; of a target or group alone.
        rare: number of values in fewer than `RARE_ROWS` rows.
    """

    name: str
    kind: str
    missing: int
    distinct: int
    span: str = ""
    findings: tuple[Finding, ...] = ()
    names: tuple[tuple[str, int], ...] = field(default=(), kw_only=True)
    rare: int = field(default=0, kw_only=True)

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the words for each finding, and the option that the recipe takes; "" for none."""
        for found in self.findings:
            flags = found.flags(self.name)
            if flags and not found.sure:
                yield f"{phrase(found)}: check ({flags})", ""
            else:
                yield phrase(found), flags


def inspect_column(name: str, column: pd.Series, recipe: Recipe) -> ColumnReport:
    """Return what there is to know about a column of `Cells`.

    >>> report = inspect_column("zip", pd.Series(["01067", "99084"] * 20), Recipe())
    >>> report.kind, report.findings[0].flags("zip")
    ('category', '--categorical zip')
    """
    solved: dict[str, Finding] = {}
    while True:
        rules = ColumnRecipe.of(name, recipe)
        values, found = _read_column(column, rules)
        left = {phrase(each): each for each in found if phrase(each) not in solved}
        changes = _changes_of_meaning(left)
        if not changes or name in recipe.drop:
            break
        solved |= changes
        recipe = _with_options(recipe, {name: list(changes.values())})
    stated = [option for option in ("drop", "bounds") if name in recipe.columns(option)]
    findings = [each for each in (solved | left).values() if not each.settles_by(*stated)]
    if name in recipe.drop:
        findings = [each for each in findings if not each.options]
    return _report_of(name, len(column), values, findings, rules)


def _changes_of_meaning(found: Mapping[str, Finding]) -> dict[str, Finding]:
    """Return the findings, by their words, that settle the meaning of a column next."""
    changes = {words: each for words, each in found.items() if each.sure and each.settles_by(*_MEANING)}
    for words, each in changes.items():
        if each.settles_by(*_DECISIVE):
            return {words: each}
    crowded = {words: each for words, each in changes.items() if each.kind is Kind.TOO_MANY_TEXTS}
    return {words: each for words, each in changes.items() if words not in crowded} or crowded


def _read_column(column: pd.Series, rules: ColumnRecipe) -> tuple[Floats | Values | None, list[Finding]]:
    """Return the values of a column by its recipe, None where it cannot be used, and all findings on it."""
    numbers, evidence = examine(column, rules)
    meaning = interpret(evidence, rules)
    found = list(meaning.findings)
    if meaning.unusable:
        return None, [_with_format(each, column, rules) for each in found]
    values: Floats | Values | None = numbers if meaning.numeric else None
    if values is None:
        values = Values.of(column, rules).group_texts()
    for findings in (value_findings, value_hints):
        found += findings(values, meaning.absent, rules)
    return values, found


def _with_format(found: Finding, column: pd.Series, rules: ColumnRecipe) -> Finding:
    """Return a finding on dates with the format in which the texts of a column are written."""
    if is_time(column) or found.kind is not Kind.DATES or not found.settles_by("date"):
        return found
    known = Values.of(column, rules).group_texts()
    form = written_dates(known.text, known.rows)
    if form is None:
        return dataclasses.replace(found, sure=False)
    options, other = date_options(form, rules), other_order(known.text, known.rows, form)
    return dataclasses.replace(found, options=options, detail=noun_of_dates(form), other=other)


def _report_of(
    name: str, rows: int, values: Floats | Values | None, found: Sequence[Finding], rules: ColumnRecipe
) -> ColumnReport:
    """Return the report of a column from its final values."""
    kinds = {each.kind for each in found}
    labels = bool(rules.roles & {"target", "group"})
    if values is None:
        return ColumnReport(name, "text", 0, 0, findings=tuple(found))
    names: list[str]
    if isinstance(values, Values):
        counts, missing = values.rows, rows - int(values.rows.sum())
        names = values.text[: MANY_CATEGORIES + 1].tolist() if labels else []
        kind, span = "text" if kinds & {Kind.TOO_MANY_TEXTS, Kind.ROW_NAMES} else "category", ""
    else:
        known = values[~np.isnan(values)]
        missing = rows - len(known)
        numbers, counts = np.unique(known, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        numbers, counts = numbers[order], counts[order]
        names = [number_text(value) for value in numbers[: MANY_CATEGORIES + 1].tolist()] if labels else []
        kind = "number" if rules.form is None else "date"
        plain = kind == "number" and len(known) and not kinds & {Kind.INFINITE, Kind.BEYOND, Kind.ROW_NAMES}
        span = f"{_decade(known.min(), -1)} to {_decade(known.max(), 1)}" if plain else ""
    for special, word in ((Kind.EMPTY, "empty"), (Kind.CONSTANT, "constant")):
        if special in kinds:
            kind, span = word, ""
    frequent = [(each, int(count)) for each, count in zip(names, counts, strict=False) if count >= RARE_ROWS]
    rare = int((counts < RARE_ROWS).sum()) if kind == "category" or labels else 0
    return ColumnReport(
        name,
        kind,
        missing,
        len(counts),
        span,
        tuple(found),
        names=tuple(frequent[:MANY_CATEGORIES]),
        rare=rare,
    )


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


PRIVACY_NOTE = (
    "This was read from the table without privacy: it is confidential. It names columns, counts and "
    f"powers of ten, codes for missing values from a fixed list, and classes and groups of {RARE_ROWS} rows "
    "or more; no other cell of any row."
)
_NAMES_ROWS = re.compile(r"(^|[^a-z])(id|ids|nr|no|uuid|key|code)([^a-z]|$)")


@dataclass(frozen=True)
class Persons:
    """Rows of people, by a column that names them.

    Attributes:
        column: that names them.
        count: of different names.
        rows_each: rows of a person, on average.
        several: share of the people who have more than one row.
        fewer: different names that there would be less without capitals, spaces and leading zeros.
    """

    column: str
    count: int
    rows_each: float
    several: float
    fewer: int = 0


@dataclass(frozen=True)
class TableReport:
    """Findings of `inspect_table`. The report names no cell of a row but for frequent classes and groups.

    Attributes:
        path: of the file.
        rows: number of rows.
        columns: one report for each column, in the order of the file.
        recipe: settles all findings that have an option, beside what was given.
        persons: how rows belong to people; None where no column seems to name them.
        problems: what stands in the way of the table with this recipe; empty without target and group.
    """

    path: str
    rows: int
    columns: tuple[ColumnReport, ...]
    recipe: Recipe
    persons: Persons | None
    problems: tuple[str, ...]

    def reasons(self) -> dict[tuple[str, str], str]:
        """Return why the recipe has a line: by option and column."""
        return {
            (option, as_key(report.name) if option in BY_COLUMN else report.name): phrase(found)
            for report in self.columns
            for found in report.findings
            if found.sure
            for option, _ in found.options
        }

    def to_plain(self) -> dict[str, Any]:
        """Return the report as plain values, for JSON."""
        plain = {**dataclasses.asdict(self), "recipe": self.recipe.to_plain(), "note": PRIVACY_NOTE}
        for column, report in zip(plain["columns"], self.columns, strict=True):
            column["findings"] = [{"says": says, "flag": flags} for says, flags in report.lines()]
        return plain


def inspect_table(path: str | PathLike[str], recipe: Recipe = Recipe()) -> TableReport:
    """Read a whole table without privacy, and return what to know about it and a recipe for it.

    Finds the separator and the charset by itself. What the recipe says of a column is taken as it is.

    Args:
        path: a CSV or Parquet file, compressed or not, or a folder of Parquet files.
        recipe: what is known already, such as target and group. Without a column of people, one is looked
            for.

    Raises:
        DataError: the file cannot be read, or lacks columns that were named.

    >>> path = getfixture("tmp_path") / "people.csv"
    >>> pd.DataFrame({"id": range(200), "lab": ["1,5", "2"] * 100}).to_csv(path, index=False, sep=";")
    >>> inspect_table(path).recipe.to_plain()
    {'drop': ['id'], 'decimal': {'lab': ','}, 'sep': ';'}
    """
    file = Path(path)
    if not file.exists():
        raise DataError(f"there is no file {str(path)!r}; check the path.", field="path")
    check_read_twice(file, "equidp inspect finds separator and charset first")
    with suppress(OSError, ValueError, EOFError):  # read_cells says why
        recipe = with_format(file, recipe)
    cells = read_cells(file, recipe)
    for note in cells.notes:
        warnings.warn(note, DataWarning, stacklevel=2)
    check_names(cells.names, recipe.columns_by_option())
    reports = [inspect_column(name, cells.series(name), recipe) for name in cells.names]
    persons = _persons(cells, reports, recipe)
    proposed = _proposed_person(persons, recipe)
    if proposed is not None:
        recipe = recipe.with_changes({"person": proposed, "rows_per_person": USUAL_ROWS_PER_PERSON})
        people = inspect_column(proposed, cells.series(proposed), recipe)
        reports = [people if report.name == proposed else report for report in reports]
    reports = [_with_role(report, recipe, persons, proposed) for report in reports]
    recipe = _with_options(recipe, {report.name: report.findings for report in reports})
    if any(
        report.missing
        for report in reports
        if report.name not in recipe.drop and report.name != recipe.target
    ):
        recipe = dataclasses.replace(recipe, missing="category")
    problems: list[str] = []
    if recipe.target:
        used = [name for name in cells.names if name not in recipe.drop]
        read = interpret_cells(cells, recipe, used)
        decisive = dict(decisive_findings(read, recipe))
        reports = [
            dataclasses.replace(report, findings=(*report.findings, decisive[report.name]))
            if report.name in decisive
            else report
            for report in reports
        ]
        if recipe.group:
            problems += rows_problem(cells.rows)
            problems += problems_of(read, recipe, table_findings(read, recipe))
    return TableReport(str(path), cells.rows, tuple(reports), recipe, persons, tuple(problems))


def _persons(cells: Cells, reports: list[ColumnReport], recipe: Recipe) -> Persons | None:
    """Return rows by person, by the recipe's column, or one with many values and a name such as patient_id.

    One of people whose values repeat goes first: others may name rows, such as visits.
    """
    rows = cells.rows
    guessed = [
        report
        for report in reports
        if (names_people(report.name) or _NAMES_ROWS.search(report.name.lower()))
        and report.missing == 0
        and report.distinct > max(1, rows / MOST_ROWS_OF_ONE)
        and report.name not in (recipe.target, *recipe.group)
        and "." not in report.span
    ]
    guessed.sort(key=lambda report: not (report.distinct < rows and names_people(report.name)))
    named = (recipe.person, *(report.name for report in guessed))
    name = next((each for each in named if each is not None), None)
    if name is None:
        return None
    values = Values.of(cells.series(name), ColumnRecipe.of(name, recipe)).group_texts()
    counts, fewer = values.rows, 0 if name in recipe.fold else fall_together(values.text)
    if not len(counts):
        return None
    return Persons(name, len(counts), float(np.mean(counts)), float(np.mean(counts > 1)), fewer)


def _proposed_person(persons: Persons | None, recipe: Recipe) -> str | None:
    """Return the column to promise epsilon to the people of: some have several rows, and its name says so."""
    if persons is None or not persons.several or recipe.person is not None:
        return None
    return persons.column if may_name_people(persons.column) and persons.column not in recipe.drop else None


def _with_role(
    report: ColumnReport, recipe: Recipe, persons: Persons | None, proposed: str | None
) -> ColumnReport:
    """The report of a column, with what follows from its role."""
    found = list(report.findings)
    if report.name == recipe.target:
        if report.missing:
            found.append(Finding(Kind.ABSENT_TARGET, Level.HINT, rows=report.missing))
        classes = [name for name, _ in report.names]
        two = report.distinct == len(classes) == 2
        if recipe.positive is None and two and named_positive(classes) is None:
            rarer = classes[-1]
            found.append(Finding(Kind.POSITIVE, Level.HINT, (("positive", rarer),), detail=rarer))
    if report.name in recipe.group and report.rare:
        found.append(Finding(Kind.RARE_GROUPS, Level.HINT, rows=report.rare, detail=str(RARE_ROWS)))
    elif report.name == recipe.target and report.rare and report.distinct <= MANY_CLASSES:
        found.append(Finding(Kind.RARE_CLASSES, Level.HINT, rows=report.rare, detail=str(RARE_ROWS)))
    names_persons = persons is not None and report.name == persons.column
    if names_persons:
        found = [each for each in found if not each.settles_by("drop")]
        if report.name == proposed:
            options = (("person", ""), ("rows_per_person", str(USUAL_ROWS_PER_PERSON)))
            found.append(Finding(Kind.PERSONS, Level.HINT, options))
        elif report.name != recipe.person and report.name not in recipe.drop:
            found.append(Finding(Kind.PERSONS, Level.HINT, (("drop", ""),)))
    if any(each.sure and each.settles_by("drop") for each in found):  # nothing else is worth saying
        found = [each for each in found if not each.options or (each.sure and each.settles_by("drop"))]
    if names_persons and persons is not None and persons.fewer and report.name != recipe.person:
        left = persons.count - persons.fewer
        fold = (("fold", ""),)
        found.append(Finding(Kind.SPELLINGS, Level.HINT, fold, False, left, persons.count, detail="person"))
    return dataclasses.replace(report, findings=tuple(found))


def _with_options(recipe: Recipe, findings: Mapping[str, Sequence[Finding]]) -> Recipe:
    """Return the recipe with the options of all findings that need no check, by column."""
    given: dict[str, Any] = {}
    for name, found in findings.items():
        for option, value in (each for one in found if one.sure for each in one.options):
            if option == "na":
                stated = recipe.to_plain().get("na", {}).get(as_key(name), [])
                given.setdefault("na", {}).setdefault(as_key(name), [*stated]).append(value)
            elif option == "positive":
                given["positive"] = value
            elif option in ("date", "thousands", "decimal"):
                given.setdefault(option, {})[name if option == "date" else as_key(name)] = value
            elif option not in ("bounds", "person", "rows_per_person") and name not in given.setdefault(
                option, []
            ):
                given[option].append(name)
    return recipe.with_changes(given)


_OF_PERSON = ("person", "rows_per_person")

_REASONS = {
    "missing": "some columns lack values",
    "rows_per_person": "at most so many rows of a person are trained on; a public number",
}
"""Reasons for lines of a recipe that no column has."""


def recipe_toml(report: TableReport) -> str:
    """Return the recipe of a report as TOML, with the reason for each line."""
    plain, reasons = report.recipe.to_plain(), report.reasons()
    lines = [f"# How equidp reads {Path(report.path).name}. Look through it: all of it counts as public.", ""]
    for option, example in (("target", '"COLUMN"'), ("group", '["COLUMN"]')):
        if option not in plain:
            lines.append(f"# {option} = {example}  # to be named")
    tables = {option: value for option, value in plain.items() if isinstance(value, Mapping)}
    for option, value in plain.items():
        if option in tables:
            continue
        if isinstance(value, list) and option != "group":
            lines.append(f"{option} = [")
            lines += [f"    {_toml(name)},{_comment(reasons.get((option, name)))}" for name in value]
            lines.append("]")
        else:
            column = value if option == "person" else report.recipe.target or ""
            why = _REASONS.get(option) or reasons.get((option, column))
            lines.append(f"{option} = {_toml(value)}{_comment(why)}")
    for option, values in tables.items():
        lines += ["", f"[{option}]"]
        for name, value in values.items():
            lines.append(f"{_toml(name)} = {_toml(value)}{_comment(reasons.get((option, name)))}")
    far = [(name, why) for (option, name), why in reasons.items() if option == "bounds"]
    if far:
        lines += ["", "# [bounds]  # public ranges: what you know, not what you see"]
        lines += [
            f"# {_toml(name)} = [LOW, HIGH]{_comment(why)}"
            for name, why in far
            if name not in tables.get("bounds", {})
        ]
    return "\n".join([*lines, ""])


def _comment(why: str | None) -> str:
    return "" if why is None else f"  # {why}"


def _toml(value: Any) -> str:
    """A value as TOML; a text with the escapes of JSON, which are TOML's."""
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else repr(value)
