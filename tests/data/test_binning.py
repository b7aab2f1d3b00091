"""Binnings of columns as an option of a source: given, trained on and predicted by."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import equidp
from equidp.data import Recipe, open_source
from equidp.data.census import Census, Preparation
from equidp.data.table import split_and_encode, with_private_noise
from equidp.errors import SettingError
from equidp.evaluation.effects import column_effects
from equidp.runs.begin import begin, prepare as prepare_run
from equidp.runs.config import RunData, TrainConfig
from equidp.runs.saved import open_run
from equidp.runs.train import train
from equidp.tables.encode import TableEncoder
from support.errors import raises_field

ROLES = {"target": "income", "group": "sex", "missing": "category"}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    rng = np.random.default_rng(0)
    age = rng.integers(20, 60, 600).astype(float)
    income = np.where(age > 40, "high", "low")
    age[:9] = np.nan
    table = pd.DataFrame({"age": age, "job": rng.choice(["cook", "clerk"], 600)})
    table = table.assign(pay=rng.lognormal(8, 2, 600), sex=rng.choice(["F", "M"], 600), income=income)
    file = tmp_path_factory.mktemp("people") / "people.csv"
    table.to_csv(file, index=False)
    return file


def opened(path, binning=None):
    return open_source(str(path), **ROLES, binning=binning)


def test_weights_of_blocks_suit_the_number_of_people_where_they_have_several_rows(path, tmp_path):
    table = pd.read_csv(path)
    table.assign(id=np.arange(600) // 3).to_csv(tmp_path / "visits.csv", index=False)
    recipe = Recipe(target="income", group=("sex",), missing="category", person="id", rows_per_person=3)
    source = open_source(str(tmp_path / "visits.csv"), recipe=recipe, binning="cut")
    split, encoder = split_and_encode(source, 0)
    assert encoder.examples == len(split.train) < 200
    assert split_and_encode(with_private_noise(source, 0.5), 0)[1].examples == len(split.train)


def test_an_encoding_is_for_tables(path):
    for name in ("digits", "mnist"):
        with raises_field(SettingError, "binning"):
            open_source(name, binning="cut")
    with raises_field(SettingError, "binning", "latin-1"):
        opened(path, "latin-1")


@pytest.mark.soak
def test_a_run_keeps_its_encoding_and_predicts_by_it(path, tmp_path):
    data = RunData(str(path), opened(path).recipe, binning="cut")
    plan = equidp.Plan(model="logistic", batch_size=100, epochs=1, learning_rate=1.0, noise_multiplier=1.0)
    config = TrainConfig(data, plan.with_changes(method="dpsgd"))
    assert TrainConfig.from_plain(config.to_plain()) == config
    begin(prepare_run(config), tmp_path / "run")
    train(tmp_path / "run")
    kept = open_run(tmp_path / "run")
    assert {each.column for each in column_effects(kept.encoder, kept.run.model, 2)} == {"age", "job", "pay"}
    for card in ("card.html", "card.md"):
        assert "Effect of each column" in (tmp_path / "run" / "share" / card).read_text()
    encoder = split_and_encode(opened(path, "cut"), 0)[1]
    assert kept.encoder == encoder
    table = pd.read_csv(path).drop(columns="age")
    table.to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(equidp.errors.DataError, match="age"):
        kept.inputs(tmp_path / "new.csv")
    found = kept.inputs(tmp_path / "new.csv", lacking=("age",))
    assert torch.equal(found, encoder.encode(table.assign(age=np.nan)))
    assert {row.name: row.value for row in config.setting_rows(config.plan.resolve(480))}["binning"] == "cut"


def test_groups_are_inputs_on_request(path):
    recipe = opened(path).recipe.with_changes({"group_as_input": True})
    assert Recipe.from_plain(recipe.to_plain()) == recipe
    split, encoder = split_and_encode(open_source(str(path), recipe=recipe), 0)
    assert [column.name for column in encoder.columns] == ["age", "job", "pay", "sex"]
    ours = split.test.inputs[:, -2:].argmax(dim=1)
    assert torch.equal(ours, split.test.groups)
    assert any("sex" in note and "inputs" in note for note in split.notes)
    assert "sex" not in {column.name for column in split_and_encode(opened(path), 0)[1].columns}


def test_edges_and_ranges_of_a_census_come_from_rows_and_its_codes_do_not():
    rows = pd.DataFrame({"age": np.arange(80) % 60, "sex": ["0", "1"] * 40, "high": ["0"] * 40 + ["1"] * 40})
    codes = Preparation(("age",), {"sex": ("0", "1")}, ("high", "1"), ("sex", "1"), ("no", "yes"), "made up")
    for binning in (None, "cut:4"):
        census = Census("made up", codes, lambda: rows.astype(str), binning=binning)
        encoder = split_and_encode(census, 0)[1]
        assert "age" in encoder.notes()[0]
        assert TableEncoder.from_json(encoder.to_json()) == encoder
        assert not replace(encoder, columns=encoder.columns[1:]).notes()
