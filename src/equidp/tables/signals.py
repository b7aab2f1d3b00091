"""Signals of columns: how well each tells the target by itself, to find those that were noted after it.

They are read from all rows without privacy, and are only for the owner of the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from equidp._extras import require_extra
from equidp.tables.checks import columns_beside_inputs
from equidp.tables.labels import code_values
from equidp.tables.parse import RARE_ROWS
from equidp.tables.recipe import Recipe

with require_extra("tables"):
    import pandas as pd
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import GroupKFold, StratifiedKFold
    from sklearn.preprocessing import TargetEncoder

NAMED = 0.9
"""AUC above which a column is named: honest columns of real tables stay below it."""
_MOST_ROWS = 20_000
"""Rows of a class that are looked at; AUC does not depend on the shares of the classes."""
_MOST_CLASSES = 20
_FOLDS = 5
_INTERVALS = 32
"""Numbers, and texts in alphabetical order, are cut into this many intervals."""

Ints = npt.NDArray[np.int64]


@final
@dataclass(frozen=True)
class Signal:
    """Strength with which a column tells the target by itself.

    Attributes:
        column: its name.
        auc: area under the curve of the column by itself, in [0, 1]; 0.5 tells nothing.
        of: class that it distinguishes from all others.
    """

    column: str
    auc: float
    of: str

    @property
    def suspicious(self) -> bool:
        """True if hardly any column that is known before the outcome tells as much."""
        return self.auc > NAMED


def rank_signals(table: pd.DataFrame, recipe: Recipe) -> tuple[Signal, ...]:
    """Return the signal of each input column, the largest first, or empty without two classes of 20 rows.

    It is the AUC of the rate of the target in an interval of the column's values, in alphabetical order for
    texts, or in a text's category, whichever is larger. The rate for a row comes from other rows, and from
    other people if the recipe names a person column, because many categories are no signal by themselves.
    Missing cells are their own category. With several classes, the best predicted class counts.

    >>> table = pd.DataFrame({"ended": ["x", None] * 50, "age": range(100), "churn": ["yes", "no"] * 50})
    >>> [each.column for each in rank_signals(table, Recipe(target="churn")) if each.suspicious]
    ['ended']
    """
    if recipe.target is None or recipe.target not in table:
        return ()
    shuffled = table.dropna(subset=[recipe.target]).sample(frac=1, random_state=0)
    classes = pd.Series(code_values(shuffled[recipe.target])[0])
    chosen = (classes.groupby(classes).cumcount() < _MOST_ROWS).to_numpy()
    rows, classes = shuffled[chosen], classes[chosen]
    counts = classes.value_counts()
    told = counts[counts >= RARE_ROWS].index[:_MOST_CLASSES]
    if len(told) < 2:
        return ()
    inputs = rows.drop(columns=columns_beside_inputs(recipe), errors="ignore")
    several = recipe.person in rows and rows[recipe.person].nunique() >= _FOLDS
    whose = pd.factorize(rows[recipe.person])[0] if several else None
    names = code_values(rows[recipe.target])[1]
    signals: dict[str, Signal] = {}
    for one in told[-1:] if len(counts) == 2 else told:  # of two classes, either is told as well
        for name, auc in _aucs_alone(inputs, (classes == one).to_numpy(), whose).items():
            if name not in signals or auc > signals[name].auc:
                signals[name] = Signal(name, auc, names[one])
    return tuple(sorted(signals.values(), key=lambda each: -each.auc))


def _aucs_alone(inputs: pd.DataFrame, hits: npt.NDArray[np.bool_], whose: Ints | None) -> dict[str, float]:
    """Return the AUC of each column, for the rows that are hits."""
    codings = [(name, codes) for name in inputs for codes in _codings(inputs[name])]
    if not codings:
        return {}
    codes = np.column_stack([each for _, each in codings])
    folds = StratifiedKFold(_FOLDS) if whose is None else GroupKFold(_FOLDS)
    rates = np.empty(codes.shape)
    for others, fold in folds.split(codes, hits, whose):
        encoder = TargetEncoder(target_type="continuous", smooth=1.0)
        encoder.fit(codes[others], hits[others].astype(float))
        rates[fold] = encoder.transform(codes[fold])
    aucs: dict[str, float] = {}
    for (name, _), of_rows in zip(codings, rates.T, strict=True):
        aucs[name] = max(aucs.get(name, 0.0), float(roc_auc_score(hits, of_rows)))
    return aucs


def _codings(column: pd.Series) -> list[Ints]:
    """Return the interval of each value, [n], and of texts the category too; -1 for a missing one."""
    numeric = column.dtype == float
    codes, _ = pd.factorize(column if numeric else column.astype(object), sort=True)
    cut = pd.qcut(pd.Series(codes).where(codes >= 0), _INTERVALS, labels=False, duplicates="drop")
    intervals = codes if codes.max() < _INTERVALS else cut.fillna(-1).to_numpy(dtype=np.int64)
    return [intervals] if numeric else [intervals, codes]
