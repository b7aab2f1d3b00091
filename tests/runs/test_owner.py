"""What epsilon does not cover is told to the owner of the data alone: on the terminal and in `private/`."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import equidp
from equidp.cli.app import app
from equidp.errors import DataWarning
from equidp.runs.saved import FinishedRun

pytestmark = pytest.mark.soak


def patients(seed: int, *, leak: bool) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    ill = draw.random(3000) < 0.2
    late = np.where(ill, draw.random(3000) < 0.97, draw.random(3000) < 0.02)
    return pd.DataFrame(
        {
            "age": draw.normal(60, 12, 3000).round(2) + 14 * ill,
            "bmi": draw.normal(25, 4, 3000).round(2),
            "merged": np.where(late if leak else draw.permutation(late), "yes", "no"),
            "sex": draw.choice(["f", "m"], 3000),
            "readmitted": np.where(ill, "yes", "no"),
        }
    )


def trained(folder: Path, table: pd.DataFrame) -> tuple[FinishedRun, list[str]]:
    """Return a run on a table, and what it warned of."""
    table.to_csv(folder / "p.csv", index=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataWarning)
        run = equidp.train(
            folder / "p.csv",
            out=folder / "run",
            target="readmitted",
            group="sex",
            epsilon=8,
            accountant="rdp",
        )
    return run, [str(each.message) for each in caught]


def texts_of(folder: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file())


def test_training_names_the_column_that_carries_a_model_which_is_too_good(tmp_path):
    run, said = trained(tmp_path, patients(0, leak=True))
    (sentence,) = [each for each in said if "rarely true" in each]
    assert "'merged'" in sentence
    assert "'age'" not in sentence
    assert sentence in (run.folder / "private" / "owner.txt").read_text()
    assert "rarely true" not in texts_of(run.folder / "share")
    assert run.verify().failed == ()


def test_an_honest_model_is_not_called_too_good(tmp_path):
    run, said = trained(tmp_path, patients(0, leak=False))
    assert [each for each in said if "rarely true" in each] == []
    assert not (run.folder / "private" / "owner.txt").exists()
    values = run.reference()
    assert set(values) == {"logistic regression", "boosted trees"}
    own = run.evaluate().values.set_index(["group", "metric"]).at[("all", "auc"), "value"]
    assert all(abs(each.value - own) < 0.05 for each in values.values())
    assert not (run.folder / "private" / "owner.txt").exists()


def test_the_command_shows_models_without_privacy_beside_the_run_and_keeps_them_private(tmp_path, capsys):
    patients(0, leak=False).to_csv(tmp_path / "p.csv", index=False)
    data = ["train", str(tmp_path / "p.csv"), "--target", "readmitted", "--group", "sex"]
    plan = ["--epsilon", "8", "--epochs", "2", "--out", str(tmp_path / "run")]
    assert not app([*data, *plan, "--reference"], result_action="return_value")
    said = " ".join(capsys.readouterr().out.split())
    (line,) = (tmp_path / "run" / "private" / "owner.txt").read_text().splitlines()
    assert line in said
    assert "logistic regression" in line
    assert "boosted trees" in line
    assert "boosted trees" not in texts_of(tmp_path / "run" / "share")
