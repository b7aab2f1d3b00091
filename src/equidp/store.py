"""Results kept on disk, each under a key: a digest of everything that it follows from.

A `Store` is a folder of entries. An entry is a folder KEY with facts.json, which names its other files with
their sizes and checksums. It is written elsewhere and moved into place in one step, so it is complete or
absent.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from equidp._extras import require_extra
from equidp.errors import CacheWarning, DataError, SettingError

if TYPE_CHECKING:
    import pandas as pd

FIGURES: Final = 6
"""Version of the results that equidp computes; part of the key of each stored run and audit.

Raise it by one in the commit that changes a result for the same data, settings, seed and packages, as
`benchmarks/golden.py` says. Refactoring, speed and words leave it as it is, so that stored results outlive
them.
"""

Facts = Mapping[str, Any]
"""Plain values by name: what JSON holds."""
Parts = Mapping[str, "pd.DataFrame | npt.NDArray[Any]"]
"""Content of an entry by name: a table is written as NAME.parquet, an array as NAME.npy."""

_KEY = re.compile(r"[A-Za-z0-9_-]+")
_FACTS = "facts.json"


def key_of(*parts: Any) -> str:
    """Key that follows from all of these parts: plain values (as JSON holds them) and arrays.

    >>> key_of("a", {"b": 1}) == key_of("a", {"b": 1}), key_of(1, 2) == key_of(12)
    (True, False)
    """
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype}{part.shape}".encode())
            digest.update(np.ascontiguousarray(part).reshape(-1).data)
        else:
            digest.update(json.dumps(part, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()[:32]


@final
@dataclass(frozen=True)
class Entry:
    """One entry of a store: its folder, and its facts."""

    folder: Path
    facts: Facts

    def path(self, name: str) -> Path:
        """Path of a file of the entry."""
        return self.folder / name

    def table(self, name: str) -> pd.DataFrame:
        """Table of the entry."""
        with require_extra("tables"):
            import pandas as pd

        return pd.read_parquet(self.path(f"{name}.parquet"))

    def array(self, name: str) -> npt.NDArray[Any]:
        """Array of the entry."""
        array: npt.NDArray[Any] = np.load(self.path(f"{name}.npy"), allow_pickle=False)
        return array


@final
class Store:
    """A folder of entries, which processes may share.

    Args:
        folder: folder of the store, created if missing.
        large: entries are large files that are mapped into memory: their sizes are checked and not their
            content.
        private: nobody but the owner may read the folder.
        advice: what to do if an entry cannot be kept; the end of that message.

    Example:
        >>> import pandas as pd
        >>> store = Store(getfixture("tmp_path") / "results")
        >>> store.check()
        >>> entry = store.put(key_of("a study", 0), {"rows": pd.DataFrame({"x": [0.5]})}, {"seconds": 2.0})
        >>> entry = store.get(key_of("a study", 0))
        >>> entry.facts["seconds"], entry.table("rows")["x"].tolist()
        (2.0, [0.5])
        >>> store.get(key_of("a study", 1)) is None
        True
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        large: bool = False,
        private: bool = False,
        advice: str = "give a folder that can be written, on a disk with space.",
    ) -> None:
        self.folder, self.large, self.advice = Path(folder), large, advice
        self._mode = 0o700 if private else 0o777

    def check(self) -> None:
        """Make the folder and try to write in it. Call it before work whose result is to be kept.

        Raises:
            SettingError: it cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=self._mode)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise SettingError(
                f"results cannot be kept in {os.fspath(self.folder)!r} ({error.strerror}); {self.advice}",
                field="folder",
            ) from error

    def get(self, key: str) -> Entry | None:
        """Entry of a key, or None if there is none. A damaged entry counts as none, with a CacheWarning."""
        folder = self._place(key)
        if not folder.is_dir():
            return None
        try:
            return self._read(folder)
        except (OSError, ValueError, KeyError) as error:
            reason = getattr(error, "strerror", None) or error
            message = f"{os.fspath(folder)!r} is damaged ({reason}), and is made again."
            warnings.warn(message, CacheWarning, stacklevel=2)
        return None

    def put(self, key: str, parts: Parts, facts: Facts | None = None) -> Entry:
        """Write an entry, or replace it; wait if another process is writing it.

        Raises:
            DataError: it cannot be written. The entry is as it was before.
        """

        def write(folder: Path) -> Facts:
            for name, part in parts.items():
                _write_part(folder, name, part)
            return facts or {}

        with self._alone(key):
            return self._write(key, write)

    def get_or_make(
        self, key: str, write: Callable[[Path], Facts | None], *, what: str = "", needed: int = 0
    ) -> Entry:
        """Entry of a key; if there is none, this process writes it, or waits for another that writes it.

        Args:
            key: key of the entry.
            write: writes files into an empty folder, and returns facts.
            what: description in messages.
            needed: bytes that will be written, about. 0: not known.

        Raises:
            DataError: the entry cannot be written, or the disk has too little space.
        """
        if (entry := self.get(key)) is not None:
            return entry
        with self._alone(key):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CacheWarning)  # said before
                entry = self.get(key)  # by another process since
            return entry or self._write(key, write, what, needed)

    def remove(self, key: str) -> None:
        """Remove an entry, if there is one."""
        shutil.rmtree(self._place(key), ignore_errors=True)

    def _place(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(f"key={key!r}; expected letters, digits, - and _.")
        return self.folder / key

    @contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        """Write an entry in one process and thread at a time, without what stopped ones left of it."""
        self._place(key)
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=self._mode)
        except OSError as error:
            raise self._unwritable("a result", error) from error
        with FileLock(self.folder / f"{key}.lock", thread_local=False, is_singleton=False) as lock:
            for left in self.folder.glob(f"{key}.draft-*"):
                shutil.rmtree(left, ignore_errors=True)
            try:
                yield
            finally:
                with suppress(OSError):
                    os.unlink(lock.lock_file)  # while it is held

    def _write(
        self, key: str, write: Callable[[Path], Facts | None], what: str = "", needed: int = 0
    ) -> Entry:
        place, draft = self._place(key), self.folder / f"{key}.draft-{secrets.token_hex(4)}"
        try:
            draft.mkdir(mode=self._mode)
            if needed and (free := shutil.disk_usage(draft).free) < needed:
                raise OSError(
                    errno.ENOSPC, f"{needed / 1e9:,.1f} GB are needed, and {free / 1e9:,.1f} GB are free"
                )
            facts = dict(write(draft) or {})
            files = {file.name: self._seal(file) for file in sorted(draft.iterdir())}
            text = json.dumps({"key": key, "facts": facts, "files": files})
            content = {"sha256": hashlib.sha256(text.encode()).hexdigest(), "content": text}
            (draft / _FACTS).write_text(json.dumps(content), encoding="utf-8")
            if place.exists():
                shutil.rmtree(place)
            os.replace(draft, place)
        except BaseException as error:
            shutil.rmtree(draft, ignore_errors=True)
            if isinstance(error, OSError):
                raise self._unwritable(what or "a result", error) from error
            raise
        return Entry(place, facts)

    def _read(self, folder: Path) -> Entry:
        """Read an entry; raise OSError, ValueError or KeyError if it is damaged."""
        sealed = json.loads((folder / _FACTS).read_bytes())
        content = json.loads(sealed["content"])
        if hashlib.sha256(sealed["content"].encode()).hexdigest() != sealed["sha256"]:
            raise ValueError(f"{_FACTS} has other content than was written")
        if content["key"] != folder.name:
            raise ValueError(f"it is the entry {content['key']!r}")
        for name, seal in content["files"].items():
            if self._seal(folder / name) != seal:
                raise ValueError(f"{name} has other content than was written")
        return Entry(folder, content["facts"])

    def _seal(self, file: Path) -> list[Any]:
        """Size and checksum of a file; no checksum of a large one."""
        if self.large:
            return [file.stat().st_size, ""]
        content = file.read_bytes()
        return [len(content), hashlib.sha256(content).hexdigest()]

    def _unwritable(self, what: str, error: OSError) -> DataError:
        reason, place = error.strerror or error, os.fspath(self.folder)
        return DataError(f"{what} cannot be kept in {place!r} ({reason}); {self.advice}", field="folder")


def _write_part(folder: Path, name: str, part: pd.DataFrame | npt.NDArray[Any]) -> None:
    if isinstance(part, np.ndarray):
        buffer = io.BytesIO()
        np.save(buffer, part, allow_pickle=False)
        (folder / f"{name}.npy").write_bytes(buffer.getvalue())
    else:
        part.to_parquet(folder / f"{name}.parquet", index=False)
