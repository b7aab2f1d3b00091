"""Epsilon during a run, and a warning about a delta that is too large."""

from __future__ import annotations

import bisect
import math
import warnings
from functools import lru_cache

import dp_accounting

from equidp.errors import PrivacyWarning
from equidp.kernel.epsilon import (
    ACCOUNTANTS,
    checked_delta,
    epsilon,
    mechanism,
    over_labels,
    pld_epsilon,
)
from equidp.kernel.event import Entries, Event, Label

_COARSE = 1e-3
"""Width of bins that are cheaper, and give an upper bound about 0.1% above."""


def epsilon_so_far(
    steps: int, event: Event, total_steps: int, delta: float, accountant: str = "pld", beside: Entries = ()
) -> float:
    """Return an upper bound of epsilon after some of a run's steps, cheap enough for each of them.

    Epsilon is computed at about 25 numbers of steps, as they are reached. A number in between gets the next
    one's epsilon. It covers only these steps, for a run whose end no result decides. At the last step it is
    what `epsilon` returns.

    Args:
        steps: taken so far, from 0 to T.
        event: one step.
        total_steps: T.
        delta: delta in (0, 1).
        accountant: name from `ACCOUNTANTS`.
        beside: (event, count) pairs that count from the start.
    """
    grid = sorted({math.ceil(total_steps ** (i / 24)) for i in range(24)} | {total_steps})
    reached = grid[bisect.bisect_left(grid, steps)] if steps else 0
    entries = (*beside, (event, reached))
    if reached == total_steps:
        return epsilon(entries, delta, accountant)

    def of_label(label: Label | None) -> float:
        return _coarse_epsilon(mechanism(entries, label), delta, accountant)

    return over_labels(entries, of_label)[0]


@lru_cache(maxsize=4096)
def _coarse_epsilon(event: dp_accounting.DpEvent, delta: float, accountant: str) -> float:
    if event == dp_accounting.NoOpDpEvent():
        return 0.0
    if accountant == "pld":
        return pld_epsilon(event, delta, _COARSE)
    return ACCOUNTANTS[accountant](event, delta)


def check_delta(delta: float, num_examples: int) -> None:
    """Warn of a delta of 1 / n or more, which publishing one example in the clear would satisfy."""
    if checked_delta(delta) >= 1 / num_examples:
        warnings.warn(
            f"delta={delta:g} is not below 1/n = {1 / num_examples:.2g}: with it, a method that publishes "
            "one example whole counts as private. Choose a smaller delta.",
            PrivacyWarning,
            stacklevel=3,
        )
