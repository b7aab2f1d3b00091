"""Several group columns of a table: each is shown alone, and a group of one row trains."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import equidp
from equidp.data import open_source
from equidp.data.dataset import ALL
from equidp.evaluation.evaluation import Evaluation, evaluate
from equidp.models import logistic

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


def test_methods_have_the_combinations_as_groups_and_one_row_is_a_group(table):
    split = open_source(str(table), target="ill", group=["region", "sex"]).split(0)
    assert set(split.train.group_names) >= {"north, F", "north, M", "south, F", "south, M"}
    lonely = next(at for at, name in enumerate(split.train.group_names) if name.startswith("island"))
    assert [int(part.group_sizes()[lonely]) for part in (split.train, split.test)] == [0, 1]
    found = evaluate(logistic(split.train.input_shape, 2), split.test)
    assert found.small.by_grouping == {"region": ("island",)}
    assert found.withholding().groups.set_index("group").at[ALL, "count"] == len(split.test) - 1
