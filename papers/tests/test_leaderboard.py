"""The leaderboard: every method has the same chance, no test set chooses, and the page is its data."""

from __future__ import annotations

import itertools
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from equidp import DataSource, Plan, default_plan
from equidp.comparison import cells
from equidp.data import open_source
from equidp.data.validation import validation_part
from equidp.policies.methods import make_policy
from equidp.policies.ranges import Log, OneOf
from equidp.policies.table import BASELINE, METHODS
from papers.leaderboard import check, page as page_module, search
from papers.leaderboard.results import CHOSEN, TUNING_SEEDS, Reported, Results, Tried, expected_best
from papers.leaderboard.space import CONTESTS, PRIVATE, Contest
from support.command import equidp_here

FOLDER = Path(__file__).parents[1]
KEPT = sorted((FOLDER / "results" / "leaderboard").glob("*.json"))


@pytest.mark.soak
def test_the_page_says_what_the_kept_results_give():
    assert (FOLDER / "leaderboard.md").read_text(encoding="utf-8") == page_module.page(FOLDER)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
class TestKeptResults:
    def test_settings_are_those_of_the_declared_space(self, path):
        contest, results = CONTESTS[path.stem], Results.load(path, path.stem)
        for method, own in results.settings.items():
            assert own == {number: contest.settings(method, int(number)) for number in own}

    def test_methods_that_are_compared_had_the_same_budget(self, path):
        contest, results = CONTESTS[path.stem], Results.load(path, path.stem)
        for epsilon in contest.epsilons:
            for method in page_module._methods(contest, results, epsilon):
                assert results.numbers(method, epsilon) == list(range(contest.draws))

    def test_runs_spent_what_they_were_asked_to(self, path):
        for run in Results.load(path, path.stem).reported:
            assert run.spent is None or run.spent <= run.epsilon

    def test_what_is_reported_was_not_tuned_on(self, path):
        assert not {run.seed for run in Results.load(path, path.stem).reported} & set(TUNING_SEEDS)

    def test_a_file_is_written_as_it_is_read(self, path, tmp_path):
        Results.load(path, path.stem).save(tmp_path / path.name)
        assert (tmp_path / path.name).read_text() == path.read_text()


@pytest.mark.parametrize("contest", CONTESTS.values(), ids=lambda contest: contest.name)
def test_settings_that_methods_share_are_the_same_for_all(contest):
    for number in range(contest.draws):
        drawn = [contest.settings(method, number) for method in PRIVATE]
        for name in ("clipping_bound", "batch_size", "epochs", "schedule", "learning_rate"):
            assert len({settings[name] for settings in drawn}) == 1


@pytest.mark.parametrize("contest", CONTESTS.values(), ids=lambda contest: contest.name)
def test_each_setting_makes_its_method(contest):
    for method, number in itertools.product(METHODS, range(contest.draws)):
        settings = contest.settings(method, number)
        policy = make_policy(method, settings)
        assert all(getattr(policy, name, value) == value for name, value in settings.items())


@pytest.mark.parametrize("contest", CONTESTS.values(), ids=lambda contest: contest.name)
def test_each_contest_has_a_source(contest):
    assert isinstance(contest.data(), DataSource)
    assert isinstance(validation_part(contest.data()), DataSource)


def test_settings_are_chosen_on_training_examples_alone():
    source = open_source("digits")
    whole, part = source.split(100), validation_part(source).split(100)
    rows = {tuple(row) for row in whole.train.one_tensor.flatten(1).tolist()}
    parts = [{tuple(row) for row in each.one_tensor.flatten(1).tolist()} for each in (part.train, part.test)]
    assert len(part.train) + len(part.test) == len(whole.train)
    assert parts[0] | parts[1] == rows
    assert not parts[0] & parts[1]


@pytest.mark.parametrize("draws", range(1, 6))
def test_the_expected_best_is_the_mean_over_all_draws(draws):
    scores = [0.3, 0.1, 0.7, 0.2, 0.15]
    every = list(itertools.combinations(scores, draws))
    assert expected_best(scores, draws) == pytest.approx(sum(map(min, every)) / len(every))


