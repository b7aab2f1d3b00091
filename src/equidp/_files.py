"""Writes files so that they are complete or absent, and checks beforehand that they can be written.

A name may be that of a link, a pipe or a device: the file behind a link is replaced; a pipe or a device is
written to, never replaced.
"""

from __future__ import annotations

import os
import secrets
import shlex
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

from equidp.errors import SettingError

Name = str | os.PathLike[str]


class _Place(NamedTuple):
    """Place that the content of a named file goes to."""

    name: str
    file: Path
    """The file itself, behind links."""
    plain: bool
    """True for a plain file, which is replaced; False for a pipe or a device, which is written to."""
    descriptor: int | None
    """Descriptor if the name is an open file of this process, such as /dev/stdout."""


def check_writable(path: Name, *needed: Name | None) -> None:
    """Raise unless a file can be written; change nothing. Call it before training.

    Args:
        path: the file to be written; behind a link, the file that the link names. A pipe or a device is
            written to, and never replaced; whether it accepts the content shows only then.
        needed: files, and folders of files, that must not be overwritten.

    Raises:
        SettingError: says why it cannot be written.

    >>> check_writable("/no such folder/card.html")
    Traceback (most recent call last):
    equidp.errors.SettingError: '/no such folder/card.html' cannot be written ...
    """
    place = _place(path)
    if not place.plain:
        if not _takes_bytes(place):
            raise _unwritable(path, "it is not open for writing")
        return
    there = os.path.exists(place.file)
    for other in (os.path.realpath(each) for each in needed if each is not None):
        if there and os.path.exists(other) and _holds(other, place.file):
            raise SettingError(
                f"{os.fspath(path)!r} is read by this command, or part of a run, and would be lost; choose "
                "another place.",
                field="path",
            )
    try:
        with tempfile.TemporaryFile(dir=place.file.parent):
            pass
        if there:
            if place.file.stat().st_nlink > 1:
                raise SettingError(
                    f"{os.fspath(path)!r} has a second name (a hard link), which would keep the old content; "
                    "remove it, or choose another place.",
                    field="path",
                )
            with place.file.open("r+b"):
                pass
    except OSError as error:
        raise _unwritable(path, error) from error


def check_outputs(outputs: Mapping[str, Name | None], *needed: Name | None) -> None:
    """Raise unless each of several files can be written and none replaces another.

    Args:
        outputs: option -> the file that it names; None if it is not given.
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
            place = _place(path)
            if place.plain and taken.setdefault(place.file, option) != option:
                raise SettingError(
                    f"{taken[place.file]} and {option} name one file, {os.fspath(path)!r}; give each a name "
                    "of its own.",
                    field=option,
                )


def check_folder(path: Name) -> None:
    """Raise unless files can be written in a folder, which exists or can be made; change nothing.

    Raises:
        SettingError: no file can be written there; the message says why.
    """
    place = Path(_real_path(path))
    try:
        nearest = next(each for each in (place, *place.parents) if os.path.lexists(each))
        if not nearest.is_dir():
            what = "" if nearest == place else f"{os.fspath(nearest)!r} "
            raise SettingError(
                f"{os.fspath(path)!r} cannot be a folder: {what or 'it '}is a file; choose another place.",
                field="path",
            )
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise _unwritable(path, error) from error


def write_whole(path: Name, content: bytes | str) -> None:
    """Write or replace a file; at any moment, power cuts included, it has the old or the new content.

    A text is written in UTF-8; bytes of a file's name that are not UTF-8 are escaped, as in \\udcff.

    A file that is replaced keeps its permissions, and a link to it stays a link. A pipe or a device is
    written to, not replaced; it is no error if its reader closes it early.

    Raises:
        OSError: nothing was written; to a pipe or a device, perhaps a part.
    """
    if isinstance(content, str):
        content = content.encode(errors="backslashreplace")
    with written_whole(path) as file:
        file.write(content)


@contextmanager
def written_whole(path: Name) -> Iterator[IO[bytes]]:
    """Open a new file that replaces `path` when it is complete, as `write_whole` does."""
    place = _place(path)
    try:
        if place.plain:
            with _open_replacement(place.file) as file:
                yield file
        else:
            with suppress(BrokenPipeError), _open_device(place) as file:
                yield file
    except OSError as error:
        error.filename = place.name  # a write does not say which
        raise


@contextmanager
def _open_replacement(target: Path) -> Iterator[IO[bytes]]:
    """Open a new file beside a plain one, which it replaces when it is complete."""
    temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")  # short, as other names are not
    try:
        with open(temporary, "xb") as file:
            if target.exists():
                old = target.stat()
                with suppress(OSError):  # of another owner, which only root can keep
                    os.chown(temporary, old.st_uid, old.st_gid)
                os.chmod(temporary, stat.S_IMODE(old.st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
        sync_folder(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _open_device(place: _Place) -> IO[bytes]:
    """Open a pipe or a device for writing; waits for the reader of a pipe."""
    if place.descriptor is None:
        return open(place.name, "wb")
    if sys.stdout is not None:
        sys.stdout.flush()  # what was printed comes first
    return os.fdopen(os.dup(place.descriptor), "wb")


def sync_folder(path: Path) -> None:
    """Sync a folder, so that the names in it survive a power cut."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def toml_failure(error: OSError | ValueError) -> str:
    """The end of a message on a TOML file that could not be read: its place or its syntax."""
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}; check the path"
    return f"cannot be read as TOML: {error}"


