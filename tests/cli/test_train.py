"""equidp train, predict, evaluate and verify: from a table to a model card, however it is stopped."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import equidp
from equidp.cli import train as train_module
from equidp.kernel.run import PrivateRun
from equidp.ledger.ledger import Ledger
from equidp.report.format import upper

pytestmark = pytest.mark.filterwarnings("ignore:AUC .* is rarely true")  # income follows from age

PLAN = ("--batch-size", "40", "--epochs", "4", "--noise-multiplier", "2", "--set", "privacy.accountant=rdp")
TABLE = ("people.csv", "--target", "income", "--group", "sex")
INDIVIDUAL = (
    *("--epsilon", "3", "--epochs", "4", "--batch-size", "40", "--delta", "1e-4"),
    *("--set", "privacy.individual=true"),
)


def plan_with(name, value):
    """PLAN with another value of one option, which cannot be given twice."""
    place = PLAN.index(name) + 1
    return (*PLAN[:place], value, *PLAN[place + 1 :])


@pytest.fixture
def run(people, command):
    """Run the command in this process, beside the table: (exit code, standard output, standard error)."""
    return partial(command, cwd=people)


@pytest.fixture
def people(tmp_path):
    index = range(200)
    table = pd.DataFrame(
        {
            "age": [20 + i % 37 for i in index],
            "job": ["clerk" if i % 3 else "cook" for i in index],
            "sex": ["F" if i % 2 else "M" for i in index],
            "income": ["high" if 20 + i % 37 > 40 else "low" for i in index],
        }
    )
    table.to_csv(tmp_path / "people.csv", index=False)
    return tmp_path


def stop_after(steps, patch):
    """End a command by SIGTERM once its run has taken so many steps."""
    step = PrivateRun.step

    def take_step(run):
        taken = step(run)
        if run.steps_done == steps:
            signal.raise_signal(signal.SIGTERM)
        return taken

    patch.setattr(PrivateRun, "step", take_step)


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.soak
def test_from_a_table_to_a_card_in_one_command(run, people):
    code, out, err = run("train", *TABLE, "--epsilon", "3", "--epochs", "4", "--batch-size", "40",
                         "--method", "dpsgd-f", "--out", "run", "--delta", "1e-4")  # fmt: skip
    assert (code, err) == (0, "")
    assert re.match(r"(Better|No better) than .*; epsilon 3\.", " ".join(out.split()))
    assert "differentially private for each training example" in out
    assert out.count("\n") <= 25
    assert files(people / "run") == ["private", "share"]
    assert files(people / "run" / "share") == [
        "SHA256SUMS", "card.html", "card.md", "model.safetensors", "run.json"
    ]  # fmt: skip
    assert files(people) == ["people.csv", "run"]

    code, out, _ = run("verify", "run/private/ledger")
    assert code == 0
    assert "15 steps: sample rate 0.25641" in out
    entries = Ledger.read(people / "run" / "private" / "ledger").entries()
    assert 2.9 < equidp.kernel.epsilon.epsilon(entries, 1e-4) <= 3.0
    assert f"By itself: epsilon {equidp.kernel.epsilon.epsilon(entries, 1e-5):.6g} at delta 1e-05" in out

    code, out, _ = run("predict", "run", "people.csv")
    rows = out.splitlines()
    assert rows[0] == "prediction,p(high),p(low)"
    assert len(rows) == 201
    assert {row.split(",")[0] for row in rows[1:]} <= {"high", "low"}
    code, _, err = run("predict", "run", "--out", "test.csv")
    assert "44 predictions" in err
    assert len(pd.read_csv(people / "test.csv")) == 44

    run("train", *TABLE, "--method", "sgd", "--epochs", "40", "--batch-size", "40", "--out", "plain")
    pd.read_csv(people / "people.csv").iloc[::-1].to_csv(people / "others.csv", index=False)
    code, out, _ = run("evaluate", "run", "others.csv", "--baseline", "plain", "--json", "a.json")
    assert code == 0
    assert "privacy cost" in " ".join(out.split())
    content = json.loads((people / "a.json").read_text())
    assert content["epsilon"] < 3
    assert [row["count"] for row in content["metrics"]] == [100, 100, 200]
    assert [(row["group"], row["class"]) for row in content["recalls"]][:2] == [("F", "high"), ("F", "low")]
    assert sum(row["count"] for row in content["recalls"]) == 400
    assert all(
        row["privacy_cost_low"] <= row["privacy_cost"] <= row["privacy_cost_high"] for row in content["costs"]
    )


@pytest.mark.soak
def test_averaged_weights_are_what_a_run_keeps_also_when_it_goes_on(run, people, monkeypatch):
    average = ("--set", "training.average=tail", "--set", "training.average_share=0.5")
    plan = (*PLAN, "--set", "training.schedule=cosine", *average)
    plan = (*plan, "--set", "training.optimizer=adam", "--learning-rate", "0.02")
    with monkeypatch.context() as patch:
        stop_after(11, patch)
        assert run("train", *TABLE, *plan, "--out", "run")[0] == 143
    assert run("train", "--resume", "run")[0] == 0
    last = torch.load(sorted((people / "run" / "private").glob("checkpoint-*"))[-1], weights_only=True)
    released = load_file(people / "run" / "share" / "model.safetensors")
    assert (last["steps"], last["average"]["count"]) == (15, 8)
    for name, weights in released.items():
        assert torch.equal(weights, last["average"]["weights"][name])
        assert not torch.equal(weights, last["model"][name])
    card = (people / "run" / "share" / "card.md").read_text()
    assert "| optimizer | adam | given |" in card
    assert "| schedule | cosine | given |" in card
    assert "| average | tail | given |" in card
    assert "| average share | 0.5 | given |" in card
    assert run("evaluate", "run")[0] == 0
    assert run("predict", "run", "people.csv")[0] == 0


@pytest.mark.soak
def test_predictions_keep_columns_as_they_stand_in_the_table(run, people):
    """An id with leading zeros is no number, and a date is none of the model's business."""
    run("train", *TABLE, *PLAN, "--out", "run")
    new = (
        pd.read_csv(people / "people.csv")
        .head(3)
        .assign(id=["007", "NA", "x,1"], since="2020-01-01", number=12345678)
    )
    new.to_csv(people / "new.csv", index=False)
    new.to_parquet(people / "new.parquet")
    for table in ("new.csv", "new.parquet"):
        code, out, err = run("predict", "run", table, "--keep", "id,since,number,id")
        assert (code, err) == (0, "")
        rows = out.splitlines()
        assert rows[0] == "id,since,number,prediction,p(high),p(low)"
        starts = [f"{name},2020-01-01,12345678," for name in ("007", "NA", '"x,1"')]
        assert [row.startswith(start) for row, start in zip(rows[1:], starts, strict=True)] == [True] * 3
    for arguments, said in (
        (("run", "new.csv", "--keep", "idd"), "Did you mean 'id'"),
        (("run", "--keep", "id"), "give the table too"),
    ):
        code, out, err = run("predict", *arguments)
        assert (code, out) == (2, "")
        assert said in err
    new.assign(prediction=1).to_csv(people / "new.csv", index=False)
    assert "have a column of that name" in run("predict", "run", "new.csv", "--keep", "prediction")[2]


