"""Split of a table: a draw in [0, 1) for each row, and the rows to train and to test on.

A row's draw is a hash of the seed, of the row's content and of how many equal rows are before it. Content is
the value in each column, by the name of the column: numbers as 64-bit floats, texts as UTF-8. So the format
of the file, the order of its columns and rows that differ from a row leave its draw as it is.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from equidp._extras import require_extra
from equidp.tables.cells import MISSING

with require_extra("tables"):
    import pandas as pd

Codes = npt.NDArray[np.int64]

_BLOCK = 2**16
_BYTES = 16


def draw_rows(table: pd.DataFrame, seed: int) -> npt.NDArray[np.float64]:
    """Return a number in [0, 1) for each row, [n].

    Equal rows have their own draws, as the first, second, ... of them.

    Args:
        table: columns of floats, or of texts (None if missing).
        seed: seed of the split.

    >>> draw_rows(pd.DataFrame({"age": [44.0, 44.0, 51.0]}), 0).round(3)
    array([0.131, 0.653, 0.93 ])
    """
    names = sorted(table.columns, key=str)
    start = blake2b(repr((seed, [str(name) for name in names])).encode(), digest_size=_BYTES)
    parts = [np.zeros((0, 2), dtype="<u8")]
    for first in range(0, len(table), _BLOCK):
        block = table.iloc[first : first + _BLOCK]
        digests = []
        for cells in np.concatenate([_cell_bytes(block[name]) for name in names], axis=1):
            digest = start.copy()
            digest.update(cells.data)
            digests.append(digest.digest())
        parts.append(np.frombuffer(b"".join(digests), dtype="<u8").reshape(-1, 2))
    of_rows = np.concatenate(parts)
    drawn = of_rows[:, 0].copy()
    earlier = pd.DataFrame(of_rows).groupby([0, 1]).cumcount().to_numpy()
    for row in np.flatnonzero(earlier):
        digest = of_rows[row].tobytes()
        again = blake2b(digest, digest_size=8, salt=int(earlier[row]).to_bytes(8, "little"))
        drawn[row] = int.from_bytes(again.digest(), "little")
    return (drawn >> np.uint64(11)) / 2**53


def _cell_bytes(column: pd.Series) -> npt.NDArray[np.uint8]:
    """Return bytes for cells, [n, width]: the bytes of floats, or a digest of texts."""
    if column.dtype == float:
        values = column.to_numpy(dtype="<f8") + 0.0  # -0.0 is 0
        values[np.isnan(values)] = np.nan
        number_bytes: npt.NDArray[np.uint8] = values.view(np.uint8).reshape(-1, 8)
        return number_bytes
    places, texts = pd.factorize(column)
    written = [str(text).encode("utf-8", "surrogatepass") for text in texts]
    digests = [blake2b(text, digest_size=_BYTES).digest() for text in [*written, MISSING.encode()]]
    of_texts = np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, _BYTES)
    text_bytes: npt.NDArray[np.uint8] = of_texts[places]
    return text_bytes


def rows_by_content(drawn: npt.NDArray[np.float64], groups: Codes, test_share: float) -> tuple[Codes, Codes]:
    """Return rows to train on and rows to test on, by their `draw_rows` from the seed and each row's content.

    Rows with a draw below `test_share` are in the test set. In a group without such rows, the row with the
    lowest draw is, even if it is the only row. One more row in the file therefore adds at most one row to the
    training set and removes none. What holds for training sets that differ in one example also holds for
    files that differ in one row. Equal rows have their own draws, as the first, second, ... of them.
    """
    tested = drawn < test_share
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        if not tested[members].any():
            tested[members[drawn[members].argmin()]] = True
    return np.flatnonzero(~tested), np.flatnonzero(tested)
