"""--features is an option of every command that takes images, and a run keeps it."""

from __future__ import annotations

import json
from functools import partial

import pandas as pd
import pytest

PLAN = ("--batch-size", "40", "--epochs", "0.2", "--noise-multiplier", "2", "--set", "privacy.accountant=rdp")


@pytest.fixture
def run(command, tmp_path, monkeypatch):
    """Run the command in this process, with a cache of its own: exit code, standard output and error."""
    monkeypatch.setenv("EQUIDP_CACHE", str(tmp_path / "cache"))
    return partial(command, cwd=tmp_path)


@pytest.mark.soak
def test_a_run_applies_its_features_again(run, tmp_path):
    assert run("train", "digits", "--features", "scattering", *PLAN, "--out", "run")[0] == 0
    config = json.loads((tmp_path / "run" / "private" / "config.json").read_text())["config"]
    assert config["data"]["features"] == "scattering"
    card = (tmp_path / "run" / "share" / "card.md").read_text()
    assert "digits, scattering" in card
    assert "features computed from each example separately (scattering, Apache-2.0, " in card
    code, out, _ = run("evaluate", "run")
    assert (code, "Model card: " in out) == (0, True)
    assert run("predict", "run", "--out", "p.csv")[0] == 0
    assert len(pd.read_csv(tmp_path / "p.csv")) == 450