@pytest.mark.soak
def test_a_dry_run_says_what_it_would_cost_and_leaves_nothing(run, people):
    code, out, err = run("train", *TABLE, "--epsilon", "2", "--dry-run", "--ledger", "b.ledger",
                       "--ledger-epsilon", "3", "--ledger-delta", "1e-4", "--delta", "1e-4",
                       "--batch-size", "40")  # fmt: skip
    assert code == 0
    assert "epsilon 2.0000 at delta 0.0001 (pld)" in out or "epsilon 1.9" in out
    assert "Nothing was spent or written." in err
    assert files(people) == ["people.csv"]


@pytest.mark.soak
def test_a_stopped_command_says_how_to_go_on_and_does(run, people):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "equidp", "train"]
    plan = [*TABLE, *PLAN[:2], "--epochs", "20000", "--noise-multiplier", "9", *PLAN[-2:]]
    started = subprocess.Popen(
        [*command, *plan, "--out", "run"], cwd=people, env=environment, stderr=subprocess.PIPE, text=True
    )
    while lines(people / "run" / "private" / "ledger") < 5:
        assert started.poll() is None, started.stderr.read()
        time.sleep(0.05)
    code, _, err = run("train", "--resume", "run")
    assert code == 2
    assert "in use by another process" in err
    started.send_signal(signal.SIGTERM)
    _, err = started.communicate()
    assert started.returncode == 128 + signal.SIGTERM
    assert err.endswith("stopped by SIGTERM. To continue:\nequidp train --resume run\n")
    ledger = Ledger.read(people / "run" / "private" / "ledger")  # without steps that were paid ahead
    resumed = equidp.Checkpoints(people / "run" / "private")
    assert resumed.steps_kept() == ledger.entries()[0][1]


