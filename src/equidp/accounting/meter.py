"""Epsilon while a run goes on, and a warning of a delta that is too large."""

from __future__ import annotations

import bisect
import math
import warnings
from functools import lru_cache
from typing import Any, final

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

from equidp.errors import PrivacyWarning
from equidp.kernel.epsilon import (
    ACCOUNTANTS,
    WIDEST,
    Entries,
    checked_accountant,
    checked_delta,
    count_kinds,
    epsilon,
    largest_over_groups,
    pld_epsilon,
    renyi_divergences,
    run_event,
    transforms_lose_digits,
)
from equidp.kernel.ledger import Event, StepEvent

_COARSE = 1e-3
"""Width of the bins of privacy losses during a run: ten times cheaper, an upper bound about 0.1% above."""


@final
class EpsilonMeter:
    """Epsilon so far at every step of a run of equal steps, cheap enough to show at each step.

    Epsilon is computed at about 25 numbers of steps, as they are reached; a number in between gets that of
    the next.

    Guarantee: an upper bound at every step, 0 before the first (unless something was spent before), and at
    the last step what `epsilon` returns.

    Args:
        event: one step.
        total_steps: T.
        delta: in (0, 1).
        accountant: a name from `ACCOUNTANTS`.
        spent_before: (event, number of steps) pairs that count from the start.
    """

    def __init__(
        self,
        event: StepEvent,
        total_steps: int,
        delta: float,
        accountant: str = "pld",
        spent_before: Entries = (),
    ) -> None:
        self._event, self._delta, self._before = event, checked_delta(delta), tuple(spent_before)
        self._accountant = checked_accountant(accountant)
        self._grid = sorted({math.ceil(total_steps ** (i / 24)) for i in range(24)} | {total_steps})

    def __call__(self, steps: int) -> float:
        """Return an upper bound of epsilon after `steps` steps, 0 <= steps <= total_steps."""
        reached = self._grid[bisect.bisect_left(self._grid, steps)] if steps else 0
        entries = (*self._before, *([(self._event, reached)] if reached else ()))
        if reached == self._grid[-1]:
            return epsilon(entries, self._delta, self._accountant)
        return largest_over_groups(
            lambda each: _coarse_epsilon(each, self._delta, self._accountant) if each else 0.0, entries
        )


@lru_cache(maxsize=4096)
def _coarse_epsilon(entries: tuple[tuple[Event, int], ...], delta: float, accountant: str) -> float:
    """Upper bound of epsilon before the last step, without groups: bins are ten times as wide."""
    whole = run_event(entries)
    if accountant != "pld":
        return ACCOUNTANTS[accountant](whole, delta)
    ((rate, noise), steps), *others = count_kinds(entries).items()
    if others or not noise or transforms_lose_digits(whole, delta):
        return pld_epsilon(_COARSE)(whole, delta)
    # The losses of one step, most of the work, are the same at each number of steps.
    orders, divergences = renyi_divergences(StepEvent(rate, noise))
    renyi = float(np.min(steps * divergences + math.log(1 / delta) / (orders - 1)))
    width = max(_COARSE, WIDEST * renyi)
    if width > 1:
        return pld_epsilon(_COARSE)(whole, delta)
    return float(_step_losses(rate, noise, width).self_compose(steps).get_epsilon_for_delta(delta))


@lru_cache(maxsize=4)
def _step_losses(rate: float, noise: float, width: float) -> Any:
    """Privacy losses of one step in bins of a width, rounded up."""
    return from_gaussian_mechanism(noise, value_discretization_interval=width, sampling_prob=rate)


def check_delta(delta: float, num_examples: int) -> None:
    """Warn of a delta of 1 / n or more, which publishing one example in the clear would satisfy."""
    if checked_delta(delta) >= 1 / num_examples:
        warnings.warn(
            f"delta={delta:g} is not below 1/n = {1 / num_examples:.2g}: with it, a method that publishes "
            "one example whole counts as private. Choose a smaller delta.",
            PrivacyWarning,
            stacklevel=3,
        )
