"""Checks of a table's columns: names, reasons against training, and doubts about what cells mean.

`problems_of` returns all reasons against training at once, and `doubts` a sentence for each column that may
hold something else than it seems to. The table is not changed. The first lines hold what is guessed by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from equidp._validate import check_some_weight, check_weights
from equidp.errors import DataError
from equidp.tables.cells import DAY_ZERO, MISSING, as_amounts, as_numbers, fold_spellings, read_dates
from equidp.tables.columns import Columns
from equidp.tables.labels import code_values, cross_columns
from equidp.tables.recipe import MARKS, Recipe, as_key, in_shell

LARGEST_NUMBER = 1e18
MOST_CATEGORIES = 1000
MOST_GROUPS = 100
_MOST_CLASSES = 100
FEW_TEXTS = 0.1
"""Share of a column's values that may be slips among numbers; a column with more holds texts."""
MISSING_CODES = (-99, -999, -9999, 999, 9999, 99999)
"""Numbers that people write for a missing value."""
MISSING_WORDS = frozenset((
    "-", "--", ".", "..", "unknown", "unk", "unbekannt", "k.a.", "k. a.", "keine angabe", "missing",
    "not available", "not applicable", "not known", "none", "nil", "nd", "n.d.", "tbd", "na", "n.a.",
    "(null)", "(none)", "inconnu", "desconocido", "undefined", "void", "error", "#ref!", "#value!",
    "#div/0!", "#div/0", "#name?", "#num!", "#null!", "#spill!", "#calc!", "#error!", "#wert!", "#bezug!",
    "#zahl!", "#nv", "#valeur!", "err:502", "err:503", "err:508", "err:511", "err:522",
))  # fmt: skip
"""Words that, among numbers or dates, stand for a missing value; in small letters."""
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
"""Share of a column that such codes must exceed: below it, they may be measurements."""
FEW_NUMBERS = 10
"""With so few different numbers or fewer, a code such as 999 is one of them."""
MANY_ROWS = 100
"""From here on, whole numbers rarely differ in all rows by chance."""
MANY_CLASSES = 20
"""A target with more different numbers is taken to measure something."""

_MARKS = ((".", None), (".", ","), (",", None), (",", "."), (".", " "), (",", " "), (".", "'"), (",", "'"))
_TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
_DAYS = (
    *("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%y"),
    *("%d/%m/%y", "%m/%d/%y", "%d %b %Y", "%d-%b-%Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y"),
)
FORMATS = ("iso", *(day + time for day in _DAYS for time in _TIMES), "duration", "%H:%M", "%H:%M:%S")
_LIKE_A_DATE = r"\d.*[-./ :].*\d|-?\d+ days?"
_SAMPLE = 500
_MANY_NUMBERS = 50
"""With more different numbers than this, a column measures something, whatever else it holds."""

_Option = TypeVar("_Option")


def refuse(path: str | PathLike[str], problems: Sequence[str]) -> None:
    """Raise a DataError with all problems of a table in one message, if there are any."""
    if len(problems) == 1:
        raise DataError(problems[0])
    if problems:
        listed = "".join(f"\n- {problem}" for problem in problems)
        raise DataError(
            f"{fspath(path)!r} cannot be used as it is, for {len(problems)} reasons:{listed}\nequidp inspect "
            "shows the whole table and writes a recipe for it (--recipe)."
        )


def check_read(table: pd.DataFrame, names: Sequence[str]) -> None:
    """Raise unless the table has each column that a trained model reads."""
    lacking = [name for name in names if name not in table.columns]
    if lacking:
        raise DataError(
            f"the table lacks {', '.join(map(repr, lacking))}; expected the columns that the model was "
            "trained on. Where new rows cannot have one, train anew without it (--drop)."
        )


def feature_problems(table: pd.DataFrame) -> list[str]:
    """Return a sentence for each column that cannot be an input: infinite or very large numbers, or texts
    that name rows."""
    found = []
    for name in table.columns:
        column = table[name]
        if column.dtype == float:
            infinite = int(np.isinf(column).sum())
            if infinite:
                found.append(
                    f"column {name!r} holds {infinite} infinite values; fix them or drop the column."
                )
            elif (column.abs() > LARGEST_NUMBER).any():
                found.append(
                    f"column {name!r} holds numbers beyond {LARGEST_NUMBER:g}; rescale it or drop it."
                )
        elif column.nunique() > MOST_CATEGORIES:
            left = int(fold_spellings(pd.Series(column.dropna().unique(), dtype="string")).nunique())
            fold = (
                f" make {left:,} of them by taking capitals and leading zeros for the same (--fold "
                f"{in_shell(name)});"
            )
            found.append(
                f"column {name!r} has {column.nunique()} distinct texts, more than the {MOST_CATEGORIES} "
                "that make sense as categories. If it names the rows, drop it (--drop); if it holds numbers "
                "such as 1,234.5, say so (--thousands, --decimal, --numeric). If it holds "
                f"codes,{fold if left < column.nunique() else ''} in the file, shorten them to their first "
                "signs, or keep the frequent ones and write the others as one."
            )
    return found


