"""Budgets of groups on the command line: from an option to card and ledger."""

from __future__ import annotations

import re

import pytest

from equidp.kernel.epsilon import epsilon as epsilon_of
from equidp.kernel.event import STEP, Label
from equidp.runs.saved import open_run
from support.command import QUICK, people

__all__ = ["people"]  # a fixture

TRAIN = ("train", "people.csv", "--target", "income", "--group", "sex", "--epochs", "2", "--batch-size", "40")
BUDGETS = (
    "--set",
    "privacy.epsilon_by_group=F=1,*=3",
    "--set",
    "privacy.counts_share=0.1",
    "--delta",
    "1e-4",
)


@pytest.mark.soak
def test_a_run_meets_the_budgets_of_groups_with_its_releases_and_its_ledger_states_them(people, command):
    code, _, err = command(*TRAIN, *BUDGETS, *QUICK, "--method", "dpsgd", "--out", "run", cwd=people)
    assert code == 0, err
    run = open_run(people / "run").run
    found = run.epsilon_by_group()
    assert 0.99 <= found["F"] <= 1.0
    assert 2.98 <= found["M"] <= 3.0
    assert run.epsilon() == found["M"]
    card = (people / "run" / "share" / "card.md").read_text()
    for name, epsilon in found.items():
        assert f"| epsilon of group {name} | {epsilon:.6g} |" in card
    assert command("verify", "run", cwd=people)[0] == 0
    _, out, _ = command("verify", "run/private/ledger", cwd=people)
    women, men = (epsilon_of(run.entries, 1e-5, label=Label("1", name)) for name in "FM")
    assert f"By group: epsilon group F {women:.4f}, group M {men:.4f}." in out
    steps = sum(count for event, count in run.entries if event.name == STEP)
    assert re.findall(r"([\d,]+) steps", out) == [str(steps)]  # a release is no step
