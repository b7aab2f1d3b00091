"""Files of histories: private, compressed, and whole or refused."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, final

import numpy as np
import numpy.typing as npt

from equidp._extras import require_extra
from equidp._files import sync_folder
from equidp.errors import CheckpointError
from equidp.individual.histories import Histories, chunks
from equidp.individual.step_counts import StepCounts
from equidp.training.checkpoint import SENSITIVE

with require_extra("tables"):
    import pyarrow as pa

Array = npt.NDArray[Any]

_FORMAT = 1
_CHUNK = 2**16  # rows of a table that are written at a time
_ENDING = ".npy.zst"
_LITTLE = 2**20  # bytes read at a time


@final
class HistoryFiles:
    """The files of one accountant's histories in a folder of checkpoints.

    A state is small and goes with one checkpoint: norms and classes, and what the steps since norms were last
    taken count for each class. Periods before never change: each is a file of its own, written once and used
    by all later states. So is the table, until it changes. Names end in a checksum of the content.

    Args:
        folder: of the checkpoints.
        number: of the accountant.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self._folder, self._prefix = folder, f"{SENSITIVE}histories-{number}-"
        self._parts: dict[str, str] = {}  # of the histories as they are -> name of the file
        self._used: dict[str, set[str]] = {}  # name of a state -> names of the parts that it needs

    def save(self, checkpoint: str, facts: dict[str, Any], counts: StepCounts) -> None:
        """Write the state for a checkpoint, and parts that are not on disk yet.

        Raises:
            OSError: the state was not written.
        """
        arrays, parts = counts.arrays(), {}
        for key, content in _parts(counts.histories).items():
            name = self._parts.get(key)
            if name is None or not (self._folder / name).exists():
                name = self._write("part", content)
            parts[key] = name
        self._parts = parts
        facts = {"format": _FORMAT, "parts": parts, **facts}
        header = np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)
        self._used[self._write(_key(checkpoint), [header, *arrays])] = set(parts.values())

    def load(self, checkpoint: str) -> tuple[dict[str, Any], list[Array]] | None:
        """Return the facts of a checkpoint's state, and its arrays; None where there is none.

        Raises:
            CheckpointError: it is damaged, or of another version.
        """
        states = list(self._folder.glob(f"{self._prefix}{_key(checkpoint)}-*{_ENDING}"))
        if not states:
            return None
        whole = [path for path in states if _is_whole(path)]
        arrays = self._read((whole or states)[0])
        facts = json.loads(next(arrays).tobytes())
        if facts["format"] != _FORMAT:
            raise CheckpointError(
                f"the histories in {os.fspath(states[0])!r} have format {facts['format']}, and this version "
                f"of equidp reads format {_FORMAT}; go on with the version that wrote them.",
                field="format",
            )
        return facts, list(arrays)

    def load_parts(self, parts: dict[str, str], histories: Histories) -> None:
        """Put the parts of a state into empty histories.

        Raises:
            CheckpointError: one is missing or damaged.
        """
        for key, name in parts.items():
            arrays = self._read(self._folder / name)
            if key.startswith("period"):
                histories.restore(key, *arrays)
            else:
                histories.restore_table(arrays, int(key.rpartition("-")[2]))
        self._parts = dict(parts)

    def drop(self, checkpoints: Collection[str]) -> None:
        """Delete states of other checkpoints, parts that no state needs, and what a killed process left."""
        for stale in self._folder.glob(f".{self._prefix}*.tmp"):
            stale.unlink(missing_ok=True)
        needed: set[str] = set()
        keys = {_key(each) for each in checkpoints}
        files = list(self._folder.glob(f"{self._prefix}*{_ENDING}"))
        states = [path for path in files if not path.name.startswith(f"{self._prefix}part-")]
        for path in states:
            if path.name.removeprefix(self._prefix).rsplit("-", 1)[0] in keys:
                needed |= {path.name, *self._parts_of(path)}
        for path in files:
            if path.name not in needed:
                path.unlink(missing_ok=True)

    def _parts_of(self, path: Path) -> set[str]:
        if path.name not in self._used:
            whole = _is_whole(path)  # a damaged one cannot be restored: it needs nothing
            facts = json.loads(next(self._read(path)).tobytes()) if whole else {"parts": {}}
            self._used[path.name] = set(facts["parts"].values())
        return self._used[path.name]

    def _write(self, stem: str, arrays: Iterable[Array]) -> str:
        temporary = self._folder / f".{self._prefix}{stem}.{os.getpid()}.tmp"
        try:
            with open(temporary, "wb") as file:
                hashed = _Hashed(file)
                with pa.CompressedOutputStream(pa.PythonFile(hashed, "w"), "zstd") as stream:
                    for array in arrays:
                        stream.write(b"+")
                        np.lib.format.write_array(stream, array, allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
            name = f"{self._prefix}{stem}-{hashed.digest.hexdigest()[:16]}{_ENDING}"
            os.replace(temporary, self._folder / name)
            sync_folder(self._folder)
        finally:
            temporary.unlink(missing_ok=True)
        return name

    def _read(self, path: Path) -> Iterator[Array]:
        if not _is_whole(path):
            what = "is damaged: it does not match its checksum" if path.exists() else "is gone"
            raise CheckpointError(
                f"{os.fspath(path)!r}, which holds histories of single examples, {what}. Bring it back; or "
                "resume from the checkpoint before, with previous=True (--previous); or delete all files "
                f"{self._prefix}*: an accountant with missed_at_worst=True, such as that of equidp train, "
                "then counts the steps so far as if everyone had used all of the sensitivity.",
                field="path",
            )
        with pa.CompressedInputStream(pa.OSFile(os.fspath(path)), "zstd") as stream:
            while stream.read(1):
                yield np.lib.format.read_array(stream, allow_pickle=False)


class _Hashed:
    """A file that is only written to, and the checksum of what was written."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def write(self, content: bytes) -> int:
        self.digest.update(content)
        return self._file.write(content)

    def flush(self) -> None:
        """The file is flushed when all is written."""

    def close(self) -> None:
        """Leave the file open, to be synced."""


def _parts(histories: Histories) -> dict[str, Iterable[Array]]:
    """Arrays that stay the same until norms are measured again; keys change with the content."""
    parts: dict[str, Iterable[Array]] = dict(histories.periods)
    if (table := histories.table) is not None:
        parts[f"table-{histories.version}"] = (
            table[chunk] for chunk in chunks(0, histories.num_examples, _CHUNK)
        )
    return parts


def _key(checkpoint: str) -> str:
    """The steps and the checksum in the name of a checkpoint."""
    return checkpoint.removeprefix("checkpoint-")


def _is_whole(path: Path) -> bool:
    """True where a file exists and matches the checksum in its name."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while content := file.read(_LITTLE):
                digest.update(content)
    except FileNotFoundError:
        return False
    return path.name.removesuffix(_ENDING).endswith(digest.hexdigest()[:16])