def missing_problem(table: pd.DataFrame, otherwise: str) -> list[str]:
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


def number_problem(column: pd.Series, groups: Sequence[str], first_text_phrase: str) -> list[str]:
    """Return a list with a message if a target holds unusable numbers or texts, or is also a group; else [].

    Args:
        column: the target.
        groups: names of the group columns.
        first_text_phrase: of `Columns`, for the target.
    """
    name = column.name
    if name in groups:
        return [f"target {name!r} is a number to predict and a group too; bin it into a column of groups."]
    if column.dtype != float:
        return [
            f"target {name!r} holds texts{first_text_phrase}, and is to be a number; leave out "
            "--target-bounds for classes, or say how numbers are written (--thousands, --decimal, --numeric)."
        ]
    known = column.dropna()
    if (np.isinf(known) | (known.abs() > LARGEST_NUMBER)).any():
        return [f"target {name!r} holds infinite numbers, or beyond {LARGEST_NUMBER:g}; fix those rows."]
    return []


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


def refuse_missing(table: pd.DataFrame, otherwise: str) -> None:
    """Raise a DataError if values are missing; `otherwise` is the remedy."""
    for problem in missing_problem(table, otherwise):
        raise DataError(problem)


def label_columns(recipe: Recipe) -> list[str]:
    """Return the columns that are not inputs: target, groups, weight and person."""
    others = (each for each in (recipe.weight, recipe.person) if each is not None)
    return list(dict.fromkeys([str(recipe.target), *recipe.group, *others]))


def problems_of(read: Columns, recipe: Recipe) -> list[str]:
    """Return a sentence for each reason why a table cannot be trained on by this recipe."""
    table, labels = read.table, label_columns(recipe)
    problems = [*read.problems, *feature_problems(table.drop(columns=labels, errors="ignore"))]
    if len(table.columns) + len(read.problems) == len(labels):
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
            for name, found in read.findings.items()
            for word in found.absent
            if word and name in table and table[name].dtype != float
        )
        problems += missing_problem(
            table,
            "Drop those rows or columns, or treat missing as a category of its own (missing='category'; "
            f"--missing category).{next(words, '')}",
        )
    return problems


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
    if recipe.target_bounds is not None:
        found += number_problem(table[target], recipe.group, read.first_text_phrase(target))
    elif classes == 1:
        found.append(f"target {target!r} has one class only; expected at least two.")
    elif classes > _MOST_CLASSES:
        found.append(
            f"target {target!r} has {classes} distinct values; expected at most {_MOST_CLASSES} classes. "
            "Predict it as a number (--task regression --target-bounds LOW:HIGH), or bin it into classes."
        )
    elif recipe.positive is not None and recipe.positive not in code_values(table[target].dropna())[1]:
        found.append(f"positive class {recipe.positive!r} is none of the classes of target {target!r}.")
    if recipe.missing == "refuse" and table[list(recipe.group)].isna().any(axis=None):
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

    def options(self, name: str, recipe: Recipe) -> dict[str, str]:
        """Return the options that the recipe lacks to read these numbers, with values."""
        found = {}
        if self.thousands is not None and self.thousands != recipe.thousands_of(name):
            found["thousands"] = self.thousands
        if self.decimal != recipe.decimal_of(name):
            found["decimal"] = self.decimal
        return found


def word_of(mark: str) -> str:
    """Return the word for a mark within numbers."""
    return next(word for word, other in MARKS.items() if other == mark)


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


def written_numbers(
    name: str, text: pd.Series, rows: npt.NDArray[np.int64], recipe: Recipe, *, stated: bool = False
) -> Written | None:
    """Return the number format of distinct texts with these row counts; None if most of them hold no number.

    Known words for missing values, and error texts of spreadsheets, are ignored.
    """
    words = text.str.lower().isin(MISSING_WORDS).to_numpy(dtype=bool)
    plain, counts = text[~words], rows[~words]
    if plain.empty or counts.sum() * 2 < rows.sum():
        return None
    own = (recipe.decimal_of(name), recipe.thousands_of(name))
    german = sorted(_MARKS, key=lambda pair: pair[0] != ",") if recipe.sep == ";" else _MARKS
    for read in (as_numbers, as_amounts):
        sample = plain[:_SAMPLE]
        shares = {pair: share_of(read(sample, *pair), counts) for pair in dict.fromkeys((own, *german))}
        marks = max(shares, key=lambda pair: shares[pair])
        values = read(text, *marks)
        share = share_of(values[~words], counts)
        many = values.nunique() > _MANY_NUMBERS and share >= 0.5
        if share >= 1 - FEW_TEXTS or (many and read is as_amounts) or stated:
            amounts = read is as_amounts and not as_numbers(text, *marks).notna().equals(values.notna())
            return Written(marks[0], marks[1], amounts, values, words)
    return None