@pytest.mark.soak
def test_the_same_command_goes_on_with_a_run_that_was_stopped(run, people, monkeypatch):
    command = ("train", *TABLE, *PLAN, "--out", "run")
    with monkeypatch.context() as patch:
        stop_after(11, patch)
        assert run(*command)[0] == 143
    code, _, err = run("train", *TABLE, *plan_with("--epochs", "3"), "--out", "run")
    assert code == 2
    assert "holds a stopped run with other settings" in err
    assert err.endswith("To continue: equidp train --resume run")
    code, _, err = run(*command)
    assert code == 0
    assert "11 steps are spent, 0 of them lost" in err
    assert run("verify", "run")[0] == 0
    assert "it holds a finished run" in run(*command)[2]


@pytest.mark.soak
def test_a_ledger_is_shared_and_its_limit_kept(run, people):
    plan = (*TABLE, *PLAN[:4], "--epsilon", "1", "--delta", "1e-4", "--ledger", "b.ledger")
    assert run("train", *plan, "--ledger-epsilon", "1.5", "--out", "one")[0] == 2  # a limit has a delta
    assert files(people) == ["people.csv"]
    assert run("train", *plan, "--ledger-epsilon", "1.5", "--ledger-delta", "1e-4", "--out", "one")[0] == 0
    assert "It is the only run in its ledger so far." in (people / "one" / "share" / "card.md").read_text()
    code, _, err = run("train", *plan, "--out", "two")
    assert code == 2
    assert "does not fit the ledger's limit" in err
    assert re.search(r"[0-9]+ of the steps fit", err)
    assert not (people / "two").exists()
    code, _, err = run("train", *plan, "--ledger-epsilon", "9", "--ledger-delta", "1e-4", "--out", "two")
    assert (code, "leave it out, it does not change" in err) == (2, True)
    assert run("train", *plan[:-6], "--noise-multiplier", "9", *plan[-4:], "--out", "two")[0] == 0
    code, out, _ = run("verify", "b.ledger")
    assert "of a limit of 1.5 at delta 0.0001" in out
    assert out.count("\nRun ") == 2
    (people / "b.ledger").rename(people / "moved")
    code, _, err = run("train", "--resume", "one")  # never in a new ledger, which knows of nothing
    assert code == 2
    assert "bring back the ledger that it began with" in " ".join(err.split())
    assert not (people / "b.ledger").exists()
    (people / "moved").rename(people / "b.ledger")
    assert run("verify", "one")[0] == run("verify", "two")[0] == 0
    assert 1.0 < Ledger.read(people / "b.ledger").spent() <= 1.5


