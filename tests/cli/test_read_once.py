"""Commands read and encode a table once, by the binning that they train on."""

import numpy as np
import pandas as pd
import pytest

import equidp.comparison.compare as compare_module
from equidp import Plan
from equidp.comparison.plan import ComparisonPlan
from equidp.data import Recipe
from equidp.data.table import TableSource, Unencoded
from equidp.runs.config import RunData, TrainConfig
from equidp.runs.session import Session

CLASSES = Recipe(target="income", group=("sex",))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    rng = np.random.default_rng(0)
    age, sex = rng.uniform(18, 80, 600), rng.choice(["f", "m"], 600)
    income = np.where((age - 50) ** 2 < 200, "yes", "no")
    table = pd.DataFrame({"age": age, "pay": age + rng.normal(size=600), "sex": sex, "income": income})
    file = tmp_path_factory.mktemp("read") / "people.csv"
    table.to_csv(file, index=False)
    return str(file)


@pytest.fixture
def read(monkeypatch):
    """Lists of the binning of each reading, and, of each binning of rows, whether it cuts columns."""
    readings, binnings = [], []
    split_rows, encode_split = TableSource.split_rows, Unencoded.encode_split

    def count_reading(source, seed):
        readings.append(source.binning or "standard")
        return split_rows(source, seed)

    def count_encoding(rows, encoder, **options):
        binnings.append(encoder.examples is not None)
        return encode_split(rows, encoder, **options)

    monkeypatch.setattr(TableSource, "split_rows", count_reading)
    monkeypatch.setattr(Unencoded, "encode_split", count_encoding)
    return readings, binnings


@pytest.mark.parametrize(
    ("recipe", "given", "binning", "taken"),
    [
        (CLASSES, {}, None, "cut"),
        (CLASSES, {"model": "logistic"}, None, "standard"),
    ],
)
def test_training_reads_a_table_once(recipe, given, binning, taken, path, read):
    data = RunData(path, recipe, binning=binning)
    wanted = TrainConfig(
        data, Plan().with_changes(given).with_changes(method="dpsgd", epsilon=3.0, accountant="rdp")
    )
    config, loaded, *_ = Session(wanted, given, "dpsgd").choose()
    assert loaded is not None
    assert read == ([taken], [taken != "standard"])
    assert config.data.binning == taken


def test_a_comparison_reads_a_table_once_for_each_seed(path, read, tmp_path):
    asked = ComparisonPlan(["dpsgd"], 2, options={"noise_multiplier": 2.0})
    compare_module.prepare(RunData(path, CLASSES).source(), asked, directory=tmp_path)
    assert read == (["cut", "cut"], [True, True])
