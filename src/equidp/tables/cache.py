"""Arrays on disk, by what they were made from: tables that do not fit into memory, their splits and inputs.

They hold training data as they are. The folder is its owner's alone, and `equidp cache` lists and clears it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch

from equidp._extras import require_extra
from equidp.store import Store, key_of

with require_extra("tables"):
    import pooch

CACHE_VARIABLE = "EQUIDP_CACHE"
_BLOCK = 2**16

Array = npt.NDArray[Any]


def cache_folder() -> Path:
    """Return the folder that `EQUIDP_CACHE` names, or the user's cache folder."""
    return Path(os.environ.get(CACHE_VARIABLE) or pooch.os_cache("equidp"))


def table_store() -> Store:
    """Return the store of arrays, tables and features on disk."""
    advice = f"equidp cache --clear makes space, and {CACHE_VARIABLE} names another folder."
    return Store(cache_folder() / "tables", large=True, private=True, advice=advice)


def write_array(file: IO[bytes], values: Array) -> None:
    """Append numbers through the file, not a memory map: on a full disk, a map would end the process."""
    file.write(np.ascontiguousarray(values).reshape(-1).data)


def mapped_array(path: Path, dtype: str, shape: tuple[int, ...]) -> Array:
    """Return a file as a read-only array, of which only indexed parts are read."""
    if 0 in shape:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, "r", shape=shape)


def mapped_tensor(path: Path, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a file as a tensor, of which only indexed parts are read; do not change it in place."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(mapped_array(path, dtype, shape))


def stored_parts(
    what: str,
    key: str,
    rows: Mapping[str, Array],
    inputs: Callable[[Array], torch.Tensor],
    columns: Mapping[str, Array],
) -> dict[str, dict[str, torch.Tensor]]:
    """Return tensors on disk, by part and column, each with the rows of that part.

    Args:
        what: description in the list of cached files.
        key: cache key of everything that `inputs` depends on.
        rows: part -> its rows.
        inputs: rows -> float32 [rows, d].
        columns: name -> a number for each row of the table, [n].
    """
    width = inputs(np.arange(min(1, max(map(len, rows.values()))))).shape[1]
    bytes_each = 4 * width + sum(column.itemsize for column in columns.values())
    shapes: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {
        part: {"inputs": ("float32", (len(at), width))} for part, at in rows.items()
    }
    for part, at in rows.items():
        shapes[part] |= {name: (column.dtype.name, (len(at),)) for name, column in columns.items()}

    def write(folder: Path) -> None:
        for part, at in rows.items():
            with (folder / f"{part}.inputs").open("wb") as file:
                for start in range(0, len(at), _BLOCK):
                    write_array(file, inputs(at[start : start + _BLOCK]).numpy())
            for name, column in columns.items():
                with (folder / f"{part}.{name}").open("wb") as file:
                    write_array(file, column[at])

    whole = key_of(key, *rows.values(), *columns.values())
    needed = bytes_each * sum(map(len, rows.values()))
    entry = table_store().get_or_make(whole, write, what=what, needed=needed)
    return {
        part: {name: mapped_tensor(entry.path(f"{part}.{name}"), *shape) for name, shape in each.items()}
        for part, each in shapes.items()
    }


def cached_array(what: str, key: str, make: Callable[[], Array]) -> Array:
    """Return the array that `make` computes, [n] float64, now or from the cache."""

    def write(folder: Path) -> dict[str, Any]:
        values = make()
        with (folder / "values").open("wb") as file:
            write_array(file, values)
        return {"rows": len(values)}

    entry = table_store().get_or_make(key, write, what=what)
    return mapped_array(entry.path("values"), "float64", (entry.facts["rows"],))
