"""Checks of a table: findings on the values of its columns, and reasons against training.

`value_findings` is pure: what the values of a column speak for, beside what its recipe says. `problems_of`
returns all reasons against training at once, and `doubts` the warnings. The table is not changed. The first
lines hold what is guessed by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from equidp._extras import require_extra
from equidp._validate import check_some_weight, check_weights
from equidp.errors import DataError
from equidp.tables.cells import DAY_ZERO, MISSING, as_amounts, as_numbers, fold_spellings, read_dates
from equidp.tables.columns import Columns, Table
from equidp.tables.findings import Finding, Kind, Level, count_phrase, names_people, sentence
from equidp.tables.interpret import (
    MISSING_WORDS,
    ColumnRecipe,
    Floats,
    Values,
    found_word,
)
from equidp.tables.labels import code_values, cross_columns
from equidp.tables.recipe import Recipe, as_key, in_shell

with require_extra("tables"):
    import pandas as pd

LARGEST_NUMBER = 1e18
MOST_CATEGORIES = 1000
MOST_GROUPS = 100
_MOST_CLASSES = 100
FEW_TEXTS = 0.1
"""Share of a column's values that may be slips among numbers; a column with more holds texts."""
MISSING_DAYS = (
    "9999-12-31", "9999-01-01", "9999-09-09", "3000-01-01", "2999-12-31", "2999-01-01", "2500-01-01",
    "2262-04-11", "2222-02-02", "2200-01-01", "2199-12-31", "2100-01-01", "2100-12-31", "2099-12-31",
    "2099-01-01", "2050-12-31", "1970-01-01", "1910-01-01", "1901-01-01", "1900-01-01", "1900-01-02",
    "1899-12-30", "1899-12-31", "1800-01-01", "1800-12-28", "1753-01-01", "1700-01-01", "1677-09-21",
    "1601-01-01", "1111-11-11", "1000-01-01", "0001-01-01",
)  # fmt: skip
"""Dates that people and programs write for a missing date."""
MISSING_NUMBERS = (-1, -9, -99, -999, -9999, -99999, 99, 999, 9999, 99999, 999999, 9999999)
"""Numbers that people write for a missing value."""
RARE_CODES = 0.005
"""Share of a column that such a code must exceed among other numbers: below it, it may be a measurement."""
FEW_NUMBERS = 10
"""With so few different numbers or fewer, a code such as 999 among others is one of them."""
SMALL_CODES = (-9, 99)
"""Codes between these, ends included, are measurements where they lie among other numbers, or classes."""
MANY_ROWS = 100
"""From here on, whole numbers rarely differ in all rows by chance."""
MANY_CLASSES = 20
"""A target with more different numbers is taken to measure something."""
RARE_ROWS = 20
"""A class, group or category of fewer rows is counted, but not named."""
MANY_CATEGORIES = 50
MOST_ROWS_OF_ONE = 50
"""A column with fewer values than rows by this factor names no people."""
_IDS = ("id", "ids", "uuid")
OUTSIDE_SHARE = 0.1
"""Numbers outside of a public range are named from this share of a column on; ranges may clip a few."""
DECISIVE = 0.01
"""A column gives the target by itself if it leaves this share of the rows of rarer classes wrong, or less."""
_DECISIVE_SAMPLE = 100_000
FAR = 20
"""Numbers farther from the median than this many interquartile ranges are outliers."""

_MARKS = ((".", None), (".", ","), (",", None), (",", "."), (".", " "), (",", " "), (".", "'"), (",", "'"))
FORMATS = (
    *("iso", "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%y"),
    *("duration", "%H:%M", "%H:%M:%S"),
)
"""Formats of dates that are sought; --date takes any other of strptime's."""
_EITHER_MARK = r"[+-]?([1-9]\d{0,2}([.,]\d{3})*|0)"
"""Numbers whose mark may be a decimal one or one between thousands."""
_LIKE_A_DATE = r"\d.*[-./ :].*\d|-?\d+ days?"
_SAMPLE = 500
FEW_DATES = 10
"""So few different texts, such as 2024-05, may be categories though they can be read as dates."""
_MANY_NUMBERS = 50
"""With more different numbers than this, a column measures something, whatever else it holds."""

_Option = TypeVar("_Option")


