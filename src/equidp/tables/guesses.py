"""Guesses about the columns of a table: likely slips and misuses. The table is not changed.

Each guess looks at one column and returns a sentence, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from equidp.tables.cells import DAY_ZERO, MISSING, as_amounts, as_numbers, fold_spellings, read_dates
from equidp.tables.recipe import MARKS, Recipe, as_key, in_shell

FEW_TEXTS = 0.1
"""Share of a column's values that may be slips among numbers; a column with more holds texts."""
MISSING_CODES = (-99, -999, -9999, 999, 9999, 99999)
"""Numbers that people write for a missing value."""
MISSING_WORDS = frozenset(
    (
        *("-", "--", ".", "..", "unknown", "unk", "unbekannt", "k.a.", "k. a.", "keine angabe", "missing"),
        *("not available", "not applicable", "not known", "none", "nil", "nd", "n.d.", "tbd", "na", "n.a."),
        *("(null)", "(none)", "inconnu", "desconocido", "undefined", "void", "error"),
        *(
            "#ref!",
            "#value!",
            "#div/0!",
            "#div/0",
            "#name?",
            "#num!",
            "#null!",
            "#spill!",
            "#calc!",
            "#error!",
        ),
        *(
            "#wert!",
            "#bezug!",
            "#zahl!",
            "#nv",
            "#valeur!",
            "err:502",
            "err:503",
            "err:508",
            "err:511",
            "err:522",
        ),
    )
)
"""Words that, among numbers or dates, stand for a missing value; in small letters."""
MISSING_DAYS = (
    *(
        "9999-12-31",
        "9999-01-01",
        "9999-09-09",
        "3000-01-01",
        "2999-12-31",
        "2999-01-01",
        "2500-01-01",
        "2262-04-11",
    ),
    *(
        "2222-02-02",
        "2200-01-01",
        "2199-12-31",
        "2100-01-01",
        "2100-12-31",
        "2099-12-31",
        "2099-01-01",
        "2050-12-31",
    ),
    *(
        "1970-01-01",
        "1910-01-01",
        "1901-01-01",
        "1900-01-01",
        "1900-01-02",
        "1899-12-30",
        "1899-12-31",
        "1800-01-01",
    ),
    *(
        "1800-12-28",
        "1753-01-01",
        "1700-01-01",
        "1677-09-21",
        "1601-01-01",
        "1111-11-11",
        "1000-01-01",
        "0001-01-01",
    ),
)
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
        """Returns the options that the recipe lacks to read these numbers, with values."""
        found = {}
        if self.thousands is not None and self.thousands != recipe.thousands_of(name):
            found["thousands"] = self.thousands
        if self.decimal != recipe.decimal_of(name):
            found["decimal"] = self.decimal
        return found


def word_of(mark: str) -> str:
    """Returns the word for a mark within numbers."""
    return next(word for word, other in MARKS.items() if other == mark)


def best(options: Sequence[_Option], share: Callable[[_Option], float]) -> _Option:
    """Returns the first option that reads all rows, or else the one that reads most."""
    shares: list[float] = []
    for option in options:
        shares.append(share(option))
        if shares[-1] == 1.0:
            return option
    return options[int(np.argmax(shares))]


def share_of(values: pd.Series, rows: npt.NDArray[np.int64]) -> float:
    """Returns the share of the rows whose value could be read."""
    rows = rows[: len(values)]
    return float(rows[values.notna().to_numpy()].sum() / max(1, rows.sum()))


def written_numbers(
    name: str, text: pd.Series, rows: npt.NDArray[np.int64], recipe: Recipe, *, stated: bool = False
) -> Written | None:
    """Returns the number format of distinct texts with these row counts; None if most of them hold no number.

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
    """Returns the date format of distinct texts with these row counts, or two formats with | between them.

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
    """Returns a sentence for each doubt about a table of `read_table`; rows are counted from 1.

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
    """Returns a sentence for each column of texts in which a word such as NA counts as missing beside other
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
                "so "
                f"(--not-na {in_shell(f'{as_key(name)}={next(iter(words))}')})."
            )
        if recipe.missing == "category" and table[name].isna().any() and (table[name] == MISSING).any():
            rows = int((table[name] == MISSING).sum())
            found.append(
                f"column {name!r} holds the text {MISSING!r} in {rows:,} rows, which are one category with "
                "those "
                f"without a value; if that is meant, say so (--na {in_shell(f'{as_key(name)}={MISSING}')})."
            )
    return found


def fall_together(column: pd.Series) -> int:
    """Returns the number by which `fold_spellings` reduces the distinct texts."""
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
            "people, "
            f"say so (--fold {in_shell(name)})."
        )
    return (
        f"column {name!r} has {number:,} different values, and without those that {alone} "
        f"{number - fewer:,}; if "
        f"they are the same, say so (--fold {in_shell(name)})."
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
            f"{in_shell(f'{name}={form}')}), or that "
            f"they are texts (--categorical {in_shell(name)})."
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
            "so "
            f"({' '.join(says)}){f', where {slips} and count as missing' if len(at) else ''}."
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
        "from the "
        f"others; if it stands for no date, say so (--na {in_shell(f'{as_key(name)}={next(iter(found))}')})."
    )


def days_for_none(known: pd.Series) -> dict[str, int]:
    """Returns the row count of each outlying date that people and programs write for a missing date.

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
