"""Everything about a table at once: what each column holds, and a recipe that settles what would go wrong."""

from __future__ import annotations

import dataclasses
import json
import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from equidp.data.checks import check_names
from equidp.data.columns import MISSING_TEXTS, folded, texts
from equidp.data.guesses import MANY_CLASSES, fall_together
from equidp.data.inspect_column import RARE_ROWS, ColumnReport, Finding, inspect_column
from equidp.data.plain import BY_COLUMN, as_key
from equidp.data.read import check_read_twice
from equidp.data.recipe import Recipe
from equidp.data.sniff import with_format
from equidp.data.stored import written_whole
from equidp.data.table import problems_of
from equidp.data.understood import understood
from equidp.errors import DataError, DataWarning

PRIVACY_NOTE = (
    "This was read from the table without privacy: it stays in the house. It names columns, counts and "
    f"powers of ten, codes for missing values from a fixed list, and classes and groups of {RARE_ROWS} rows "
    "or more; no other cell of any row."
)
_PEOPLE = re.compile(r"(^|[^a-z])(pid|mrn|person|patient|subject|client|customer|member|user)([^a-z]|$)")
_NAMES_PERSONS = re.compile(rf"(^|[^a-z])(id|ids|nr|no|uuid|key|code)([^a-z]|$)|{_PEOPLE.pattern}")


@dataclass(frozen=True)
class Persons:
    """How the rows belong to people, by a column that names them.

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
    """What `inspect_table` found. It names no cell of a row but for frequent classes and groups.

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
        """Returns why the recipe has a line: by option and column."""
        return {
            (
                finding.option,
                as_key(report.name) if finding.option in BY_COLUMN else report.name,
            ): finding.says
            for report in self.columns
            for finding in report.findings
            if finding.option
        }

    def to_plain(self) -> dict[str, Any]:
        """Returns the report as plain values, for JSON."""
        plain = {**dataclasses.asdict(self), "recipe": self.recipe.to_plain(), "note": PRIVACY_NOTE}
        for column, report in zip(plain["columns"], self.columns, strict=True):
            column["findings"] = [
                {"says": finding.says, "flag": finding.flag(report.name)} for finding in report.findings
            ]
        return plain


def inspect_table(
    path: str | PathLike[str], recipe: Recipe = Recipe(), *, person: str | None = None
) -> TableReport:
    """Reads a whole table without privacy, and returns what to know about it and a recipe for it.

    Finds the separator and the encoding by itself. What the recipe says of a column is taken as it is.

    Args:
        path: a CSV or Parquet file, compressed or not, or a folder of Parquet files.
        recipe: what is known already, such as target and group.
        person: the column that names the person of a row; None: that of the recipe, or looked for.

    Raises:
        DataError: the file cannot be read, or lacks columns that were named.

    >>> path = getfixture("tmp_path") / "people.csv"
    >>> pd.DataFrame({"id": range(200), "lab": ["1,5", "2"] * 100}).to_csv(path, index=False, sep=";")
    >>> inspect_table(path).recipe.to_plain()
    {'drop': ['id'], 'decimal': {'lab': ','}, 'sep': ';'}
    """
    file = Path(path)
    if not file.exists():
        raise DataError(f"there is no file {str(path)!r}; check the path.")
    check_read_twice(file, "equidp inspect finds separator and encoding first")
    with suppress(OSError, ValueError, EOFError):  # read_as_written says why
        recipe = with_format(file, recipe)
    raw, notes = written_whole(file, recipe)
    for note in notes:
        warnings.warn(note, DataWarning, stacklevel=2)
    check_names(raw.columns, {**recipe.named(), "person": [] if person is None else [person]})
    reports = [inspect_column(name, raw[name], recipe) for name in raw.columns]
    persons = _persons(raw, reports, recipe, person)
    reports = [_with_role(report, recipe, persons, len(raw)) for report in reports]
    recipe = _settled(recipe, reports)
    problems: list[str] = []
    if recipe.target and recipe.group:
        kept = [name for name in raw.columns if name not in recipe.drop]
        problems = problems_of(understood(raw[kept], recipe), recipe)
    return TableReport(str(path), len(raw), tuple(reports), recipe, persons, tuple(problems))


