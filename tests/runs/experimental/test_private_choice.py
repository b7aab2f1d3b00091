"""`equidp train --choose` is charged whole before the first try, and never made again for free."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import equidp
from equidp.accounting.target import Target
from equidp.data import Recipe
from equidp.errors import BudgetError, DataError, SettingError
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import ChoiceEvent
from equidp.ledger.format import read_ledger
from equidp.runs import layout
from equidp.runs.begin import begin
from equidp.runs.config import BudgetFile, RunData, TrainConfig
from equidp.runs.experimental import private_choice as choice
from equidp.runs.experimental.private_choice import (
    PrivateChoice,
    combinations,
    prepare_choice,
    read_chosen,
    train_choice,
)
from equidp.runs.releases import IndividualRelease
from equidp.runs.saved import open_run
from equidp.runs.train import train

DELTA = 1e-4
PLAN = equidp.Plan(batch_size=100, epochs=1, delta=DELTA)
SPACE = {"learning_rate": [0.5, 2.0]}
TABLE = ("people.csv", "--target", "ill", "--group", "sex", "--epochs", "1", "--delta", "1e-4")


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.integers(20, 60, 1000), "sex": rng.choice(["F", "M"], 1000)})
    table["ill"] = np.where(table["age"] > 45, "yes", "no")
    path = tmp_path_factory.mktemp("people") / "people.csv"
    table.to_csv(path, index=False)
    return path


@pytest.fixture
def config(people):
    recipe = Recipe(target="ill", group=("sex",), bounds=(("age", 0.0, 100.0),))
    return TrainConfig(
        RunData(str(people), recipe),
        "dpsgd",
        PLAN,
        Target(3.0, accountant="rdp"),
        releases=(PrivateChoice(2, SPACE),),
    )


def begun(config, folder):
    """Arguments of `train_choice` for a run that was begun in this folder."""
    prepared, held_out = prepare_choice(config)
    return folder, begin(prepared, folder), held_out


@pytest.mark.soak
def test_the_best_is_kept_with_its_price_and_nothing_else(config, tmp_path, command):
    folder = tmp_path / "run"
    run, _ = train_choice(*begun(config, folder))
    entries = read_ledger(folder / layout.LEDGER).entries
    ((event, count),) = entries
    assert isinstance(event, ChoiceEvent)
    assert (event.mean, count) == (2.0, 1)
    assert 2.99 < epsilon(entries, DELTA) <= 3.0
    kept, chosen = open_run(folder), read_chosen(folder)
    assert chosen["settings"] in combinations(config, 720)
    assert layout.read_config(folder)[1].learning_rate == chosen["settings"]["learning_rate"]
    for name, value in run.model.state_dict().items():
        assert torch.equal(kept.run.model.state_dict()[name], value)
    assert not list(folder.glob(layout.CHECKPOINTS))
    assert not (folder / layout.RECORD).exists()
    card = (folder / layout.CARD).read_text()
    assert "a private choice: a random number of tries, 2 on average" in card
    assert "RdpAccountant().compose(event)" in card
    code, out, _ = command("ledger", "show", folder, cwd=tmp_path)
    assert code == 0
    assert "1 choice: a private choice" in out
    for again in (lambda: train(folder), lambda: train_choice(folder, *prepare_choice(config))):
        with pytest.raises(DataError, match="made in one go"):
            again()


@pytest.mark.soak
def test_a_choice_that_is_killed_is_spent_and_not_made_again(config, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    arguments = begun(config, folder)

    def killed(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(equidp.Trainer, "fit", killed)
    with pytest.raises(KeyboardInterrupt):
        train_choice(*arguments)
    monkeypatch.undo()
    assert read_ledger(folder / layout.LEDGER).entries[0][1] == 1
    assert not (folder / layout.MODEL).exists()
    with pytest.raises(DataError, match="cannot be resumed"):
        train_choice(*arguments)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tries": 1}, "choose=1; expected a whole number >= 2"),
        ({"space": {"learning_rate": [0.5]}}, "there are 1 combinations"),
        ({"space": {"learning_rat": [0.5, 1]}}, "learning_rate"),
        ({"space": {"epochs": [1, 2]}}, "epochs cannot be chosen: it changes what a step costs"),
        ({"space": {"learning_rate": 0.5}}, "expected a list"),
        ({"target": Target()}, "needs a target epsilon"),
        ({"method": "sgd"}, "needs a target epsilon and a private method"),
        ({"releases": (PrivateChoice(2, SPACE), IndividualRelease(0.1))}, "individual privacy"),
    ],
)
def test_what_cannot_be_chosen_is_refused(config, changed, said):
    def prepare() -> None:
        own = {name: changed[name] for name in ("tries", "space") if name in changed}
        further = {"releases": (PrivateChoice(**{"tries": 2, "space": SPACE, **own}),)} if own else changed
        prepare_choice(TrainConfig(**{**vars(config), **further}))

    with pytest.raises(SettingError, match=said):
        prepare()


@pytest.mark.soak
def test_commands_say_what_a_choice_would_try_and_cost(command, people, tmp_path):
    code, out, err = command(
        "train", *TABLE, "--epsilon", "3", "--choose", "2", "--dry-run", cwd=people.parent
    )
    assert code == 0, err
    assert "Settings to choose among, 9 in all" in out
    assert "auto takes dpsgd: model logistic, clipping bound 2, learning rate 2.5" in out
    assert "learning_rate 0.625, clipping_bound 0.5\n" in out
    assert "learning_rate 10.0, clipping_bound 8.0\n" in out
    assert 2.99 < float(out.partition("The whole choice: epsilon ")[2].split()[0]) <= 3.0
    asked = ("--method", "dpsgd", "--choose", "2", "--dry-run")
    code, out, err = command("train", *TABLE, "--epsilon", "3", *asked, cwd=people.parent)
    assert code == 0, err
    assert "auto" not in out
    assert "learning_rate 0.025, clipping_bound 0.25\n" in out
    for options, told in (
        (("--choose-from", "none.toml"), "--choose-from is for --choose"),
        (("--choose", "2", "--choose-from", "none.toml"), "cannot be read as TOML"),
        (("--choose", "0"), "expected a whole number >= 2"),
    ):
        code, _, err = command(
            "train", *TABLE, "--epsilon", "3", *options, "--out", tmp_path / "run", cwd=people.parent
        )
        assert (code, told in err) == (2, True), err


@pytest.mark.soak
def test_a_budget_pays_for_the_whole_choice_once(config, tmp_path):
    asked = replace(config, budget=BudgetFile(tmp_path / "budget", epsilon=4.0, delta=DELTA))
    train_choice(*begun(asked, tmp_path / "run"))
    assert read_ledger(tmp_path / "budget").entries == read_ledger(tmp_path / "run" / layout.LEDGER).entries
    with pytest.raises(BudgetError, match="does not fit into the budget"):
        prepare_choice(asked)


@pytest.mark.soak
def test_no_file_tells_when_the_tries_began(config, tmp_path, monkeypatch):
    """The time between two files, or from the ledger's line to the model, is the number of tries."""
    budget, made, held = tmp_path / "budget", {}, []
    choose = choice.choose

    def seen(*given, **named):
        made.update({path.name: path.stat().st_ino for path in folder.iterdir()})
        held.extend(path.open("rb") for path in folder.iterdir() if path.is_file())  # no inode is used again
        return choose(*given, **named)

    monkeypatch.setattr(choice, "choose", seen)
    folder = tmp_path / "run"
    config = replace(config, budget=BudgetFile(budget, epsilon=4.0, delta=DELTA))
    train_choice(*begun(config, folder))
    files = [*folder.iterdir(), folder, budget, tmp_path / "budget.seal"]
    (moment,) = {path.stat().st_mtime for path in files}
    assert moment % 86_400 == 0
    kept = [path.name for path in folder.iterdir() if path.stat().st_ino == made.get(path.name)]
    for file in held:
        file.close()
    assert kept == []
    for path in (folder / layout.LEDGER, budget):
        lines = [json.loads(line.rpartition(" ")[0]) for line in path.read_text().splitlines()]
        assert all(len(line.get("time", "")) <= len("2026-11-25") for line in lines)
        assert [line["time"] for line in lines if "choice" in line or "run" in line] == ["", ""]
    assert not any(
        json.loads(line.rpartition(" ")[0]).get("time")
        for line in (folder / layout.LEDGER).read_text().splitlines()
    )
    assert read_ledger(folder / layout.LEDGER).entries == read_ledger(budget).entries
    assert open_run(folder)
