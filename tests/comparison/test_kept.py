"""A run is trained once, whoever asks for it how often, and is written by the process that asks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from filelock import FileLock

from comparison.test_compare import PLAN, Toy
from equidp.comparison.grid import Cell, Finished
from equidp.comparison.kept import is_kept, train_all
from equidp.training.record import RunRecord


def cells(*seeds) -> list[Cell]:
    return [Cell(Toy(), PLAN.resolve("dpsgd", 160), "", math.nan, seed, "ghost") for seed in seeds]


def finished(call) -> tuple:
    return call, Finished(RunRecord({"seed": call.arguments[0].seed}), np.zeros((80, 2)))


def test_a_run_that_is_asked_for_twice_is_trained_once(tmp_path):
    made, seen = [], []

    def spread(function, calls):
        for call in calls:
            made.append(call.name)
            yield finished(call)

    records = train_all(cells(1, 2, 1), tmp_path, spread, lambda *steps: seen.append(steps))
    assert made == ["dpsgd seed=1", "dpsgd seed=2"]
    assert [record.settings["seed"] for record in records] == [1, 2, 1]
    assert seen == [(0, 24), (12, 24), (24, 24)]
    assert not list(tmp_path.glob("*.lock"))


def test_a_run_that_another_process_trains_is_waited_for_and_not_trained_again(tmp_path, monkeypatch):
    asked = cells(1, 2)
    path = tmp_path / asked[0].file_name()
    other, made, seen = FileLock(path.with_suffix(".lock")), [], []
    other.acquire()

    def spread(function, calls):
        for call in calls:
            made.append(call.name)
            yield finished(call)

    def other_finishes(seconds):
        first = cells(1)
        other.release()
        train_all(first, tmp_path, lambda function, calls: map(finished, calls), None)

    monkeypatch.setattr("equidp.comparison.kept.time.sleep", other_finishes)
    records = train_all(asked, tmp_path, spread, lambda *steps: seen.append(steps))
    assert made == ["dpsgd seed=2"]
    assert [record.settings["seed"] for record in records] == [1, 2]


def test_fresh_runs_are_trained_though_they_are_kept(tmp_path):
    made = []

    def spread(function, calls):
        for call in calls:
            made.append(call.name)
            yield finished(call)

    for fresh in (False, False, True):
        train_all(cells(1, 2), tmp_path, spread, None, fresh=fresh)
    assert made == ["dpsgd seed=1", "dpsgd seed=2"] * 2


def test_what_is_not_finished_is_free_for_others(tmp_path):
    """A stop in the middle leaves whole runs and no locks."""
    asked = cells(1, 2, 3)

    def spread(function, calls):
        for at, call in enumerate(calls):
            if at == 2:
                raise KeyboardInterrupt
            if at == 0:
                yield finished(call)

    with pytest.raises(KeyboardInterrupt):
        train_all(asked, tmp_path, spread, None)
    assert [is_kept(tmp_path / cell.file_name()) for cell in asked] == [True, False, False]
    for cell in asked:
        FileLock((tmp_path / cell.file_name()).with_suffix(".lock")).acquire(blocking=False)
