"""Writes files so that they are complete or absent, and checks beforehand that they can be written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from equidp.errors import SettingError


def check_writable(path: str | os.PathLike[str], *needed: str | os.PathLike[str] | None) -> None:
    """Raises unless a file can be written; changes nothing. Call it before training.

    Args:
        path: the file to be written.
        needed: files, and folders of files, that must not be overwritten.

    Raises:
        SettingError: says why it cannot be written.

    >>> check_writable("/no such folder/card.html")
    Traceback (most recent call last):
    equidp.errors.SettingError: '/no such folder/card.html' cannot be written ...
    """
    target = Path(path)
    for other in (Path(each) for each in needed if each is not None):
        inside = [other, *other.iterdir()] if other.is_dir() else [other]
        if target.exists() and any(each.exists() and target.samefile(each) for each in inside):
            raise SettingError(
                f"{os.fspath(path)!r} is read by this command, or part of a run, and would be lost; choose "
                "another place."
            )
    if target.is_dir():
        raise SettingError(f"{os.fspath(path)!r} is a folder; expected the name of a file.")
    try:
        with tempfile.TemporaryFile(dir=target.parent):
            pass
        if target.exists():
            with target.open("r+b"):
                pass
    except OSError as error:
        raise SettingError(
            f"{os.fspath(path)!r} cannot be written ({error.strerror}); choose another place."
        ) from error


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes or replaces a file; at any moment, power cuts included, the old or the new content is there.

    A file that is replaced keeps its permissions.

    Raises:
        OSError: nothing was written.
    """
    with written_whole(path) as file:
        file.write(content)


@contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Gives a file to write to, which takes the place of `path` when it is complete, as for `write_whole`."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            if target.exists():
                os.chmod(temporary, target.stat().st_mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
        sync_folder(target.parent)
    except OSError as error:
        error.filename = os.fspath(target)  # a write does not say which
        raise
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(path: Path) -> None:
    """Makes the names in a folder survive a power cut, as syncing a file does for its content."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