@pytest.mark.soak
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train",), "nothing to train on"),
        (("train", "adlut", "--epsilon", "3", "--out", "run"), "Did you mean 'adult'"),
        (("train", *TABLE, "--out", "run"), "without a level of privacy"),
        (("train", *TABLE, *PLAN), "nowhere to keep the run"),
        (("train", *TABLE, *PLAN, "--epsilon", "3", "--out", "run"), "expected exactly one of"),
        (("train", "digits", "--method", "sgd", "--epsilon", "1", "--out", "run"), "sgd takes no noise"),
        (("train", *TABLE, *PLAN, "--seed", "-1", "--out", "run"), "seed=-1"),
        (("train", *TABLE, *PLAN, "--ledger-epsilon", "3", "--out", "run"), "give ledger too"),
        (("train", *TABLE, *PLAN, "--ledger", "no/b", "--out", "run"), "cannot be written"),
        (("train", *TABLE, *PLAN, "--out", "people.csv"), "people.csv' is a file"),
        (("train", "--resume", "run"), "there is no folder 'run'"),
        (("train", "--resume", "run", "--epochs", "3"), "leave out --epochs"),
        (("verify", "people.csv"), "is no ledger"),
        (
            ("train", *TABLE, *PLAN, "--out", "run", "--ledger", "people.csv"),
            "would be lost; choose another place",
        ),
        (
            ("train", *TABLE, *INDIVIDUAL, "--set", "privacy.release_epsilon=3", "--out", "run"),
            "leaves nothing",
        ),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else "",
)
def test_what_goes_wrong_is_one_message_and_leaves_nothing(run, people, arguments, message):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
    assert files(people) == ["people.csv"]


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:AUC .* is rarely true")
def test_what_goes_wrong_with_a_finished_run(run, people):
    run("train", *TABLE, *PLAN, "--out", "run")
    table = pd.read_csv(people / "people.csv")
    odd = {
        "no-job.csv": (table.drop(columns="job"), "the table lacks 'job'"),
        "renamed.csv": (table.rename(columns={"job": "Job"}), "Its column 'Job' is not used"),
        "texts.csv": (table.assign(age="old"), "holds texts, the first in row 1"),
        "huge.csv": (table.assign(age=1e300), "beyond 1e+18"),
        "gaps.csv": (table.assign(age=[None, *table["age"][1:]]), "1 of 200 rows have missing values"),
    }
    for name, (changed, message) in odd.items():
        changed.to_csv(people / name, index=False)
        code, out, err = run("predict", "run", name, "--out", "p.csv")
        assert (code, out) == (2, "")
        assert message in err
        assert not (people / "p.csv").exists()
    assert "fill them in, or leave those rows out" in err
    table.assign(sex="X").to_csv(people / "x.csv", index=False)
    assert "sex holds 'X', which the training data did not; known: F, M" in run("evaluate", "run", "x.csv")[2]
    refused = run("train", *TABLE, *PLAN, "--out", "run")[2]
    assert "it holds a finished run" in refused
    assert "trained by dpsgd; a baseline is a run by sgd" in run("evaluate", "run", "--baseline", "run")[2]
    table.assign(age=table["age"].astype(float)).to_csv(people / "people.csv", index=False)
    assert run("train", "--resume", "run")[0] == 0  # written otherwise, it is the same data
    table.assign(age=table["age"] ** 2).to_csv(people / "people.csv", index=False)
    for command in (("train", "--resume", "run"), ("evaluate", "run")):
        assert "is not the data that 'run' began with" in run(*command)[2]
    ledger = people / "run" / "private" / "ledger"
    ledger.write_text(ledger.read_text().replace('"count":2', '"count":1'))
    for command in (("train", "--resume", "run"), ("evaluate", "run"), ("verify", "run/private/ledger")):
        code, _, err = run(*command)
        assert code == 2
        assert "was edited or damaged" in err or "is not the data" in err