def refuse(path: str | PathLike[str], problems: Sequence[str]) -> None:
    """Raise a DataError with all problems of a table in one message, if there are any.

    Its field is that of the only problem, such as a column, or "table".
    """
    if len(problems) == 1:
        raise DataError(problems[0], field=DataError(problems[0]).field or "table")
    if problems:
        listed = "".join(f"\n- {problem}" for problem in problems)
        raise DataError(
            f"{fspath(path)!r} cannot be used as it is, for {len(problems)} reasons:{listed}\nequidp inspect "
            "shows the whole table and writes a recipe for it (--recipe).",
            field="table",
        )


INPUT_REMEDY = (
    "the columns that the model was trained on. Where new rows cannot have one, train again without it "
    "(--drop)"
)
LABEL_REMEDY = (
    "target and groups, to measure the model by. For predictions alone, equidp predict needs neither"
)


def check_read(table: Table | pd.DataFrame, names: Sequence[str], expected: str = INPUT_REMEDY) -> None:
    """Raise unless the table has each column that is read of it; `expected` ends the message."""
    lacking = [name for name in names if name not in table.columns]
    if lacking:
        raise DataError(
            f"the table lacks {', '.join(map(repr, lacking))}; expected {expected}.",
            field=", ".join(lacking),
        )


def check_spelling(present: Sequence[str], names: Sequence[str]) -> None:
    """Raise if a table has a column that differs from one it lacks in capitals or spaces at the ends alone.

    >>> check_spelling(["AGE", "sex"], ["age", "sex"])
    Traceback (most recent call last):
    equidp.errors.DataError: the table has 'AGE' in place of 'age'; expected names as in training.
    """
    alike = {name.strip().casefold(): name for name in present if name not in names}
    found = {name: alike[name.strip().casefold()] for name in names if name.strip().casefold() in alike}
    lacking = {name: other for name, other in found.items() if name not in present}
    if lacking:
        listed = ", ".join(f"{other!r} in place of {name!r}" for name, other in lacking.items())
        raise DataError(
            f"the table has {listed}; expected names as in training.",
            field=", ".join(lacking),
        )


def missing_problem(table: Table | pd.DataFrame, otherwise: str) -> list[str]:
    """Return a list with a message if values are missing, else []; `otherwise` is the remedy."""
    counts, anywhere = {}, np.zeros(len(table), dtype=np.bool_)
    for name in table.columns:
        there = table[name].isna().to_numpy()
        counts[name] = int(there.sum())
        anywhere |= there
    if not anywhere.any():
        return []
    listed = ", ".join(f"{name!r}: {count}" for name, count in counts.items() if count)
    absent = int(anywhere.sum())
    return [f"{absent} of {len(table)} rows have missing values ({listed}). {otherwise}"]


def weight_problem(column: pd.Series, first_text_phrase: str) -> list[str]:
    """Return a list with a message if a column of weights is invalid, else []."""
    if column.dtype != float:
        return [f"column {column.name!r} of weights holds texts{first_text_phrase}; expected numbers."]
    try:
        for check in (check_weights, check_some_weight):
            check(column.to_numpy(), f"column {column.name!r}")
    except DataError as error:
        return [str(error)]
    return []


def refuse_missing(table: Table | pd.DataFrame, otherwise: str) -> None:
    """Raise a DataError if values are missing; `otherwise` is the remedy."""
    for problem in missing_problem(table, otherwise):
        raise DataError(problem, field="table")


def label_columns(recipe: Recipe) -> list[str]:
    """Return the columns with a role: target, groups, weight and person."""
    others = (each for each in (recipe.weight, recipe.person) if each is not None)
    return list(dict.fromkeys([str(recipe.target), *recipe.group, *others]))


def columns_beside_inputs(recipe: Recipe) -> list[str]:
    """Return the columns with a role that are not inputs: all, but the groups where they are inputs too."""
    inputs = set(recipe.group) - {recipe.target} if recipe.group_as_input else set()
    return [name for name in label_columns(recipe) if name not in inputs]


