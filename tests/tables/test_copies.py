"""Copies that were made before training are named; rows that are equal by chance are not."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

from equidp.data import Recipe, open_source
from equidp.errors import DataWarning
from equidp.tables.copies import Copies, find_copies


def patients(rows: int = 3000) -> pd.DataFrame:
    """Return rows that are equal by chance only where "time" is left out, of which there are few."""
    draw = np.random.default_rng(0)
    age = draw.integers(18, 95, rows)
    return pd.DataFrame(
        {
            "age": age.astype(float),
            "born": 2024.0 - age,
            "sex": draw.choice(["f", "m"], rows),
            "ward": draw.choice(list("abcde"), rows, p=[0.5, 0.2, 0.1, 0.1, 0.1]),
            "lab": np.where(draw.random(rows) < 0.3, np.nan, draw.gamma(2, 10, rows).round(2)),
            "bmi": draw.normal(25, 4, rows).round(1),
            "time": draw.random(rows).round(6),
            "ill": draw.choice(["no", "yes"], rows, p=[0.95, 0.05]),
        }
    )


def test_rows_that_are_equal_by_chance_are_no_copies():
    table = patients(6000)
    boxes = pd.DataFrame((np.random.default_rng(0).random((4000, 20)) < 0.03).astype(float))
    boxes.columns = boxes.columns.astype(str)
    for gone in ((), ("time",), ("time", "lab"), ("time", "lab", "bmi")):
        assert find_copies(table.drop(columns=[*gone])) == ()
    assert find_copies(boxes) == ()


def test_repeated_rows_are_counted():
    table = patients()
    repeated = pd.concat([table, table.sample(300, random_state=0)], ignore_index=True)
    assert find_copies(repeated) == (Copies(300, 3300, 2),)
    often = pd.concat([table, *[table.head(10)] * 300], ignore_index=True)
    assert find_copies(often) == (Copies(3000, 6000, 301),)
    numbered = often.sample(frac=1, random_state=0, ignore_index=True).assign(row=np.arange(6000.0))
    assert find_copies(numbered) == (Copies(3000, 6000, 301),)


@pytest.mark.parametrize(("repeats", "said"), [(0, ()), (300, ("3,000 of 6,000 rows", "301 times"))])
def test_training_data_with_copied_rows_is_named_before_training(tmp_path, repeats, said):
    table = patients()
    table["lab"] = table["lab"].fillna(0)
    pd.concat([table, *[table.head(10)] * repeats]).to_csv(tmp_path / "p.csv", index=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataWarning)
        open_source(str(tmp_path / "p.csv"), recipe=Recipe(target="ill", group=("sex",))).split(0)
    copies = [str(each.message) for each in caught if "repeat" in str(each.message)]
    assert len(copies) == bool(said)
    assert all(words in copies[0] for words in said)
