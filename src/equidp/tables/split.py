"""A draw in [0, 1) for each row of a table, from a seed and the row's content, in blocks that bound memory.

The draw is the BLAKE2b hash of `repr((seed, k, cells))`, where cells are texts, numbers as `float.hex` writes
them, and k counts the rows before it that are equal. That text is put together for a block of rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from equidp.errors import DataError
from equidp.tables.cells import MISSING

Codes = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint64]

_BLOCK = 2**16
_HEX = np.array([f"{byte:02x}".encode() for byte in range(256)], dtype="S2").view(np.uint16)
_EXPONENTS = pa.array([f"p{power - 1023:+d}'" for power in range(2048)])


def draw_rows(table: pd.DataFrame, seed: int) -> npt.NDArray[np.float64]:
    """Return a number in [0, 1) for each row, [n].

    Equal rows have draws of their own, as the first, second, ... of them. Memory beyond the result: 8 bytes a
    row, and 24 for each row that is not the only one of its content.

    Args:
        table: columns of floats, or of texts (None where missing), in any form of pandas.
        seed: of the split.

    >>> draw_rows(pd.DataFrame({"age": [44.0, 44.0, 51.0]}), 0).round(3)
    array([0.902, 0.677, 0.134])
    """
    places = np.arange(len(table))
    drawn = _hashes(table, places, seed, np.zeros(len(table), dtype=np.int64))
    in_order = np.sort(drawn)
    repeated = np.unique(in_order[1:][in_order[1:] == in_order[:-1]])
    if len(repeated):
        places = np.flatnonzero(
            repeated[np.searchsorted(repeated, drawn).clip(max=len(repeated) - 1)] == drawn
        )
        earlier = _earlier(table, places)
        again = earlier > 0
        drawn[places[again]] = _hashes(table, places[again], seed, earlier[again])
    return (drawn >> np.uint64(11)) / 2**53


def _earlier(table: pd.DataFrame, places: Codes) -> Codes:
    """Count, for each of these rows, those before it of the same content, by a hash of 128 bits."""
    found = [
        blake2b(row, digest_size=16).digest()
        for block in _blocks(table, places)
        for row in _rows(block).cast(pa.binary()).to_pylist()
    ]
    first, second = np.frombuffer(b"".join(found), dtype=np.uint64).reshape(-1, 2).T
    order = np.lexsort((second, first))  # stable: equal rows stay in their order
    new = np.append(True, (np.diff(first[order]) != 0) | (np.diff(second[order]) != 0))
    at = np.arange(len(order))
    earlier = np.empty(len(order), dtype=np.int64)
    earlier[order] = at - np.maximum.accumulate(np.where(new, at, 0))
    return earlier


def _hashes(table: pd.DataFrame, places: Codes, seed: int, earlier: Codes) -> Bits:
    """64 bits for each of these rows, of which so many equal ones were before."""
    hashes = np.empty(len(places), dtype=np.uint64)
    for start, block in zip(range(0, len(places), _BLOCK), _blocks(table, places), strict=True):
        counts = pa.array(earlier[start : start + _BLOCK]).cast(pa.string())
        whole = pc.binary_join_element_wise(f"({seed!r}, ", counts, ", (", _rows(block), "))", "")
        found = [blake2b(row, digest_size=8).digest() for row in whole.cast(pa.binary()).to_pylist()]
        hashes[start : start + len(found)] = np.frombuffer(b"".join(found), dtype=">u8")
    return hashes


def _blocks(table: pd.DataFrame, places: Codes) -> Iterator[pd.DataFrame]:
    whole = len(places) == len(table)
    for start in range(0, len(places), _BLOCK):
        rows = slice(start, start + _BLOCK)
        yield table.iloc[rows if whole else places[rows]]


def _rows(block: pd.DataFrame) -> pa.Array:
    """Texts between the brackets of `repr` of each row, as a tuple of texts."""
    columns = [_cells(block[name]) for name in block.columns]
    parts = columns[0] if len(columns) > 1 else [*columns[0], ","]
    for column in columns[1:]:
        parts = [*parts, ", ", *column]
    return pc.binary_join_element_wise(*parts, "")


def _cells(column: pd.Series) -> list[pa.Array]:
    """`repr` of a column's texts, in parts that follow one another."""
    if column.dtype != float:
        places, values = pd.factorize(column)
        texts = pa.array([*(repr(str(value)) for value in values), repr(MISSING)])
        return [texts.take(pa.array(np.where(places < 0, len(values), places)))]
    bits = np.ascontiguousarray(column.to_numpy(dtype=np.float64)).view(np.uint64)
    places, distinct = pd.factorize(bits)
    if len(distinct) <= len(bits) / 8:
        return [
            pa.array([repr(float.hex(each)) for each in distinct.view(np.float64).tolist()]).take(
                pa.array(places)
            )
        ]
    return _hexadecimal(bits)


def _hexadecimal(bits: Bits) -> list[pa.Array]:
    """`repr(float.hex(x))` of numbers by their bits: sign, 13 digits and power of two."""
    power = (bits >> np.uint64(52)).astype(np.int64) & 0x7FF
    digits = np.ascontiguousarray(
        _HEX[bits.astype(">u8").view(np.uint8)].view(np.uint8).reshape(-1, 16)[:, 3:]
    )
    offsets = np.arange(len(bits) + 1, dtype=np.int32) * 13
    mantissa = pa.StringArray.from_buffers(len(bits), pa.py_buffer(offsets), pa.py_buffer(digits))
    start = pa.array(["'0x1.", "'-0x1."]).take(pa.array((bits >> np.uint64(63)).astype(np.int64)))
    end = _EXPONENTS.take(pa.array(power))
    odd = (power == 0) | (power == 0x7FF)  # zeros, very small numbers, NaN and infinity
    if odd.any():
        written = np.full(len(bits), None, dtype=object)
        written[odd] = [repr(float.hex(each)) for each in bits[odd].view(np.float64).tolist()]
        there = pa.array(odd)
        start = pc.if_else(there, pa.array(written, type=pa.string()), start)
        mantissa, end = (pc.if_else(there, "", each) for each in (mantissa, end))
    return [start, mantissa, end]


def rows_by_content(
    drawn: npt.NDArray[np.float64], groups: Codes, group_names: Sequence[str], test_share: float, seed: int
) -> tuple[Codes, Codes]:
    """Return rows to train on and rows to test on, by their `draw_rows` from seed and content of each row.

    Rows with a draw below `test_share` are tested on; in a group without any, the row with the lowest draw
    is. So one more row in the file adds at most one row to the training set and removes none: what holds for
    training sets that differ in one example holds for files that differ in one row. Equal rows have draws of
    their own, as the first, second, ... of them.

    Raises:
        DataError: a group would have no row to train on.
    """
    tested = drawn < test_share
    for group, name in enumerate(group_names):
        members = np.flatnonzero(groups == group)
        if not tested[members].any():
            tested[members[drawn[members].argmin()]] = True
        elif tested[members].all():
            raise DataError(
                f"no row of group {name!r}, which has {len(members)}, falls into the training set. Merge it "
                f"with another group, or change the seed or test_share={test_share:g}."
            )
    return np.flatnonzero(~tested), np.flatnonzero(tested)