def written_dates(
    text: pd.Series, rows: npt.NDArray[np.int64], formats: Sequence[str] = FORMATS
) -> str | None:
    """Return the date format of distinct texts with these row counts, or two formats with | between them.

    None if most of the texts are not dates.
    """
    words = text.str.lower().isin(MISSING_WORDS).to_numpy(dtype=bool)
    text, rows = text[~words], rows[~words]
    sample = text[:_SAMPLE]
    if share_of(sample.where(sample.str.contains(_LIKE_A_DATE, regex=True)), rows) < 1 - FEW_TEXTS:
        return None
    form = best(formats, lambda each: share_of(read_dates(sample, each), rows))
    found = read_dates(text, form)
    if (lost := found.isna()).any() and found.notna().any():
        rest, left = text[lost], rows[lost.to_numpy()]
        other = best(formats, lambda each: share_of(read_dates(rest[:_SAMPLE], each), left))
        both = f"{form}|{other}"
        if (
            share_of(read_dates(rest, other), left) > 0.5
            and share_of(read_dates(text, both), rows) >= 1 - FEW_TEXTS
        ):
            return both
    return form if share_of(found, rows) >= 1 - FEW_TEXTS else None


def doubts(table: pd.DataFrame, recipe: Recipe) -> list[str]:
    """Return a sentence for each doubt about a table of `read_table`; rows are counted from 1.

    No doubts concern what the recipe states of a column.

    >>> table = pd.DataFrame({"lab": ["1,5", "2,0"], "sex": ["F", "M"], "ill": ["no", "yes"]})
    >>> doubts(table, Recipe(target="ill", group=("sex",)))
    ["column 'lab' holds numbers with decimal commas, taken as categories; say so (--decimal 'lab=comma')."]
    """
    found: list[str | None] = []
    forms = dict(recipe.date)
    for name in table.columns:
        column = table[name].dropna()
        if name in (recipe.target, *recipe.group, recipe.person) and table[name].dtype != float:
            found.append(_spellings(name, column, recipe))
        if name in recipe.categorical or name in recipe.fold or name == recipe.person:
            continue
        if table[name].dtype != float:
            found.append(_numbers_as_texts(name, column, recipe))
        elif name in forms:
            found.append(_missing_days(name, column))
        elif name == recipe.target:
            found.append(_many_classes(name, column) if recipe.target_bounds is None else None)
        elif name not in recipe.group:
            found.append(_missing_codes(name, column, len(table)))
            found.append(None if name in recipe.numeric else _names_of_rows(name, table[name]))
    return [sentence for sentence in found if sentence]


def absences(absent: Mapping[str, Mapping[str, int]], table: pd.DataFrame, recipe: Recipe) -> list[str]:
    """Return a sentence for each column of texts in which a word such as NA counts as missing beside other
    cells without a value, or that is a target, group or person; or in which the text "missing" is one with
    cells that have none.

    Args:
        absent: rows of each such word by column, "" for other cells without a value.
        table: of `read_table`.
        recipe: with the roles of the columns.
    """
    found = []
    for name in table.columns:
        if table[name].dtype == float:
            continue
        words = {word: rows for word, rows in absent.get(name, {}).items() if word}
        others = absent.get(name, {}).get("", 0)
        if words and (others or len(words) > 1 or name in (recipe.target, *recipe.group, recipe.person)):
            listed = " and ".join(f"{word!r} in {rows:,} rows" for word, rows in words.items())
            beside = f", beside {others:,} rows without a value" if others else ""
            found.append(
                f"column {name!r} holds {listed}, which count as missing{beside}; where it is a value, say "
                f"so (--not-na {in_shell(f'{as_key(name)}={next(iter(words))}')})."
            )
        if recipe.missing == "category" and table[name].isna().any() and (table[name] == MISSING).any():
            rows = int((table[name] == MISSING).sum())
            found.append(
                f"column {name!r} holds the text {MISSING!r} in {rows:,} rows, which are one category with "
                "those without a value; if that is meant, say so (--na "
                f"{in_shell(f'{as_key(name)}={MISSING}')})."
            )
    return found


