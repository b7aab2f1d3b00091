"""Copies of rows and of people, made before training: epsilon is for one row, or one person, not for copies.

Rows that are equal by chance, for example with a few categories, are not copies. The number that chance
explains follows from the pairs of rows that differ in only one or two columns.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from equidp._extras import require_extra

with require_extra("tables"):
    import pandas as pd
    from pandas.util import hash_array

FEWEST = 10
"""Fewer rows that repeat another are not named."""
_FEWEST_CONTENTS = 30
"""With fewer different rows, equal ones say nothing."""
_TIMES = 2
"""Equal rows are copies if there are more than this many times the number that chance explains."""
_MOST_COLUMNS = 8
"""Number of columns by which chance is judged, among those in which alone most pairs of rows differ."""

Keys = npt.NDArray[np.uint64]


@final
@dataclass(frozen=True)
class Copies:
    """Rows that repeat another row, or people whose rows repeat another person's rows.

    Attributes:
        extra: number that repeat another.
        of: number of all.
        most: number of times that the most frequent one occurs.
        people: True for people.
    """

    extra: int
    of: int
    most: int
    people: bool = False

    def sentence(self) -> str:
        """Return what the owner of the table is to know and to do."""
        if self.people:
            return (
                f"the rows of {self.extra:,} of {self.of:,} people repeat another person's rows, up to "
                f"{self.most:,} times. Epsilon protects one id; a person with several ids is protected less. "
                "Remove the copies, or give them the person's id."
            )
        return (
            f"{self.extra:,} of {self.of:,} rows repeat another row in every column, up to {self.most:,} "
            "times. Epsilon holds for one row, and less for a person whose row is copied; copies are also "
            "trained and tested on at once. Remove them. To make a rare class count more, use class_weight "
            "(--class-weight)."
        )


def find_copies(table: pd.DataFrame, person: str | None = None) -> tuple[Copies, ...]:
    """Return copies of rows, and with a column that names people also copies under other names.

    Columns that are another whole number or text in each row, such as numbers of rows, do not count.

    >>> table = pd.DataFrame({"lab": np.random.default_rng(0).normal(size=90), "ill": ["no", "yes"] * 45})
    >>> find_copies(pd.concat([table, table.head(20)]))
    (Copies(extra=20, of=110, most=2, people=False),)
    """
    contents = table[[name for name in table.columns if not _names_rows(table[name])]]
    found = [_count_copies(contents, None)]
    if person is not None and person in table:
        found.append(_count_copies(contents.drop(columns=person, errors="ignore"), table[person]))
    return tuple(each for each in found if each is not None)


def _count_copies(table: pd.DataFrame, whose: pd.Series | None) -> Copies | None:
    """Return copies of rows, or of people, by all columns.

    Let two columns be independent among units that are equal in all others. Then pairs that agree in both
    relate to pairs that agree in only the first as pairs that agree in only the second relate to pairs that
    agree in neither. The largest number over some pairs of columns counts, because dependence lowers it.
    """
    people = None if whose is None else pd.factorize(whose)[0]
    whole = sum((_keys_of(table, place) for place in range(table.shape[1])), np.zeros(len(table), np.uint64))

    def count_units(*left_out: int) -> npt.NDArray[np.int64]:
        """Return how many units, rows or people, have each content of the other columns."""
        keys = pd.Series(hash_array(whole - sum(_keys_of(table, place) for place in left_out)))
        units = keys if people is None else keys.groupby(people).sum()
        return np.unique(units, return_counts=True)[1]

    counts = count_units()
    units, equal = int(counts.sum()), _count_pairs(counts)
    extra = units - len(counts)
    if extra < FEWEST or len(counts) < _FEWEST_CONTENTS:
        return None

    apart = {(place,): _count_pairs(count_units(place)) - equal for place in range(table.shape[1])}
    closest = sorted(apart, key=lambda place: -apart[place])[:_MOST_COLUMNS]
    for one, other in itertools.combinations(closest, 2):
        neither = _count_pairs(count_units(*one, *other)) - equal - apart[one] - apart[other]
        if equal <= _TIMES * apart[one] * apart[other] / max(1, neither):
            return None
    return Copies(extra, units, int(counts.max()), whose is not None)


def _count_pairs(counts: npt.NDArray[np.int64]) -> int:
    """Return the number of pairs of equal ones, from how many are equal to each other."""
    return int((counts * (counts - 1) // 2).sum())


def _names_rows(column: pd.Series) -> bool:
    """Return True for a whole number or a text that is another in each row."""
    whole = column.dtype != float or bool((column % 1 == 0).all())
    return whole and bool(column.notna().all()) and column.is_unique


def _keys_of(table: pd.DataFrame, place: int) -> Keys:
    """Return a key of each cell of a column, [n]: equal only for equal cells of the same column."""
    column = table.iloc[:, place]
    cells = column.to_numpy() + 0.0 if column.dtype == float else pd.factorize(column)[0]  # -0.0 is 0
    keys: Keys = hash_array(hash_array(cells) + np.uint64(place))
    return keys
