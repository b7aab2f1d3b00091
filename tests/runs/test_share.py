"""`share/` of a run is whole: its checksums hold, predictions come from it, and it tells nothing else."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import equidp
from equidp.data import Recipe
from equidp.errors import DataError, SettingError
from equidp.runs.begin import begin, prepare
from equidp.runs.config import CardTexts, DatasetLedger, RunData, TrainConfig
from equidp.runs.folder import ENCODER, RUN, SUMS, RunFolder
from equidp.runs.releases import CountsRelease, PreprocessingRelease
from equidp.runs.saved import open_run
from equidp.runs.train import train
from equidp.runs.verify import verify
from support.errors import raises_field

# Noise decides which categories private preprocessing keeps; others are named in a warning.
pytestmark = pytest.mark.filterwarnings("ignore::equidp.errors.DataWarning")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on people that releases preprocessing and counts beside its steps."""
    place, rng = tmp_path_factory.mktemp("given"), np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "id": [f"P{number}" for number in rng.integers(0, 150, 400)],
            "age": rng.integers(20, 80, 400),
            "job": rng.choice(["clerk", "cook"], 400),
            "sex": rng.choice(["F", "M"], 400),
            "ill": rng.choice(["no", "yes"], 400, p=[0.8, 0.2]),
        }
    )
    table.to_csv(place / "secret-patients.csv", index=False)
    recipe = Recipe(target="ill", group=("sex",), person="id", rows_per_person=12)
    releases = PreprocessingRelease(0.1), CountsRelease(0.05, base_rate_threshold=True)
    plan = equidp.Plan(batch_size=30, epochs=2, delta=1e-3)
    config = TrainConfig(
        RunData(str(place / "secret-patients.csv"), recipe),
        plan.with_changes(method="dpsgd", epsilon=3.0, accountant="rdp", releases=releases),
        DatasetLedger(place / "secret-ledger", epsilon=9.0, delta=1e-3),
        card=CardTexts(notes="Purpose: to plan\nbeds.\n\nKept until 2030 <b>.\n"),
    )
    begin(prepare(config), place / "run")
    train(place / "run")
    return place / "run"


def given(run: Path, place: Path, *further: str) -> Path:
    """A copy of `share/`, and further files of `private/`."""
    shutil.copytree(run / "share", place)
    for name in further:
        shutil.copy(run / "private" / name, place)
    return place


@pytest.mark.soak
@pytest.mark.parametrize("method", ["sgd", "dpsgd"])
def test_nothing_of_a_run_without_privacy_is_for_sharing(method, tmp_path):
    plan = equidp.Plan(batch_size=300, epochs=0.3, noise_multiplier=0.0, delta=1e-4)
    begin(
        prepare(TrainConfig(RunData("digits"), plan.with_changes(method=method))),
        tmp_path / "run",
    )
    train(tmp_path / "run")
    (notice,) = (tmp_path / "run" / "share").iterdir()
    assert notice.read_text().startswith("This run is without privacy")
    assert "Nothing of it is for sharing" in notice.read_text()
    assert notice.read_text().count("\n") == 1
    assert all(check.passed is not False for check in verify(tmp_path / "run").checks)
    assert open_run(tmp_path / "run").run.epsilon() == math.inf
    assert json.loads((tmp_path / "run" / "private" / "results" / RUN).read_text())["epsilon"] is None
    train(tmp_path / "run")  # again
    assert [path.name for path in (tmp_path / "run" / "share").iterdir()] == [notice.name]


@pytest.mark.soak
def test_predictions_come_from_share_alone(run, tmp_path):
    whole, part = open_run(run), open_run(given(run, tmp_path / "part"))
    table = run.parent / "secret-patients.csv"
    assert torch.equal(whole.inputs(table), part.inputs(table))
    assert torch.equal(whole.run.model(whole.inputs(table)), part.run.model(part.inputs(table)))
    assert part.config.decision == whole.config.decision
    assert part.run.epsilon() == whole.run.epsilon()
    assert part.run.facts == whole.run.facts
    assert part.class_counts == whole.class_counts
    with raises_field(DataError, "data"):
        part.test()


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs sha256sum")
def test_sha256sum_checks_exactly_the_files_of_share(run, tmp_path):
    part = given(run, tmp_path / "part")
    checked = subprocess.run(["sha256sum", "-c", SUMS], cwd=part, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    names = {line.rpartition(": ")[0] for line in checked.stdout.splitlines()}
    assert names == {path.name for path in part.iterdir()} - {SUMS}


@pytest.mark.soak
def test_share_holds_no_path_fingerprint_or_ledger(run, tmp_path):
    content = RunFolder(run).read_settings()
    for path in given(run, tmp_path / "part").iterdir():
        text = path.read_bytes()
        assert content[2]["sensitive_data_sha256"].encode() not in text, path.name
        assert str(run.parent).encode() not in text, path.name
    settings = json.loads((run / "share" / RUN).read_text())
    assert settings["config"]["data"]["name"] == "secret-patients.csv"
    assert content[0].ledger is not None
    assert settings["config"]["ledger"] is None


@pytest.mark.soak
def test_run_json_has_the_guarantee_as_numbers(run):
    found, kept = json.loads((run / "share" / RUN).read_text()), open_run(run)
    assert found["epsilon"] == kept.run.epsilon() <= found["target_epsilon"] == 3.0
    assert (found["delta"], found["accountant"]) == (1e-3, "rdp")
    assert (found["unit"], found["relation"]) == ("person", "add or remove one")
    assert [count for _, count in found["entries"]] == [count for _, count in kept.run.entries]
    assert found["run"] == kept.facts["run"]


def test_tables_of_exact_preprocessing_need_what_was_read_off_the_rows(finished, tmp_path):
    part = open_run(given(finished.folder, tmp_path / "part"))
    with raises_field(DataError, ENCODER):
        part.inputs(finished.table)
    more = open_run(given(finished.folder, tmp_path / "more", ENCODER))
    whole = open_run(finished.folder)
    assert torch.equal(more.inputs(finished.table), whole.inputs(finished.table))
    with raises_field(SettingError, "table"):
        type(whole)(**{**vars(whole), "encoder": None}).inputs(finished.table)
