"""Results kept on disk, each under a key: a digest of everything that it follows from.

A `Store` is a folder of entries. An entry is an index, KEY.index, which holds plain values (facts), and
perhaps a folder KEY.xxxxxxxx of tables and arrays, which the index names with their sizes and checksums. The
index is written last and in one step, so an entry is whole or absent wherever the process stops; what a
stopped process leaves is removed by the next one that writes the entry. A process that writes an entry holds
KEY.lock.
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
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout

from equidp._extras import require_extra
from equidp._files import sync_folder
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
Parts = Mapping[str, "pd.DataFrame | npt.NDArray[Any] | bytes"]
"""Content of an entry by name: a table is written as NAME.parquet, an array as NAME.npy, bytes as NAME."""

_KEY = re.compile(r"[A-Za-z0-9_-]+")
_ENTRY_FOLDER = re.compile(rf"{_KEY.pattern}\.[0-9a-f]{{8}}")
_BLOCK = 1 << 20  # bytes


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
    """One entry of a store.

    Attributes:
        key: of the entry.
        place: its index; of an unfinished entry, the folder that a stopped process left.
        what: description, such as the name of the file that it was made from.
        facts: plain values.
        folder: of its files; None: it has none.
        size: bytes of index and files.
        used: time of the last use, in seconds since 1970.
        whole: False for what a stopped process left, or for a damaged index.
    """

    key: str
    place: Path
    what: str
    facts: Facts = field(default_factory=dict)
    folder: Path | None = None
    size: int = 0
    used: float = 0.0
    whole: bool = True

    def path(self, name: str) -> Path:
        """Path of a file of the entry."""
        return (self.folder or self.place.parent) / name

    def read(self, name: str) -> bytes:
        """Content of a file of the entry."""
        return self.path(name).read_bytes()

    def table(self, name: str) -> pd.DataFrame:
        """Table of the entry."""
        with require_extra("tables"):
            import pandas as pd

        return pd.read_parquet(self.path(f"{name}.parquet"))

    def array(self, name: str, *, mapped: bool = False) -> npt.NDArray[Any]:
        """Array of the entry; mapped: it is read where it is used, and cannot be changed."""
        file, mode = self.path(f"{name}.npy"), "r" if mapped else None
        found: npt.NDArray[Any] = np.load(file, mmap_mode=mode, allow_pickle=False)  # type: ignore[arg-type]
        return found


@final
class Store:
    """A folder of entries, which processes may share.

    Args:
        folder: made where it is missing.
        large: entries are large files that are mapped into memory: their sizes are checked and not their
            content, and a write does not wait for the disk.
        private: nobody but the owner may read the folder.
        advice: what to do where an entry cannot be kept; the end of that message.

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
        self.folder, self.large, self.private, self.advice = Path(folder), large, private, advice

    def check(self) -> None:
        """Make the folder and try to write in it. Call it before work whose result is to be kept.

        Raises:
            SettingError: it cannot be written.
        """
        try:
            self._make_folder()
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise SettingError(
                f"results cannot be kept in {os.fspath(self.folder)!r} ({error.strerror}); {self.advice}",
                field="folder",
            ) from error

    def get(self, key: str) -> Entry | None:
        """Entry of a key; None where there is none. A damaged one counts as none, with a CacheWarning."""
        return self._find(key, said=True)

    def put(self, key: str, parts: Parts, facts: Facts | None = None, *, what: str = "") -> Entry:
        """Write an entry, or replace it; wait where another process writes it.

        Raises:
            DataError: it cannot be written; the entry is as it was before.
        """
        with self.claim(key) as claim:
            return claim.put(parts, facts, what=what)

    def get_or_make(
        self, key: str, write: Callable[[Path], Facts | None], *, what: str = "", needed: int = 0
    ) -> Entry:
        """Entry of a key; where there is none, written by this process, or by another one that is waited for.

        Args:
            key: of the entry.
            write: writes files into an empty folder, and returns facts.
            what: description in the list of entries and in messages.
            needed: bytes that will be written, about; 0: not known.

        Raises:
            DataError: the entry cannot be written, or the disk has too little space.
        """
        if (entry := self.get(key)) is not None:
            return entry
        with self.claim(key) as claim:
            found = self._find(key, said=False)  # by another process since
            return found or claim.write(write, what=what, needed=needed)

    def claim(self, key: str) -> Claim:
        """Right to write an entry, which one thread of one process has at a time; waits until it is free.

        Raises:
            DataError: the folder cannot be made.
        """
        claim = Claim(self, key)
        claim.take(wait=True)
        return claim

    def claim_free(self, key: str) -> Claim | None:
        """Right to write an entry; None where another thread or process has it.

        Raises:
            DataError: the folder cannot be made.
        """
        claim = Claim(self, key)
        return claim if claim.take(wait=False) else None

    def entries(self) -> list[Entry]:
        """All entries, and what stopped processes left of others; the largest first."""
        found = list(self._read_entries())
        named = {entry.folder for entry in found}
        for folder in self.folder.glob("*.*"):
            if folder not in named and _is_entry_folder(folder):
                size = sum(each.stat().st_size for each in folder.iterdir())
                key, used = folder.name.partition(".")[0], folder.stat().st_mtime
                found.append(Entry(key, folder, "unfinished", {}, folder, size, used, whole=False))
        return sorted(found, key=lambda entry: -entry.size)

    def remove(self, *entries: Entry) -> list[Entry]:
        """Remove entries but those that are being written, and return them; who reads one can go on.

        Raises:
            DataError: an entry cannot be removed.
        """
        removed = []
        for entry in entries:
            if (claim := self.claim_free(entry.key)) is not None:
                with claim:
                    claim.clear()
                removed.append(entry)
        return removed

    def index(self, key: str) -> Path:
        """Path of an entry's index."""
        if not _KEY.fullmatch(key):
            raise ValueError(f"key={key!r}; expected letters, digits, - and _.")
        return self.folder / f"{key}.index"

    def _read_entries(self) -> Iterator[Entry]:
        for index in self.folder.glob("*.index"):
            with suppress(FileNotFoundError):  # removed since
                try:
                    yield self._parse(index, index.read_bytes(), check=False)
                except (OSError, ValueError):
                    size, used = index.stat().st_size, index.stat().st_mtime
                    yield Entry(index.stem, index, "damaged", {}, None, size, used, whole=False)

    def _make_folder(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700 if self.private else 0o777)

    def _find(self, key: str, *, said: bool) -> Entry | None:
        index = self.index(key)
        while True:
            try:
                content = index.read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None
            except OSError as error:
                problem: Exception = error
                break
            try:
                entry = self._parse(index, content, check=True)
            except (OSError, ValueError) as error:
                with suppress(OSError):
                    if index.read_bytes() != content:  # replaced at this moment
                        continue
                problem = error
                break
            with suppress(OSError):
                os.utime(index)
            return entry
        if said:
            reason = getattr(problem, "strerror", None) or problem
            message = f"{os.fspath(index)!r} is damaged ({reason}), and is made again."
            warnings.warn(message, CacheWarning, stacklevel=4)
        return None

    def _parse(self, index: Path, content: bytes, *, check: bool) -> Entry:
        """Read an entry from its index; raise ValueError or OSError where it is damaged."""
        checksum, _, text = content.partition(b"\n")
        if checksum.decode("ascii") != hashlib.sha256(text).hexdigest():
            raise ValueError("it has other content than was written")
        held = json.loads(text)
        if held["key"] != index.stem:
            raise ValueError(f"it is the entry {held['key']!r}")
        folder = index.with_name(held["folder"]) if held["folder"] else None
        size = len(content)
        for name, (length, digest) in held["files"].items():
            size += length
            if check and folder is not None:
                file = folder / name
                if file.stat().st_size != length or (digest and _file_digest(file) != digest):
                    raise ValueError(f"{name} has other content than was written")
        used = index.stat().st_mtime
        return Entry(held["key"], index, held["what"], held["facts"], folder, size, used)


