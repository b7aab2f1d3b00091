"""equidp train, predict, evaluate and verify: from a table to a model card, however it is stopped."""

from __future__ import annotations

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

import equidp
from equidp.ledger.ledger import Ledger
from equidp.report.format import upper

pytestmark = pytest.mark.filterwarnings("ignore:AUC .* is rarely true")  # income follows from age

PLAN = ("--batch-size", "40", "--epochs", "4", "--noise-multiplier", "2", "--set", "privacy.accountant=rdp")
TABLE = ("people.csv", "--target", "income", "--group", "sex")
INDIVIDUAL = (
    *("--epsilon", "3", "--epochs", "4", "--batch-size", "40", "--delta", "1e-4"),
    *("--set", "privacy.individual=true"),
)


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
        "README.txt", "SHA256SUMS", "card.html", "card.md", "model.safetensors", "run.json"
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
def test_a_log_says_how_far_training_is(run, monkeypatch):
    monkeypatch.setattr("equidp.cli.train._LinesInLog.seconds", 0)
    _, _, err = run("train", *TABLE, *PLAN, "--out", "run")
    assert re.fullmatch(r"(Training: \d+% of 15 steps\. ?)+", err)
    assert err.endswith("Training: 100% of 15 steps.")


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
        (("train", *TABLE, "--out", "run"), "without a level of privacy"),
        (("train", "digits", "--method", "sgd", "--epsilon", "1", "--out", "run"), "sgd takes no noise"),
        (("train", *TABLE, *PLAN, "--ledger", "no/b", "--out", "run"), "cannot be written"),
        (("train", "--resume", "run", "--epochs", "3"), "leave out --epochs"),
        (
            ("train", *TABLE, *PLAN, "--out", "run", "--ledger", "people.csv"),
            "would be lost; choose another place",
        ),
        (("train", *TABLE, *PLAN, "--positive", "rich", "--out", "run"), "positive class 'rich'"),
        (("train", *TABLE, *PLAN, "--metric", "aucc", "--out", "run"), "Did you mean 'auc'"),
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
