"""From what the ledger says to a dp_accounting event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import dp_accounting

from equidp.kernel.ledger import StepEvent

Entries = Iterable[tuple[StepEvent, int]]
"""(step event, number of steps) pairs, as `Ledger.entries` gives them."""


def effective_noise_multiplier(noise_multiplier: float, statistics_noise: float | None) -> float:
    """sigma_eff of a gradient and a statistics query on one sample: (sigma^-2 + sigma_s^-2)^(-1/2) (Andrew et al. 2021, Theorem 1).

    Both read the same sample, so they are one Gaussian mechanism, subsampled once. Accounting for them as two mechanisms with a
    sample each, as published code does, can be far too low.
    """
    if noise_multiplier == 0 or statistics_noise == 0:
        return 0.0
    if statistics_noise is None:
        return float(noise_multiplier)
    return float((noise_multiplier**-2 + statistics_noise**-2) ** -0.5)


def run_event(entries: Entries) -> dp_accounting.DpEvent:
    """The event of a whole run: each kind of step is one Poisson-subsampled Gaussian, self-composed.

    Multipliers and rates are floats throughout: dp_accounting 0.6.0 misreads a whole-number multiplier inside a composed event.
    """
    counts: Counter[tuple[float, float]] = Counter()
    for event, steps in entries:
        sigma = effective_noise_multiplier(event.noise_multiplier, event.statistics_noise)
        counts[(float(event.sample_rate), sigma)] += steps
    events = [_steps_event(rate, sigma, steps) for (rate, sigma), steps in counts.items() if steps]
    if not events:
        return dp_accounting.NoOpDpEvent()
    return events[0] if len(events) == 1 else dp_accounting.ComposedDpEvent(events)


def _steps_event(sample_rate: float, sigma: float, steps: int) -> dp_accounting.DpEvent:
    if sigma == 0:
        return dp_accounting.NonPrivateDpEvent()
    step = dp_accounting.PoissonSampledDpEvent(sample_rate, dp_accounting.GaussianDpEvent(sigma))
    return dp_accounting.SelfComposedDpEvent(step, int(steps))