def problems_of(read: Columns, recipe: Recipe, found: Sequence[tuple[str, Finding]]) -> list[str]:
    """Return a sentence for each reason why a table cannot be trained on; `found` is of `table_findings`."""
    table, labels = read.table, label_columns(recipe)
    problems = [*read.problems, *_sentences_of(found, Level.PROBLEM)]
    if len(table.columns) + len(read.problems) == len(columns_beside_inputs(recipe)):
        problems.append(
            "no column is left as an input; expected at least one beside target, groups and dropped columns."
        )
    for name, *_ in recipe.bounds:
        if name in table and table[name].dtype != float:
            problems.append(
                f"column {name!r} has bounds but holds texts{read.first_text_phrase(name)}; bounds are for "
                "numbers."
            )
    if all(name in table for name in labels):
        problems += _label_problems(read, recipe)
    if recipe.missing == "refuse":
        words = (
            f" Where {word!r} is a value, say so (--not-na {in_shell(f'{as_key(name)}={word}')})."
            for name, meaning in read.meanings.items()
            for word in _words_of(meaning.absent)
            if name in table and table[name].dtype != float
        )
        problems += missing_problem(
            table[[name for name in table.columns if name != recipe.target]],
            "Drop those rows or columns, or treat missing as a category of its own (missing='category'; "
            f"--missing category).{next(words, '')}",
        )
    return problems


def _fewer_classes(target: pd.Series) -> str:
    """Return what to do about a target with too many classes."""
    if target.dtype == float:
        return "Bin it into classes"
    return "Merge its classes to fewer; if it holds numbers, say how they are written (--thousands)"


def _label_problems(read: Columns, recipe: Recipe) -> list[str]:
    """Return problems of the target and the groups; groups are not checked if values are missing."""
    table = read.table
    target, columns = str(recipe.target), ", ".join(recipe.group)
    classes, found = table[target].nunique(), []
    absent = int(table[target].isna().sum())
    if absent:
        found.append(f"target {target!r} is missing in {absent} of {len(table)} rows; remove those rows.")
    if recipe.weight is not None:
        found += weight_problem(table[recipe.weight], read.first_text_phrase(recipe.weight))
    if recipe.person is not None and (unknown := int(table[recipe.person].isna().sum())):
        found.append(
            f"person {recipe.person!r} is missing in {unknown} of {len(table)} rows, and epsilon is promised "
            "to people. Fill that in, or remove those rows."
        )
    if classes == 1:
        found.append(f"target {target!r} has one class only; expected at least two.")
    elif classes > _MOST_CLASSES:
        found.append(
            f"target {target!r} has {classes} distinct values; expected at most {_MOST_CLASSES} classes. "
            f"{_fewer_classes(table[target])}."
        )
    elif recipe.positive is not None and recipe.positive not in code_values(table[target].dropna())[1]:
        found.append(f"positive class {recipe.positive!r} is none of the classes of target {target!r}.")
    if recipe.missing == "refuse" and any(table[name].isna().any() for name in recipe.group):
        return found
    groups, names = cross_columns(table, recipe.group)
    if len(names) > MOST_GROUPS:
        found.append(f"{columns} gives {len(names)} groups; bin or merge values, to at most {MOST_GROUPS}.")
        return found
    if len(names) < 2:
        found.append(f"{columns} gives one group only; expected at least two to compare.")
    if lonely := int((np.bincount(groups) < 2).sum()):
        found.append(
            f"{lonely:,} of the {len(names):,} groups by {columns} {'has' if lonely == 1 else 'have'} 1 "
            "example; a group needs one to train and one to test on. Merge them with others."
        )
    return found


@dataclass(frozen=True)
class Written:
    """Format in which a column of texts writes numbers.

    Attributes:
        decimal, thousands: marks within the numbers.
        amounts: whether some numbers have marks around them, such as a currency.
        values: floats, NaN where a text is not a number.
        words: mask of texts that are known words for missing values.
    """

    decimal: str
    thousands: str | None
    amounts: bool
    values: pd.Series
    words: npt.NDArray[np.bool_]

    def options(self, rules: ColumnRecipe) -> tuple[tuple[str, str], ...]:
        """Return the options that the recipe lacks to read these numbers, with values."""
        found = [("numeric", "")] if self.amounts else []
        if self.thousands is not None and self.thousands != rules.thousands:
            found.append(("thousands", self.thousands))
        if self.decimal != rules.decimal:
            found.append(("decimal", self.decimal))
        return tuple(found)


def best(options: Sequence[_Option], share: Callable[[_Option], float]) -> _Option:
    """Return the first option that reads all rows, or else the one that reads most."""
    shares: list[float] = []
    for option in options:
        shares.append(share(option))
        if shares[-1] == 1.0:
            return option
    return options[int(np.argmax(shares))]


