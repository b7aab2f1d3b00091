"""`equidp advise`: what it says, what it charges, and that the command it recommends works."""

from __future__ import annotations

import re
import shlex
from types import SimpleNamespace

import pytest

from equidp import PrivacyBudget
from equidp.cli import train
from equidp.evaluation.blind_spots import BlindSpots
from support.command import people

__all__ = ["people"]  # a fixture


@pytest.mark.soak
def test_advice_says_what_it_cost_and_how_to_train(people, command):
    asked = ("advise", "people.csv", "--target", "income", "--group", "sex")
    code, out, err = command(*asked, "--epsilon", "2", "--profile-epsilon", ".2", cwd=people)
    assert code == 0, err
    assert "This advice cost epsilon 0.2; another costs as much again." in out
    advised = shlex.split(out.splitlines()[-1])
    assert advised[:3] == ["equidp", "train", "people.csv"]
    code, out, err = command(*advised[1:], "--dry-run", cwd=people)
    assert code == 0, err
    spent = float(re.search(r"epsilon ([0-9.]+) at delta .* \(pld\)", out)[1])
    assert 1.9 < spent < 2.0  # the rest is what the advice cost
    assert "This advice cost nothing" in command(*asked, "--public", "people.csv", cwd=people)[1]


@pytest.mark.soak
def test_advice_by_norms_is_for_a_model_on_the_columns_that_its_command_trains_on(people, command):
    asked = ("advise", "people.csv", "--target", "income", "--group", "sex", "--profile-epsilon", "0.2")
    code, out, err = command(*asked, cwd=people)
    assert code == 0, err
    assert "--model=logistic" in out
    assert "--encoding" not in out


@pytest.mark.soak
@pytest.mark.parametrize(
    "asked",
    [
        ("people.csv", "--target", "income", "--group", "sex", "--drop", "job"),
        ("digits",),
        ("digits", "--features", "scattering", "--delta", "1e-6"),
    ],
    ids=" ".join,
)
def test_unasked_it_recommends_for_nothing_what_train_takes(people, command, asked):
    code, out, err = command("advise", *asked, "--epsilon", "2", "--out", "advice.toml", cwd=people)
    assert code == 0, err
    assert "This advice cost nothing" in out
    typed, short = (shlex.split(line) for line in out.splitlines() if line.startswith("equidp "))
    found = [
        command(*arguments, "--dry-run", cwd=people)[1].splitlines()
        for arguments in (typed[1:], short[1:], ("train", *asked, "--epsilon", "2"))
    ]
    steps, *spent = next(found[0][at:-1] for at, line in enumerate(found[0]) if " steps, each " in line)
    assert spent
    assert all([steps, *spent] == lines[-len(spent) - 2 : -1] for lines in found)
    assert out.splitlines()[0] == found[2][0]  # auto takes ...


@pytest.mark.soak
def test_advice_in_a_file_trains_as_the_command_does(people, command):
    asked = ("advise", "people.csv", "--target", "income", "--group", "sex", "--drop", "job")
    code, out, err = command(*asked, "--profile-epsilon", "0", "--out", "advice.toml", cwd=people)
    assert code == 0, err
    typed, short = (shlex.split(line) for line in out.splitlines() if line.startswith("equidp "))
    plans = []
    for arguments in (typed, short):
        code, out, err = command(*arguments[1:], "--dry-run", cwd=people)
        assert code == 0, err
        plans.append([line for line in out.splitlines() if "second" not in line])
    assert plans[0] == plans[1]
    assert (people / "advice.toml").read_bytes().endswith(b"\n")
    assert command(*asked, "--out", "people.csv", cwd=people)[0] == 2  # and the data is still there
    assert (people / "people.csv").read_text().startswith("age")


@pytest.mark.soak
def test_a_run_that_was_advised_is_not_sent_for_advice(people, command, monkeypatch):
    asked = ("--target", "income", "--group", "sex")
    command("advise", "people.csv", *asked, "--profile-epsilon", "0", "--out", "advised.toml", cwd=people)
    text = (people / "advised.toml").read_text()
    (people / "own.toml").write_text(text.split("\n", 1)[1])
    monkeypatch.setattr("equidp.cli.train.print_run", lambda *_: None)
    told, report = [], train._report
    found = SimpleNamespace(blind_spots=BlindSpots("no", 0.9, ("yes",)), withholding=lambda: found)
    monkeypatch.setattr(
        train, "_report", lambda folder, run, _, **how: told.append(how) or report(folder, run, found, **how)
    )
    for name in ("advised", "own"):
        given = ("--config", f"{name}.toml", "--out", f"run-{name}", "--epochs", "1")
        code, _, err = command("train", *given, cwd=people)
        assert code == 0, err
        assert ("equidp advise recommends" in err) is (name == "own")
    assert told == [{"advised": []}, {"advised": None}]


@pytest.mark.soak
def test_advice_is_charged_to_a_budget(people, command):
    asked = ("advise", "people.csv", "--target", "income", "--group", "sex", "--delta", "1e-4")
    new = ("--budget-epsilon", "3", "--budget-delta", "1e-4")
    code, out, err = command(*asked, "--profile-epsilon", "1", "--budget", "people.ledger", *new, cwd=people)
    assert code == 0, err
    assert "--budget=people.ledger --budget-epsilon=3.0 --budget-delta=0.0001" in out
    with PrivacyBudget(people / "people.ledger") as budget:
        assert 0.99 < budget.spent() <= 1.0
    code, _, err = command(*asked, "--profile-epsilon", "2.99", "--budget", "people.ledger", cwd=people)
    assert code == 2
    assert "does not fit into the budget" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--epsilon", "0"), "epsilon=0"),
        (("--seed", "-1"), "seed=-1"),
        (("--profile-epsilon", "-1"), "profile_epsilon=-1"),
        (("--profile-epsilon", "5"), "leaves nothing of --epsilon 3"),
        (("--model", "logstic"), "Did you mean 'logistic'"),
        (("--public", "gaps.csv", "--missing", "category"), "They must be the same"),
        (("--public", "people.csv", "--profile-epsilon", "1"), "give one of the two"),
        (("--budget", "none.ledger", "--profile-epsilon", "1"), "a new budget needs both"),
        (("--budget-epsilon", "3"), "give --budget too"),
    ],
    ids=" ".join,
)
def test_advice_that_cannot_be_given_is_refused(people, command, arguments, message):
    asked = ("advise", "people.csv", "--target", "income", "--group", "sex")
    code, out, err = command(*asked, *arguments, cwd=people)
    assert (code, out) == (2, "")
    assert message in err
