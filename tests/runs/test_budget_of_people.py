"""A budget for people is begun by any run, also by one with releases, and opens again by its own name."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import equidp
from equidp.accounting.target import Target
from equidp.data import Recipe
from equidp.errors import BudgetError
from equidp.ledger.format import read_ledger
from equidp.runs.begin import begin
from equidp.runs.config import BudgetFile, RunData, TrainConfig
from equidp.runs.prepare import prepare
from equidp.runs.releases import CountsRelease, IndividualRelease, PreprocessingRelease
from equidp.runs.train import train

RELEASES = {
    "nothing": (),
    "preprocessing": (PreprocessingRelease(0.1),),
    "class counts": (CountsRelease(0.1),),
    "individual privacy": (IndividualRelease(0.1),),
    "recalibration": (),
}


@pytest.fixture
def config(tmp_path):
    """Returns the configuration of a run on people with one kind of release, of one year's file."""
    rng = np.random.default_rng(0)
    for year in ("t24", "t25"):
        table = pd.DataFrame({"id": np.arange(300) // 3, "x": rng.random(300)})
        table["g"], table["y"] = rng.choice(["a", "b"], 300), rng.choice(["no", "yes"], 300)
        table.to_csv(tmp_path / f"{year}.csv", index=False)

    def made(year, release, person="id", **limits):
        plan = equidp.Plan(
            batch_size=20, epochs=1, delta=1e-5, recalibration=0.1 * (release == "recalibration")
        )
        people = {"person": person, "rows_per_person": 4} if person else {}
        recipe = Recipe(target="y", group=("g",), bounds=(("x", 0.0, 1.0),), **people)
        data, budget = (
            RunData(str(tmp_path / f"{year}.csv"), recipe),
            BudgetFile(tmp_path / "n.ledger", **limits),
        )
        target = Target(2.0, accountant="rdp")
        return TrainConfig(data, "dpsgd", plan, target, budget, RELEASES[release])

    return made


NEW = {"epsilon": 9.0, "delta": 1e-5}


@pytest.mark.soak
@pytest.mark.parametrize("release", RELEASES)
def test_a_run_with_releases_begins_a_budget_for_people(config, tmp_path, release):
    prepare(config("t24", release, **NEW))  # as --dry-run
    assert not (tmp_path / "n.ledger").exists()
    run, _ = train(tmp_path / "run", prepared=begin(prepare(config("t24", release, **NEW)), tmp_path / "run"))
    kept = read_ledger(tmp_path / "n.ledger")
    assert (kept.facts["unit"], kept.facts["data"]) == ("people", "t24")
    assert set(kept.entries) == set(run.entries)
    with equidp.PrivacyBudget(tmp_path / "n.ledger") as budget:  # the first plan is as tight as alone
        assert budget.spent() == run.epsilon(accountant="pld")
    with pytest.raises(BudgetError, match="cannot be added"):
        prepare(config("t24", release, person=None))


@pytest.mark.soak
def test_the_name_of_a_budget_opens_it_again_next_year(config, tmp_path):
    named = {"data": "people"}
    begin(prepare(config("t24", "class counts", **NEW, **named)), tmp_path / "a")
    begin(prepare(config("t25", "class counts", **named)), tmp_path / "b")
    begin(prepare(config("t24", "class counts", **named)), tmp_path / "c")
    assert sum(steps for _, steps in read_ledger(tmp_path / "n.ledger").entries) == 3
    with pytest.raises(BudgetError, match="not of 't25'"):
        prepare(config("t25", "class counts"))
    with pytest.raises(BudgetError, match="not of 'others'"):
        prepare(config("t24", "class counts", data="others"))