@pytest.mark.soak
def test_a_model_that_is_not_the_cards_is_refused(run, people):
    """Else one run's guarantee stands beside another one's model."""
    for folder, size in (("run", "40"), ("other", "50")):
        assert run("train", *TABLE, *plan_with("--batch-size", size), "--out", folder)[0] == 0
    run_folder, kept = people / "run" / "share", (people / "run" / "share" / "model.safetensors").read_bytes()
    other = people / "other"
    (run_folder / "model.safetensors").write_bytes((other / "share" / "model.safetensors").read_bytes())
    for command in (("evaluate", "run"), ("predict", "run")):
        code, out, err = run(*command)
        assert (code, out) == (2, "")
        assert "model.safetensors in 'run/share' is not as equidp wrote it" in " ".join(err.split())
        assert "equidp train --resume run" in err
    (run_folder / "model.safetensors").write_bytes(kept)
    (people / "run" / "private" / "ledger").write_bytes((other / "private" / "ledger").read_bytes())
    code, out, _ = run("verify", "run")
    assert (code, "ledger, entries" in out) == (1, True)
    (run_folder / "card.md").unlink()
    assert "--resume run" in run("evaluate", "run")[2]


@pytest.mark.soak
def test_individual_privacy_is_released_within_the_epsilon_that_was_asked_for(run, people):
    planned = run("train", *TABLE, *INDIVIDUAL, "--set", "privacy.release_epsilon=0.5", "--dry-run")[1]
    assert re.search(r"privacy \(epsilon 0\.5\): epsilon (2\.9999|3\.0000) in all \(pld\)", planned)
    assert run("train", *TABLE, *INDIVIDUAL, "--set", "privacy.release_epsilon=0.5", "--out", "run")[0] == 0
    entries = Ledger.read(people / "run" / "private" / "ledger").entries()
    steps, one = (count for _, count in entries)
    assert (10 < steps < 20, one) == (True, 1)
    assert 0.499 < equidp.kernel.epsilon.epsilon(entries[1:], 1e-4) <= 0.5
    assert 2.999 < equidp.kernel.epsilon.epsilon(entries, 1e-4) <= 3
    rows = json.loads((people / "run" / "share" / "released.json").read_text())
    assert [row["group"] for row in rows] == ["F", "M"]
    assert all(0 < row["mean"] < 3 and 0 < row["standard_error"] < 1 for row in rows)
    card = (people / "run" / "share" / "card.md").read_text()
    assert "Mean epsilon of a group's members, released with noise" in card
    assert re.search(r"^\| F \| [\d.]+ ± ", card, re.MULTILINE)
    assert run("evaluate", "run", "--json", "figures.json")[0] == 0
    assert json.loads((people / "figures.json").read_text())["released"] == rows
    assert run("train", "--resume", "run")[0] == 0  # nothing is left to do: nothing is released again
    assert json.loads((people / "run" / "share" / "released.json").read_text()) == rows
    (people / "run" / "private" / "released.json").unlink()
    code, _, err = run("train", "--resume", "run")  # nor because what was released is gone
    assert code == 2
    assert "released.json in 'run/private' is not as equidp wrote it" in " ".join(err.split())
    assert Ledger.read(people / "run" / "private" / "ledger").entries() == entries


@pytest.mark.soak
def test_noise_is_calibrated_to_a_risk_and_the_card_says_so(run, people):
    plan = (*TABLE, "--method", "dpsgd-f", *INDIVIDUAL[2:], "--risk", "0.3")
    assert "advantage at most 0." in run("train", *plan, "--dry-run")[1]
    assert run("train", *plan, "--out", "run")[0] == 0
    spent = equidp.Risk.of(Ledger.read(people / "run" / "private" / "ledger").entries())
    assert 0.295 < spent.advantage <= 0.3  # the release of individual privacy is in it
    card = (people / "run" / "share" / "card.md").read_text()
    assert "| noise was calibrated to the risk | advantage 0.3 |" in card
    advantage = f"The two rates differ by at most {upper(spent.advantage)}."
    assert advantage in card
    rows = json.loads((people / "run" / "share" / "released.json").read_text())
    risks = [row["risk"] for row in rows]
    assert all(0 < risk["advantage"] <= spent.advantage for risk in risks)
    assert min(risk["advantage"] for risk in risks) < spent.advantage  # a group with a lower bound
    assert "| group | found at 0.1% false positives | found at 1% | advantage |" in card
    code, _, err = run("train", *plan, "--epsilon", "1", "--out", "other")
    assert code == 2
    assert "epsilon=1.0, risk=advantage 0.3; expected exactly one" in " ".join(err.split())


