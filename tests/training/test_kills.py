"""A few of the kills, forks and copies of runs that benchmarks/kills.py makes by the hundred."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from support.bins import COARSE_BINS, round_privacy_losses
from support.kills import kill_over_and_over


@pytest.mark.soak
def test_the_ledger_counts_all_that_is_drawn_and_every_run_completes(tmp_path):
    """A kill at each kind of moment; in a fresh process, since one whose autograd has threads cannot fork."""
    with ProcessPoolExecutor(1, get_context("spawn"), round_privacy_losses, (COARSE_BINS,)) as pool:
        tally = pool.submit(kill_over_and_over, 1, tmp_path).result()
    assert tally.counts == {1, 2, 3}
    assert all(0 < tally.drawn[name] <= tally.counted[name] for name in tally.counted)
    assert all(true <= spent for spent, true in tally.epsilons)
