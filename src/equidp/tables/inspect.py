"""Inspection of a table: findings by column, and a recipe that settles them."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shlex
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from equidp.errors import DataError, DataWarning
from equidp.tables.cells import (
    DAY_ZERO,
    LIKE_SCIENTIFIC_OR_PLUS,
    as_numbers,
    days,
    is_number,
    is_sentinel,
    is_time,
    read_dates,
    without_dates,
)
from equidp.tables.checks import (
    LARGEST_NUMBER,
    MANY_CLASSES,
    MANY_ROWS,
    MISSING_NUMBERS,
    MISSING_WORDS,
    MOST_CATEGORIES,
    Written,
    days_for_none,
    fall_together,
    problems_of,
    share_of,
    word_of,
    written_dates,
    written_numbers,
)
from equidp.tables.columns import check_names, interpret_cells
from equidp.tables.interpret import (
    LONG,
    SCIENTIFIC_OR_PLUS,
    ZEROS,
    ColumnRecipe,
    Values,
    identifier_like,
    odd_type,
)
from equidp.tables.read import Cells, check_read_twice, read_cells, with_format
from equidp.tables.recipe import BY_COLUMN, Recipe, as_key

RARE_ROWS = 20
"""A class, group or category of fewer rows is counted, but not named."""
MANY_CATEGORIES = 50
FAR = 20
"""Numbers farther from the median than this many interquartile ranges are outliers."""


@dataclass(frozen=True)
class Finding:
    """Something to know about a column.

    Attributes:
        says: a phrase, such as "leading zeros: a code, not a number".
        option: of a recipe, which settles it; "": none does.
        value: of the option, for this column.
    """

    says: str
    option: str = ""
    value: str = ""

    def flag(self, column: str) -> str:
        """The option as it is typed; "" where there is none."""
        if not self.option:
            return ""
        if self.option == "positive":
            return f"--positive {shlex.quote(self.value)}"
        value = word_of(self.value) if self.option in ("thousands", "decimal") else self.value
        option = self.option.replace("_", "-")
        return f"--{option} {shlex.quote(f'{as_key(column)}={value}' if value else column)}"


@dataclass(frozen=True)
class ColumnReport:
    """One column: how it would be read, and what to know about it.

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


def inspect_column(name: str, column: pd.Series, recipe: Recipe) -> ColumnReport:
    """Return what there is to know about a column of `Cells`.

    >>> report = inspect_column("zip", pd.Series(["01067", "99084"] * 20), Recipe())
    >>> report.kind, report.findings[0].flag("zip")
    ('category', '--categorical zip')
    """
    options = {option for option, columns in recipe.columns_by_option().items() if name in columns}
    if odd_type(column):
        return ColumnReport(name, "text", 0, 0, "", (Finding("neither numbers nor texts", "drop"),))
    if is_time(column):
        times, durations = days(column).dropna(), pd.api.types.is_timedelta64_dtype(column)
        form = "duration" if durations else "iso"
        further = [Finding("durations by type" if durations else "dates by type", "date", form)]
        further += [] if durations else _days_found(name, times, recipe, "iso")
        found = [each for each in further if each.option not in options & {"date", "categorical", "drop"}]
        return ColumnReport(name, "date", len(column) - len(times), times.nunique(), "", tuple(found))
    rules, found = ColumnRecipe.of(name, recipe), []
    known = Values.of(column, rules).group_texts()
    absent = {text: rows for text, rows in known.absent.items() if text and rows}
    if rules.missing:
        sentinel = is_sentinel(
            as_numbers(known.text, rules.decimal, rules.thousands), rules.missing
        ).to_numpy()
        absent |= dict(zip(known.text[sentinel], known.rows[sentinel].tolist(), strict=True))
        known = known.select(~sentinel)
    missing = len(column) - int(known.rows.sum())
    if absent:
        listed = ", ".join(f"{text!r} in {rows:,}" for text, rows in absent.items())
        words = any(map(str.isalpha, "".join(absent))) and not is_number(column) and "not_na" not in options
        value = "; a value of its own, such as a country? Say so (--not-na)" if words else ""
        found.append(Finding(f"missing values written {listed}{value}"))
    if known.text.empty:
        return ColumnReport(name, "empty", missing, 0, "", (*found, Finding("no value at all", "drop")))
    kind, span, further = _judge_column(name, known.text, known.rows, recipe)
    if len(known.text) == 1 and not missing and not options & {"target", "group"}:
        kind, span, further = "constant", "", [Finding("one value in all rows", "drop")]
    if options & {"target", "group", "weight"}:  # a class may be anything
        further = [finding for finding in further if finding.option not in ("drop", "bounds", "numeric")]
    if "person" in options:
        further = []
    further = [finding for finding in further if finding.option not in options]
    labels = bool(options & {"target", "group"})
    frequent = zip(known.text.tolist(), known.rows.tolist(), strict=True) if labels else ()
    return ColumnReport(
        name,
        kind,
        missing,
        len(known.text),
        span,
        (*found, *further),
        names=tuple((text, rows) for text, rows in frequent if rows >= RARE_ROWS)[:MANY_CATEGORIES],
        rare=int((known.rows < RARE_ROWS).sum()) if kind == "category" or labels else 0,
    )