@pytest.mark.soak
def test_a_release_is_paid_for_once_however_often_a_run_is_stopped(run, people, monkeypatch):
    plan = (*PLAN, "--delta", "1e-4", "--set", "privacy.individual=true")  # no epsilon to calibrate to
    run("train", *TABLE, *plan, "--out", "whole")
    steps = iter(range(100))

    def stop_now_and_then(self, *batch, own=equidp.kernel.step.PrivateStep.__call__):
        if next(steps) % 6 == 5:
            raise KeyboardInterrupt
        return own(self, *batch)

    monkeypatch.setattr(equidp.kernel.step.PrivateStep, "__call__", stop_now_and_then)
    assert run("train", *TABLE, *plan, "--out", "run")[0] == 130
    assert run("train", "--resume", "run")[0] == 130
    assert not (people / "run" / "private" / "released.json").exists()
    while run("train", "--resume", "run")[0] == 130:
        pass
    assert (
        Ledger.read(people / "run" / "private" / "ledger").entries()
        == Ledger.read(people / "whole" / "private" / "ledger").entries()
    )
    resumed, whole = (
        json.loads((people / name / "share" / "released.json").read_text()) for name in ("run", "whole")
    )
    for one, other in zip(resumed, whole, strict=True):  # what was not watched counts at its worst
        assert one["mean"] > other["mean"] - 5 * other["standard_error"]


def test_a_run_that_is_stopped_before_its_folder_is_there_spends_nothing_and_says_so(
    run, people, monkeypatch
):
    def stop(*arguments, **settings):
        raise KeyboardInterrupt

    named = ("--ledger", "people.ledger", "--ledger-epsilon", "9", "--ledger-delta", "1e-4")
    with monkeypatch.context() as patch:
        patch.setattr("equidp.runs.begin.prepare", stop)
        told = "stopped. Nothing was spent or written: the same command begins again."
        for beside in ((), named):
            code, _, err = run("train", *TABLE, "--epsilon", "3", *beside, "--out", "run")
            assert (code, err.endswith(told)) == (130, True), err
    assert not (people / "run").exists()
    assert not (people / "people.ledger").exists()


def test_a_ledger_in_use_by_another_run_leaves_a_run_that_is_continued_after_it(run, people, monkeypatch):
    def beside_another(*given, own=train_module.train, **named):
        with Ledger(people / "people.ledger"):
            return own(*given, **named)

    named = ("--ledger", "people.ledger", "--ledger-epsilon", "9", "--ledger-delta", "1e-4")
    with monkeypatch.context() as patch:
        patch.setattr(train_module, "train", beside_another)
        code, _, err = run("train", *TABLE, *PLAN, *named, "--out", "run")
    assert (code, err.endswith("To continue: equidp train --resume run")) == (2, True), err
    assert Ledger.read(people / "people.ledger").entries() == ()
    assert run("train", "--resume", "run")[0] == 0
    assert Ledger.read(people / "people.ledger").entries() != ()


def test_a_ledger_that_releases_may_be_charged_to_is_named_where_they_stop(run, people, monkeypatch):
    def stop(*arguments, **settings):
        raise KeyboardInterrupt

    named = ("--ledger", "people.ledger", "--ledger-epsilon", "9", "--ledger-delta", "1e-4")
    monkeypatch.setattr("equidp.runs.begin.write_whole", stop)
    asked = (*TABLE, "--epsilon", "3", "--preprocessing", "private", *named, "--out", "run")
    code, _, err = run("train", *asked)
    assert (code, f"equidp verify {people / 'people.ledger'}" in err) == (130, True), err
    assert not (people / "run").exists()
    assert Ledger.read(people / "people.ledger").entries()


