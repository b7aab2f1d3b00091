"""Several group columns of a table: each is shown alone, and a group of one row trains."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import equidp
from equidp.data.dataset import ALL
from equidp.evaluation.evaluation import Evaluation

COLUMNS = {"region": ("north", "south"), "sex": ("F", "M")}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rng = np.random.default_rng(0)
    columns = {name: rng.choice(values, 800) for name, values in COLUMNS.items()}
    age = rng.integers(18, 90, 800)
    people = pd.DataFrame(
        {**columns, "age": age, "ill": np.where(age + rng.normal(0, 20, 800) > 60, "y", "n")}
    )
    people.loc[0, "region"] = "island"
    path = tmp_path_factory.mktemp("people") / "people.csv"
    people.to_csv(path, index=False)
    return path


def shown(found: Evaluation) -> list[str]:
    return found.groups["group"].tolist()


@pytest.mark.soak
@pytest.mark.parametrize("crossed", [False, True])
def test_a_run_shows_each_column_alone_or_their_combinations(table, crossed, tmp_path):
    place = tmp_path / "run"
    run = equidp.train(table, target="ill", group=["region", "sex"], epsilon=3, out=place, crossed=crossed)
    alone = [*COLUMNS["region"], *COLUMNS["sex"], ALL]
    together = [f"{one}, {other}" for one in COLUMNS["region"] for other in COLUMNS["sex"]]
    others = pd.read_csv(table).assign(age=lambda rows: rows["age"] + 0.5)
    others.to_csv(tmp_path / "others.csv", index=False)
    for found in (run.evaluate(), run.evaluate(tmp_path / "others.csv")):
        assert shown(found) == ([*together, ALL] if crossed else alone)
        assert found.groupings == (("region, sex",) if crossed else ("region", "sex"))
        assert [each.startswith("island") for each in found.small.groups] == [True] * len(found.small.groups)
    assert "island, " in " ".join(
        json.loads((place / "share" / "run.json").read_text())["facts"]["group_names"]
    )
