"""A guarantee says no more than its numbers hold, and a card lists the files behind it, which are there."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

import equidp
from equidp.accounting.planned import COUNTS, INDIVIDUAL, PREPROCESSING
from equidp.kernel.event import Event, Share
from equidp.report.guarantee import EXCLUSIONS, Guarantee, guarantee_sentences, stated_guarantees
from equidp.report.review import files_to_review
from support.toy import make_trainer

ROOT = Path(equidp.__file__).parent


@pytest.fixture(scope="module")
def run():
    return make_trainer(epochs=1).fit()


def named(files: dict[str, str]) -> set[str]:
    return {name for names in files.values() for name in names.split(", ")}


def test_every_file_that_any_run_lists_is_there(run):
    step = Event(0.1, 1.0)
    everything = replace(
        run,
        entries=((step, 5),),
        facts=replace(run.facts, rows=4, processes=2),
    )
    releases = (PREPROCESSING, COUNTS, INDIVIDUAL)
    files = named(files_to_review(everything, releases))
    assert len(files) > 15
    for engine in ("GhostEngine", "FunctionalEngine"):
        each = replace(run, facts=replace(run.facts, engine=engine))
        files |= named(files_to_review(each, ()))
    for name in files:
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize(
    ("release", "file"),
    [
        (PREPROCESSING, "tables/fit.py"),
        (COUNTS, "tables/release.py"),
        (INDIVIDUAL, "individual/"),
    ],
)
def test_a_release_adds_the_files_that_draw_and_pay_for_it(run, release, file):
    plain, more = named(files_to_review(run, ())), named(files_to_review(run, (release,)))
    assert file not in plain
    assert {file, "accounting/planned.py"} <= more
    assert plain < more


def test_people_and_processes_add_theirs(run):
    people = replace(run, facts=replace(run.facts, rows=4))
    assert {"data/people.py", "engines/units.py"} <= named(files_to_review(people, ()))
    several = replace(run, facts=replace(run.facts, processes=2))
    assert "kernel/processes.py" in named(files_to_review(several, ()))


def test_every_run_lists_what_its_card_states_beside_epsilon(run):
    beside = {"accounting/risk.py", "accounting/replacement.py", "accounting/rows.py"}
    assert beside <= named(files_to_review(run, ()))


def test_steps_by_group_add_their_files(run):
    event = Event(0.1, 1.0, shares=(Share("a", 0.1), Share("b", 0.05)))

    def listed(entries) -> bool:
        files = named(files_to_review(replace(run, entries=entries), ()))
        return any(name.endswith("groups.py") and (ROOT / name).exists() for name in files)

    assert not listed(((Event(0.1, 1.0), 5),))
    assert listed(((event, 5),))


def test_prototypes_add_the_files_of_their_one_step(run):
    plan = equidp.Plan().for_method("prototypes").with_changes(epsilon=3.0).resolve(300)
    files = named(files_to_review(replace(run, facts=replace(run.facts, plan=plan)), ()))
    assert {"policies/prototypes.py", "data/efficientnet.py"} <= files - named(files_to_review(run, ()))
    assert all((ROOT / name).exists() for name in files)


def test_a_guarantee_is_what_its_run_spent(run):
    found = Guarantee.of(run)
    assert (found.epsilon, found.delta, found.unit) == (run.epsilon(), run.delta, "example")
    assert sum(count for _, count in found.releases) == sum(count for _, count in run.entries)
    assert set(found.exclusions) <= set(EXCLUSIONS)
    assert found.plain()["epsilon"] == run.epsilon()
    assert Guarantee(math.inf, 1e-5).plain()["epsilon"] is None


def test_epsilon_in_sentences_is_never_below_the_truth():
    for spent in (0.10001, 1.23449, 2.9999, 6.0):
        ((said, delta),) = stated_guarantees(guarantee_sentences(Guarantee(spent, 1e-5))[0])
        assert spent <= said <= spent + 0.001
        assert delta == 1e-5


def test_a_guarantee_is_found_in_a_page_and_none_where_there_is_none():
    page = 'Training was (3, <span class="whole">1e-05</span>)-differentially\nprivate for each'
    assert stated_guarantees(page) == {(3.0, 1e-5)}
    assert stated_guarantees(" ".join(guarantee_sentences(Guarantee(math.inf, 1e-5)))) == set()


def test_no_more_is_promised_than_epsilon_and_delta_hold():
    """At epsilon 500 the odds may shift by e^500; with a delta above 1/n, publishing one person counts as
    private."""
    said = {
        epsilon: " ".join(guarantee_sentences(Guarantee(epsilon, 1e-5, examples=1000)))
        for epsilon in (0.5, 3.0, 500.0)
    }
    assert ["reveals hardly anything about whether" in text for text in said.values()] == [True, False, False]
    assert ["can depend strongly on a single" in text for text in said.values()] == [False, False, True]
    assert not any("Warning" in text for text in said.values())
    assert "delta is not below 1/n, n = 1,000" in guarantee_sentences(Guarantee(0.5, 0.01, examples=1000))[-1]


def test_a_guarantee_for_people_is_put_into_words_for_people():
    text = " ".join(guarantee_sentences(Guarantee(3.0, 1e-5, "person", rows=4)))
    assert "for each person in the training data" in text
    assert "example" not in text
