"""run.toml is read strictly, written whole, and gives the run back that it was written of."""

from __future__ import annotations

import dataclasses
import tomllib

import numpy as np
import pandas as pd
import pytest

from equidp.errors import SettingError
from equidp.policies.table import AUTO
from equidp.runs.config import CardTexts, DatasetLedger
from equidp.runs.run_file import SECTIONS, RunFile, fields_of, section_of
from equidp.runs.run_text import run_toml
from equidp.runs.session import Session
from equidp.tables.recipe import Column, Recipe
from equidp.training.plan import Plan
from support.errors import raises_field

WHOLE = """
[table]
data = "people.csv"
target = "income"
group = "sex"
drop = ["id"]
binning = "cut:8"

[column.zip]
kind = "text"

[column."Hb, g/dL"]
range = [0, 20]

[privacy]
epsilon = 3
ledger = "people.ledger"
ledger_epsilon = 9
ledger_delta = 1e-5
preprocessing = "private"

[training]
method = "dpsgd-f"
smoothing = 0.5
epochs = 4
seed = 7
engine = "functional"
metric = "auc"

[card]
title = "Income of people"
runs_tried = 3
review_date = 2027-01-31
"""


@pytest.fixture
def written(tmp_path):
    (tmp_path / "run.toml").write_text(WHOLE)
    return tmp_path / "run.toml"


def test_one_file_has_table_columns_privacy_training_and_card(written):
    run = RunFile.read(written)
    columns = {"zip": Column(kind="text"), "Hb, g/dL": Column(range=(0, 20))}
    assert run.recipe == Recipe(target="income", group="sex", drop="id", columns=columns)
    assert (run.run_data().binning, run.run_data().seed) == ("cut:8", 7)
    assert run.card_texts == CardTexts(title="Income of people", runs_tried=3, review_date="2027-01-31")
    assert run.options == {
        "epsilon": 3.0, "preprocessing": "private", "smoothing": 0.5, "epochs": 4.0, "engine": "functional",
    }  # fmt: skip
    assert run.ledger().limit == (9.0, 1e-5)
    config = Session.of(run, None).config
    assert (config.plan.method, config.plan.epsilon, config.metric) == ("dpsgd-f", 3.0, "auc")


def test_what_is_given_beside_a_file_is_over_it(written):
    given = {"noise_multiplier": 2.0, "steps": 9, "drop": ["job"], "columns": {"zip": {"fold": True}}}
    run = RunFile.of(written, given)
    assert run.recipe.drop == ("id", "job")
    assert run.recipe.column("zip") == Column(kind="text", fold=True)
    assert run.options.keys() >= {"noise_multiplier", "steps"}
    assert not run.options.keys() & {"epsilon", "epochs"}  # whose places they take
    with raises_field(SettingError, "epsilon"):
        Plan().with_changes(RunFile.of(written, {"epsilon": 1.0, "noise_multiplier": 2.0}).options)


@pytest.mark.parametrize(
    ("content", "field", "said"),
    [
        ("[tabble]", "section", "Did you mean 'table'"),
        ("[table]\ntraget = 'x'", "field in [table]", "Did you mean 'target'"),
        ("[column.a]\nknd = 'x'", "field in [column.a]", "Did you mean 'kind'"),
        ("[privacy]\nepsilon = '3'", "epsilon", "[privacy] epsilon = '3'; expected a number."),
        ("[training]\nbatch_size = 1.5", "batch_size", "expected a whole number."),
        ("[table]\ngroup_as_input = 1", "group_as_input", "expected true or false."),
        ("[column.a]\nrange = 3", "range", "[column.a] range = 3; expected [low, high]."),
    ],
)
def test_a_file_that_cannot_be_names_section_field_value_and_what_was_expected(
    content, field, said, tmp_path
):
    (tmp_path / "run.toml").write_text(content)
    with raises_field(SettingError, field, said, "run.toml"):
        RunFile.read(tmp_path / "run.toml")


def test_every_option_of_a_plan_and_of_methods_stands_in_one_section():
    names = [name for section in SECTIONS if section != "column" for name in fields_of(section)]
    assert len(names) == len({*names})
    assert {each.name for each in Plan.options()} <= {*names}
    assert {each.name for each in dataclasses.fields(DatasetLedger)} == {"path", "epsilon", "delta"}
    assert section_of("clipping_bound") == "training"


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("people") / "people.csv"
    table = {"age": rng.normal(50, 9, 600), "job": rng.choice(["a", "b"], 600), "zip": ["01067"] * 600}
    table |= {"sex": rng.choice(["F", "M"], 600), "ill": rng.choice(["no", "yes"], 600)}
    pd.DataFrame(table).to_csv(path, index=False)
    return path


