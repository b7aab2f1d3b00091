"""Signals of columns: how well each tells the target by itself, to find those that were noted after it.

They are read from all rows without privacy, and are for the owner of the table alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from equidp._extras import require_extra
from equidp.tables.checks import columns_beside_inputs
from equidp.tables.labels import code_values
from equidp.tables.parse import RARE_ROWS
from equidp.tables.recipe import Recipe

with require_extra("tables"):
    import pandas as pd

NAMED = 0.9
"""AUC above which a column is named: honest columns of real tables stay below it."""
_MOST_ROWS = 20_000
"""Rows of a class that are looked at; AUC does not depend on the shares of the classes."""
_MOST_CLASSES = 20
_FOLDS = 5
_INTERVALS = 32
"""Numbers are cut into so many intervals, to find what no straight order of them tells."""

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@final
@dataclass(frozen=True)
class Signal:
    """Strength with which a column tells the target by itself.

    Attributes:
        column: its name.
        auc: area under the curve of the column alone, in [0, 1]; 0.5 tells nothing.
        of: the class that it tells from all others.
    """

    column: str
    auc: float
    of: str

    @property
    def suspicious(self) -> bool:
        """True where hardly any column that is known before the outcome tells as much."""
        return self.auc > NAMED


def rank_signals(table: pd.DataFrame, recipe: Recipe) -> tuple[Signal, ...]:
    """Return the signal of each input column, the largest first; empty without two classes of 20 rows.

    Of numbers, the AUC of the value or of the rate of the target in its interval, whichever is larger; of
    texts, of the rate in the category, or in the part of the alphabet. Rates are of other rows than the one
    they are for, and of other people where the recipe says who is who: many categories are no signal by
    themselves. Missing cells are a category of their own. Of several classes, the class told best counts.

    >>> table = pd.DataFrame({"ended": ["x", None] * 50, "age": range(100), "churn": ["yes", "no"] * 50})
    >>> [each.column for each in rank_signals(table, Recipe(target="churn")) if each.suspicious]
    ['ended']
    """
    if recipe.target is None or recipe.target not in table:
        return ()
    target = table[recipe.target]
    codes, names = code_values(target)
    codes = np.where(target.isna(), -1, codes)
    counts = np.bincount(codes[codes >= 0], minlength=len(names))
    if len(names) < 2 or np.sort(counts)[-2] < RARE_ROWS:
        return ()
    rows = _choose_rows(codes)
    classes = codes[rows]
    counts = np.bincount(classes, minlength=len(names))
    told = [int(each) for each in np.argsort(-counts)[:_MOST_CLASSES] if counts[each] >= RARE_ROWS]
    if len(names) == 2:  # either class is told as well
        told = told[-1:]
    whose = None
    if recipe.person is not None and recipe.person in table:
        whose = pd.factorize(table[recipe.person].take(rows))[0].astype(np.int64)
    folds = _deal_folds(classes, whose)
    signals = []
    for name in table.columns.drop(columns_beside_inputs(recipe), errors="ignore"):
        column = table[name].take(rows)
        found = {each: _auc_alone(column, classes == each, folds) for each in told}
        best = max(found, key=lambda each: found[each])
        signals.append(Signal(name, found[best], names[best]))
    return tuple(sorted(signals, key=lambda each: -each.auc))


def _choose_rows(codes: Ints) -> Ints:
    """Return the rows that are looked at: at most `_MOST_ROWS` of each class, by a fixed seed."""
    order = np.random.default_rng(0).permutation(len(codes))
    order = order[codes[order] >= 0]
    return np.sort(order[_number_within(codes[order]) < _MOST_ROWS])


def _deal_folds(classes: Ints, whose: Ints | None) -> Ints:
    """Return the fold of each row, [n]: the rows of a class, or of people, are dealt to all folds alike."""
    order = np.random.default_rng(1).permutation(len(classes))
    folds = np.empty(len(classes), dtype=np.int64)
    if whose is None:
        folds[order] = _number_within(classes[order]) % _FOLDS
        return folds
    first = np.unique(whose, return_index=True)[1]
    people = np.random.default_rng(1).permutation(len(first))
    of_people = np.empty(len(first), dtype=np.int64)
    of_people[people] = _number_within(classes[first][people]) % _FOLDS
    return of_people[whose]


def _number_within(classes: Ints) -> Ints:
    """Return how many rows before each, [n], are of its class."""
    numbers: Ints = pd.Series(classes).groupby(classes).cumcount().to_numpy(dtype=np.int64)
    return numbers


def _auc_alone(column: pd.Series, hits: Bools, folds: Ints) -> float:
    """Return the AUC of a column, [n], for the rows that are hits."""
    return max(area(scores, hits) for scores in _score_rows(column, hits, folds))


def _score_rows(column: pd.Series, hits: Bools, folds: Ints) -> Iterator[Floats]:
    """Yield ways to order rows by a column, [n], by which hits may come last."""
    if column.dtype == float:
        values = column.to_numpy(dtype=np.float64)
        for missing in (-np.inf, np.inf):
            ordered = np.where(np.isnan(values), missing, values)
            yield ordered
            yield -ordered
    else:
        column = column.astype("category")
        codes = column.cat.codes.to_numpy().astype(np.int64)
        yield _rates_elsewhere(codes, hits, folds)
        places = rankdata(np.asarray(column.cat.categories.astype(str), dtype=object), method="ordinal")
        values = np.append(places, np.nan)[codes]
    yield _rates_elsewhere(_cut(values), hits, folds)


def _cut(values: Floats) -> Ints:
    """Return the interval of each value, [n], with about equally many in each; -1 for a missing one."""
    known = values[~np.isnan(values)]
    if not len(known):
        return np.full(len(values), -1)
    edges = np.unique(known)
    if len(edges) > _INTERVALS:
        edges = np.unique(np.quantile(known, np.linspace(0, 1, _INTERVALS + 1)[:-1]))
    return np.where(np.isnan(values), -1, np.searchsorted(edges, values, side="right"))


def _rates_elsewhere(codes: Ints, hits: Bools, folds: Ints) -> Floats:
    """Return the share of hits among rows of the same code, from -1 on, in other folds, [n].

    One more row counts that has the share of all rows: so does a code that other folds lack.
    """
    shape = int(codes.max()) + 2, _FOLDS
    cells = np.ravel_multi_index((codes + 1, folds), shape)
    size = shape[0] * shape[1]
    rows = np.bincount(cells, minlength=size).reshape(shape)
    of_hits = np.bincount(cells, hits, minlength=size).reshape(shape)
    elsewhere = rows.sum(axis=1, keepdims=True) - rows
    hits_elsewhere = of_hits.sum(axis=1, keepdims=True) - of_hits
    rates: Floats = ((hits_elsewhere + hits.mean()) / (elsewhere + 1)).reshape(-1)[cells]
    return rates


def area(scores: Floats, hits: Bools) -> float:
    """Return the area under the curve: how often a hit has the larger score than another row, ties by half.

    >>> area(np.array([1.0, 2.0, 3.0]), np.array([False, False, True]))
    1.0
    """
    of_hits, others = int(hits.sum()), int((~hits).sum())
    ranks = rankdata(scores)[hits].sum()
    return float((ranks - of_hits * (of_hits + 1) / 2) / (of_hits * others))
