"""A few of the kills, forks and copies of runs with releases that benchmarks/kills.py makes 72 of."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from support.kills_of_releases import EVENTS, release_over_and_over


@pytest.mark.soak
def test_the_ledger_counts_all_that_is_drawn(tmp_path):
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        tally = pool.submit(release_over_and_over, tmp_path, dict.fromkeys(EVENTS, 1), 1).result()
    assert tally.understated == 0
    assert tally.events.total() == len(EVENTS) == len(EVENTS.keys() & tally.events.keys())
    assert tally.completed >= len(EVENTS) + 2
    assert tally.checks > tally.completed
    assert all(0 < tally.drawn[name] <= tally.counted[name] for name in tally.counted)
    assert tally.epsilon_drawn <= tally.epsilon_counted
