"""A run is trained once, whoever asks for it how often, and is written by the process that asks."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from comparison.test_compare import PLAN, Toy
from equidp.comparison.cells import Cell, CellResult, check_here, facts, is_kept, train_all
from equidp.comparison.workers import StaleWorker
from equidp.errors import DataError
from equidp.store import Store
from support.errors import raises_field


def cells(*seeds) -> list[Cell]:
    return [Cell(Toy(), PLAN.with_usual_noise().resolve(160), "", math.nan, seed, "ghost") for seed in seeds]


def result(call) -> tuple:
    key, (cell, _) = call
    rows, none = pd.DataFrame({"seed": [cell.seed]}), pd.DataFrame()
    return key, CellResult(rows, none, none, {}, np.zeros((80, 2)), 1.0)


def seeds(results) -> list[int]:
    return [int(each.results["seed"].iloc[0]) for each in results]


@pytest.fixture
def made() -> list[str]:
    return []


@pytest.fixture
def spread(made):
    def spread(function, calls):
        for call in calls:
            made.append(call[1][0].label)
            yield result(call)

    return spread


def test_a_run_that_is_asked_for_twice_is_trained_once(tmp_path, spread, made):
    seen = []
    results = train_all(cells(1, 2, 1), tmp_path, spread, lambda *steps: seen.append(steps))
    assert made == ["dpsgd seed=1", "dpsgd seed=2"]
    assert seeds(results) == [1, 2, 1]
    assert seen == [(0, 24), (12, 24), (24, 24)]
    assert not list(tmp_path.glob("*.lock"))


def test_a_run_that_another_process_trains_is_waited_for_and_not_trained_again(
    tmp_path, monkeypatch, spread, made
):
    first, other = cells(1), Store(tmp_path).claim(cells(1)[0].key)

    def other_finishes(seconds):
        other.release()
        train_all(first, tmp_path, lambda function, calls: map(result, calls), None)

    monkeypatch.setattr("equidp.comparison.cells.time.sleep", other_finishes)
    results = train_all(cells(1, 2), tmp_path, spread, lambda *steps: None)
    assert made == ["dpsgd seed=2"]
    assert seeds(results) == [1, 2]


def test_fresh_runs_are_trained_though_they_are_kept(tmp_path, spread, made):
    for fresh in (False, False, True):
        train_all(cells(1, 2), tmp_path, spread, None, fresh=fresh)
    assert made == ["dpsgd seed=1", "dpsgd seed=2"] * 2


def test_what_is_not_finished_is_free_for_others(tmp_path):
    """A stop in the middle leaves whole runs and no locks."""
    asked = cells(1, 2, 3)

    def stopping(function, calls):
        for at, call in enumerate(calls):
            if at == 2:
                raise KeyboardInterrupt
            if at == 0:
                yield result(call)

    with pytest.raises(KeyboardInterrupt):
        train_all(asked, tmp_path, stopping, None)
    assert [is_kept(cell, tmp_path) for cell in asked] == [True, False, False]
    for cell in asked:
        assert Store(tmp_path).claim_free(cell.key) is not None


def test_runs_of_code_without_source_are_trained_each_time_and_not_kept(tmp_path, monkeypatch, spread, made):
    monkeypatch.setattr("equidp.comparison.cells.code_digest", lambda part: None)
    for _ in range(2):
        assert seeds(train_all(cells(1, 2), tmp_path, spread, None)) == [1, 2]
    assert made == ["dpsgd seed=1", "dpsgd seed=2"] * 2
    assert Store(tmp_path).entries() == []


@pytest.mark.parametrize(
    ("name", "error", "field"),
    [
        ("examples", DataError, "data"),
        ("module own", StaleWorker, "module own"),
        ("torch", StaleWorker, "torch"),
    ],
)
def test_each_run_checks_its_worker(name, error, field):
    (one,) = cells(1)
    check_here(one, facts(one))
    with raises_field(error, field):
        check_here(one, {**facts(one), name: "another"})