def _judge_column(
    name: str, text: pd.Series, rows: np.ndarray, recipe: Recipe
) -> tuple[str, str, list[Finding]]:
    """Return kind, span and findings of distinct texts with these numbers of rows."""
    if name in recipe.categorical or name in recipe.fold:
        return _texts(name, text, rows, recipe)
    stated = dict(recipe.date).get(name)
    if stated is None:
        numeric = name in recipe.numeric
        if (written := written_numbers(name, text, rows, recipe, stated=numeric)) is not None:
            found = _marks_found(name, text, written, recipe)
            return _numbers(text, written, rows, found)
    form = written_dates(text, rows) if stated is None else stated
    if form is None:
        return _texts(name, text, rows, recipe)
    dates = without_dates(read_dates(text, form), recipe.missing_texts(name), form)
    repeated = dates.repeat(rows).dropna()
    found = [*_date_found(text, rows, form), *_days_found(name, repeated, recipe, form)]
    return "date", "", [*found, *_slips(text, dates, rows, "date")]


def _days_found(name: str, known: pd.Series, recipe: Recipe, form: str) -> list[Finding]:
    """Dates that stand for none, as a cell may write them."""
    stated = {
        float(np.floor(day))
        for day in read_dates(pd.Series(recipe.missing_texts(name), dtype="string"), f"iso|{form}").dropna()
    }
    return [
        Finding(f"{day} in {rows:,} rows, apart from the other dates", "na", day)
        for day, rows in days_for_none(known).items()
        if float((pd.Timestamp(day) - DAY_ZERO) / pd.Timedelta(days=1)) not in stated
    ]


def _marks_found(name: str, text: pd.Series, written: Written, recipe: Recipe) -> list[Finding]:
    """Marks within and around numbers other than those of the recipe."""
    options, found = written.options(name, recipe), []
    if written.amounts:
        found.append(
            Finding("numbers with marks, such as a currency, a unit, percent or brackets", "numeric")
        )
    if "thousands" in options:
        found.append(
            Finding(f"{word_of(options['thousands'])} between thousands", "thousands", options["thousands"])
        )
    if "decimal" in options:
        found.append(Finding(f"decimal {word_of(options['decimal'])}", "decimal", options["decimal"]))
    if options and text.str.fullmatch(r"[+-]?([1-9]\d{0,2}([.,]\d{3})*|0)").all():
        found.append(Finding("the mark may be a decimal one or one between thousands: check"))
    return found