def share_of(values: pd.Series, rows: npt.NDArray[np.int64]) -> float:
    """Return the share of the rows whose value could be read."""
    rows = rows[: len(values)]
    return float(rows[values.notna().to_numpy()].sum() / max(1, rows.sum()))


def written_numbers(text: pd.Series, rows: npt.NDArray[np.int64], rules: ColumnRecipe) -> Written | None:
    """Return the number format of distinct texts with these row counts; None if few of them hold numbers.

    Known words for missing values, and error texts of spreadsheets, are ignored.
    """
    words = text.str.lower().isin(MISSING_WORDS).to_numpy(dtype=bool)
    plain, counts = text[~words], rows[~words]
    if plain.empty or counts.sum() * 2 < rows.sum():
        return None
    own = (rules.decimal, rules.thousands)
    german = sorted(_MARKS, key=lambda pair: pair[0] != ",") if rules.sep == ";" else _MARKS
    for read in (as_numbers, as_amounts):
        sample = plain[:_SAMPLE]
        shares = {pair: share_of(read(sample, *pair), counts) for pair in dict.fromkeys((own, *german))}
        marks = max(shares, key=lambda pair: shares[pair])
        values = read(text, *marks)
        share = share_of(values[~words], counts)
        many = values.nunique() > _MANY_NUMBERS and share >= 0.5
        if share >= 1 - FEW_TEXTS or (many and read is as_amounts):
            amounts = read is as_amounts and not as_numbers(text, *marks).notna().equals(values.notna())
            return Written(marks[0], marks[1], amounts, values, words)
    return None


def written_dates(text: pd.Series, rows: npt.NDArray[np.int64]) -> str | None:
    """Return the date format of distinct texts with these row counts, or two formats with | between them.

    None if most of the texts are not dates.
    """
    words = text.str.lower().isin(MISSING_WORDS).to_numpy(dtype=bool)
    text, rows = text[~words], rows[~words]
    sample = text[:_SAMPLE]
    if share_of(sample.where(sample.str.contains(_LIKE_A_DATE, regex=True)), rows) < 1 - FEW_TEXTS:
        return None
    form = best(FORMATS, lambda each: share_of(read_dates(sample, each), rows))
    found = read_dates(text, form)
    if (lost := found.isna()).any() and found.notna().any():
        rest, left = text[lost], rows[lost.to_numpy()]
        other = best(FORMATS, lambda each: share_of(read_dates(rest[:_SAMPLE], each), left))
        both = f"{form}|{other}"
        if (
            share_of(read_dates(rest, other), left) > 0.5
            and share_of(read_dates(text, both), rows) >= 1 - FEW_TEXTS
        ):
            return both
    return form if share_of(found, rows) >= 1 - FEW_TEXTS else None


def table_findings(read: Columns, recipe: Recipe) -> list[tuple[str, Finding]]:
    """Return the findings on the values of a table, each with the column's name.

    >>> table = pd.DataFrame({"lab": ["1,5", "2,0"], "sex": ["F", "M"], "ill": ["no", "yes"]})
    >>> doubts(table_findings(Columns(table), Recipe(target="ill", group=("sex",))))
    ["column 'lab' holds numbers with decimal commas, taken as categories; say so (--decimal 'lab=comma')."]
    """
    return [
        (name, found)
        for name in read.table.columns
        for found in value_findings(read.values(name), read.absent(name), ColumnRecipe.of(name, recipe))
        if recipe.missing == "category" or found.kind is not Kind.MISSING_TEXT
    ] + [*_range_findings(read.table, recipe), *_person_findings(read, recipe)]


def _range_findings(table: Table | pd.DataFrame, recipe: Recipe) -> Iterator[tuple[str, Finding]]:
    """Yield columns with many numbers outside of the public range that they are clipped to."""
    for name, low, high in recipe.bounds:
        if name not in table or table[name].dtype != float or name in recipe.columns("date"):
            continue
        values = table[name].to_numpy()
        known, outside = int((~np.isnan(values)).sum()), int(((values < low) | (values > high)).sum())
        if outside > OUTSIDE_SHARE * known:
            span = f"{low:g} to {high:g}"
            yield name, Finding(Kind.OUTSIDE, Level.DOUBT, (), True, outside, known, -1, span)


