"""Rates, bounds and budgets by group on the command line: from options to card, ledger and dry run."""

from __future__ import annotations

import re
import tomllib

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


@pytest.mark.soak
def test_card_and_terminal_say_the_epsilon_of_each_group_and_what_it_does_to_the_others(finished):
    place, out = finished
    found = open_run(place).run.epsilon_by_group()
    card = (place / "share" / "card.md").read_text()
    for name, epsilon in found.items():
        assert f"| epsilon of group {name} | {epsilon:.6g} |" in card
    assert "2601.12922" in card
    assert re.search(r"at most: east (0\.99\d|1\.000), west (2\.99\d|3\.000)", card)
    assert re.search(r"group east (0\.99\d+|1\.0+), group west (2\.99\d+|3\.0+)", " ".join(out.split()))


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


@pytest.mark.soak
def test_a_dry_run_says_the_epsilon_of_each_group_with_releases(folder, command):
    given = (
        "--set",
        "privacy.epsilon_by_group=east=1",
        "--epsilon",
        "3",
        "--set",
        "privacy.counts_share=0.1",
        "--dry-run",
    )
    code, out, err = command("train", *TABLE, *given, *FAST, cwd=folder)
    assert code == 0, err
    assert re.search(r"group east (0\.99|1\.00)\d*, group west (2\.9|3\.0)\d* \(rdp\)", out)
    assert re.search(r"group east: drawn at rate 0\.\d+, 1 of the bound", out)
    assert tomllib.loads(out)["privacy"]["epsilon_by_group"] == {"east": 1.0}


@pytest.mark.soak
def test_a_person_with_rows_in_several_regions_is_said_to_count_in_one(folder, command):
    people = (
        "--person",
        "who",
        "--rows-per-person",
        "2",
        "--set",
        "privacy.rates=east=2",
        "--noise-multiplier",
        "2",
    )
    code, _, err = command("train", *TABLE, *FAST, *people, "--out", "people", cwd=folder)
    assert code == 0, err
    card = (folder / "people" / "share" / "card.md").read_text()
    assert "A person with rows in several groups counts in the one with the largest rate." in card


@pytest.mark.parametrize(
    "given",
    [
        ("--set", "privacy.epsilon_by_group=esat=1"),
        ("--set", "privacy.epsilon_by_group=east=4"),
        ("--set", "privacy.epsilon_by_group=east=0.2", "--set", "privacy.counts_share=0.1"),
        ("--noise-multiplier", "1", "--set", "privacy.epsilon_by_group=east=1"),
        ("--set", "privacy.rates=east=100"),
    ],
)
def test_what_no_run_can_have_is_refused_before_anything_is_spent(given, folder, command):
    code, _, err = command("train", *TABLE, *given, "--epsilon", "3", *FAST, "--out", "none", cwd=folder)
    assert code == 2
    assert "Traceback" not in err
    option = (
        given[1].partition("=")[0].partition(".")[2] if given[0] == "--set" else given[0].removeprefix("--")
    )
    assert option.replace("-", "_") in err.replace("-", "_")
    assert not (folder / "none").exists()
