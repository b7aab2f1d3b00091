"""Measurements of audits, kept on disk as they are made, so that a stopped audit loses little."""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch

from equidp._provenance import versions
from equidp.comparison.cells import part_digests
from equidp.data.dataset import GroupedDataset
from equidp.errors import CacheWarning
from equidp.store import FIGURES, Store, key_of
from equidp.training.plan import ResolvedPlan

Arrays = Mapping[str, npt.NDArray[Any]]


@final
class Measurements:
    """Named arrays of one audit in a store of its own; kept by nobody without a folder.

    Arrays are computed from private data: the folder must not be shared.

    Args:
        directory: where stores of audits lie; None: nothing is kept on disk.
        facts: plain values that determine the results, beside plan, data, `FIGURES` and versions of packages.
        plan: of the audited steps; where its code has no source, nothing is kept, and a CacheWarning says so.
        data: audited examples.
        fresh: True: what was kept of the same audit is removed.

    Raises:
        SettingError: the folder cannot be written.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None,
        facts: Mapping[str, Any],
        plan: ResolvedPlan,
        data: GroupedDataset,
        *,
        fresh: bool = False,
    ) -> None:
        self._store: Store | None = None
        if directory is None:
            return
        code = part_digests(plan)
        if unknown := [name for name, digest in code.items() if digest is None]:
            message = f"an audit is not kept where the source of its {', '.join(unknown)} is not known."
            warnings.warn(message, CacheWarning, stacklevel=3)
            return
        key = key_of(dict(facts), code, vars(plan.policy), data_digest(data), FIGURES, versions())
        self._store = Store(Path(directory) / f"audit-{key}", private=True)
        self._store.check()
        if fresh:
            self._store.remove(*self._store.entries())

    def get(self, name: str) -> dict[str, npt.NDArray[Any]] | None:
        """Arrays kept under a name; None where there are none."""
        entry = None if self._store is None else self._store.get(name)
        return None if entry is None else {each: entry.array(each) for each in entry.facts["arrays"]}

    def put(self, name: str, arrays: Arrays) -> None:
        """Keep arrays under a name."""
        if self._store is not None:
            self._store.put(name, arrays, {"arrays": list(arrays)})

    def load(self, name: str) -> dict[str, Any] | None:
        """State of a training that `save` kept; None where there is none."""
        entry = None if self._store is None else self._store.get(name)
        if entry is None:
            return None
        content = io.BytesIO(entry.read("state.pt"))
        state: dict[str, Any] = torch.load(content, map_location="cpu", weights_only=True)
        return state

    def save(self, name: str, state: Mapping[str, Any]) -> None:
        """Keep the state of a training: nested dictionaries of tensors and numbers."""
        if self._store is not None:
            buffer = io.BytesIO()
            torch.save(dict(state), buffer)
            self._store.put(name, {"state.pt": buffer.getvalue()})

    def rows(self, name: str, take: Callable[[], npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
        """Return the array kept under a name; if missing, make it by `take` and keep it."""
        kept = self.get(name)
        if kept is None:
            kept = {"rows": take()}
            self.put(name, kept)
        return kept["rows"]


def data_digest(train: GroupedDataset) -> str:
    """Digest of all examples."""
    digest = hashlib.sha256(repr((train.group_names, train.class_names)).encode())
    for tensor in (train.one_tensor, train.trained_targets, train.groups):
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
