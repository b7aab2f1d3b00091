"""Which private fits of this process were on the same people, so that their total can be said.

Cross-validation and grid searches fit clones of one estimator, often behind preprocessing that changes every
row from fold to fold. So a fit counts beside an earlier one if one of two things holds: the estimators are
clones of each other or of one estimator, or the data share a row. This sees one process only, and no more
than these two signs: a `PrivacyBudget` is the sure way.
"""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import pandas as pd

from equidp.kernel.events import Entries
from equidp.kernel.ledger import StepEvent

Hashes = npt.NDArray[np.uint64]


def row_hashes(table: npt.NDArray[np.float32]) -> Hashes:
    """The distinct rows of a table [n, d] as sorted 64-bit hashes; rows that print alike hash alike."""
    if not table.size:
        return np.empty(0, dtype=np.uint64)
    codes = pd.util.hash_pandas_object(pd.DataFrame(table + np.float32(0)), index=False)  # -0 becomes 0
    return np.unique(codes.to_numpy(dtype=np.uint64))


class _Family:
    """What an estimator and its clones have in common; compared by identity."""


@dataclass(frozen=True)
class _Fit:
    family: _Family
    rows: Hashes
    spent: tuple[tuple[tuple[StepEvent, int], ...], ...]


class Fits:
    """An account of fits. Equal rows are kept once, as hashes: a grid search over five folds keeps five."""

    def __init__(self) -> None:
        self._families: WeakKeyDictionary[object, _Family] = WeakKeyDictionary()
        self._fits: dict[tuple[_Family, bytes], _Fit] = {}
        self._lock = threading.Lock()

    def adopt(self, clone: object, original: object) -> None:
        """The clone's fits will count beside those of the original."""
        with self._lock:
            self._families[clone] = self._families.setdefault(original, _Family())

    def add(self, estimator: object, rows: Hashes, entries: Entries) -> tuple[int, Entries]:
        """Records a fit.

        Args:
            estimator: what was fitted.
            rows: of its training data, as `row_hashes` gives them.
            entries: what it spent.

        Returns:
            Number of fits on the same people as this one, itself included, and all that they spent.
        """
        with self._lock:
            family = self._families.setdefault(estimator, _Family())
            key = (family, hashlib.sha256(rows.tobytes()).digest())
            known = self._fits.get(key, _Fit(family, rows, ()))
            self._fits[key] = _Fit(family, rows, (*known.spent, tuple(entries)))
            related = [
                spent
                for fit in self._fits.values()
                if fit.family is family or len(np.intersect1d(fit.rows, rows, assume_unique=True))
                for spent in fit.spent
            ]
        return len(related), tuple(entry for spent in related for entry in spent)


FITS = Fits()
"""The account of this process."""
