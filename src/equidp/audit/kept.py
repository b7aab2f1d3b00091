"""Measurements of audits, kept on disk as they are made, so that a stopped audit loses little."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch

from equidp._files import write_whole
from equidp._provenance import versions
from equidp.data.dataset import GroupedDataset
from equidp.digest import code_digest
from equidp.kernel.policy import Policy
from equidp.store import FIGURES, make_folder

Arrays = Mapping[str, npt.NDArray[Any]]


@final
class Kept:
    """Named arrays in a folder whose name is a digest of all that they depend on; not kept without a folder.

    Arrays are computed from private data: the folder must not be shared.

    Args:
        directory: where folders of audits lie; None: nothing is kept on disk.
        facts: plain values that determine the results, in addition to `FIGURES` and versions of packages.
        fresh: True: arrays that were kept for the same facts are removed.

    Raises:
        SettingError: the folder cannot be written.
    """

    def __init__(
        self, directory: str | os.PathLike[str] | None, facts: Mapping[str, Any], *, fresh: bool = False
    ) -> None:
        self.folder: Path | None = None
        if directory is not None:
            everything = [dict(facts), FIGURES, versions()]
            name = hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()[:24]
            self.folder = Path(directory) / f"audit-{name}"
            make_folder(self.folder)
            if fresh:
                for file in (*self.folder.glob("*.npz"), *self.folder.glob("*.pt")):
                    file.unlink(missing_ok=True)

    def get(self, name: str) -> dict[str, npt.NDArray[Any]] | None:
        """Arrays kept under a name; None if missing or damaged."""
        if self.folder is None:
            return None
        try:
            with np.load(self.folder / f"{name}.npz") as kept:
                return dict(kept)
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
            return None

    def put(self, name: str, arrays: Arrays) -> None:
        """Keep arrays under a name, whole or not at all."""
        if self.folder is None:
            return
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # type: ignore[arg-type]
        write_whole(self.folder / f"{name}.npz", buffer.getvalue())

    def load(self, name: str) -> dict[str, Any] | None:
        """State of a training that `save` kept; None if missing or damaged."""
        if self.folder is None:
            return None
        try:
            state: dict[str, Any] = torch.load(
                self.folder / f"{name}.pt", map_location="cpu", weights_only=True
            )
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError):
            return None
        return state

    def save(self, name: str, state: Mapping[str, Any]) -> None:
        """Keep the state of a training: nested dictionaries of tensors and numbers."""
        if self.folder is None:
            return
        buffer = io.BytesIO()
        torch.save(dict(state), buffer)
        write_whole(self.folder / f"{name}.pt", buffer.getvalue())

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


def policy_facts(policy: Policy) -> dict[str, Any]:
    """Settings of a policy and a digest of its code."""
    return {"settings": {**vars(policy)}, "code": code_digest(type(policy))}
