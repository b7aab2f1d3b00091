"""A run begins in a new or empty folder, with any ledger, and never in one that holds something."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import equidp
from equidp.data import Recipe
from equidp.errors import BudgetError, SettingError
from equidp.ledger.ledger import Ledger
from equidp.runs import begin as begin_module
from equidp.runs.begin import begin, begin_or_continue, check_new, prepare
from equidp.runs.config import DatasetLedger, RunData, TrainConfig
from equidp.runs.folder import CONFIG, COUNTS, LEDGER
from equidp.runs.releases import CountsRelease, IndividualRelease, PreprocessingRelease
from equidp.runs.train import train
from equidp.training.plan import Plan
from support.command import people  # noqa: F401
from support.errors import raises_field

RECIPE = Recipe(target="income", group=("sex",), columns={"age": {"range": (20, 60)}})


@pytest.fixture(scope="module")
def prepared(people):  # noqa: F811
    plan = Plan(epochs=1, batch_size=40, delta=1e-3)
    data = RunData(str(people / "people.csv"), RECIPE)
    return prepare(
        TrainConfig(data, plan.with_changes(method="dpsgd", epsilon=3.0, releases=(CountsRelease(0.1),)))
    )


@pytest.mark.soak
@pytest.mark.parametrize("name", ["./", "new/under"])
def test_a_run_begins_where_it_is_asked_for(prepared, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    check_new(name)
    begin(prepared, name)
    assert os.path.exists(".")
    assert os.listdir(name) == ["private"]
    assert {CONFIG, LEDGER, COUNTS} <= set(os.listdir(Path(name) / "private"))
    assert Ledger.read(Path(name) / "private" / LEDGER).entries()
    assert not [each for each in tmp_path.rglob("*") if each.name.startswith(".")]
    with raises_field(SettingError, "folder", "not empty"):
        check_new(name)


def test_what_a_kill_left_in_an_empty_folder_is_passed_over(prepared, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(begin_module, "_pay_and_draw", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        patch.setattr(begin_module.shutil, "rmtree", lambda *_, **__: None)  # as a kill
        with pytest.raises(KeyboardInterrupt):
            begin(prepared, tmp_path)
    assert list(tmp_path.iterdir())
    begin(prepared, tmp_path)
    assert (tmp_path / "private" / CONFIG).exists()


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
    assert [count for _, count in Ledger.read(tmp_path / "private" / LEDGER).entries()] == [1]


@pytest.mark.soak
def test_a_stopped_run_goes_on_by_the_same_call(prepared, tmp_path):
    config, place = prepared.config, tmp_path / "run"
    assert begin_or_continue(config, place) is not None
    drawn = (place / "private" / COUNTS).read_bytes()
    assert begin_or_continue(config, place) is None
    assert (place / "private" / COUNTS).read_bytes() == drawn
    for changes in ({"method": "dpsgd-f"}, {"epsilon": 2.0}):
        other = replace(config, plan=config.plan.with_changes(**changes))
        with raises_field(SettingError, "folder", "other settings", "\nequidp.train(..., out="):
            begin_or_continue(other, place)
    train(place, prepared=begin_or_continue(config, place))
    with raises_field(SettingError, "folder", "a finished run"):
        begin_or_continue(config, place)


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
        plan = equidp.Plan(epsilon=2.0, accountant="rdp", batch_size=20, epochs=1, delta=1e-5)
        owners = {"person": person, "rows_per_person": 4} if person else {}
        recipe = Recipe(target="y", group=("g",), columns={"x": {"range": (0, 1)}}, **owners)
        data = RunData(str(tmp_path / f"{year}.csv"), recipe)
        ledger = DatasetLedger(tmp_path / "n.ledger", **limits)
        return TrainConfig(data, plan.with_changes(releases=RELEASES[release]), ledger)

    return made


NEW = {"epsilon": 9.0, "delta": 1e-5}


@pytest.mark.soak
@pytest.mark.parametrize("release", ["preprocessing", "class counts"])
def test_a_run_with_releases_begins_a_ledger_for_people(config, tmp_path, release):
    prepare(config("t24", release, **NEW))  # as --dry-run
    assert not (tmp_path / "n.ledger").exists()
    run, _ = train(tmp_path / "run", prepared=begin(prepare(config("t24", release, **NEW)), tmp_path / "run"))
    kept = Ledger.read(tmp_path / "n.ledger")
    assert (kept.unit, kept.limit) == ("people", (9.0, 1e-5))
    assert kept.entries() == run.entries
    assert run.epsilon() <= kept.spent() < 9.0
    assert not (tmp_path / "run" / "private" / LEDGER).exists()
    with raises_field(BudgetError, "unit"):
        prepare(config("t24", release, person=None))


@pytest.mark.soak
def test_runs_in_one_ledger_are_told_apart_and_kept_to_its_limit(config, tmp_path):
    """The next year's file as well: whose data a ledger is of, its name has to say."""
    for year, name, limit in (("t24", "a", NEW), ("t25", "b", {})):
        train(
            tmp_path / name, prepared=begin(prepare(config(year, "class counts", **limit)), tmp_path / name)
        )
    ledger = Ledger.read(tmp_path / "n.ledger")
    assert len(ledger.runs) == 2
    assert all(dict(ledger.entries(run)).values() for run in ledger.runs)
    with raises_field(BudgetError, "ledger"):
        wanted = config("t24", "nothing")
        prepare(replace(wanted, plan=wanted.plan.with_changes(epsilon=9.0)))


@pytest.mark.soak
def test_a_run_goes_on_in_its_own_ledger_alone(config, tmp_path):
    """An older copy, or another file, does not count what its releases cost."""
    path = tmp_path / "n.ledger"
    prepared = prepare(config("t24", "class counts", **NEW))
    begin(prepared, tmp_path / "run")
    whole = path.read_bytes()
    for content in (None, b"", whole.splitlines(keepends=True)[0]):
        path.unlink() if content is None else path.write_bytes(content)
        with raises_field(BudgetError, "ledger", tmp_path / "run"):
            train(tmp_path / "run")
    path.write_bytes(whole)
    run, _ = train(tmp_path / "run")
    assert Ledger.read(path).entries() == run.entries
