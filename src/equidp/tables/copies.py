"""Copies of rows and of people, made before training: epsilon is for one row, or one person, not for copies.

Rows that are equal by chance, as those of a few categories are, are no copies. How many chance explains
follows from the pairs of rows that differ in one or in two columns alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from equidp._extras import require_extra

with require_extra("tables"):
    import pandas as pd

FEWEST = 10
"""Fewer rows that repeat another are not named."""
_FEWEST_CONTENTS = 30
"""With fewer different rows, equal ones say nothing."""
_TIMES = 2
"""Equal rows are copies where there are more than this many times those that chance explains."""
_MOST_COLUMNS = 8
"""Columns, of those in which most pairs of rows differ alone, that chance is judged by."""
_PAIRS = 100_000
_SAME_COLUMN = 0.5
"""Correlation of two columns' agreement in pairs of rows from which on they say the same."""

Ints = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]


@final
@dataclass(frozen=True)
class Copies:
    """Rows that repeat another row, or people whose rows repeat those of another person.

    Attributes:
        extra: how many repeat another.
        of: how many there are.
        most: how often the most frequent one is there.
        people: True for people.
    """

    extra: int
    of: int
    most: int
    people: bool = False


def find_copies(table: pd.DataFrame, person: str | None = None) -> tuple[Copies, ...]:
    """Return copies of rows, and with a column that names people also copies under other names.

    Columns that are another whole number or text in each row, such as numbers of rows, do not count.

    >>> table = pd.DataFrame({"lab": np.random.default_rng(0).normal(size=90), "ill": ["no", "yes"] * 45})
    >>> find_copies(pd.concat([table, table.head(20)]))
    (Copies(extra=20, of=110, most=2, people=False),)
    """
    names = [name for name in table.columns if not _names_rows(table[name])]
    found = [_find(table, names, lambda keys: keys)]
    if person is not None and person in table.columns:
        whose = pd.factorize(table[person])[0].astype(np.int64)
        order = np.argsort(whose, kind="stable")
        starts = np.flatnonzero(np.diff(whose[order], prepend=-2))

        def of_people(keys: Keys) -> Keys:
            """Return the sum of the keys of each person's rows, [people]."""
            return np.add.reduceat(keys[order], starts)

        found.append(_find(table, [name for name in names if name != person], of_people, people=True))
    return tuple(each for each in found if each is not None)


def copies_sentences(found: Sequence[Copies]) -> list[str]:
    """Return a sentence for the owner of the table on copies of rows, and one on copies of people."""
    return [_people_sentence(each) if each.people else _rows_sentence(each) for each in found]


def _rows_sentence(found: Copies) -> str:
    most = f"; one is there {found.most:,} times" if found.most > 2 else ""
    return (
        f"{found.extra:,} of {found.of:,} rows repeat another row in every column{most}. Epsilon holds for "
        "one row, and less for a person whose row is copied; copies are also trained and tested on at once. "
        "Remove them. To make a rare class count more, use class_weight (--class-weight)."
    )


def _people_sentence(found: Copies) -> str:
    return (
        f"the rows of {found.extra:,} of {found.of:,} people repeat those of another person, up to "
        f"{found.most:,} times. Epsilon holds for one name, and less for a person under several. Remove the "
        "copies, or give them the person's name."
    )


def _find(
    table: pd.DataFrame, names: Sequence[str], of_units: Callable[[Keys], Keys], *, people: bool = False
) -> Copies | None:
    """Return copies of units, which are rows or people, by these columns."""
    if not names:
        return None
    of_rows = np.zeros(len(table), dtype=np.uint64)
    for at, name in enumerate(names):
        of_rows += _keys_of(table[name], at)
    counts = np.unique(of_units(of_rows), return_counts=True)[1]
    units = int(counts.sum())
    extra = units - len(counts)
    if extra < FEWEST or len(counts) < _FEWEST_CONTENTS:
        return None
    equal = _count_pairs(counts)
    groups = _columns_together(table, names, np.unique(of_rows, return_index=True)[1])
    if equal <= _TIMES * _expect_equal(table, names, groups, of_rows, of_units, equal):
        return None
    return Copies(extra, units, int(counts.max()), people)


def _expect_equal(
    table: pd.DataFrame,
    names: Sequence[str],
    groups: Sequence[Sequence[int]],
    of_rows: Keys,
    of_units: Callable[[Keys], Keys],
    equal: int,
) -> float:
    """Return the number of pairs of equal units that chance explains.

    If two columns are independent among units that are equal in all others, then the pairs that agree in
    both are to those which agree in the first alone as those which agree in the second alone are to those
    which agree in neither. The largest number of some pairs of columns counts: dependence lowers it.
    """

    def count_without(*left_out: Sequence[int]) -> int:
        keys = of_rows.copy()
        for at in (at for each in left_out for at in each):
            keys -= _keys_of(table[names[at]], at)
        return _count_pairs(np.unique(of_units(keys), return_counts=True)[1]) - equal

    close = [(count_without(each), each) for each in groups]
    close = sorted(close, key=lambda each: -each[0])[:_MOST_COLUMNS]
    expected = 0.0
    for (one, first), (other, second) in itertools.combinations(close, 2):
        neither = max(1, count_without(first, second) - one - other)
        expected = max(expected, one * other / neither)
    return expected


def _columns_together(table: pd.DataFrame, names: Sequence[str], rows: Ints) -> list[list[int]]:
    """Return the columns, by their places, so that those which say the same are together.

    Args:
        table: of the columns.
        names: of the columns.
        rows: one of each content, in pairs of which columns agree or do not.
    """
    draw = np.random.default_rng(0)
    left, right = draw.choice(rows, _PAIRS), draw.choice(rows, _PAIRS)
    other = left != right
    agree = []
    for name in names:
        keys = _keys_of(table[name], 0)
        agree.append((keys[left] == keys[right])[other])
    parts: list[list[int]] = []
    for at, mask in enumerate(agree):
        same = [part for part in parts if any(_say_the_same(mask, agree[each]) for each in part)]
        parts = [part for part in parts if part not in same]
        parts.append([at, *(each for part in same for each in part)])
    return parts


def _say_the_same(one: Bools, other: Bools) -> bool:
    """Return True where two columns agree in the same pairs of rows."""
    shares = one.mean(), other.mean()
    spread = math.sqrt(shares[0] * (1 - shares[0]) * shares[1] * (1 - shares[1]))
    return spread > 0 and float((one & other).mean() - shares[0] * shares[1]) > _SAME_COLUMN * spread


def _count_pairs(counts: Ints) -> int:
    """Return the number of pairs of equal ones, from how many are equal to each other."""
    return int((counts * (counts - 1) // 2).sum())


def _names_rows(column: pd.Series) -> bool:
    """Return True for a whole number or a text that is another in each row."""
    known = column.dropna()
    return (
        len(known) == len(column)
        and (column.dtype != float or bool((known % 1 == 0).all()))
        and (known.is_unique)
    )


def _keys_of(column: pd.Series, place: int) -> Keys:
    """Return a key of each cell, [n]: equal for equal cells of a column, and different in other places."""
    if column.dtype == float:
        values = column.to_numpy(dtype=np.float64) + 0.0  # -0.0 is 0
        values[np.isnan(values)] = np.nan
        cells = values.view(np.uint64)
    else:
        cells = pd.factorize(column)[0].astype(np.int64).view(np.uint64)
    return _mixed(cells ^ _mixed(np.full(1, place + 1, dtype=np.uint64)))


def _mixed(values: Keys) -> Keys:
    """Return 64 bits that depend on all bits of each value (SplitMix64, Steele et al. 2014)."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
