"""Writes files so that they are complete or absent, and checks beforehand that they can be written.

A name may be a link, whose target is then replaced. Otherwise it must be a plain file.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import IO

from equidp.errors import SettingError

Name = str | os.PathLike[str]
_in_command = ContextVar("in_command", default=False)


def check_writable(path: Name, *needed: Name | None) -> None:
    """Raise unless a file can be written; change nothing. Call it before training.

    Args:
        path: file to be written; behind a link, the file that the link names.
        needed: files, and folders of files, that must not be overwritten.

    Raises:
        SettingError: says why it cannot be written.

    >>> check_writable("/no such folder/card.html")
    Traceback (most recent call last):
    equidp.errors.SettingError: '/no such folder/card.html' cannot be written ...
    """
    file = _plain_file(path)
    try:
        with tempfile.TemporaryFile(dir=file.parent):
            pass
        if file.exists():
            with file.open("r+b"):
                pass
    except OSError as error:
        raise _unwritable(path, error) from error
    for other in (Path(os.path.realpath(each)) for each in needed if each is not None):
        if file.exists() and file.is_relative_to(other):
            raise SettingError(
                f"{os.fspath(path)!r} is read by this command, or part of a run, and would be lost; choose "
                "another place.",
                field="path",
            )


def check_outputs(outputs: Mapping[str, Name | None], *needed: Name | None) -> None:
    """Raise unless each of several files can be written and none replaces another.

    Args:
        outputs: option -> the file that it names, or None if it is not given.
        needed: files, and folders of files, that must not be overwritten.

    Raises:
        SettingError: says which file cannot be written, and why.

    >>> check_outputs({"--json": "figures", "--report": "./figures"})
    Traceback (most recent call last):
    equidp.errors.SettingError: --json and --report name one file, './figures'; give each a name of its own.
    """
    taken: dict[Path, str] = {}
    for option, path in outputs.items():
        if path is not None:
            check_writable(path, *needed)
            file = _plain_file(path)
            if taken.setdefault(file, option) != option:
                raise SettingError(
                    f"{taken[file]} and {option} name one file, {os.fspath(path)!r}; give each a name "
                    "of its own.",
                    field=option,
                )


def check_folder(path: Name) -> None:
    """Raise unless files can be written in a folder, which exists or can be made; change nothing.

    Raises:
        SettingError: no file can be written there. The message says why.
    """
    place = Path(os.path.realpath(path))
    try:
        nearest = next(each for each in (place, *place.parents) if os.path.lexists(each))
        if not nearest.is_dir():
            raise SettingError(
                f"{os.fspath(path)!r} cannot be a folder: {os.fspath(nearest)!r} is a file; choose another "
                "place.",
                field="path",
            )
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise _unwritable(path, error) from error


def write_whole(path: Name, content: bytes | str) -> None:
    """Write or replace a file; at any moment, power cuts included, it has the old or the new content.

    A text is written in UTF-8; bytes of a file's name that are not UTF-8 are escaped, as in \\udcff.

    A file that is replaced keeps its permissions, and a link to it stays a link.

    Raises:
        OSError: nothing was written.
    """
    if isinstance(content, str):
        content = content.encode(errors="backslashreplace")
    with written_whole(path) as file:
        file.write(content)


@contextmanager
def written_whole(path: Name) -> Iterator[IO[bytes]]:
    """Open a new file that replaces `path` when it is complete, as `write_whole` does."""
    target = _plain_file(path)
    temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")  # short, as other names are not
    try:
        with open(temporary, "xb") as file:
            if target.exists():
                shutil.copymode(target, temporary)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
        sync_folder(target.parent)
    except OSError as error:
        error.filename = os.fspath(path)  # a write does not say which
        raise
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(path: Path) -> None:
    """Sync a folder, so that the names in it survive a power cut."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def within_command() -> Iterator[None]:
    """Let messages name commands, as of one that was typed; outside, they name calls."""
    token = _in_command.set(True)
    try:
        yield
    finally:
        _in_command.reset(token)


def is_command() -> bool:
    """Return True within a command that was typed."""
    return _in_command.get()


def command_line(*words: object) -> str:
    """Command with its words quoted for a shell, to be printed on a separate line.

    >>> print(command_line("equidp", "train", "--resume", Path("run 1 (new)")))
    equidp train --resume 'run 1 (new)'
    >>> print(command_line("equidp", "evaluate", Path("-run")))
    equidp evaluate ./-run
    """
    typed = [f"./{each}" if isinstance(each, Path) and str(each)[0] == "-" else str(each) for each in words]
    return shlex.join(typed)


def _plain_file(path: Name) -> Path:
    """Return the file behind a name and its links; raise SettingError unless it is a plain file."""
    file = Path(os.path.realpath(path))
    if os.path.isdir(file):
        raise SettingError(f"{os.fspath(path)!r} is a folder; expected the name of a file.", field="path")
    if os.path.lexists(file) and not os.path.isfile(file):
        raise _unwritable(path, OSError("it is no plain file"))
    return file


def _unwritable(path: Name, error: OSError) -> SettingError:
    reason = error.strerror or str(error)
    return SettingError(
        f"{os.fspath(path)!r} cannot be written ({reason}); choose another place.", field="path"
    )