def command_line(*words: object) -> str:
    """Command with its words quoted for a shell, to be printed on a separate line.

    >>> print(command_line("equidp", "train", "--resume", Path("run 1 (new)")))
    equidp train --resume 'run 1 (new)'
    >>> print(command_line("equidp", "evaluate", Path("-run")))
    equidp evaluate ./-run
    """
    typed = [f"./{each}" if isinstance(each, Path) and str(each)[0] == "-" else str(each) for each in words]
    return shlex.join(typed)


def _place(path: Name) -> _Place:
    """Return the place that a name stands for; raise SettingError where no content can be written to it."""
    name, file = os.fspath(path), Path(_real_path(path))
    descriptor = _descriptor(name)
    try:
        mode = os.stat(name).st_mode if descriptor is None else os.fstat(descriptor).st_mode
    except (FileNotFoundError, NotADirectoryError):  # of the second, making a file says more
        mode = stat.S_IFREG
    except OSError as error:
        raise _unwritable(path, error) from error
    if stat.S_ISDIR(mode):
        raise SettingError(f"{name!r} is a folder; expected the name of a file.", field="path")
    if name[-1] in (os.sep, os.altsep):
        raise SettingError(f"{name!r} names a folder; expected the name of a file.", field="path")
    for refused, what in ((stat.S_ISBLK, "a disk"), (stat.S_ISSOCK, "a socket")):
        if refused(mode) and descriptor is None:
            raise _unwritable(path, f"it is {what}")
    return _Place(name, file, stat.S_ISREG(mode) and descriptor is None, descriptor)


def _real_path(path: Name) -> str:
    """Path with all links resolved; SettingError for a text that is not a path."""
    name = os.fspath(path)
    if not name or "\0" in name:
        raise SettingError(f"{name!r} is no name of a file; expected a path.", field="path")
    return os.path.realpath(name)


def _descriptor(name: str) -> int | None:
    """Descriptor of the open file of this process that a name such as /dev/stdout or /dev/fd/63 leads to."""
    own = {os.path.realpath("/dev/fd"), os.path.realpath("/proc/self/fd")}
    for _ in range(40):  # links, as many as the system follows
        folder, last = os.path.split(os.path.abspath(name))
        folder = os.path.realpath(folder)
        if folder in own and last.isdigit():
            return int(last)
        name = os.path.join(folder, last)
        if not os.path.islink(name):
            break
        name = os.path.join(folder, os.readlink(name))
    return None


def _takes_bytes(place: _Place) -> bool:
    """Return True for a pipe or a device that may be written to."""
    if place.descriptor is None:
        return os.access(place.name, os.W_OK)
    import fcntl  # where there are such names, there is this

    flags = fcntl.fcntl(place.descriptor, fcntl.F_GETFL)
    return flags & os.O_ACCMODE != os.O_RDONLY


def _holds(other: str, file: Path) -> bool:
    """Return True if `file` is `other`, or lies in the folder `other`."""
    return os.path.samefile(other, file) or (os.path.isdir(other) and file.is_relative_to(other))


def _unwritable(path: Name, reason: OSError | str) -> SettingError:
    said = reason if isinstance(reason, str) else reason.strerror or str(reason)
    return SettingError(
        f"{os.fspath(path)!r} cannot be written ({said}); choose another place.", field="path"
    )
