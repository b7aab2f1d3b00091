"""Split of a table: a draw in [0, 1) for each row, and the rows to train and to test on.

A row's draw is a hash of the seed, of the row's content and of how many equal rows are before it. Content is
the value in each column, by the name of the column: numbers as 64-bit floats, texts as UTF-8. So the format
of the file, the order of its columns and rows that differ from a row leave its draw as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from equidp._extras import require_extra
from equidp.tables.cells import MISSING
from equidp.tables.columns import blocks

with require_extra("tables"):
    import pandas as pd

Codes = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint64]

_BLOCK = 2**16
_BYTES = 16


def draw_rows(table: pd.DataFrame, seed: int) -> npt.NDArray[np.float64]:
    """Return a number in [0, 1) for each row, [n].

    Equal rows have draws of their own, as the first, second, ... of them. Memory beyond the result: 8 bytes a
    row, and 40 for each row that is not the only one of its content.

    Args:
        table: columns of floats, or of texts (None where missing).
        seed: of the split.

    >>> draw_rows(pd.DataFrame({"age": [44.0, 44.0, 51.0]}), 0).round(3)
    array([0.131, 0.653, 0.93 ])
    """
    drawn = np.empty(len(table), dtype=np.uint64)
    for start, digests in _digests(table, np.arange(len(table)), seed):
        drawn[start : start + len(digests)] = digests[:, 0]
    in_order = np.sort(drawn)
    repeated = np.unique(in_order[1:][in_order[1:] == in_order[:-1]])
    if len(repeated):
        at = np.searchsorted(repeated, drawn).clip(max=len(repeated) - 1)
        places = np.flatnonzero(repeated[at] == drawn)
        whole = np.concatenate([digests for _, digests in _digests(table, places, seed)])
        for row, digest, earlier in zip(places, whole, _count_earlier(whole), strict=True):
            if earlier:
                again = blake2b(digest.tobytes(), digest_size=8, salt=int(earlier).to_bytes(8, "little"))
                drawn[row] = int.from_bytes(again.digest(), "little")
    return (drawn >> np.uint64(11)) / 2**53


def _count_earlier(digests: Bits) -> Codes:
    """Count, for each row of digests, [n, 2], the rows before it that are equal."""
    first, second = digests.T
    order = np.lexsort((second, first))  # stable: equal rows stay in their order
    new = np.append(True, np.diff(digests[order], axis=0).any(axis=1))
    at = np.arange(len(order))
    earlier = np.empty(len(order), dtype=np.int64)
    earlier[order] = at - np.maximum.accumulate(np.where(new, at, 0))
    return earlier


def _digests(table: pd.DataFrame, places: Codes, seed: int) -> Iterator[tuple[int, Bits]]:
    """Yield digests of 128 bits, [block, 2], of these rows, after the place of the first in `places`."""
    names = sorted(table.columns, key=str)
    start = blake2b(repr((seed, [str(name) for name in names])).encode(), digest_size=_BYTES)
    first = row = 0
    for block in blocks(table, _BLOCK):
        chosen = places[first : np.searchsorted(places, row + len(block))] - row
        row += len(block)
        if not len(chosen):
            continue
        block = block if len(chosen) == len(block) else block.iloc[chosen]
        cells = np.concatenate([_cell_bytes(block[name]) for name in names], axis=1)
        found = []
        for each in cells:
            digest = start.copy()
            digest.update(each.data)
            found.append(digest.digest())
        yield first, np.frombuffer(b"".join(found), dtype="<u8").reshape(-1, 2)
        first += len(chosen)


def _cell_bytes(column: pd.Series) -> npt.NDArray[np.uint8]:
    """Return the bytes that stand for cells, [n, width]: of floats themselves, of texts a digest."""
    if column.dtype == float:
        values = column.to_numpy(dtype="<f8") + 0.0  # -0.0 is 0
        values[np.isnan(values)] = np.nan
        number_bytes: npt.NDArray[np.uint8] = values.view(np.uint8).reshape(-1, 8)
        return number_bytes
    places, texts = pd.factorize(column)
    written = [str(text).encode("utf-8", "surrogatepass") for text in texts]
    digests = [blake2b(text, digest_size=_BYTES).digest() for text in [*written, MISSING.encode()]]
    text_bytes: npt.NDArray[np.uint8] = np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, _BYTES)[
        places
    ]
    return text_bytes


def rows_by_content(drawn: npt.NDArray[np.float64], groups: Codes, test_share: float) -> tuple[Codes, Codes]:
    """Return rows to train on and rows to test on, by their `draw_rows` from the seed and each row's content.

    Rows with a draw below `test_share` are tested on; in a group without any, the row with the lowest draw
    is, even where it is the only row. So one more row in the file adds at most one row to the training set
    and removes none: what holds for training sets that differ in one example holds for files that differ in
    one row. Equal rows have draws of their own, as the first, second, ... of them.
    """
    tested = drawn < test_share
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        if not tested[members].any():
            tested[members[drawn[members].argmin()]] = True
    return np.flatnonzero(~tested), np.flatnonzero(tested)
