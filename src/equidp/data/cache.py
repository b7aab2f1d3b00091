"""The cache folder: downloads, and features and decoded pixels of images, which are slow to make."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch

from equidp._extras import require_extra
from equidp.store import Store

with require_extra("tables"):
    import pooch

CACHE_VARIABLE = "EQUIDP_CACHE"

Array = npt.NDArray[Any]


def cache_folder() -> Path:
    """Return the folder that `EQUIDP_CACHE` names, or the user's cache folder."""
    return Path(os.environ.get(CACHE_VARIABLE) or pooch.os_cache("equidp"))


def image_store() -> Store:
    """Return the store of features and pixels. Only its owner can read the folder."""
    advice = f"{CACHE_VARIABLE} names another folder."
    return Store(cache_folder() / "images", large=True, private=True, advice=advice)


def write_array(file: IO[bytes], values: Array) -> None:
    """Append numbers through the file, not a memory map: on a full disk, a map would end the process."""
    file.write(np.ascontiguousarray(values).reshape(-1).data)


def mapped_tensor(path: Path, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a file as a tensor, of which only indexed parts are read; do not change it in place."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(
            np.zeros(shape, dtype) if 0 in shape else np.memmap(path, dtype, "r", shape=shape)
        )