def _numbers(
    text: pd.Series, written: Written, rows: np.ndarray, found: list[Finding]
) -> tuple[str, str, list[Finding]]:
    numbers, whole = written.values, text.str.fullmatch(r"\d+")
    code = ""
    kinds = {kind for kind, mask in identifier_like(text, numbers).items() if mask.any()}
    if whole.all() and ZEROS in kinds:
        code = "leading zeros"
    elif LONG in kinds and not found:
        code = "more digits than numbers tell apart"
    elif SCIENTIFIC_OR_PLUS in kinds and text.str.fullmatch(rf"{LIKE_SCIENTIFIC_OR_PLUS}|\d+").all():
        code = "written as 3E2 or +49"
    if code and len(text) > MOST_CATEGORIES:
        says = f"{code}: a code, with {len(text):,} values too many for categories"
        return "category", "", [Finding(says, "drop")]
    if code:
        return "category", "", [Finding(f"{code}: a code, not a number", "categorical")]
    if not found and numbers.nunique() < int(numbers.notna().sum()) <= MANY_CATEGORIES:
        found = [
            Finding("one number written in several ways, as 1.1 and 1.10 are: a code? Say so (--categorical)")
        ]
    if whole.all() and text.str.fullmatch(r"(19|20)\d{6}").all() and read_dates(text, "%Y%m%d").notna().all():
        return "date", "", [Finding("dates without separators", "date", "%Y%m%d")]
    found = [*found, *_slips(text, numbers, rows, "numeric")]
    if not numbers.notna().any():
        return "number", "", found
    values, weights = numbers[numbers.notna()].to_numpy(), rows[numbers.notna().to_numpy()]
    if np.isinf(values).any() or (np.abs(values) > LARGEST_NUMBER).any():
        return "number", "", [*found, Finding(f"infinite numbers, or beyond {LARGEST_NUMBER:g}", "drop")]
    if not written.amounts and len(values) >= MANY_ROWS and (weights == 1).all() and (values % 1 == 0).all():
        return "number", "", [*found, Finding("another whole number in each row: names rows", "drop")]
    for number in MISSING_NUMBERS:
        others = values[values != number]
        if number in values and _apart(number, others):
            count = int(weights[values == number].sum())
            found.append(Finding(f"{number} in {count:,} rows, far from the others", "na", str(number)))
            values, weights = others, weights[values != number]
    order = np.argsort(values)
    ends = np.interp([0.25, 0.5, 0.75], np.cumsum(weights[order]) / weights.sum(), values[order])
    far = np.abs(values - ends[1]) > FAR * max(ends[2] - ends[0], 1e-300)
    if ends[2] > ends[0] and far.any():
        says = f"{int(weights[far].sum()):,} rows lie far out: state a public range"
        found.append(Finding(says, "bounds", "LOW:HIGH"))
    return "number", f"{_decade(values.min(), -1)} to {_decade(values.max(), 1)}", found


def _apart(code: int, others: np.ndarray) -> bool:
    """Return True if a code for missing values lies apart from all other numbers."""
    if len(others) < 2:
        return False
    low, high, gap = others.min(), others.max(), 0.5 * np.ptp(others)
    if code < 0:
        return bool(code < low - gap or (low >= 0 and (others % 1 == 0).all()))
    return bool(code > high + max(gap, 1.0))


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


def _slips(text: pd.Series, values: pd.Series, rows: np.ndarray, option: str) -> list[Finding]:
    """Texts among numbers or dates: known words for missing values, and others."""
    lost = values.isna().to_numpy()
    words = lost & text.str.lower().isin(MISSING_WORDS).to_numpy()
    found = [
        Finding(f"{word!r} in {int(count):,} rows", "na", str(word))
        for word, count in zip(text[words], rows[words], strict=True)
    ]
    if others := int(rows[lost & ~words].sum()):
        kind = {"numeric": "numbers", "date": "dates"}[option]
        says = f"{others:,} of {int(rows.sum()):,} values are no {kind}; they would count as missing"
        found.append(Finding(says, option if option == "numeric" else ""))
    return found


def _date_found(text: pd.Series, rows: np.ndarray, form: str) -> list[Finding]:
    found = [Finding("durations" if form == "duration" else "dates", "date", form)]
    for first, second in (("%d/%m", "%m/%d"), ("%d-%m", "%m-%d")):
        other = form.replace(first, second)
        if other != form and share_of(read_dates(text, other), rows) >= share_of(
            read_dates(text, form), rows
        ):
            found.append(Finding(f"{other} fits as well: check which is meant"))
    return found


