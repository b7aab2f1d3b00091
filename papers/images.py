"""Images in a zip file or a folder."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy.typing as npt

from equidp import DataError
from equidp.data.images import decoded, state_of
from equidp.store import key_of

_SUFFIXES = (".jpg", ".jpeg", ".png")


def is_image(path: str) -> bool:
    """Return whether a file is an image by its name, and not one that a system hid there."""
    return path.lower().endswith(_SUFFIXES) and not PurePosixPath(path).name.startswith(".")


def image_paths(place: Path) -> list[str]:
    """Return the paths of all images in a zip file, or directly in a folder, in alphabetical order.

    Raises:
        DataError: the zip file cannot be read.
    """
    if place.is_dir():
        return sorted(filter(is_image, os.listdir(place)))
    with _open_zip(place) as archive:
        return sorted(path for path in archive.namelist() if is_image(path) and "__MACOSX" not in path)


def images_in(place: Path, paths: Sequence[str], side: int) -> Iterator[npt.NDArray[Any]]:
    """Yield images of a zip file or a folder as `decoded` gives them.

    Raises:
        DataError: one cannot be read, or not decoded.
    """
    if place.is_dir():
        for path in paths:
            try:
                content = (place / path).read_bytes()
            except OSError as error:
                raise _unreadable(place, path, error) from error
            yield decoded(content, path, side)
        return
    with _open_zip(place) as archive:
        for path in paths:
            try:
                content = archive.read(path)
            except (zipfile.BadZipFile, OSError, EOFError) as error:
                raise _unreadable(place, path, error) from error
            yield decoded(content, path, side)


def _unreadable(place: Path, path: str, error: Exception) -> DataError:
    return DataError(f"{place}: {path} cannot be read ({error}); bring the file back.")


def _open_zip(place: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(place)
    except (zipfile.BadZipFile, OSError) as error:
        raise DataError(
            f"{place} cannot be read as a zip file ({error}); bring the whole file back."
        ) from error


def images_key(place: Path, paths: Sequence[str]) -> str:
    """Return a key of these images, which changes with them."""
    files = [place / path for path in paths] if place.is_dir() else [place]
    return key_of(state_of(files), list(paths))