CHOICES = {
    "method": ("dpsgd", "dpsgd-f", "naive", "global-adapt", "quantile", "automatic", AUTO),
    "noise_multiplier": (0.8, 2.0), "epsilon": (1.5, 4.0), "risk": ([0.3], [0.05, 0.01]),
    "accountant": ("rdp",), "delta": (1e-5, 1e-3), "model": ("logistic", "mlp"), "learning_rate": (0.3, 2.0),
    "batch_size": (32, 100), "epochs": (1.0, 2.5), "steps": (7,), "momentum": (0.0, 0.5),
    "weight_decay": (0.01,), "schedule": ("linear", "cosine"), "average": ("tail", "ema"),
    "average_share": (0.4,), "class_weight": ("no=1,yes=3", "balanced", {"yes": 2.0}), "rates": ("F=0.5",),
    "clipping_bound": (0.3, 3.0), "smoothing": (0.5,), "preprocessing": ("private",), "individual": (True,),
    "binning": ("standard", "cut:4"), "seed": (3,), "engine": ("functional",), "metric": ("auc",),
    "positive": ("no",), "threshold": (0.3,), "title": ("Who is ill",), "missing": ("category",),
    "physical_batch_size": (16,), "test_share": (0.4,),
}  # fmt: skip
LEVELS = ("noise_multiplier", "epsilon", "risk")


def drawn(rng: np.random.Generator) -> dict:
    """Options of a run by chance, with one level of privacy."""
    level = rng.choice(LEVELS)
    names = [name for name in CHOICES if name not in LEVELS and rng.random() < 0.25]
    if {"epochs", "steps"} <= {*names}:
        names.remove("steps")
    given = {name: CHOICES[name][rng.integers(len(CHOICES[name]))] for name in [level, *names]}
    if level != "epsilon":  # of which a release takes a share
        given = {name: each for name, each in given.items() if each not in ("balanced", "private")}
    columns = {"zip": {"kind": "text"}, "age": {"range": [0, 100]}} if rng.random() < 0.5 else {}
    return {"target": "ill", "group": ["sex"], "accountant": "rdp", **given, "columns": columns}


@pytest.mark.soak
def test_the_file_of_a_dry_run_gives_the_same_plan(people, tmp_path):
    """Of twelve plans by chance: plan, data, decision and card, worked out to the last digit."""
    rng, made, path = np.random.default_rng(0), 0, tmp_path / "run.toml"
    while made < 12:
        given = drawn(rng)
        try:
            chosen = Session.of(RunFile.of(given=given), people).choose()
            train = chosen.config.load()[0].train
            resolved = chosen.config.plan.resolve(len(train), train.group_names)
        except SettingError:  # options that exclude each other
            continue
        made += 1
        path.write_text(run_toml(chosen.config, resolved, chosen.advice, ["What it would spend."]))
        again = Session.of(RunFile.of(path)).choose().config
        assert again.plan.resolve(len(train), train.group_names).settings == resolved.settings, given
        assert again.plan.resolve(len(train), train.group_names).charges == resolved.charges
        assert again.data == chosen.config.data
        assert again.decision == chosen.config.decision
        assert again.checkpoint_seconds == chosen.config.checkpoint_seconds
        assert again.metric == chosen.config.metric
        assert again.card.title == chosen.config.card.title


@pytest.mark.soak
def test_each_value_of_a_written_file_has_its_reason(people):
    given = {"target": "ill", "group": ["sex"], "epsilon": 3.0, "momentum": 0.25}
    chosen = Session.of(RunFile.of(given=given), people).choose()
    text = run_toml(chosen.config, chosen.config.plan.resolve(480, ("F", "M")), chosen.advice)
    for line in ("epsilon = 3.0 # given", "momentum = 0.25 # given", "weight_decay = 0.0 # default"):
        assert line in text.splitlines()
    assert 'model = "additive" # by rule' in text
    origins = chosen.config.card.origins
    assert (origins["epsilon"], origins["accountant"]) == ("given", "default")
    assert [*tomllib.loads(text)] == ["table", "privacy", "training"]
