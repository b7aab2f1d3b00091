"""From what the ledger says to a dp_accounting event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import dp_accounting

from equidp.kernel.ledger import StepEvent

Entries = Iterable[tuple[StepEvent, int]]
"""(step event, number of steps) pairs, as `Ledger.entries` gives them."""


def effective_noise_multiplier(noise_multiplier: float, statistics_noise: float | None) -> float:
    """Returns sigma_eff = (sigma^-2 + sigma_s^-2)^(-1/2), of a gradient and a statistics query on one sample.

    Guarantee: both queries together are one Gaussian mechanism of this noise multiplier (Andrew et al. 2021,
    Theorem 1), subsampled once. Accounting for two mechanisms with a sample each, as published code does, can
    be far too low.

    | case | value |
    | --- | --- |
    | no statistics (None) | sigma |
    | either multiplier 0 | 0: no privacy |

    >>> effective_noise_multiplier(3.0, 4.0)
    2.4
    """
    if noise_multiplier == 0 or statistics_noise == 0:
        return 0.0
    if statistics_noise is None:
        return float(noise_multiplier)
    return float((noise_multiplier**-2 + statistics_noise**-2) ** -0.5)


def run_event(entries: Entries) -> dp_accounting.DpEvent:
    """Returns the event of a whole run: for each kind of step a Poisson-subsampled Gaussian, self-composed.

    | case | event |
    | --- | --- |
    | no step | NoOpDpEvent |
    | a step without noise | contains NonPrivateDpEvent: epsilon is infinite |
    | the same kind in several entries | counted together, so their order does not matter |
    | whole-number multipliers | made floats: dp_accounting 0.6.0 misreads others in composed events |
    """
    counts: Counter[tuple[float, float]] = Counter()
    for event, steps in entries:
        sigma = effective_noise_multiplier(event.noise_multiplier, event.statistics_noise)
        counts[(float(event.sample_rate), sigma)] += steps
    events = tuple(_steps_event(rate, sigma, steps) for (rate, sigma), steps in counts.items() if steps)
    if not events:
        return dp_accounting.NoOpDpEvent()
    return events[0] if len(events) == 1 else dp_accounting.ComposedDpEvent(events)  # a tuple: hashable


def _steps_event(sample_rate: float, sigma: float, steps: int) -> dp_accounting.DpEvent:
    if sigma == 0:
        return dp_accounting.NonPrivateDpEvent()
    step = dp_accounting.PoissonSampledDpEvent(sample_rate, dp_accounting.GaussianDpEvent(sigma))
    return dp_accounting.SelfComposedDpEvent(step, int(steps))
