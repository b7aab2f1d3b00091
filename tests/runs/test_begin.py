"""A run begins in a new or empty folder, on any budget, and never in one that holds something."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import equidp
from equidp.accounting.target import Target
from equidp.data import DataSplit, Recipe
from equidp.errors import BudgetError, SettingError
from equidp.ledger.format import read_ledger
from equidp.runs import begin as begin_module, layout
from equidp.runs.begin import begin, check_new
from equidp.runs.config import BudgetFile, RunData, TrainConfig
from equidp.runs.prepare import prepare
from equidp.runs.releases import CountsRelease, IndividualRelease, PreprocessingRelease
from equidp.runs.train import train
from equidp.training.plan import Plan
from support.command import people  # noqa: F401
from support.errors import raises_field
from support.odd_places import made

RECIPE = Recipe(target="income", group=("sex",), bounds=(("age", 20.0, 60.0),))


@pytest.fixture(scope="module")
def prepared(people):  # noqa: F811
    plan = Plan(epochs=1, batch_size=40, delta=1e-3)
    data = RunData(str(people / "people.csv"), RECIPE)
    return prepare(TrainConfig(data, "dpsgd", plan, Target(3.0), releases=(CountsRelease(0.1),)))


@pytest.mark.parametrize(
    "name", [".", "./", "../here", "link/", "link", "-f", "a b", "new/", "new/under", "dangling"]
)
def test_a_run_begins_where_it_is_asked_for(prepared, tmp_path, monkeypatch, name):
    for folder in ("here", "elsewhere"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    if name.rstrip("/") == "link":
        Path("link").symlink_to("../elsewhere")
    if name == "dangling":
        Path("dangling").symlink_to("../elsewhere/new")
    check_new(name)
    begin(prepared, name)
    assert os.path.exists(".")
    assert {layout.CONFIG, layout.LEDGER, layout.SEAL, layout.COUNTS, layout.NOTICE} <= set(os.listdir(name))
    assert read_ledger(Path(name) / layout.LEDGER).blocks
    assert not [each for each in tmp_path.rglob("*") if each.name.startswith(".")]
    with raises_field(SettingError, "folder", "not empty"):
        check_new(name)


@pytest.mark.parametrize("kind", ["a file", "pipe", "socket", "link in a circle"])
def test_a_file_in_place_of_the_folder_is_refused(tmp_path, kind):
    made(tmp_path / "run", kind) if kind != "a file" else (tmp_path / "run").touch()
    for name in ("run", "run/under"):
        with raises_field(SettingError, "path", "run"):
            check_new(tmp_path / name)
    assert [each.name for each in tmp_path.iterdir()] == ["run"]


def test_what_a_kill_left_in_an_empty_folder_is_passed_over(prepared, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(begin_module, "_pay_and_draw", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        patch.setattr(begin_module.shutil, "rmtree", lambda *_, **__: None)  # as a kill
        with pytest.raises(KeyboardInterrupt):
            begin(prepared, tmp_path)
    assert list(tmp_path.iterdir())
    begin(prepared, tmp_path)
    assert (tmp_path / layout.CONFIG).exists()


def test_of_two_runs_that_begin_at_once_in_an_empty_folder_one_does(prepared, tmp_path, monkeypatch):
    pay = begin_module._pay_and_draw

    def overtaken(*arguments):
        with monkeypatch.context() as patch:
            patch.setattr(begin_module, "_pay_and_draw", pay)
            begin(prepared, tmp_path)
        return pay(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(begin_module, "_pay_and_draw", overtaken)
        with pytest.raises(SettingError):
            begin(prepared, tmp_path)
    assert len(read_ledger(tmp_path / layout.LEDGER).blocks) == 1


@pytest.mark.soak
def test_a_run_makes_one_trainer_and_hashes_its_data_once(people, tmp_path, monkeypatch):  # noqa: F811
    made, hashed, init, digest = [], [], equidp.Trainer.__init__, DataSplit.digest

    def make(self, *given, **named):
        made.append(self)
        init(self, *given, **named)

    monkeypatch.setattr(equidp.Trainer, "__init__", make)
    monkeypatch.setattr(DataSplit, "digest", lambda self: hashed.append(1) or digest(self))
    plan = Plan(epochs=1, batch_size=40, delta=1e-3, noise_multiplier=2.0)
    config = TrainConfig(RunData(str(people / "people.csv"), RECIPE), "dpsgd", plan, Target(accountant="rdp"))
    run, _ = train(tmp_path / "run", prepared=begin(prepare(config), tmp_path / "run"))
    assert (len(made), len(hashed)) == (1, 1)
    assert read_ledger(tmp_path / "run" / layout.LEDGER).entries == run.entries


RELEASES = {
    "nothing": (),
    "preprocessing": (PreprocessingRelease(0.1),),
    "class counts": (CountsRelease(0.1),),
    "individual privacy": (IndividualRelease(0.1),),
}


@pytest.fixture
def config(tmp_path):
    """Return the configuration of a run on people with one kind of release, of one year's file."""
    rng = np.random.default_rng(0)
    for year in ("t24", "t25"):
        table = pd.DataFrame({"id": np.arange(300) // 3, "x": rng.random(300)})
        table["g"], table["y"] = rng.choice(["a", "b"], 300), rng.choice(["no", "yes"], 300)
        table.to_csv(tmp_path / f"{year}.csv", index=False)

    def made(year, release, person="id", **limits):
        plan = equidp.Plan(batch_size=20, epochs=1, delta=1e-5)
        owners = {"person": person, "rows_per_person": 4} if person else {}
        recipe = Recipe(target="y", group=("g",), bounds=(("x", 0.0, 1.0),), **owners)
        data, budget = (
            RunData(str(tmp_path / f"{year}.csv"), recipe),
            BudgetFile(tmp_path / "n.ledger", **limits),
        )
        target = Target(2.0, accountant="rdp")
        return TrainConfig(data, "dpsgd", plan, target, budget, RELEASES[release])

    return made


NEW = {"epsilon": 9.0, "delta": 1e-5}


@pytest.mark.soak
@pytest.mark.parametrize("release", RELEASES)
def test_a_run_with_releases_begins_a_budget_for_people(config, tmp_path, release):
    prepare(config("t24", release, **NEW))  # as --dry-run
    assert not (tmp_path / "n.ledger").exists()
    run, _ = train(tmp_path / "run", prepared=begin(prepare(config("t24", release, **NEW)), tmp_path / "run"))
    kept = read_ledger(tmp_path / "n.ledger")
    assert (kept.facts["unit"], kept.facts["data"]) == ("people", "t24")
    assert set(kept.entries) == set(run.entries)
    with equidp.PrivacyBudget(tmp_path / "n.ledger") as budget:  # the first plan is as tight as alone
        assert budget.spent() == run.epsilon(accountant="pld")
    with raises_field(BudgetError, "unit"):
        prepare(config("t24", release, person=None))


@pytest.mark.soak
def test_the_name_of_a_budget_opens_it_again_next_year(config, tmp_path):
    named = {"data": "people"}
    begin(prepare(config("t24", "class counts", **NEW, **named)), tmp_path / "a")
    begin(prepare(config("t25", "class counts", **named)), tmp_path / "b")
    begin(prepare(config("t24", "class counts", **named)), tmp_path / "c")
    assert sum(steps for _, steps in read_ledger(tmp_path / "n.ledger").entries) == 3
    with raises_field(BudgetError, "data", "'t25'"):
        prepare(config("t25", "class counts"))
    with raises_field(BudgetError, "data", "'others'"):
        prepare(config("t24", "class counts", data="others"))