def _texts(name: str, text: pd.Series, rows: np.ndarray, recipe: Recipe) -> tuple[str, str, list[Finding]]:
    total, found = int(rows.sum()), []
    fewer = 0 if name in recipe.fold else fall_together(text)
    if len(text) > 1 and (rows == 1).all() and total >= RARE_ROWS:
        return "text", "", [Finding("another text in each row: names rows", "drop")]
    if len(text) > MOST_CATEGORIES and len(text) - fewer > MOST_CATEGORIES:
        return "text", "", [Finding(f"{len(text):,} texts, too many for categories", "drop")]
    if fewer:
        says = (
            f"{fewer:,} of {len(text):,} texts differ from others in capitals, spaces or leading zeros alone"
        )
        crowded = len(text) > MOST_CATEGORIES
        found.append(
            Finding(f"{says}: the same?{'' if crowded else ' Say so (--fold)'}", "fold" if crowded else "")
        )
    if len(text) > MANY_CATEGORIES:
        found.append(Finding(f"{len(text):,} categories, an input for each"))
    if rare := int((rows < RARE_ROWS).sum()):
        found.append(Finding(f"{rare:,} of {len(text):,} categories have fewer than {RARE_ROWS} rows"))
    return "category", "", found


PRIVACY_NOTE = (
    "This was read from the table without privacy: it is confidential. It names columns, counts and "
    f"powers of ten, codes for missing values from a fixed list, and classes and groups of {RARE_ROWS} rows "
    "or more; no other cell of any row."
)
_PEOPLE = re.compile(r"(^|[^a-z])(pid|mrn|person|patient|subject|client|customer|member|user)([^a-z]|$)")
_NAMES_PERSONS = re.compile(rf"(^|[^a-z])(id|ids|nr|no|uuid|key|code)([^a-z]|$)|{_PEOPLE.pattern}")


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
            (
                finding.option,
                as_key(report.name) if finding.option in BY_COLUMN else report.name,
            ): finding.says
            for report in self.columns
            for finding in report.findings
            if finding.option
        }

    def to_plain(self) -> dict[str, Any]:
        """Return the report as plain values, for JSON."""
        plain = {**dataclasses.asdict(self), "recipe": self.recipe.to_plain(), "note": PRIVACY_NOTE}
        for column, report in zip(plain["columns"], self.columns, strict=True):
            column["findings"] = [
                {"says": finding.says, "flag": finding.flag(report.name)} for finding in report.findings
            ]
        return plain


def inspect_table(
    path: str | PathLike[str], recipe: Recipe = Recipe(), *, person: str | None = None
) -> TableReport:
    """Read a whole table without privacy, and returns what to know about it and a recipe for it.

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
    with suppress(OSError, ValueError, EOFError):  # read_cells says why
        recipe = with_format(file, recipe)
    cells = read_cells(file, recipe)
    for note in cells.notes:
        warnings.warn(note, DataWarning, stacklevel=2)
    check_names(cells.names, {**recipe.columns_by_option(), "person": [] if person is None else [person]})
    reports = [inspect_column(name, cells.series(name), recipe) for name in cells.names]
    persons = _persons(cells, reports, recipe, person)
    reports = [_with_role(report, recipe, persons, cells.rows) for report in reports]
    recipe = _settle_recipe(recipe, reports)
    problems: list[str] = []
    if recipe.target and recipe.group:
        used = [name for name in cells.names if name not in recipe.drop]
        problems = problems_of(interpret_cells(cells, recipe, used), recipe)
    return TableReport(str(path), cells.rows, tuple(reports), recipe, persons, tuple(problems))


def _persons(cells: Cells, reports: list[ColumnReport], recipe: Recipe, person: str | None) -> Persons | None:
    """Return rows by person, by the given column, or one that has many values and a name such as patient_id.

    One of people whose values repeat goes first: others may name rows, such as visits.
    """
    rows = cells.rows
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
    values = Values.of(cells.series(name), ColumnRecipe.of(name, recipe)).group_texts()
    counts, fewer = values.rows, 0 if name in recipe.fold else fall_together(values.text)
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
                "zeros alone: the same people?"
            )
            role = report.name == recipe.person
            found.append(Finding(says if role else f"{says} Say so (--fold)", "fold" if role else ""))
        if report.name != recipe.person and report.name not in recipe.columns("drop"):
            found.append(Finding("names people", "drop"))
    if any(finding.option == "drop" for finding in found):  # nothing else is worth saying
        found = [finding for finding in found if finding.option in ("", "drop")]
    return dataclasses.replace(report, findings=tuple(found))


def _settle_recipe(recipe: Recipe, reports: list[ColumnReport]) -> Recipe:
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
    """Return True if some cells of a column will count as missing."""
    return any(finding.option == "na" or "count as missing" in finding.says for finding in report.findings)


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
