"""Arrays on disk, kept by what they were made from: tables that do not fit into memory, and their splits.

They hold training data as they are. The folder is its owner's alone, and `equidp cache` lists and clears it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, final

import numpy as np
import numpy.typing as npt
import pooch
import torch
from filelock import FileLock

from equidp.errors import DataError

CACHE_VARIABLE = "EQUIDP_CACHE"
_ABOUT = "about.json"
_VERSION = 2  # of what is kept; a change makes everything anew

Array = npt.NDArray[Any]


@final
@dataclass(frozen=True)
class Kept:
    """Cached files of one key.

    Attributes:
        folder: folder of the files.
        what: description with the name of the file that they were made from.
        size: size in bytes.
        used: time of the last use, in seconds since 1970.
        whole: True if writing was completed, False for the remains of a process that was killed.
    """

    folder: Path
    what: str
    size: int
    used: float
    whole: bool


def cache_folder() -> Path:
    """Returns the folder that `EQUIDP_CACHE` names, or the user's cache folder."""
    return Path(os.environ.get(CACHE_VARIABLE) or pooch.os_cache("equidp"))


def key_of(*parts: Any) -> str:
    """Returns a cache key that follows from all of these parts: plain values and arrays.

    >>> key_of("a", [1]) == key_of("a", [1]), key_of("a") == key_of("b")
    (True, False)
    """
    digest = hashlib.sha256(str(_VERSION).encode())
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype}{part.shape}".encode())
            digest.update(np.ascontiguousarray(part).reshape(-1).data)
        else:
            digest.update(json.dumps(part).encode())
    return digest.hexdigest()[:32]


def cached_folder(
    key: str, what: str, needed: int, write: Callable[[Path], dict[str, Any]]
) -> tuple[Path, Any]:
    """Returns a folder that `write` filled and the values it returned, now or earlier; never a partial one.

    Other processes wait until the first one has written it.

    Args:
        key: cache key from `key_of`.
        what: description in the list of cached files.
        needed: approximate number of bytes that will be written.
        write: function that writes files into the folder, and returns plain values to cache with them.

    Raises:
        DataError: the folder cannot be written, or has no space left; partial files are removed.
    """
    root = cache_folder() / "tables"
    place, draft = root / key, root / f".{key}.tmp"
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with FileLock(root / f".{key}.lock"):
            if not (place / _ABOUT).exists():
                _fill(place, draft, what, needed, write)
            os.utime(place)
            return place, json.loads((place / _ABOUT).read_text())["facts"]
    except OSError as error:
        reason = error.strerror or error
        raise DataError(
            f"{what} cannot be kept in {os.fspath(root)!r} ({reason}); equidp cache --clear makes space, and "
            f"{CACHE_VARIABLE} names another folder."
        ) from error


def _fill(place: Path, draft: Path, what: str, needed: int, write: Callable[[Path], dict[str, Any]]) -> None:
    shutil.rmtree(draft, ignore_errors=True)  # of a process that was killed
    draft.mkdir(mode=0o700)
    try:
        free = shutil.disk_usage(draft).free
        if free < needed:
            raise OSError(f"{needed / 1e9:,.1f} GB are needed, and {free / 1e9:,.1f} GB are free")
        about = {"what": what, "facts": write(draft)}
        (draft / _ABOUT).write_text(json.dumps(about))
        os.replace(draft, place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_array(file: IO[bytes], values: Array) -> None:
    """Appends numbers through the file, not a memory map: on a full disk, a map would end the process."""
    file.write(np.ascontiguousarray(values).reshape(-1).data)


def mapped_array(path: Path, dtype: str, shape: tuple[int, ...]) -> Array:
    """Returns a file as a read-only array, of which only indexed parts are read."""
    if 0 in shape:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, "r", shape=shape)


def mapped_tensor(path: Path, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Returns a file as a tensor, of which only indexed parts are read; do not change it in place."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(mapped_array(path, dtype, shape))


def kept_tables() -> list[Kept]:
    """Returns all cached entries, the largest first."""
    root = cache_folder() / "tables"
    folders = [each for each in (root.iterdir() if root.is_dir() else ()) if each.is_dir()]
    return sorted(map(_describe_folder, folders), key=lambda each: -each.size)


def _describe_folder(folder: Path) -> Kept:
    size = sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())
    whole = (folder / _ABOUT).exists()
    what = json.loads((folder / _ABOUT).read_text())["what"] if whole else "unfinished"
    return Kept(folder, what, size, folder.stat().st_mtime, whole)


def remove(entries: Iterable[Kept]) -> None:
    """Removes cached entries; a process that reads one can go on.

    Raises:
        DataError: an entry cannot be removed.
    """
    for each in entries:
        try:
            shutil.rmtree(each.folder)
            each.folder.with_name(f".{each.folder.name}.lock").unlink(missing_ok=True)
        except OSError as error:
            raise DataError(f"{os.fspath(each.folder)!r} cannot be removed ({error.strerror}).") from error
