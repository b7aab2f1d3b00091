"""A few kills of what benchmarks/kills.py does by the hundred."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))


@pytest.mark.filterwarnings("ignore")
def test_kills_leave_a_whole_ledger_and_checkpoint_and_the_run_completes(tmp_path):
    from kills import kill_over_and_over

    tally = kill_over_and_over(6, tmp_path, seed=1, epochs=60.0, longest=0.7)
    assert tally.kills >= 6
    assert tally.completed >= 1
    assert (tally.understated, tally.unreadable) == (0, 0)
    assert 0 < tally.drawn <= tally.counted
    assert all(spent >= true for spent, true in tally.epsilons)
