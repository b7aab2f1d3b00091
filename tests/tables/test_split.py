"""Rows draw by their content, as they did one by one; in blocks."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b

import numpy as np
import pandas as pd
import pytest

from equidp.tables import split as module
from equidp.tables.labels import as_text, code_values, cross_columns
from equidp.tables.split import draw_rows

ODD = (0.0, -0.0, np.nan, np.inf, -np.inf, 5e-324, -1e-310, 1e300, 0.1, -2.5)


def one_by_one(table: pd.DataFrame, seed: int) -> list[float]:
    """What a draw is, said plainly."""
    alike: Counter[tuple[str, ...]] = Counter()
    cells = (
        table[name].map(float.hex) if table[name].dtype == float else as_text(table[name])
        for name in table.columns
    )
    found = []
    for row in zip(*cells, strict=True):
        content = repr((seed, alike[row], row)).encode()
        found.append((int.from_bytes(blake2b(content, digest_size=8).digest(), "big") >> 11) / 2**53)
        alike[row] += 1
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
@pytest.mark.parametrize("columns", [["free", "few", "text"], ["few", "text"], ["text"], ["free"]])
@pytest.mark.parametrize("block", [2**16, 7])
def test_draws_in_blocks_are_those_of_rows_one_by_one(columns, block, monkeypatch):
    """Odd numbers, quotes, missing texts, and rows that are equal, also across blocks."""
    monkeypatch.setattr(module, "_BLOCK", block)
    table = messy(500)[columns]
    assert draw_rows(table, 3).tolist() == one_by_one(table, 3)
    as_categories = table.astype({"text": "category"}) if "text" in columns else table
    assert draw_rows(as_categories, 3).tolist() == one_by_one(table, 3)


def test_no_rows_draw_nothing():
    assert draw_rows(messy(3)[:0], 0).tolist() == []


def test_a_category_is_read_as_its_texts():
    table = messy(200)
    columns = {"text": "category", "few": "float"}
    for name in ("text", "few"):
        assert code_values(table.astype(columns)[name])[1] == code_values(table[name])[1]
        assert (code_values(table.astype(columns)[name])[0] == code_values(table[name])[0]).all()
    codes, names = cross_columns(table, ["few", "text"])
    assert codes.tolist() == cross_columns(table.astype(columns), ["few", "text"])[0].tolist()
    plain = list(zip(as_text(table["few"]), as_text(table["text"]), strict=True))
    assert [names[code] for code in codes] == [f"few={few}, text={text}" for few, text in plain]
