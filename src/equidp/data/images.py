"""Encoded images: decoded once, and kept on disk as standardised pixels."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from equidp._extras import require_extra
from equidp.data.cache import Array, image_store, mapped_tensor, write_array
from equidp.errors import DataError
from equidp.store import key_of

CHANNELS = 3


_CENTRE, _WIDTH = 127.5, 63.75
PIXEL_RANGE = (-2.0, 2.0)
"""Lowest and highest value of pixels: a byte becomes (byte - 127.5) / 63.75."""


def state_of(paths: Sequence[Path]) -> list[list[Any]]:
    """Return path, time and size of files, which change with their content."""
    found = [(path, path.stat()) for path in paths]
    return [[str(path.absolute()), stat.st_mtime_ns, stat.st_size] for path, stat in found]


def decoded(content: bytes, name: str, side: int) -> Array:
    """Return an encoded image (JPEG, PNG) as [3, side, side] bytes, resized if it has another size.

    Raises:
        DataError: it cannot be decoded.
    """
    with require_extra("features"):
        from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content)) as image:
            colours = image.convert("RGB")
        if colours.size != (side, side):
            colours = colours.resize((side, side), Image.Resampling.BILINEAR)
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"image {name!r} cannot be decoded ({error}); bring the whole file back.") from error
    return np.asarray(colours).transpose(2, 0, 1)


def kept_pixels(what: str, key: str, count: int, side: int, images: Iterator[Array]) -> Tensor:
    """Return images as a memory-mapped tensor [count, 3, side, side] of float32, decoded now or earlier.

    Args:
        what: description in the list of cached files.
        key: key of the files and of how they are read.
        images: [..., 3, side, side] bytes each; read only if the cache lacks them.
    """
    shape = (count, CHANNELS, side, side)

    def write(folder: Path) -> None:
        with (folder / "pixels").open("wb") as file:
            for image in images:
                write_array(file, (image.astype(np.float32) - _CENTRE) / _WIDTH)

    whole, needed = key_of("pixels", key, list(shape), [_CENTRE, _WIDTH]), 4 * int(np.prod(shape))
    entry = image_store().get_or_make(whole, write, what=what, needed=needed)
    return mapped_tensor(entry.path("pixels"), "float32", shape)