def _persons(
    raw: pd.DataFrame, reports: list[ColumnReport], recipe: Recipe, person: str | None
) -> Persons | None:
    """The given column, or one that has many values and a name such as patient_id. One of people whose values
    repeat goes first: others may name rows, such as visits."""
    rows = len(raw)
    guessed = [
        report
        for report in reports
        if _NAMES_PERSONS.search(report.name.lower())
        and report.missing == 0
        and report.distinct > max(1, rows / 50)
        and report.name not in (recipe.target, *recipe.group)
        and "." not in report.span
    ]
    guessed.sort(key=lambda report: not (report.distinct < rows and _PEOPLE.search(report.name.lower())))
    named = (person, recipe.person, *(report.name for report in guessed))
    name = next((each for each in named if each is not None), None)
    if name is None:
        return None
    cells = texts(raw[name]).str.strip()
    cells = cells[~cells.isin(MISSING_TEXTS)].dropna()
    fewer = 0 if name in recipe.fold else fall_together(cells)
    counts = (folded(cells) if name in recipe.fold else cells).value_counts().to_numpy()
    if not len(counts):
        return None
    return Persons(name, len(counts), float(np.mean(counts)), float(np.mean(counts > 1)), fewer)


def _with_role(report: ColumnReport, recipe: Recipe, persons: Persons | None, rows: int) -> ColumnReport:
    """The report of a column, with what follows from its role."""
    found = list(report.findings)
    if report.name == recipe.target:
        if report.missing:
            found.append(Finding(f"missing in {report.missing:,} rows: remove those rows"))
        if report.distinct == len(report.names) == 2 and (recipe.positive, recipe.target_bounds) == (
            None,
            None,
        ):
            rarer = report.names[-1][0]
            name = f"{float(rarer):.12g}" if report.kind == "number" else rarer
            found.append(Finding(f"{name!r} is the rarer class: the positive one?", "positive", name))
        if report.kind == "number" and report.distinct > MANY_CLASSES and recipe.target_bounds is None:
            found.append(
                Finding(
                    f"{report.distinct:,} numbers, each a class: predict it as a number (--task regression "
                    "--target-bounds LOW:HIGH), or bin it"
                )
            )
    if report.name in recipe.group and report.rare:
        found.append(
            Finding(f"groups of fewer than {RARE_ROWS} rows: {report.rare:,}; merge them with others")
        )
    if persons is not None and report.name == persons.column:
        found = [finding for finding in found if finding.option != "drop"]
        if persons.fewer:
            says = (
                f"{persons.fewer:,} of {persons.count:,} differ from others in capitals, spaces or leading "
                "zeros "
                "alone: the same people?"
            )
            role = report.name == recipe.person
            found.append(Finding(says if role else f"{says} Say so (--fold)", "fold" if role else ""))
        if report.name != recipe.person and report.name not in recipe.columns("drop"):
            found.append(Finding("names people", "drop"))
    if any(finding.option == "drop" for finding in found):  # nothing else is worth saying
        found = [finding for finding in found if finding.option in ("", "drop")]
    return dataclasses.replace(report, findings=tuple(found))


def _settled(recipe: Recipe, reports: list[ColumnReport]) -> Recipe:
    """The recipe with what the findings suggest."""
    given: dict[str, Any] = {}
    for report in reports:
        for finding in report.findings:
            if finding.option in ("drop", "categorical", "numeric", "fold"):
                given.setdefault(finding.option, []).append(report.name)
            elif finding.option == "na":
                given.setdefault("na", {}).setdefault(as_key(report.name), []).append(finding.value)
            elif finding.option == "positive":
                given["positive"] = finding.value
            elif finding.option in ("date", "thousands", "decimal"):
                key = report.name if finding.option == "date" else as_key(report.name)
                given.setdefault(finding.option, {})[key] = finding.value
    if "na" in given:
        before = recipe.to_plain().get("na", {})
        stated = {as_key(report.name): before.get(as_key(report.name), []) for report in reports}
        given["na"] = {name: [*stated[name], *texts] for name, texts in given["na"].items()}
    recipe = recipe.with_changes(given)
    kept = [report for report in reports if report.name not in recipe.drop and report.name != recipe.target]
    lacking = any(report.missing or _loses(report) for report in kept)
    return dataclasses.replace(recipe, missing="category") if lacking else recipe


def _loses(report: ColumnReport) -> bool:
    """Tells whether some cells of a column will count as missing."""
    return any(finding.option == "na" or "count as missing" in finding.says for finding in report.findings)


def recipe_toml(report: TableReport) -> str:
    """Returns the recipe of a report as TOML, with the reason for each line."""
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
            why = (
                "some columns lack values"
                if option == "missing"
                else reasons.get((option, report.recipe.target or ""))
            )
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
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
