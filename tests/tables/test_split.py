"""Draws of rows follow from their content, in blocks as one by one."""

from __future__ import annotations

import struct
from collections import Counter
from hashlib import blake2b

import numpy as np
import pandas as pd
import pytest

from equidp.tables import split as module
from equidp.tables.split import draw_rows

ODD = (0.0, -0.0, np.nan, np.inf, -np.inf, 5e-324, -1e-310, 1e300, 0.1, -2.5)


def one_by_one(table: pd.DataFrame, seed: int) -> list[float]:
    """The draw of each row, as the docstring of the module defines it."""
    alike: Counter[bytes] = Counter()
    names = sorted(table.columns)
    found = []
    for row in table[names].itertuples(index=False):
        content = repr((seed, names)).encode()
        for name, value in zip(names, row, strict=True):
            if table[name].dtype == float:
                content += struct.pack("<d", np.nan if np.isnan(value) else value + 0.0)
            else:
                text = "missing" if pd.isna(value) else value
                content += blake2b(text.encode(), digest_size=16).digest()
        digest = blake2b(content, digest_size=16).digest()
        earlier = alike[digest]
        alike[digest] += 1
        if earlier:
            digest = blake2b(digest, digest_size=8, salt=earlier.to_bytes(8, "little")).digest()
        found.append((int.from_bytes(digest[:8], "little") >> 11) / 2**53)
    return found


def messy(n: int) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    texts = np.array(["x", "it's", 'say "no"', "both ' and \"", None, "ü\n", "missing", "\x00"], dtype=object)
    return pd.DataFrame(
        {
            "free": np.where(generator.random(n) < 0.5, generator.normal(size=n), generator.choice(ODD, n)),
            "few": generator.choice(ODD, n),
            "text": generator.choice(texts, n),
        }
    )


@pytest.mark.soak
@pytest.mark.parametrize("columns", [["free", "few", "text"], ["text"]])
@pytest.mark.parametrize("block", [2**16, 7])
def test_draws_in_blocks_are_those_of_rows_one_by_one(columns, block, monkeypatch):
    """Odd numbers, quotes, missing texts, and rows that are equal, also across blocks."""
    monkeypatch.setattr(module, "_BLOCK", block)
    table = messy(500)[columns]
    assert draw_rows(table, 3).tolist() == one_by_one(table, 3)
    as_categories = table.astype({"text": "category"}) if "text" in columns else table
    assert draw_rows(as_categories, 3).tolist() == one_by_one(table, 3)


def test_order_of_columns_and_other_rows_leave_draws_as_they_are():
    table = messy(200)
    drawn = draw_rows(table, 3)
    assert draw_rows(table[["text", "free", "few"]], 3).tolist() == drawn.tolist()
    assert draw_rows(table[:150], 3).tolist() == drawn[:150].tolist()
    assert sorted(draw_rows(table[::-1], 3)) == sorted(drawn)
    assert len(set(drawn)) == 200
    assert not set(drawn) & set(draw_rows(table, 4))
    assert not set(drawn) & set(draw_rows(table.rename(columns={"few": "many"}), 3))
