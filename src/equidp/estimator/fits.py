"""Account of the private fits of this process on the same people, so that their total can be reported.

Cross-validation and grid searches fit clones of one estimator, often behind preprocessing that changes every
row from fold to fold. So a fit counts beside an earlier one if one of two things holds: the estimators are
clones of each other or of one estimator, or the data share a row. This sees one process only, and no more
than these two signs: a `PrivacyBudget` is the sure way. An estimator's own fits travel with it, also to
another process: `Progress.spent`.
"""

from __future__ import annotations

import hashlib
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from scipy import sparse

from equidp.errors import PrivacyWarning
from equidp.kernel.events import Entries

Hashes = npt.NDArray[np.uint64]


_ROWS = 2**14
"""Rows hashed at a time."""


def row_hashes(table: Any) -> Hashes:
    """The distinct rows of a table [n, d], dense or CSR, as sorted 64-bit hashes; equal rows hash alike."""
    parts = [_hashed(table[start : start + _ROWS]) for start in range(0, table.shape[0], _ROWS)]
    return np.unique(np.concatenate([np.empty(0, dtype=np.uint64), *parts]))


def _hashed(table: Any) -> Hashes:
    """The sum over a row's cells of a hash of column and value; zeros, and -0, add nothing."""
    rows = sparse.csr_array(table, dtype=np.float32, copy=True)
    rows.sum_duplicates()
    rows.eliminate_zeros()
    columns = _mixed(rows.indices.astype(np.uint64) + np.uint64(1))
    cells = _mixed(columns + rows.data.view(np.uint32))
    before = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(cells, dtype=np.uint64)])
    hashes: Hashes = before[rows.indptr[1:]] - before[rows.indptr[:-1]]  # modulo 2^64
    return hashes


def _mixed(codes: Hashes) -> Hashes:
    """Spreads each bit over all others (the finaliser of SplitMix64)."""
    codes = (codes ^ (codes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    codes = (codes ^ (codes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return codes ^ (codes >> np.uint64(31))


class _Family:
    """Mark that an estimator and its clones share; compared by identity."""


@dataclass(frozen=True)
class _Fit:
    family: _Family
    rows: Hashes
    spent: Mapping[str, Entries]


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

    def add(self, estimator: object, rows: Hashes, name: str, entries: Entries) -> dict[str, Entries]:
        """Records a fit.

        Args:
            estimator: what was fitted.
            rows: of its training data, as `row_hashes` gives them.
            name: of this fit alone.
            entries: what it spent.

        Returns:
            Name -> what it spent, of the fits on the same people as this one, itself included.
        """
        with self._lock:
            family = self._families.setdefault(estimator, _Family())
            key = (family, hashlib.sha256(rows.tobytes()).digest())
            known = self._fits.get(key, _Fit(family, rows, {}))
            self._fits[key] = _Fit(family, rows, {**known.spent, name: tuple(entries)})
            return {
                each: spent
                for fit in self._fits.values()
                if fit.family is family or len(np.intersect1d(fit.rows, rows, assume_unique=True))
                for each, spent in fit.spent.items()
            }


FITS = Fits()
"""The account of this process."""


def warn(message: str, frames: int) -> None:
    """A warning about the line that called `fit`, so many frames above the caller."""
    warnings.warn(message, PrivacyWarning, stacklevel=frames + 2)
