"""Tuning gives every method the same chance, chooses on held-out parts, and goes on where it stopped."""

from __future__ import annotations

import itertools
import math
import os
import signal
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
import pytest
import torch

import equidp
from equidp import store
from equidp.comparison import cells, tune as tune_module
from equidp.comparison.compare import prepare, run_comparison
from equidp.comparison.plan import ComparisonPlan, Kind
from equidp.comparison.tune import SHARED, Trial, drawn_settings, tune, tuned_settings, tuning_seeds
from equidp.data.dataset import DataSplit, GroupedDataset
from equidp.data.validation import validation_part
from equidp.policies.dpsgd import DPSGD
from equidp.policies.ranges import Uniform
from equidp.policies.setting import Bounded
from equidp.training.plan import Plan
from support.bins import COARSE_BINS, round_privacy_losses


@dataclass(frozen=True)
class Toy:
    """Two groups; a line separates the classes of one, another line those of the other, rarer one."""

    name: str = "toy"
    highlighted_groups: tuple[str, str] | None = None

    def split(self, seed: int) -> DataSplit:
        generator = torch.Generator().manual_seed(seed)
        groups = (torch.rand(240, generator=generator) < 0.3).long()
        inputs = torch.randn(240, 4, generator=generator)
        targets = torch.where(groups == 1, inputs[:, 1] > 0, inputs[:, 0] > 0).long()
        whole = GroupedDataset(inputs, targets, groups, ("many", "few"), ("no", "yes"))
        return DataSplit(whole.subset(torch.arange(160)), whole.subset(torch.arange(160, 240)))


ONE_NOISE = {"schedule": "constant", "average": "none", "batch_size": 40, "epochs": 3}
"""Settings that keep their values, so that one noise multiplier meets the target of all trials."""
PLAN = Plan(model="logistic", learning_rate=0.5, batch_size=40, epochs=3, delta=1e-4).with_changes(
    {"clipping_bound": 0.5}
)
ASKED = ComparisonPlan(["dpsgd", "quantile"], 2, PLAN, (8.0,), ONE_NOISE, tune=4)


@dataclass(frozen=True)
class Shares(Bounded):
    """A method whose share is tuned, and whose other setting keeps its value."""

    share: float = field(default=0.5, metadata={"tune": Uniform(0.1, 0.9)})
    other: float = 2.0

    def weight(self, state, norm, group):
        return (self.share * self.clipping_bound / norm).clamp(max=1.0)


def drawn(method, **arguments):
    return drawn_settings(method, PLAN, 9, num_train=128, **arguments)


def test_methods_share_the_multiples_of_one_draw_and_their_own_settings_are_drawn_beside():
    first, *plain = drawn("sgd")
    assert first == {}  # the plan's own
    assert len(plain) == 8
    for one, private, own in zip(plain, drawn("dpsgd")[1:], drawn(Shares)[1:], strict=True):
        assert {"share": own.pop("share"), **private} == {"share": pytest.approx(0.5, abs=0.4), **own}
        step = private["learning_rate"] * private["clipping_bound"] / 0.5
        assert one["learning_rate"] == pytest.approx(step, rel=0.01)
        assert all(one[name] == private[name] for name in ("batch_size", "epochs", "schedule", "average"))
    assert len({str(each) for each in plain}) == 8


def test_settings_that_are_given_and_those_of_a_policy_that_was_made_are_not_drawn():
    fixed = ("epochs", "clipping_bound")
    free, left = drawn("dpsgd")[3], drawn("dpsgd", fixed=fixed)[3]
    assert set(left) == set(SHARED) - set(fixed)
    assert left["batch_size"] == free["batch_size"]
    assert set(tuned_settings(DPSGD(0.7), ())) == set(SHARED) - {"clipping_bound"}
    assert "share" not in drawn(Shares(share=0.3))[1]


def test_drawn_settings_fit_the_data_and_each_other():
    large = replace(PLAN, batch_size=200)
    assert all(each["batch_size"] <= 128 for each in drawn_settings("dpsgd", large, 9, num_train=128))
    assert all(each["strict_bound"] >= each["clipping_bound"] for each in drawn("global")[1:])


def test_tuning_seeds_are_none_of_the_final_runs():
    assert tuning_seeds([100, 102]) == (101, 103, 104)


def test_the_held_out_part_is_of_the_training_set_and_keeps_private_preprocessing():
    whole, part = Toy().split(0), validation_part(Toy()).split(0)
    rows = {tuple(row) for row in whole.train.one_tensor.tolist()}
    kept, held = ({tuple(row) for row in each.one_tensor.tolist()} for each in (part.train, part.test))
    assert kept | held == rows
    assert not kept & held
    assert validation_part(equidp.data.open_source("digits")).private_noise is None


def choose(tmp_path, monkeypatch, values):
    """Tune where each trial has the values of a function; return the result, and the trials by stage."""
    stages: list[list[Trial]] = []
    monkeypatch.setattr(tune_module._Search, "cell", lambda search, trial: trial)
    monkeypatch.setattr(tune_module._Search, "values", lambda search, trial, result: values(trial))
    prepared = prepare(Toy(), ASKED, directory=tmp_path)
    variants = (*prepared.references, *prepared.private)
    return tune(ASKED, variants, lambda trials: stages.append(list(trials)) or trials), stages