def _person_findings(read: Columns, recipe: Recipe) -> Iterator[tuple[str, Finding]]:
    """Yield inputs that name people with several rows each, where epsilon is promised to a row."""
    if recipe.person is not None:
        return
    for name in read.table.columns:
        if name in columns_beside_inputs(recipe) or not may_name_people(name):
            continue
        rows, different = len(read.table), read.table[name].nunique()
        if max(1, rows / MOST_ROWS_OF_ONE) < different < int(read.table[name].notna().sum()):
            yield name, Finding(Kind.PERSONS, Level.DOUBT, rows=rows, of=different)


def may_name_people(column: str) -> bool:
    """Return True where a column's name says that it names people, or anything.

    >>> [name for name in ("patient", "ID", "zip code") if may_name_people(name)]
    ['patient', 'ID']
    """
    return names_people(column) or column.lower() in _IDS


def decisive_findings(read: Columns, recipe: Recipe) -> Iterator[tuple[str, Finding]]:
    """Yield inputs of which each gives the class of nearly all rows by itself, as a copy of the target does.

    >>> table = pd.DataFrame({"ended": ["x", ""] * 50, "age": range(100), "churn": ["yes", "no"] * 50})
    >>> [name for name, _ in decisive_findings(Columns(table), Recipe(target="churn"))]
    ['ended']
    """
    if recipe.target is None or recipe.target not in read.table:
        return
    classes = pd.factorize(read.table[recipe.target][:_DECISIVE_SAMPLE])[0]
    known = classes >= 0
    classes, rows = classes[known], int(known.sum())
    others = rows - int(np.bincount(classes).max(initial=0))
    if others < RARE_ROWS:
        return
    for name in read.table.columns:
        if name in columns_beside_inputs(recipe):
            continue
        values = read.table[name][:_DECISIVE_SAMPLE][known]
        wrong = _wrong_by_value(values, classes)
        if wrong is None and values.dtype == float and classes.max() == 1:
            wrong = _wrong_by_threshold(values.to_numpy(), classes)
        if wrong is not None and wrong <= DECISIVE * others:
            yield name, Finding(Kind.DECISIVE, Level.HINT, (("drop", ""),), False, rows - wrong, rows)


def _wrong_by_value(values: pd.Series, classes: npt.NDArray[np.int64]) -> int | None:
    """Return the rows not of the most frequent class of their value; None where values have few rows."""
    codes, listed = pd.factorize(values, use_na_sentinel=False)
    if len(listed) * 10 > len(classes):
        return None
    counts = np.bincount(codes * (classes.max() + 1) + classes, minlength=len(listed) * (classes.max() + 1))
    return len(classes) - int(counts.reshape(len(listed), -1).max(axis=1).sum())


def _wrong_by_threshold(values: Floats, classes: npt.NDArray[np.int64]) -> int:
    """Return the rows on the wrong side of the best threshold of two classes; missing ones lie above it."""
    order = np.argsort(values)
    values, below = values[order], np.cumsum(classes[order])
    ends = np.append((values[1:] != values[:-1]) & ~np.isnan(values[:-1]), True)
    wrong = 2 * below - np.arange(1, len(below) + 1) - below[-1] + len(below)
    return int(np.minimum(wrong, len(below) - wrong)[ends].min())


def doubts(found: Sequence[tuple[str, Finding]]) -> list[str]:
    """Return a sentence for each doubt among findings; rows are counted from 1."""
    return _sentences_of(found, Level.DOUBT)


def _sentences_of(found: Sequence[tuple[str, Finding]], level: Level) -> list[str]:
    return [sentence(each, name) for name, each in found if each.level is level]


def value_findings(
    values: Floats | Values, absent: Mapping[str, int], rules: ColumnRecipe
) -> tuple[Finding, ...]:
    """Return findings on the values of a column: what they may be beside what the recipe says.

    Args:
        values: numbers or days, [n], NaN where missing; or distinct texts, the most frequent first.
        absent: rows of each word that counts as missing; "" for other cells without a value.
        rules: statements of the recipe.

    >>> rules = ColumnRecipe.of("age", Recipe())
    >>> [found.options for found in value_findings(np.array([20.0, 25, 31, 44, -999]), {}, rules)]
    [(('na', '-999'),)]
    """
    if isinstance(values, Values):
        return tuple(_text_findings(values, absent, rules))
    known = values[~np.isnan(values)]
    if not len(known):
        return ()
    return tuple(_number_findings(known, len(values), rules) if rules.form is None else _day_findings(known))


