"""Epsilon for somebody who owns several examples, all added or removed at once."""

from __future__ import annotations

import bisect
import math
from functools import lru_cache

import dp_accounting
import numpy as np
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from dp_accounting.pld import PLDAccountant
from scipy import stats

from equidp._validate import check_whole
from equidp.errors import SettingError
from equidp.kernel import epsilon as one_row
from equidp.kernel.event import Entries, Event, EventCounts

_RARE, _MOST_NUMBERS = 1e-25, 100
_LARGEST = 1e8
"""Epsilon, as if all rows were always drawn, above which no bins are tried."""


def epsilon(entries: Entries, delta: float, accountant: str = "pld", rows: int = 1) -> float:
    """Return the smallest epsilon that the accountant can prove for all the entries together.

    Guarantee: as in `equidp.kernel.epsilon.epsilon`, for datasets that differ in the `rows` examples of one
    person.

    | case | epsilon |
    | --- | --- |
    | one row | `equidp.kernel.epsilon.epsilon` |
    | several rows with labels | as if each row were drawn at the largest rate, with whole bounds |
    | several rows, delta < 10^-10 or near the steps' rounding error | as if all rows were always drawn |
    | several rows, an accountant other than pld | SettingError |

    Args:
        entries: (event, count) pairs.
        delta: delta in (0, 1).
        accountant: name from `ACCOUNTANTS`.
        rows: number of rows >= 1. At the same delta, epsilon is usually more than `rows` times the epsilon of
            one row.

    >>> step = Event(rate=0.02, noise=1.0)
    >>> [round(epsilon([(step, 100)], delta=1e-5, rows=rows), 1) for rows in (1, 2, 4)]
    [1.4, 3.0, 6.5]
    """
    one_row.checked_delta(delta), one_row.checked_accountant(accountant)
    if checked_rows(rows) == 1:
        return one_row.epsilon(entries, delta, accountant)
    if accountant != "pld":
        raise SettingError(
            f"rows={rows} and accountant={accountant!r}; only the accountant 'pld' supports people with "
            "several rows."
        )
    return _epsilon_of_rows(one_row.checked_entries(entries), delta, int(rows))


@lru_cache(maxsize=1024)
def _epsilon_of_rows(entries: EventCounts, delta: float, rows: int) -> float:
    """Epsilon from bins that narrow with it. Each width gives an upper bound."""
    costs, event = one_row.count_costs(entries), mechanism(entries, rows)
    always = [(Event(1.0, cost.noise / rows), count) for cost, count in costs.items()]
    found, last = one_row.epsilon(always, delta, "rdp"), math.inf
    while found < _LARGEST and not one_row.transforms_lose_digits(event, delta):
        width = min(100.0, one_row.FINE * max(1.0, min(50.0, 10 * found), found))
        if width > 0.9 * last:
            break
        bins, last = PLDAccountant(value_discretization_interval=width).compose(event), width
        found = min(found, float(bins.get_epsilon(delta)))
    return found


def mechanism(entries: Entries, rows: int = 1) -> dp_accounting.DpEvent:
    """Return dp_accounting's event of all entries, for somebody who owns `rows` examples with any labels.

    A step draws each of them with probability q, so it draws k ~ Binomial(rows, q) together. k rows move
    statistics and gradient by at most k times the sensitivity. The step is dominated by a mixture of
    Gaussians with those sensitivities (Choquette-Choo et al. 2024, Corollary 4.7).

    | case of several rows | event |
    | --- | --- |
    | no step | NoOpDpEvent |
    | a step without noise | contains NonPrivateDpEvent: epsilon is infinite |
    | sampling rate 1 | one Gaussian of sensitivity `rows` |
    | draws that are too rare or too many to list | counted as more rows drawn |
    """
    if checked_rows(rows) == 1:
        return one_row.mechanism(entries)

    def of_rows(rate: float, noise: float, count: int) -> dp_accounting.DpEvent:
        if not noise:
            return dp_accounting.NonPrivateDpEvent()
        if rate == 1:
            return dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(noise / rows), count)
        return dp_accounting.SelfComposedDpEvent(
            MixtureOfGaussiansDpEvent(noise, *rows_drawn(rows, rate)), count
        )

    costs = one_row.count_costs(entries).items()
    return one_row.compose_events([of_rows(*cost, count) for cost, count in costs])


def checked_rows(rows: int) -> int:
    """Return the number of rows that one person owns, or raise SettingError unless it is whole and >= 1."""
    check_whole(1, ", the examples that one person owns", rows=rows)
    return int(rows)


def rows_drawn(rows: int, sample_rate: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return how many of `rows` rows a sample holds, in increasing order, and how likely each number is.

    Guarantee: the mixture of Gaussians with these sensitivities is never more private than the one with
    Binomial(rows, sample_rate), because probability is only moved to larger numbers.

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
    low = bisect.bisect_left(every, True, key=lambda number: law.cdf(number) >= _RARE)
    high = bisect.bisect_left(every, True, key=lambda number: law.sf(number) < _RARE)
    numbers = np.arange(low, high + 1)
    width = math.ceil(len(numbers) / _MOST_NUMBERS)
    kept = high - (high - numbers) // width * width  # rounded up
    likely = np.unique(kept)
    chances = np.bincount(np.searchsorted(likely, kept), law.pmf(numbers))
    chances[0] += law.cdf(low - 1)
    if high < rows:
        likely, chances = np.append(likely, rows), np.append(chances, law.sf(high))
    return tuple(map(float, likely)), tuple(map(float, chances))
