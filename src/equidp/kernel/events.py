"""From what the ledger says to a dp_accounting event."""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Iterable

import dp_accounting
import numpy as np
from scipy import stats

from equidp._validate import check_whole
from equidp.kernel.ledger import ChoiceEvent, Event

Entries = Iterable[tuple[Event, int]]
"""(event, number of steps) pairs, as `Ledger.entries` gives them."""


RARE = 1e-25
_MOST_NUMBERS = 100


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


def run_event(entries: Entries, rows: int = 1) -> dp_accounting.DpEvent:
    """Returns the event of a whole run for someone who owns `rows` examples, all added or removed at once.

    One row: for each kind of step a Poisson-subsampled Gaussian, self-composed. Several: a step draws each of
    them with probability q, so k ~ Binomial(rows, q) together, and k rows move statistics and gradient by at
    most k times the sensitivity. The step is dominated by a mixture of Gaussians with those sensitivities
    (Choquette-Choo et al. 2024, Corollary 4.7), of noise multiplier sigma_eff.

    | case | event |
    | --- | --- |
    | no step | NoOpDpEvent |
    | a step without noise | contains NonPrivateDpEvent: epsilon is infinite |
    | the same kind in several entries | counted together, so their order does not matter |
    | whole-number multipliers | made floats: dp_accounting 0.6.0 misreads others in composed events |
    | a private choice | its tries, repeated a geometric number of times and selected from: Renyi's alone |
    | a private choice, several rows | NonPrivateDpEvent, an upper bound |
    | several rows, sample rate 1 | one Gaussian of sensitivity `rows` |
    | several rows, draws that are too rare or too many to list | counted as more rows drawn |

    Raises:
        SettingError: rows not a whole number >= 1.
    """
    counts: Counter[tuple[float, float]] = Counter()
    choices: Counter[ChoiceEvent] = Counter()
    for event, steps in entries:
        if isinstance(event, ChoiceEvent):
            choices[event] += steps
            continue
        sigma = effective_noise_multiplier(event.noise_multiplier, event.statistics_noise)
        counts[(float(event.sample_rate), sigma)] += steps
    rows = checked_rows(rows)
    events = tuple(_steps_event(*kind, steps, rows) for kind, steps in counts.items() if steps)
    events += tuple(_choices_event(event, count, rows) for event, count in choices.items() if count)
    if not events:
        return dp_accounting.NoOpDpEvent()
    return events[0] if len(events) == 1 else dp_accounting.ComposedDpEvent(events)  # a tuple: hashable


def checked_rows(rows: int) -> int:
    """Returns the number of rows that one person owns, or raises SettingError unless it is whole and >= 1."""
    check_whole(1, ", the examples that one person owns", rows=rows)
    return int(rows)


def _steps_event(sample_rate: float, sigma: float, steps: int, rows: int) -> dp_accounting.DpEvent:
    if sigma == 0:
        return dp_accounting.NonPrivateDpEvent()
    if rows == 1:
        step = dp_accounting.PoissonSampledDpEvent(sample_rate, dp_accounting.GaussianDpEvent(sigma))
    elif sample_rate == 1:
        step = dp_accounting.GaussianDpEvent(sigma / rows)
    else:
        step = dp_accounting.dp_event.MixtureOfGaussiansDpEvent(sigma, *rows_drawn(rows, sample_rate))
    return dp_accounting.SelfComposedDpEvent(step, int(steps))


def _choices_event(choice: ChoiceEvent, count: int, rows: int) -> dp_accounting.DpEvent:
    tried = run_event(choice.tried)
    if rows > 1 or any(0 in (each.noise_multiplier, each.statistics_noise) for each, _ in choice.tried):
        return dp_accounting.NonPrivateDpEvent()
    return dp_accounting.SelfComposedDpEvent(
        dp_accounting.dp_event.RepeatAndSelectDpEvent(tried, float(choice.mean), 1.0), int(count)
    )


def repeats(event: dp_accounting.DpEvent) -> bool:
    """Returns whether a `run_event` holds a private choice, which Renyi accounting alone can account for."""
    parts = [getattr(each, "event", each) for each in getattr(event, "events", [event])]
    return any(isinstance(each, dp_accounting.dp_event.RepeatAndSelectDpEvent) for each in parts)


def rows_drawn(rows: int, sample_rate: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns how many of `rows` rows a sample holds, in increasing order, and how likely each number is.

    Guarantee: the mixture of Gaussians with these sensitivities is never more private than the one with
    Binomial(rows, sample_rate): probability is only moved to larger numbers.

    | case | value |
    | --- | --- |
    | more than some 100 likely numbers | rounded up to every second, third, ... |
    | numbers above, together less likely than 10^-25 | all rows |
    | numbers below, together less likely than 10^-25 | the smallest likely number |

    >>> numbers, chances = rows_drawn(2, 0.5)
    >>> numbers, [round(chance, 6) for chance in chances]
    ((0.0, 1.0, 2.0), [0.25, 0.5, 0.25])
    """
    law = stats.binom(rows, sample_rate)
    every = range(rows + 1)
    low = bisect.bisect_left(every, True, key=lambda number: law.cdf(number) >= RARE)
    high = bisect.bisect_left(every, True, key=lambda number: law.sf(number) < RARE)
    numbers = np.arange(low, high + 1)
    width = math.ceil(len(numbers) / _MOST_NUMBERS)
    kept = high - (high - numbers) // width * width  # rounded up
    likely = np.unique(kept)
    chances = np.bincount(np.searchsorted(likely, kept), law.pmf(numbers))
    chances[0] += law.cdf(low - 1)
    if high < rows:
        likely, chances = np.append(likely, rows), np.append(chances, law.sf(high))
    return tuple(map(float, likely)), tuple(map(float, chances))
