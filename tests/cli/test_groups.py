"""Rates, bounds and budgets by group on the command line: from options to card, ledger and dry run."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from equidp.kernel.epsilon import epsilon as epsilon_of
from equidp.kernel.event import STEP, Label
from equidp.runs.saved import open_run
from support.command import equidp_here

TABLE = ("visits.csv", "--target", "again", "--group", "region")
FAST = ("--epochs", "2", "--batch-size", "40", "--set", "privacy.accountant=rdp", "--delta", "1e-4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made, draw = tmp_path_factory.mktemp("visits"), np.random.default_rng(0)
    age = draw.normal(60, 15, 400)
    table = {"age": age.round(1), "region": np.where(draw.random(400) < 0.3, "east", "west")}
    table["again"] = np.where(draw.random(400) < 1 / (1 + np.exp((60 - age) / 8)), "yes", "no")
    pd.DataFrame(table).assign(who=np.arange(400) // 2).to_csv(made / "visits.csv", index=False)
    return made


@pytest.fixture(scope="module")
def finished(folder):
    """A run whose rare group has a third of the others' epsilon, and counts of classes that both pay for."""
    given = (
        "--set",
        "privacy.epsilon_by_group=east=1,*=3",
        "--set",
        "privacy.counts_share=0.1",
        "--method",
        "dpsgd",
    )
    done = equidp_here("train", *TABLE, *given, *FAST, "--out", "run", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run", done.stdout


@pytest.mark.soak
def test_a_run_meets_the_budgets_of_groups_with_its_releases(finished):
    place, _ = finished
    run = open_run(place).run
    found = run.epsilon_by_group()
    assert 0.99 <= found["east"] <= 1.0
    assert 2.98 <= found["west"] <= 3.0
    assert run.epsilon() == found["west"]
    card = (place / "share" / "card.md").read_text()
    for name, epsilon in found.items():
        assert f"| epsilon of group {name} | {epsilon:.6g} |" in card


@pytest.mark.soak
def test_the_ledger_of_a_run_says_the_epsilon_of_each_group(finished, command):
    place, _ = finished
    code, out, _ = command("verify", "run/private/ledger", cwd=place.parent)
    assert code == 0
    entries = open_run(place).run.entries
    east, west = (epsilon_of(entries, 1e-5, label=Label("1", name)) for name in ("east", "west"))
    assert f"By group: epsilon group east {east:.4f}, group west {west:.4f}." in out
    steps = sum(count for event, count in entries if event.name == STEP)
    assert re.findall(r"([\d,]+) steps", out) == [str(steps)]  # a release is no step