def value_hints(
    values: Floats | Values, absent: Mapping[str, int], rules: ColumnRecipe
) -> tuple[Finding, ...]:
    """Return what else `equidp inspect` shows of the values of a column; arguments as of `value_findings`.

    >>> [found.options for found in value_hints(np.ones(20), {}, ColumnRecipe.of("one", Recipe()))]
    [(('drop', ''),)]
    """
    missing = sum(absent.values())
    if isinstance(values, Values):
        return tuple(_text_hints(values, absent, missing, rules))
    known = values[~np.isnan(values)]
    return tuple(_number_hints(known, absent, len(known) < len(values), rules))


def _text_hints(
    values: Values, absent: Mapping[str, int], missing: int, rules: ColumnRecipe
) -> Iterator[Finding]:
    text, rows = values.text, values.rows
    if not _words_of(absent):
        yield from _listed_absent(absent)
    if rules.roles:
        return
    drop = (("drop", ""),)
    if text.empty:
        yield Finding(Kind.EMPTY, Level.HINT, drop)
    elif len(text) == 1 and not missing:
        yield Finding(Kind.CONSTANT, Level.HINT, drop)
    elif len(text) > 1 and (rows == 1).all() and rows.sum() >= RARE_ROWS:
        yield Finding(Kind.ROW_NAMES, Level.HINT, drop, detail="text")
    elif len(text) <= MOST_CATEGORIES:
        if left := 0 if rules.fold else fall_together(text):
            yield _found_spellings(len(text), left, rules)
        if len(text) > MANY_CATEGORIES:
            yield Finding(Kind.MANY_CATEGORIES, Level.HINT, of=len(text))
        if rare := int((rows < RARE_ROWS).sum()):
            yield Finding(Kind.RARE_CATEGORIES, Level.HINT, rows=rare, of=len(text), detail=str(RARE_ROWS))


def _number_hints(
    known: Floats, absent: Mapping[str, int], missing: bool, rules: ColumnRecipe
) -> Iterator[Finding]:
    yield from _listed_absent(absent)
    if rules.roles:
        return
    if not len(known):
        yield Finding(Kind.EMPTY, Level.HINT, (("drop", ""),))
    elif not missing and known.min() == known.max():
        yield Finding(Kind.CONSTANT, Level.HINT, (("drop", ""),))
    elif rules.form is None and np.isfinite(known).all() and (far := _count_far(known)):
        yield Finding(Kind.FAR, Level.HINT, (("bounds", "LOW:HIGH"),), rows=far)


def _words_of(absent: Mapping[str, int]) -> dict[str, int]:
    """Return those texts that count as missing which may be values, such as NA for Namibia."""
    return {text: rows for text, rows in absent.items() if any(map(str.isalpha, text))}


def _listed_absent(
    absent: Mapping[str, int], level: Level = Level.HINT, options: tuple[tuple[str, str], ...] = ()
) -> Iterator[Finding]:
    """Yield the finding on texts that count as missing, if there are any."""
    listed = " and ".join(f"{text!r} in {count_phrase(rows)}" for text, rows in absent.items() if text)
    if listed:
        yield Finding(Kind.ABSENT, level, options, False, absent.get("", 0), detail=listed)


def _found_absent(absent: Mapping[str, int], rules: ColumnRecipe) -> Iterator[Finding]:
    """Yield the finding on words such as NA, which count as missing, in a column of texts."""
    words = _words_of(absent)
    if words:
        others = sum(absent.values()) - sum(words.values())
        doubted = others or len(words) > 1 or rules.roles & {"target", "group", "person"}
        level = Level.DOUBT if doubted else Level.HINT
        yield from _listed_absent({**words, "": others}, level, (("not_na", next(iter(words))),))


def _found_spellings(texts: int, fewer: int, rules: ColumnRecipe) -> Finding:
    """Return the finding on texts that differ in spelling alone: of a target, a reason against training."""
    level = Level.DOUBT if rules.roles & {"group", "person"} else Level.HINT
    role = next((each for each in ("target", "person") if each in rules.roles), "")
    if role == "target":
        level = Level.PROBLEM
    return Finding(Kind.SPELLINGS, level, (("fold", ""),), bool(role), texts - fewer, texts, detail=role)


