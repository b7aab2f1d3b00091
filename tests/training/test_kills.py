"""A few kills of what benchmarks/kills.py does by the hundred."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

from support.bins import COARSE_BINS, round_privacy_losses
from support.kills import KINDS, kill_over_and_over
from support.kills_of_several import TallyOfSeveral, kill_one_of_several


@pytest.mark.soak
def test_kills_leave_a_whole_ledger_and_checkpoint_and_the_run_completes(tmp_path):
    """One kill at each kind of moment: at every stage of writing the ledger, histories of single examples and
    a checkpoint, and before noise."""
    tally = apart(kill_over_and_over, 1, tmp_path, seed=1, kills=len(KINDS), epochs=24.0)
    assert all(tally.kills.values()), tally.kills
    assert tally.torn == 1
    assert tally.completed == 1
    assert (tally.understated, tally.uncharged, tally.unreadable) == (0, 0, 0)
    assert (tally.miscounted, tally.left) == (0, 0)
    assert 0 < tally.drawn <= tally.counted
    assert all(spent >= true for spent, true in tally.epsilons)


@pytest.mark.soak
def test_ten_kills_of_one_of_several_processes(tmp_path):
    """One kill at each kind of moment, messages between processes included."""
    tally = apart(kill_one_of_several, 10, tmp_path, seed=0)
    check(tally)
    assert all(tally.kills.values()), tally.kills
    assert tally.counts == {1, 2, 3}


def apart(kill: Any, *arguments: Any, **settings: Any) -> Any:
    """In a fresh process: one whose autograd has threads cannot be forked, and other tests give it some."""
    with ProcessPoolExecutor(1, get_context("spawn"), round_privacy_losses, (COARSE_BINS,)) as pool:
        return pool.submit(kill, *arguments, **settings).result()


def check(tally: TallyOfSeveral) -> None:
    assert tally.hung == 0
    assert tally.completed
    assert (tally.understated, tally.uncharged, tally.unreadable) == (0, 0, 0)
    assert (tally.miscounted, tally.left) == (0, 0)
    assert 0 < tally.drawn <= tally.counted
    assert all(spent >= true for spent, true in tally.epsilons)