def fall_together(column: pd.Series) -> int:
    """Return the number by which `fold_spellings` reduces the distinct texts."""
    texts = pd.Series(column.dropna().unique(), dtype="string")
    return len(texts) - int(fold_spellings(texts).nunique())


def _spellings(name: str, known: pd.Series, recipe: Recipe) -> str | None:
    fewer = 0 if name in recipe.fold else fall_together(known)
    if not fewer:
        return None
    number, alone = known.nunique(), "differ in capitals, spaces, leading zeros or '.0' at the end alone"
    if name == recipe.person:
        return (
            f"person {name!r} has {number:,} different values, and without those that {alone} "
            f"{number - fewer:,}: epsilon is promised to each as a person of its own. If they are the same "
            f"people, say so (--fold {in_shell(name)})."
        )
    return (
        f"column {name!r} has {number:,} different values, and without those that {alone} "
        f"{number - fewer:,}; if they are the same, say so (--fold {in_shell(name)})."
    )


def _numbers_as_texts(name: str, known: pd.Series, recipe: Recipe) -> str | None:
    """Return a sentence on numbers (with slips or marks) or dates that a column of texts may hold."""
    places, distinct = pd.factorize(known)
    text, rows = pd.Series(distinct, dtype="string"), np.bincount(places, minlength=len(distinct))
    if not text.str.contains(r"\d", regex=True).any():
        return None
    written = written_numbers(name, text, rows, recipe)
    if written is None:
        form = written_dates(text, rows) if len(text) > _MANY_NUMBERS / 5 else None
        if form is None or form == "iso":
            return None
        return (
            f"column {name!r} holds dates or times, taken as {len(text):,} categories; say so (--date "
            f"{in_shell(f'{name}={form}')}), or that they are texts (--categorical {in_shell(name)})."
        )
    options = written.options(name, recipe)
    lost = written.values.isna().to_numpy()
    at = np.flatnonzero(lost[places])
    slips = f"{len(at):,} of its {len(known):,} values are not numbers, the first in row "
    slips += f"{known.index[at[0]] + 1:,}" if len(at) else ""
    if not len(at) and not options and not written.amounts:  # codes of more digits than numbers have
        return None
    says = [f"--{option} {in_shell(f'{as_key(name)}={word_of(mark)}')}" for option, mark in options.items()]
    if not written.amounts and options and not len(at):
        kind = (
            f"decimal {word_of(options['decimal'])}s"
            if "decimal" in options
            else f"{word_of(options['thousands'])}s between thousands"
        )
        return f"column {name!r} holds numbers with {kind}, taken as categories; say so ({' '.join(says)})."
    says = [f"--numeric {in_shell(name)}", *says]
    if written.amounts or options:
        return (
            f"column {name!r} holds numbers with marks, such as a currency, a unit, percent or brackets, in "
            f"{len(known) - len(at):,} of its {len(known):,} values, taken as {len(text):,} categories; say "
            f"so ({' '.join(says)}){f', where {slips} and count as missing' if len(at) else ''}."
        )
    return (
        f"column {name!r} holds numbers, but {slips}: all become categories. Let those count as missing "
        f"({says[0]})."
    )


def _missing_days(name: str, known: pd.Series) -> str | None:
    found = days_for_none(known)
    if not found:
        return None
    rows = sum(found.values())
    return (
        f"column {name!r} holds the date {' and '.join(found)} in {rows:,} of {len(known):,} rows, apart "
        "from the others; if it stands for no date, say so (--na "
        f"{in_shell(f'{as_key(name)}={next(iter(found))}')})."
    )


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


def _missing_codes(name: str, known: pd.Series, num_rows: int) -> str | None:
    codes = known[known.isin(MISSING_CODES)]
    if len(codes) <= RARE_CODES * num_rows or known.nunique() <= FEW_NUMBERS:
        return None
    return (
        f"column {name!r} holds {codes.mode()[0]:g} or the like in {len(codes):,} of {num_rows:,} rows; if "
        f"it stands for a missing value, say so (--na {in_shell(f'{as_key(name)}={codes.mode()[0]:g}')})."
    )


def _names_of_rows(name: str, column: pd.Series) -> str | None:
    first, whole = column[:MANY_ROWS], len(column) >= MANY_ROWS and (column % 1 == 0).all()
    if not (whole and first.is_unique and column.is_unique):
        return None
    names = f"column {name!r} holds another whole number in each row"
    return f"{names}; if it names the rows, drop it (drop; --drop)."


def _many_classes(name: str, known: pd.Series) -> str | None:
    if known.nunique() <= MANY_CLASSES:
        return None
    return (
        f"target {name!r} holds {known.nunique()} different numbers, each a class of its own; if it measures "
        "something, predict it as a number (--task regression), or bin it into few classes."
    )