@final
class Claim:
    """Right to write one entry of a store; a context manager that gives it back. Made by `Store.claim`."""

    def __init__(self, store: Store, key: str) -> None:
        self.store, self.key = store, key
        self._index = store.index(key)
        # joblib takes calls in threads of its own.
        self._lock = FileLock(
            self._index.with_suffix(".lock"), thread_local=False, fallback_to_soft=False, is_singleton=False
        )

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def take(self, *, wait: bool) -> bool:
        """Take the right, and return True; False where it is taken and `wait` is False."""
        try:
            self.store._make_folder()
        except OSError as error:
            raise self._unwritable("a result", error) from error
        try:
            self._lock.acquire(blocking=wait)
        except Timeout:
            return False
        except (OSError, NotImplementedError):  # a file system without locks; a write says what is wrong else
            pass
        return True

    def release(self) -> None:
        """Give the right back, once or more often."""
        if self._lock.is_locked:
            with suppress(OSError):
                os.unlink(self._lock.lock_file)  # while it is held
            self._lock.release()

    def put(self, parts: Parts, facts: Facts | None = None, *, what: str = "") -> Entry:
        """Write the entry, or replace it; see `Store.put`."""

        def write(folder: Path) -> Facts:
            for name, part in parts.items():
                _write_part(folder, name, part)
            return facts or {}

        return self.write(write, what=what)

    def write(self, write: Callable[[Path], Facts | None], *, what: str = "", needed: int = 0) -> Entry:
        """Write the entry, or replace it; see `Store.get_or_make`."""
        before = self._folders()
        folder = self._index.with_name(f"{self.key}.{secrets.token_hex(4)}")
        try:
            folder.mkdir(mode=0o700 if self.store.private else 0o777)
            if needed and (free := shutil.disk_usage(folder).free) < needed:
                raise OSError(
                    errno.ENOSPC, f"{needed / 1e9:,.1f} GB are needed, and {free / 1e9:,.1f} GB are free"
                )
            facts = write(folder) or {}
            files = {file.name: self._seal(file) for file in sorted(folder.iterdir())}
            held = {"key": self.key, "what": what, "facts": dict(facts), "files": files}
            text = json.dumps({**held, "folder": folder.name if files else ""}).encode()
            content = hashlib.sha256(text).hexdigest().encode() + b"\n" + text
            self._replace_index(folder / ".draft", content)
            if not files:
                folder.rmdir()
        except BaseException as error:
            if not self._is_named(folder):  # by the index: a signal may come when all is done
                shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, OSError):
                raise self._unwritable(what or "a result", error) from error
            raise
        for each in before:
            shutil.rmtree(each, ignore_errors=True)
        return self.store._parse(self._index, content, check=False)

    def clear(self) -> None:
        """Remove the entry, and what stopped processes left of it.

        Raises:
            DataError: it cannot be removed.
        """
        try:
            self._index.unlink(missing_ok=True)
            for folder in self._folders():
                shutil.rmtree(folder)
        except OSError as error:
            raise DataError(f"{os.fspath(self._index)!r} cannot be removed ({error.strerror}).") from error

    def _folders(self) -> list[Path]:
        return [each for each in self.store.folder.glob(f"{self.key}.*") if _is_entry_folder(each)]

    def _is_named(self, folder: Path) -> bool:
        try:
            return folder.name.encode() in self._index.read_bytes()
        except OSError:
            return False

    def _replace_index(self, draft: Path, content: bytes) -> None:
        """Put a new index in the place of the old one, in one step; the draft is lost with its folder."""
        draft.write_bytes(content)
        if not self.store.large:
            self._seal(draft)
            sync_folder(draft.parent)
        os.replace(draft, self._index)
        if not self.store.large:
            sync_folder(self.store.folder)

    def _seal(self, file: Path) -> tuple[int, str]:
        """Force a file to the disk; return its size and its checksum."""
        if self.store.large:
            return file.stat().st_size, ""
        with file.open("rb+") as opened:
            os.fsync(opened.fileno())
        return file.stat().st_size, _file_digest(file)

    def _unwritable(self, what: str, error: OSError) -> DataError:
        reason, place = error.strerror or error, os.fspath(self.store.folder)
        return DataError(
            f"{what} cannot be kept in {place!r} ({reason}); {self.store.advice}", field="folder"
        )


def _write_part(folder: Path, name: str, part: pd.DataFrame | npt.NDArray[Any] | bytes) -> None:
    if isinstance(part, bytes):
        (folder / name).write_bytes(part)
    elif isinstance(part, np.ndarray):
        buffer = io.BytesIO()
        np.save(buffer, part, allow_pickle=False)
        (folder / f"{name}.npy").write_bytes(buffer.getvalue())
    else:
        part.to_parquet(folder / f"{name}.parquet", index=False)


def _file_digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while block := opened.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _is_entry_folder(path: Path) -> bool:
    return bool(_ENTRY_FOLDER.fullmatch(path.name)) and path.is_dir()