@pytest.mark.soak
def test_the_choice_is_the_least_loss_of_the_group_that_loses_most(tmp_path, monkeypatch):
    methods = {"sgd": 0.0, "dpsgd": 0.1, "quantile": 0.2}

    def values(trial: Trial):
        """The reference is best by number 2; others lose most in one group by 0 and on some seed by 1."""
        if trial.kind.method == "sgd":
            return {"many": 0.9, "few": 0.8, "all": 0.9 if trial.number == 2 else 0.7}
        lost = {0: 0.3, 1: 0.0 if trial.seed == 100 else 0.5, 2: 0.1, 3: 0.4}[trial.number]
        few = 0.8 - lost - methods[trial.kind.method]
        return {"many": 0.9, "few": few, "all": 0.95 if trial.number == 0 else 0.6}

    tuning, stages = choose(tmp_path, monkeypatch, values)
    assert set(tuning.settings) == {Kind(method, "") for method in methods}
    assert [len(stage) for stage in stages] == [3 * 4, 2 * 3, 2 * 2 * 3]
    assert {trial.number for trial in stages[2]} == {0, 1, 2}
    trials = tuning.trials.set_index(["method", "number"])
    assert trials.loc[("dpsgd", 2), "worst_cost"] == pytest.approx(0.2)
    assert trials.loc[("dpsgd", 1), "worst_cost"] == pytest.approx(0.1 + 1.0 / 3, abs=1e-4)
    assert trials.loc[("dpsgd", 3), "seeds"] == 1
    chosen = trials[trials["chosen"]].reset_index()
    assert chosen["number"].tolist() == [2, 2, 2]


@pytest.mark.soak
def test_a_run_that_diverged_is_not_chosen(tmp_path, monkeypatch):
    def values(trial: Trial):
        value = -math.inf if trial.number in (0, 1) else 0.5
        return {"many": value, "few": value, "all": value}

    tuning, _ = choose(tmp_path, monkeypatch, values)
    assert set(tuning.trials[tuning.trials["chosen"]]["number"]) <= {2, 3}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuned") / "runs"
    return folder, compared(folder)


def compared(folder) -> equidp.Comparison:
    return run_comparison(Toy(), replace(ASKED, tune=3, against="dpsgd"), directory=folder, jobs=1)


@pytest.mark.soak
def test_final_runs_have_other_seeds_and_are_not_trained_again(finished, monkeypatch):
    folder, comparison = finished
    tuning = comparison.tuning
    assert set(comparison.results["seed"]).isdisjoint(tuning.seeds)
    assert set(tuning.settings) == {Kind("sgd", ""), Kind("dpsgd", ""), Kind("quantile", "")}
    monkeypatch.setattr(cells, "train_cell", None)
    again = compared(folder)
    pd.testing.assert_frame_equal(again.results, comparison.results)
    assert again.tuning.settings == comparison.tuning.settings


KILLED = 4
"""Number of the run whose results are complete, and not yet in their place, when the process is killed."""


def kill_and_go_on(folder: Path, log: Path) -> list[int]:
    """Compare in a process that is killed, and in another one; return how they ended."""
    ended = []
    for killed in (True, False):
        if not (child := os.fork()):
            compare_until_killed(folder, log, killed=killed)
            os._exit(0)
        ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return ended


def compare_until_killed(folder: Path, log: Path, *, killed: bool) -> None:
    """Compare, and write down what is trained and kept."""

    def write_down(word: str, key: str) -> None:
        with log.open("a") as file:
            file.write(f"{word} {key}\n")

    train, keep = cells.train_cell, cells.CellResult.keep

    def train_and_log(key, *arguments):
        write_down("trained", key)
        return train(key, *arguments)

    def keep_and_log(result, place, key):
        keep(result, place, key)
        write_down("kept", key)

    cells.train_cell, cells.CellResult.keep = train_and_log, keep_and_log
    if killed:
        write, calls = store.Store._write, itertools.count(1)

        def kill(*arguments, **named):
            if next(calls) == KILLED:
                os.kill(os.getpid(), signal.SIGKILL)
            return write(*arguments, **named)

        store.Store._write = kill
    compared(folder)


@pytest.mark.soak
def test_a_search_that_is_killed_loses_no_results_that_were_kept(tmp_path, finished):
    _, whole = finished
    folder, log = tmp_path / "runs", tmp_path / "log"
    # A fresh process: one whose autograd has threads cannot be forked.
    with ProcessPoolExecutor(1, get_context("spawn"), round_privacy_losses, (COARSE_BINS,)) as pool:
        ended = pool.submit(kill_and_go_on, folder, log).result()
    assert ended == [-signal.SIGKILL, 0]
    kept: set[str] = set()
    trained = []
    for word, key in (line.split() for line in log.read_text().splitlines()):
        if word == "kept":
            kept.add(key)
        else:
            assert key not in kept
            trained.append(key)
    assert len(trained) - len(set(trained)) == 1  # the run that was killed before it was kept
    again = compared(folder)
    pd.testing.assert_frame_equal(again.results, whole.results)
    assert again.tuning.settings == whole.tuning.settings