@pytest.mark.soak
@pytest.mark.parametrize("name", ["adult", "mnist"])
def test_the_command_of_a_row_has_every_option_that_its_runs_followed_from(name, monkeypatch, tmp_path):
    """Read beside the published settings of the dataset, it is the plan of the search."""
    seen, contest = [], CONTESTS[name]
    monkeypatch.setattr(
        "equidp.cli.compare.run_comparison", lambda source, asked, **place: seen.append(asked) or sys.exit()
    )
    for number, method in enumerate((BASELINE, *PRIVATE)):
        settings = contest.settings(method, number % contest.draws)
        epsilon = None if method == BASELINE else 2.41
        done = equidp_here(*contest.command(method, epsilon, settings).split()[1:], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        searched = Plan(delta=contest.delta).with_changes(settings).with_usual_noise().for_method(method)
        asked = seen.pop()
        started = Plan() if asked.settings == "recommended" else default_plan(contest.source)
        read = started.with_changes(asked.changes).with_usual_noise().for_method(method)
        assert replace(read, method_settings={}) == replace(searched, method_settings={})
        assert read.for_method(method).policy == searched.for_method(method).policy
        assert method in asked.policies
        assert asked.seeds == len(contest.reported)
        assert asked.baseline == "plan"
        assert asked.epsilons == (() if epsilon is None else (epsilon,))


def results_of(accuracies: dict[int, tuple[float, ...]]) -> Results:
    """DPSGD's settings by number, alike on all seeds, beside a baseline of 0.9 in both groups."""
    tried = [Tried("sgd", None, 0, seed, (0.9, 0.9, 0.9)) for seed in TUNING_SEEDS]
    tried += [Tried("dpsgd", 1.0, key, seed, row) for key, row in accuracies.items() for seed in TUNING_SEEDS]
    return Results("made-up", ("a", "b"), tried=tried)


@pytest.mark.soak
def test_rows_are_checked_by_their_printed_commands(monkeypatch, tmp_path, capsys):
    path = FOLDER / "results" / "leaderboard" / "adult.json"
    results, contest, sent = Results.load(path, "adult"), CONTESTS["adult"], []
    rows = check.draw_rows(["adult"], FOLDER, 5, seed=1)
    assert len(set(rows)) == 5
    assert rows == check.draw_rows(["adult"], FOLDER, 5, seed=1) != check.draw_rows(["adult"], FOLDER, 5, 2)
    page = (FOLDER / "leaderboard.md").read_text(encoding="utf-8")
    shift = 0.0

    def run(command, **_):
        printed = command[2 : command.index("--directory")]
        sent.append(" ".join(printed))
        row = rows[len(sent) - 1]
        found = [
            {"method": row.method, "seed": seed, "group": group, "accuracy": accuracy + shift}
            for seed, run in results.runs(row.method, row.epsilon).items()
            for group, accuracy in zip((*results.groups, "all"), run.accuracies, strict=True)
        ]
        Path(command[-1]).write_text(json.dumps({"results": found}))

    monkeypatch.setattr("subprocess.run", run)
    assert check.print_checks(rows, FOLDER, tmp_path)
    assert all(f"{command}\n" in page for command in sent)
    assert len(contest.reported) > 1
    sent.clear()
    shift = 0.05
    assert not check.print_checks(rows, FOLDER, tmp_path)
    assert "DIFFERS" in capsys.readouterr().out


def test_what_the_worst_group_lost_decides_and_then_overall_accuracy():
    results = results_of({0: (0.9, 0.7, 0.89), 1: (0.8, 0.8, 0.8), 2: (0.8, 0.85, 0.83), 3: (0.5, 0.9, 0.7)})
    assert results.finalists("dpsgd", 1.0, range(4)) == [2, 1, 0]
    assert results.choice("dpsgd", 1.0, range(4)) == 2


def test_a_finalist_is_judged_by_every_tuning_seed():
    results = results_of({0: (0.85, 0.85, 0.85), 1: (0.84, 0.84, 0.84)})
    lucky = [row for row in results.tried if (row.number, row.method) == (0, "dpsgd")]
    for row in lucky[1:]:
        results.tried[results.tried.index(row)] = replace(row, accuracies=(0.7, 0.7, 0.7))
    assert results.finalists("dpsgd", 1.0, range(2))[0] == 0
    assert results.choice("dpsgd", 1.0, range(2)) == 1


@pytest.mark.parametrize(
    ("lost", "answer"),
    [
        (0.01, "Yes: psac, by 1.00 points"),
        (0.03, "No: none has"),
        (0.0196, "Not by what matters: psac, by 0.04"),
    ],
)
def test_a_method_beats_another_only_where_the_interval_says_so(lost, answer):
    contest = Contest("made-up", "adult", "Made up", 1e-6, (1.0,), {}, {}, reported=(0, 1, 2))
    results = Results("made-up", ("a", "b"))
    for seed, method, cost in itertools.product((0, 1, 2), ("sgd", "dpsgd", "psac"), (0.0,)):
        cost = {"sgd": 0.0, "dpsgd": 0.02, "psac": lost}[method] + 1e-5 * seed * (method == "psac")
        epsilon = None if method == "sgd" else 1.0
        row = (0.9 - cost, 0.9, 0.9 - cost / 2)
        results.reported.append(Reported(method, epsilon, CHOSEN, seed, epsilon, row))
    (said,) = page_module._answers(contest, results)
    assert answer in said


def test_a_method_that_learnt_from_nobody_has_no_ratio_of_privacy():
    """All of its gradients were dropped, so that everyone has epsilon 0."""
    contest = Contest("made-up", "adult", "Made up", 1e-6, (1.0,), {}, {}, reported=(0, 1))
    results = Results("made-up", ("a", "b"))
    for seed, (method, privacy) in itertools.product(
        (0, 1), {"sgd": (), "dpsgd": (0.4, 0.8), "global": (0.0, 0.0)}.items()
    ):
        epsilon = None if method == "sgd" else 1.0
        row = (0.9, 0.9 - 0.1 * (method == "global"), 0.9)
        results.reported.append(Reported(method, epsilon, CHOSEN, seed, epsilon, row, (), (), privacy))
    (said,) = page_module._answers(contest, results)
    assert "2.00 times" in said
    assert "2.00 (dpsgd) to 2.00 (dpsgd)" in said


def test_a_method_that_ignores_one_group_has_the_most_unequal_privacy():
    run = Reported("naive", 1.0, CHOSEN, 0, 1.0, (0.9, 0.9, 0.9), privacy=(0.0, 0.5))
    assert page_module._ratio(run) == math.inf
    assert page_module._ratio(replace(run, privacy=(0.25, 0.5))) == 2.0
    assert page_module._ratio(replace(run, privacy=())) is None


def test_where_no_method_is_surely_better_the_answer_says_what_the_seeds_could_show():
    """psac loses 0.5, 1 and 1.5 points less: Student's half-width of three seeds is 4.303 * 0.5 / sqrt(3)."""
    contest = Contest("made-up", "adult", "Made up", 1e-6, (1.0,), {}, {}, reported=(0, 1, 2))
    results = Results("made-up", ("a", "b"))
    costs = {"sgd": 0, "dpsgd": 0.02, "psac": 0.015}
    for seed, (method, lost) in itertools.product((0, 1, 2), costs.items()):
        cost = lost - 0.005 * seed * (method == "psac")
        epsilon = None if method == "sgd" else 1.0
        results.reported.append(
            Reported(method, epsilon, CHOSEN, seed, epsilon, (0.9 - cost, 0.9, 0.9 - cost / 2))
        )
    (said,) = page_module._answers(contest, results)
    assert "None is shown to: psac is 1.00 points lower, and these seeds would show 1.24 and more." in said


TINY = Contest(
    "digits", "digits", "Digits", 1e-4, (8.0,),
    {"clipping_bound": Log(0.5, 2), "learning_rate": Log(0.1, 1), "batch_size": OneOf((256,)),
     "epochs": OneOf((1,)), "schedule": OneOf(("linear",))},
    {"learning_rate": Log(0.1, 1), "batch_size": OneOf((256,)), "epochs": OneOf((1,))},
    {"model": "logistic"}, draws=2, reported=(0, 1), published=False,
)  # fmt: skip


def run_search(folder: Path, hours: float = math.inf) -> None:
    """Search the tiny contest, and write its page, as the command does."""
    search.search(
        ["digits"], ["dpsgd"], hours=hours, jobs=1, runs=folder / "runs", folder=folder, command="a test"
    )
    page_module.write_page(folder)


@pytest.mark.soak
def test_a_stopped_search_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(CONTESTS, "digits", TINY)
    monkeypatch.setattr(search, "CHUNK", 2)
    kept = tmp_path / "results" / "leaderboard" / "digits.json"
    kept.parent.mkdir(parents=True)
    threads = torch.get_num_threads()
    try:
        run_search(tmp_path, hours=0)
        assert "start the same again" in capsys.readouterr().out
        run_search(tmp_path)
        results = Results.load(kept, "digits")
        assert len(results.tried) == 2 * 2 * len(TUNING_SEEDS)
        assert {(run.method, run.seed) for run in results.reported} == {
            (method, seed) for method in ("sgd", "dpsgd") for seed in (0, 1)
        }
        assert "## Digits" in (tmp_path / "leaderboard.md").read_text()
        assert "digits: 16 runs are missing" in capsys.readouterr().out
        results.tried.pop(0)
        results.save(kept)
        trained = []
        monkeypatch.setattr(cells, "train_cell", lambda *of: trained.append(of))
        run_search(tmp_path)  # what was taken away is still among the finished runs
        assert not trained
        again = Results.load(kept, "digits")
        assert len(again.tried) == 2 * 2 * len(TUNING_SEEDS)
    finally:
        torch.set_num_threads(threads)
