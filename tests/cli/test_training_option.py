"""An option of training is one field of Plan: everything else follows from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_WITH_OPTION = """
from dataclasses import dataclass
import sys
import equidp.training.plan as plan
from equidp.training.option import number_in, option

@dataclass(frozen=True)
class Plan(plan.Plan):
    warm_up: float = option(0.0, "Share of the steps with a rising rate.", number_in("[0, 1)"))

plan.Plan = Plan
import equidp
from equidp.cli.app import main
"""
_MAIN = "main()\n"
_MORE = """
resolved = equidp.Plan(epsilon=3.0, warm_up=0.25).resolve(500)
assert plan.ResolvedPlan.from_plain(resolved.to_plain()) == resolved
print(resolved.plan.warm_up, resolved.settings["warm_up"])
print(plan.default_plan("digits").with_changes({"warm_up": 0.5}).for_method("dpsgd").warm_up)
"""


def _run(*arguments: str, folder: Path, code: str = _WITH_OPTION + _MAIN) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env=os.environ,
        capture_output=True,
        text=True,
    )


@pytest.mark.soak
def test_field_of_plan_is_an_argument_in_python(tmp_path):
    done = _run(folder=tmp_path, code=_WITH_OPTION + _MORE)
    assert done.stdout.split() == ["0.25", "0.25", "0.5"], done.stderr


@pytest.mark.soak
def test_field_of_plan_is_checked_printed_kept_and_on_the_card(tmp_path):
    short = ("train", "digits", "--method", "dpsgd", "--noise-multiplier", "2", "--epochs", "0.5")
    short = (*short, "--set", "privacy.accountant=rdp")
    refused = _run(*short, "--set", "training.warm_up=2", "--dry-run", folder=tmp_path)
    assert refused.returncode != 0
    assert "warm_up=2" in refused.stderr
    unknown = _run(*short, "--warm-up", "0.25", "--dry-run", folder=tmp_path)
    assert "--set training.warm_up" in unknown.stderr
    plain = _run(*short, "--dry-run", folder=tmp_path)
    assert "warm_up = 0.0 # default" in plain.stdout, plain.stderr
    (tmp_path / "run.toml").write_text(plain.stdout.replace("warm_up = 0.0", "warm_up = 0.25"))
    planned = _run("train", "--config", "run.toml", "--dry-run", folder=tmp_path)
    assert "warm_up = 0.25 # given" in planned.stdout, planned.stderr
    trained = _run(*short, "--set", "training.warm_up=0.25", "--out", "run", folder=tmp_path)
    assert trained.returncode == 0, trained.stderr
    for name in ("private/config.json", "share/run.json"):
        content = json.loads((tmp_path / "run" / name).read_text())
        assert content["config"]["plan"]["warm_up"] == content["plan"]["plan"]["warm_up"] == 0.25
    assert "warm up" in (tmp_path / "run" / "share" / "card.md").read_text()
    resumed = _run("train", "--resume", "run", folder=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