def _number_findings(known: Floats, num_rows: int, rules: ColumnRecipe) -> Iterator[Finding]:
    """Yield findings on numbers, [k], of which none is missing."""
    drop, is_input = (("drop", ""),), not rules.roles
    if "target" in rules.roles and (classes := len(pd.unique(known))) > MANY_CLASSES:
        yield Finding(Kind.MANY_CLASSES, Level.DOUBT, of=classes)
        return
    if is_input and (infinite := int(np.isinf(known).sum())):
        signs = [text for text in ("inf", "-inf") if (known == float(text)).any()]
        missing = tuple(("na", text) for text in signs)
        yield Finding(Kind.INFINITE, Level.PROBLEM, missing, rows=infinite, of=len(known))
    elif is_input and (np.abs(known) > LARGEST_NUMBER).any():
        yield Finding(Kind.BEYOND, Level.PROBLEM, drop, detail=f"{LARGEST_NUMBER:g}")
    elif is_input and not rules.amounts and _are_compact_dates(known):
        yield Finding(Kind.DATES_AS_NUMBERS, Level.DOUBT, (("date", "%Y%m%d"),))
    elif is_input and not rules.amounts and len(known) >= MANY_ROWS and _are_whole_and_unique(known):
        yield Finding(Kind.ROW_NAMES, Level.DOUBT, drop, detail="whole number")
    else:
        yield from _found_codes(known, num_rows, rules)


def _found_codes(known: Floats, num_rows: int, rules: ColumnRecipe) -> Iterator[Finding]:
    """Yield a finding for each number that people write for a missing value, far from others or frequent."""
    present = known[np.isin(known, MISSING_NUMBERS)]
    sure = not rules.roles & {"target", "weight"}
    for code in (code for code in MISSING_NUMBERS if (present == code).any()):
        rows, large = int((present == code).sum()), not SMALL_CODES[0] <= code <= SMALL_CODES[1]
        if _lies_apart(code, known[known != code]):
            if large or "target" not in rules.roles:
                yield Finding(
                    Kind.CODE,
                    Level.DOUBT,
                    options=(("na", str(code)),),
                    rows=rows,
                    detail=str(code),
                    sure=sure,
                    other="far from the others",
                )
        elif large and rows > RARE_CODES * num_rows and len(pd.unique(known)) > FEW_NUMBERS:
            yield Finding(
                Kind.CODE, Level.DOUBT, options=(("na", str(code)),), rows=rows, detail=str(code), sure=False
            )


def _are_compact_dates(known: Floats) -> bool:
    """Return True if numbers are dates as 20240131 is one."""
    for part in (known[:MANY_ROWS], known):
        if not ((part % 1 == 0) & (part >= 19_000_101) & (part <= 20_991_231)).all():
            return False
    text = pd.Series(np.unique(known).astype(np.int64).astype(str), dtype="string")
    return bool(read_dates(text, "%Y%m%d").notna().all())


def _are_whole_and_unique(known: Floats) -> bool:
    return all((part % 1 == 0).all() and pd.Series(part).is_unique for part in (known[:MANY_ROWS], known))


def _lies_apart(code: int, others: Floats) -> bool:
    """Return True if a code for missing values lies apart from all other numbers, of which there are two."""
    if not len(others) or others.min() == others.max():
        return False
    low, high = others.min(), others.max()
    gap = 0.5 * (high - low)
    if code < 0:
        return bool(code < low - gap or (low >= 0 and (others % 1 == 0).all()))
    return bool(code > high + max(gap, 1.0))


def _count_far(known: Floats) -> int:
    """Count the numbers that lie far out."""
    low, middle, high = np.quantile(known, [0.25, 0.5, 0.75])
    return int((np.abs(known - middle) > FAR * (high - low)).sum()) if high > low else 0


def _day_findings(known: Floats) -> Iterator[Finding]:
    """Yield a finding for each day that stands for a missing date."""
    for day, rows in days_for_none(pd.Series(known)).items():
        yield Finding(Kind.DAY, Level.DOUBT, (("na", day),), rows=rows, of=len(known), detail=day)


