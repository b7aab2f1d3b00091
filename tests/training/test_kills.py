"""A few kills of what benchmarks/kills.py does by the hundred."""

from __future__ import annotations

import pytest

from support.kills import KINDS, kill_over_and_over


@pytest.mark.filterwarnings("ignore")
def test_kills_leave_a_whole_ledger_and_checkpoint_and_the_run_completes(tmp_path):
    """One kill at each kind of moment: at every stage of writing the ledger, histories of single examples and
    a checkpoint, and before noise."""
    tally = kill_over_and_over(1, tmp_path, seed=1, kills=len(KINDS), epochs=24.0)
    assert all(tally.kills.values()), tally.kills
    assert tally.torn == 1
    assert tally.completed == 1
    assert (tally.understated, tally.uncharged, tally.unreadable) == (0, 0, 0)
    assert (tally.miscounted, tally.left) == (0, 0)
    assert 0 < tally.drawn <= tally.counted
    assert all(spent >= true for spent, true in tally.epsilons)
