"""Inspection of a table: findings by column, and the lines of run.toml that settle them.

A column is parsed by a recipe, with the function that reads tables for training. Its findings settle the
recipe, until nothing is left to settle. Findings from reading by the final recipe are shown too.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from equidp._extras import require_extra
from equidp.errors import DataWarning
from equidp.tables.cells import number_text
from equidp.tables.checks import problems_of
from equidp.tables.columns import Columns, check_names, rows_problem
from equidp.tables.copies import find_copies
from equidp.tables.findings import USUAL_ROWS_PER_PERSON, Finding, Kind, Level, phrase, sentence
from equidp.tables.parse import MANY_CATEGORIES, RARE_ROWS, Parsed, parse
from equidp.tables.positive import named_positive
from equidp.tables.read import notes_of, read, with_format
from equidp.tables.recipe import DATE, Recipe, toml_key, toml_value
from equidp.tables.signals import Signal, rank_signals

with require_extra("tables"):
    import pandas as pd
    import pyarrow as pa

PRIVACY_NOTE = (
    "This was read from the table without privacy: it is confidential. It names columns, counts, AUCs, "
    f"codes for missing values from a fixed list, and classes and groups of {RARE_ROWS} rows "
    "or more; no other cell of any row."
)
_DROP = (("drop", ""),)
_MEANING = ("kind", "format", "fold", "missing", "thousands", "decimal")
"""Fields that change what the cells of a column mean, so that it is parsed again."""


@dataclass(frozen=True)
class ColumnReport:
    """One column: how it would be read by the proposed recipe, and what to know about it.

    Attributes:
        name: name of the column.
        kind: "number", "category", "date", "text" (too many to be categories), "constant" or "empty".
        missing: rows without a value.
        distinct: number of different values.
        findings: what to know, with the lines that settle it.
        names: frequent values and their rows, the most frequent first; only for a target or group.
        rare: number of values in fewer than `RARE_ROWS` rows.
    """

    name: str
    kind: str
    missing: int = 0
    distinct: int = 0
    findings: tuple[Finding, ...] = ()
    names: tuple[tuple[str, int], ...] = ()
    rare: int = 0

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the words for each finding, and the lines that the recipe takes, or "" for none."""
        for found in self.findings:
            stated = found.lines(self.name)
            if stated and not found.sure:
                says = phrase(found)
                yield f"{says} If not: {stated}" if says.endswith("?") else f"{says}: check ({stated})", ""
            else:
                yield phrase(found), stated


@dataclass(frozen=True)
class TableReport:
    """Findings on a table. The report names no cell of a row, except frequent classes and groups.

    Attributes:
        path: path of the file.
        rows: number of rows.
        columns: one report for each column, in the order of the file.
        recipe: settles all findings that have lines, in addition to what was given.
        problems: what prevents using the table with this recipe, or empty without target and group.
        notes: sentences on rows that repeat others.
        signals: what each input by itself tells about the target, the largest first, or empty without a
            target.
    """

    path: str
    rows: int
    columns: tuple[ColumnReport, ...]
    recipe: Recipe
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
        signals = [vars(each) for each in self.signals]
        plain = {**vars(self), "columns": columns, "recipe": self.recipe.to_plain(), "signals": signals}
        return {**plain, "note": PRIVACY_NOTE}


