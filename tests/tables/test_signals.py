"""Columns that give the target away are named, and honest ones are not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from equidp.tables.inspect import inspect_table
from equidp.tables.recipe import Recipe
from equidp.tables.signals import rank_signals

RECIPE = Recipe(target="readmitted", group=("sex",))


def apart(auc: float) -> float:
    """Distance of the means of two normal distributions of deviation 1 with this AUC."""
    return float(np.sqrt(2) * norm.ppf(auc))


def patients(seed: int, rows: int = 4000, share: float = 0.1) -> pd.DataFrame:
    """Return honest columns of AUC 0.8 at most, and some that are "late": a leak of each kind."""
    draw = np.random.default_rng(seed)
    ill = draw.random(rows) < share
    return pd.DataFrame(
        {
            "readmitted": np.where(ill, "yes", "no"),
            "sex": draw.choice(["f", "m"], rows),
            "score": draw.normal(size=rows) + apart(0.8) * ill,
            "ward": np.char.add(
                "w", np.clip(draw.normal(4 + apart(0.8) * ill), 0, 8).astype(int).astype(str)
            ),
            "zip": draw.integers(0, rows // 3, rows).astype(str),
            "number": draw.permutation(rows).astype(float),
            "late merged": np.where(ill, draw.random(rows) < 0.95, draw.random(rows) < 0.03).astype(str),
            "late score": draw.normal(size=rows) + apart(0.9999) * ill,
            "late id": np.argsort(np.argsort(ill + 0.5 * draw.random(rows))).astype(float),
            "late code": [
                f"{'C' if each else 'K'}{at:05d}"
                for each, at in zip(ill, draw.permutation(rows), strict=True)
            ],
            "late lab": np.where(
                draw.random(rows) < np.where(ill, 0.96, 0.04), np.nan, draw.normal(size=rows)
            ),
            "late day": pd.Series(np.where(draw.random(rows) < 0.97 * ill, "2024-05-01", None)),
            "late stay": draw.normal(size=rows) * np.where(ill, 0.05, 3) + 5,
        }
    )


@pytest.mark.parametrize(("rows", "share"), [(4000, 0.1), (1000, 0.05), (600, 0.4)])
def test_leaks_are_named_and_honest_columns_are_not(rows, share):
    """Honest columns of AUC 0.8 have at most 0.9 here but by a deviation of 3 and more."""
    ranked = rank_signals(patients(0, rows, share), RECIPE)
    assert [each.auc for each in ranked] == sorted((each.auc for each in ranked), reverse=True)
    suspicious = {each.column for each in ranked if each.suspicious}
    assert suspicious == {name for name in patients(0, 20) if name.startswith("late")}


def test_the_values_of_one_person_are_no_signal_of_their_other_rows():
    """A column that names people tells nothing of people that it was not seen for."""
    draw = np.random.default_rng(0)
    ill = np.repeat(draw.random(500) < 0.3, 5)
    table = pd.DataFrame({"ill": ill.astype(str), "who": np.repeat(np.arange(500), 5).astype(str)})
    table["born"] = np.char.add("d", table["who"].astype(str))
    named = rank_signals(table, Recipe(target="ill", group=("ill",), person="who", rows_per_person=5))
    assert [(each.column, each.suspicious) for each in named] == [("born", False)]


def test_a_class_of_few_rows_is_not_judged_by():
    table = pd.DataFrame({"ill": ["no"] * 990 + ["yes"] * 10, "x": np.arange(1000.0)})
    assert rank_signals(table, Recipe(target="ill", group=("ill",))) == ()


@pytest.mark.soak
def test_inspect_ranks_columns_and_asks_of_leaks_whether_they_are_known_before(tmp_path):
    patients(0).to_csv(tmp_path / "p.csv", index=False)
    report = inspect_table(tmp_path / "p.csv", RECIPE)
    late = {name for name in patients(0, 20) if name.startswith("late")}
    assert {each.column for each in report.signals if each.suspicious} == late
    asked = {column.name for column in report.columns for says, _ in column.lines() if "known before" in says}
    assert asked == late
    assert not {"late merged", "late score", "late stay"} & set(report.recipe.drop)
    dropped = inspect_table(tmp_path / "p.csv", RECIPE.with_changes({"drop": sorted(late)}))
    assert not any(each.suspicious for each in dropped.signals)