def _text_findings(values: Values, absent: Mapping[str, int], rules: ColumnRecipe) -> Iterator[Finding]:
    """Yield findings on distinct texts."""
    text, rows = values.text, values.rows
    yield from _found_absent(absent, rules)
    said = (text == MISSING).to_numpy()
    if said.any() and sum(absent.values()):
        option = (("na", MISSING),)
        yield Finding(Kind.MISSING_TEXT, Level.DOUBT, option, False, int(rows[said].sum()), detail=MISSING)
    crowded = len(text) > MOST_CATEGORIES and not rules.roles
    labels = bool(rules.roles & {"target", "group", "person"})
    fewer = fall_together(text) if (crowded or labels) and not rules.fold else 0
    if fewer and labels and not ("target" in rules.roles and rules.texts):
        yield _found_spellings(len(text), fewer, rules)
    if not rules.texts:
        yield from _found_in_texts(values, rules)
    if crowded:
        left = len(text) - fewer
        option = (("fold", ""),) if left <= MOST_CATEGORIES else (("drop", ""),)
        yield Finding(
            Kind.TOO_MANY_TEXTS, Level.PROBLEM, option, rows=left, of=len(text), detail=str(MOST_CATEGORIES)
        )


def _found_in_texts(values: Values, rules: ColumnRecipe) -> Iterator[Finding]:
    """Yield findings on numbers, with slips or marks, or dates that texts may be."""
    text, rows, total = values.text, values.rows, int(values.rows.sum())
    if not text.str.contains(r"\d", regex=True).any():
        return
    written = written_numbers(text, rows, rules)
    if written is None:
        if not rules.roles and (form := written_dates(text, rows)) is not None:
            level = Level.DOUBT if len(text) > FEW_DATES else Level.HINT
            yield Finding(
                Kind.DATES_AS_TEXTS,
                level,
                (("date", form),),
                of=len(text),
                detail=noun_of_dates(form),
                other=other_order(text, rows, form),
            )
        return
    lost = written.values.isna().to_numpy()
    options = written.options(rules)
    sure = not rules.roles & {"target", "group", "weight"}
    if options:
        either = "" if written.amounts or not text.str.fullmatch(_EITHER_MARK).all() else "either"
        yield Finding(
            Kind.MARKS,
            Level.DOUBT,
            options,
            sure or not written.amounts,
            rows=int(rows[~lost].sum()),
            of=total,
            other=either,
        )
    for word, count in zip(text[written.words & lost], rows[written.words & lost].tolist(), strict=True):
        yield found_word(word, count, "numbers", rules, Level.DOUBT)
    if (slips := lost & ~written.words).any():
        first = int(values.first[slips].min())
        yield Finding(
            Kind.UNREADABLE,
            Level.DOUBT,
            (("numeric", ""),),
            sure,
            rows=int(rows[slips].sum()),
            of=total,
            first=first,
            detail="numbers",
        )


def noun_of_dates(form: str) -> str:
    """Return what columns of a format hold, in words."""
    if form == "duration":
        return "durations"
    return "times of day" if form in ("%H:%M", "%H:%M:%S") else "dates"


def other_order(text: pd.Series, rows: npt.NDArray[np.int64], form: str) -> str:
    """Return the format with day and month in the other order, if it reads as many rows; else ""."""
    for first, second in (("%d/%m", "%m/%d"), ("%d-%m", "%m-%d")):
        other = form.replace(first, second)
        if other != form and share_of(read_dates(text, other), rows) >= share_of(
            read_dates(text, form), rows
        ):
            return other
    return ""


def fall_together(column: pd.Series) -> int:
    """Return the number by which `fold_spellings` reduces the distinct texts."""
    texts = pd.Series(column.dropna().unique(), dtype="string")
    return len(texts) - int(fold_spellings(texts).nunique())


def days_for_none(known: pd.Series) -> dict[str, int]:
    """Return the row count of each outlying date that people and programs write for a missing date.

    An outlying date is far from all others, or is the first or last and far more frequent than any other.

    Args:
        known: days since 2000, without missing ones.
    """
    counts = np.floor(known).value_counts()
    codes = {float((pd.Timestamp(day) - DAY_ZERO) / pd.Timedelta(days=1)): day for day in MISSING_DAYS}
    there = [day for day in counts.index if day in codes]
    others = counts.drop(there)
    if others.empty:
        return {}
    low, high = float(others.index.min()), float(others.index.max())
    gap, often = max(366.0, 0.5 * (high - low)), max(2, 3 * int(others.iloc[0]))
    found = {}
    for day in there:
        apart = day < low - gap or day > high + gap
        if apart or (not low <= day <= high and counts[day] > often):
            found[codes[day]] = int(counts[day])
    return found