def inspect(
    file: str | PathLike[str], *, recipe: Recipe | str | PathLike[str] | None = None, **options: Any
) -> TableReport:
    """Show the contents of a table before it is used, and propose a recipe, as `equidp inspect` does.

    It reads the whole table without privacy, detects separator and charset, and shows no cell of a row. If no
    person column is named, it looks for one.

    Args:
        file: a CSV or Parquet file, compressed or not, or a folder of Parquet files.
        recipe: what you know already, or a TOML file with it.
        options: fields of `Recipe` that override it, such as target, group and person.

    Raises:
        DataError: the file cannot be read, or lacks columns that were named.
        SettingError: an option is invalid.

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
    """Show what `inspect` does, by a recipe: what that says of a column is taken as it is."""
    file = Path(path)
    recipe = with_format(file, recipe)
    cells = read(file, recipe)
    for note in notes_of(cells):
        warnings.warn(note, DataWarning, stacklevel=2)
    names = [name for name in cells.column_names if name]
    check_names(names, recipe.named_columns())
    parsed, findings = {}, {}
    for name in names:
        parsed[name], findings[name] = _settle(name, cells[name], recipe)
    table = pd.DataFrame({name: each.values for name, each in parsed.items() if each.values is not None})
    asked = recipe
    recipe = _with_person(recipe, findings)
    signals = rank_signals(table.drop(columns=list(asked.drop), errors="ignore"), recipe)
    for each in signals:
        if each.suspicious:
            findings[each.column].append(Finding(Kind.LEAK, _DROP, detail=f"{each.auc:.3f}", sure=False))
    reports = [_report_of(name, parsed[name], findings[name], recipe) for name in names]
    recipe = _with_lines(recipe, {report.name: report.findings for report in reports})
    if any(each.missing for each in reports if each.name not in (*recipe.drop, recipe.target)):
        recipe = replace(recipe, missing="category")
    problems: list[str] = []
    if recipe.target and recipe.group:
        used = Columns.of(cells.select([name for name in names if name not in recipe.drop]), recipe)
        doubts = used.findings(Level.DOUBT)
        people = [sentence(each, name) for name, each in doubts if each.kind is Kind.PERSONS]
        problems = [*rows_problem(cells.num_rows), *problems_of(used, recipe), *people]
    return TableReport(
        str(path),
        cells.num_rows,
        tuple(reports),
        recipe,
        tuple(problems),
        tuple(each.sentence() for each in find_copies(table, recipe.person)),
        signals,
    )


def _settle(name: str, cells: pa.ChunkedArray, recipe: Recipe) -> tuple[Parsed, list[Finding]]:
    """Parse a column by its recipe and its own findings, until no finding changes what its cells mean."""
    settled: dict[str, Finding] = {}
    while True:
        parsed = parse(name, cells, recipe)
        left = {phrase(each): each for each in parsed.findings if phrase(each) not in settled}
        if any(each.kind is Kind.UNREADABLE for each in settled.values()):  # they count as missing now
            left = {says: each for says, each in left.items() if each.kind is not Kind.UNREADABLE}
        changes = ((says, each) for says, each in left.items() if each.sure and each.settles_by(*_MEANING))
        says, change = next(changes, ("", None))
        if change is None or name in recipe.drop:
            break
        settled[says] = change
        recipe = _with_lines(recipe, {name: [change]})
    return parsed, [*settled.values(), *left.values()]


def _with_person(recipe: Recipe, findings: dict[str, list[Finding]]) -> Recipe:
    """Return the recipe with the first column that names people with several rows, if one does for sure.

    No other column is then said to name them.
    """
    named = [
        name
        for name, each in findings.items()
        if name not in recipe.drop and any(found.kind is Kind.PERSONS and found.sure for found in each)
    ]
    if recipe.person is not None or not named:
        return recipe
    for name in named[1:]:
        findings[name] = [each for each in findings[name] if each.kind is not Kind.PERSONS]
    return recipe.with_changes({"person": named[0], "rows_per_person": USUAL_ROWS_PER_PERSON})


def _report_of(name: str, parsed: Parsed, found: list[Finding], recipe: Recipe) -> ColumnReport:
    """Return the report of a column from its final values, with the findings that its role leaves."""
    stated = ["drop"] if name in recipe.drop else ["range"] if name in recipe.ranges else []
    found = [
        each for each in found if not each.settles_by(*stated) and not (name in recipe.drop and each.options)
    ]
    if name == recipe.person:
        found = [each for each in found if not each.settles_by("drop")]
    if any(each.sure and each.settles_by("drop") for each in found):  # little else is worth saying
        found = [
            each
            for each in found
            if each.kind is Kind.LEAK or not each.options or (each.sure and each.settles_by("drop"))
        ]
    if parsed.values is None:
        return ColumnReport(name, "text", findings=tuple(found))
    counts = parsed.values.value_counts()
    counts = counts[counts > 0]
    kinds = {each.kind for each in found}
    if Kind.EMPTY in kinds:
        kind = "constant" if len(counts) else "empty"
    elif parsed.numeric:
        kind = (
            "date"
            if any(each.settles_by("format") for each in found) or recipe.column(name).kind == DATE
            else "number"
        )
    else:
        kind = "text" if kinds & {Kind.MANY_TEXTS, Kind.ROW_NAMES} else "category"
    labels = recipe.roles_of(name) & {"target", "group"}
    frequent = counts[counts >= RARE_ROWS][:MANY_CATEGORIES] if labels else counts[:0]
    texts = map(number_text, frequent.index) if parsed.numeric else frequent.index
    names = tuple(zip(texts, map(int, frequent), strict=True))
    classes = [each for each, _ in names] if len(counts) == 2 and name == recipe.target else []
    if len(classes) == 2 and recipe.positive is None and named_positive(classes) is None:
        found.append(Finding(Kind.POSITIVE, (("positive", classes[1]),), detail=classes[1]))
    rare = int((counts < RARE_ROWS).sum()) if kind == "category" or labels else 0
    missing = int(parsed.values.isna().sum())
    return ColumnReport(name, kind, missing, len(counts), tuple(found), names, rare)


def _with_lines(recipe: Recipe, findings: Mapping[str, Sequence[Finding]]) -> Recipe:
    """Return the recipe with the lines of all findings that need no check, by column."""
    stated: dict[str, Any] = {"drop": [], "columns": {}}
    for name, found in findings.items():
        missing = [*recipe.column(name).missing]
        for option, value in (each for one in found if one.sure for each in one.options):
            if option == "drop":
                stated["drop"].append(name)
            elif option == "positive":
                stated["positive"] = value
            elif option not in ("range", "person", "rows_per_person"):
                missing += [value] if option == "missing" and value not in missing else []
                fields = stated["columns"].setdefault(name, {})
                fields[option] = {"missing": missing, "fold": True}.get(option, value)
    return recipe.with_changes(stated)


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
        f"# How equidp reads {Path(report.path).name}. Look through it: its lines count as public.",
        "# Comments count rows of the table: delete them before others see this file.",
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
    for name, stated in columns.items():
        lines += ["", f"[column.{toml_key(name)}]"]
        for option, value in stated.items():
            why = reasons.get(("format" if value == DATE else option, name))
            lines.append(f"{option} = {toml_value(value)}{_comment(why)}")
    return "\n".join([*lines, ""])


def _comment(why: str | None) -> str:
    return "" if why is None else f"  # {why}"