@pytest.mark.soak
def test_a_run_whose_card_finds_no_room_names_the_command_that_writes_it(run, people, monkeypatch):
    """The same command again would be refused, as the folder holds the run; nothing is spent twice."""

    def fill(place, folder, *_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / "card.html"))

    with monkeypatch.context() as patch:
        patch.setattr("equidp.runs.cards.write_cards", fill)
        code, _, err = run("train", *TABLE, *PLAN, "--out", "run")
    assert code == 2
    assert err.endswith("Make room. To continue: equidp train --resume run")
    spent = Ledger.read(people / "run" / "private" / "ledger").entries()
    assert run("verify", "run")[2] == (
        "error: the run in 'run' is not finished. To continue: equidp train --resume run"
    )
    assert run("train", "--resume", "run")[0] == 0
    assert Ledger.read(people / "run" / "private" / "ledger").entries() == spent


@pytest.mark.soak
def test_a_limit_holds_a_plan_with_its_release_or_neither(run, people):
    """The release alone would fit, and the steps alone."""
    command = ("train", *TABLE, *INDIVIDUAL, "--set", "privacy.release_epsilon=2.5", "--out", "run")
    code, out, err = run(*command, "--ledger", "b", "--ledger-epsilon", "2.9", "--ledger-delta", "1e-4")
    assert (code, out) == (2, "")
    assert "does not fit the ledger's limit" in err
    assert files(people) == ["people.csv"]


@pytest.mark.soak
def test_nothing_that_is_read_is_written_over(run, people):
    """Neither the table that a command reads nor a file of the run."""
    run("train", *TABLE, *PLAN, "--out", "run")
    there = (path for path in people.rglob("*") if path.is_file())
    before = {path: path.read_bytes() for path in there}
    for arguments in (
        ("predict", "run", "people.csv", "--out", "people.csv"),
        ("predict", "run", "people.csv", "--out", "run/private/ledger"),
        ("evaluate", "run", "people.csv", "--json", "people.csv"),
        ("evaluate", "run", "--json", "run/share/model.safetensors"),
        ("compare", *TABLE, "--seeds", "1", "--json", "people.csv"),
    ):
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert "would be lost; choose another place" in err
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.soak
def test_training_that_diverged_is_said_to_have(run, people):
    code, _, err = run(
        "train", *TABLE, *PLAN, "--learning-rate", "3e38", "--clipping-bound", "1e6", "--out", "run"
    )
    assert code == 0
    assert "warning: Training diverged" in err
    assert "Training diverged" in (people / "run" / "share" / "card.md").read_text()
    assert "its training diverged" in run("predict", "run", "people.csv")[2]


@pytest.mark.soak
def test_training_loads_no_compiler_and_leaves_no_file_but_its_run(people, tmp_path):
    """No copy of rows lies in a cache, or in a folder for temporary files; torch's compiler takes longer to
    load than the rest of torch."""
    home, pictures = tmp_path / "home", tmp_path / "pictures"
    (home / "temporary").mkdir(parents=True)
    places = {"HOME": home, "XDG_CACHE_HOME": home / ".cache", "TMPDIR": home / "temporary"}
    given = {name: str(place) for name, place in (*places.items(), ("MPLCONFIGDIR", pictures))}
    environment = {name: value for name, value in os.environ.items() if name != "EQUIDP_CACHE"} | given
    plan = ("--set", "training.sample_rate=1", "--epochs", "2", "--noise-multiplier", "3")
    plan = (*plan, "--set", "training.optimizer=adam", "--set", "training.schedule=linear")
    typed = ["equidp", "train", *TABLE, *plan, "--out", str(tmp_path / "run")]
    loads = "any(name in sys.modules for name in ('torch._dynamo', 'torch._inductor', 'sympy'))"
    code = f"import atexit, sys; sys.argv = {typed}; atexit.register(lambda: print('compiler:', {loads}));"
    code += "from equidp.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=people, env=environment, check=True, capture_output=True, text=True
    )
    assert done.stdout.endswith("compiler: False\n")
    assert (tmp_path / "run" / "share" / "card.html").exists()
    assert [path for path in home.rglob("*") if path.is_file()] == []
