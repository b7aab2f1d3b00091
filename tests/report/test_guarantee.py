"""A card lists the files that hold its run's guarantee, and they are there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import equidp
from equidp.accounting.planned import COUNTS, INDIVIDUAL, PREPROCESSING
from equidp.kernel.ledger import GroupedStepEvent, GroupShare, StepEvent
from equidp.report.guarantee import files_to_review
from support.toy import make_trainer

ROOT = Path(equidp.__file__).parent


@pytest.fixture(scope="module")
def run():
    return make_trainer(epochs=1).fit()


def named(files: dict[str, str]) -> set[str]:
    return {name for names in files.values() for name in names.split(", ")}


def test_every_file_that_any_run_lists_is_there(run):
    step = StepEvent(0.1, 1.0)
    everything = replace(
        run,
        entries=((step, 5),),
        facts=replace(run.facts, rows=4, processes=2),
    )
    releases = (PREPROCESSING, COUNTS, INDIVIDUAL)
    files = named(files_to_review(everything, releases, in_budget=True))
    assert len(files) > 15
    for engine in ("GhostEngine", "FunctionalEngine"):
        each = replace(run, facts=replace(run.facts, engine=engine))
        files |= named(files_to_review(each, ()))
    for name in files:
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize(
    ("release", "file"),
    [
        (PREPROCESSING, "tables/private_encode.py"),
        (COUNTS, "tables/release.py"),
        (INDIVIDUAL, "individual/"),
    ],
)
def test_a_release_adds_the_files_that_draw_and_pay_for_it(run, release, file):
    plain, more = named(files_to_review(run, ())), named(files_to_review(run, (release,)))
    assert file not in plain
    assert {file, "accounting/planned.py"} <= more
    assert plain < more


def test_people_processes_and_budgets_add_theirs(run):
    people = replace(run, facts=replace(run.facts, rows=4))
    assert {"data/people.py", "engines/units.py"} <= named(files_to_review(people, ()))
    several = replace(run, facts=replace(run.facts, processes=2))
    assert "training/agreement.py" in named(files_to_review(several, ()))
    assert "accounting/budget.py" in named(files_to_review(run, (), in_budget=True))


def test_every_run_lists_what_its_card_states_beside_epsilon(run):
    beside = {"accounting/risk.py", "accounting/replacement.py", "accounting/rows.py"}
    assert beside <= named(files_to_review(run, ()))


def test_steps_by_group_add_their_files(run):
    event = GroupedStepEvent(0.1, 1.0, by_group=(GroupShare("a", 0.1), GroupShare("b", 0.05)))

    def listed(entries) -> bool:
        files = named(files_to_review(replace(run, entries=entries), ()))
        return any(name.endswith("groups.py") and (ROOT / name).exists() for name in files)

    assert not listed(((StepEvent(0.1, 1.0), 5),))
    assert listed(((event, 5),))


def test_prototypes_add_the_files_of_their_one_step(run):
    plan = equidp.Plan().resolve("prototypes", 300, equidp.Target(epsilon=3.0))
    files = named(files_to_review(replace(run, facts=replace(run.facts, plan=plan)), ()))
    assert {"policies/prototypes.py", "data/efficientnet.py"} <= files - named(files_to_review(run, ()))
    assert all((ROOT / name).exists() for name in files)
