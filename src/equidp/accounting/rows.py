"""Epsilon for somebody who owns several examples, all added or removed at once."""

from __future__ import annotations

import bisect
import math
from functools import lru_cache

import dp_accounting
import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.special import logsumexp

from equidp._validate import check_whole
from equidp.accounting.privacy_losses import loss_distribution
from equidp.errors import SettingError
from equidp.kernel import epsilon as one_row
from equidp.kernel.epsilon import (
    SURE_DELTA,
    TRANSFORM_LOSS,
    WIDEST,
    Entries,
    compose_events,
    count_kinds,
    count_steps,
    renyi_accountant,
    run_event as event_of_one_row,
)
from equidp.kernel.ledger import Event

Floats = npt.NDArray[np.float64]

_RARE = 1e-25
_MOST_NUMBERS = 100

_COARSE = 1e-3
"""Width of the narrowest bins of privacy losses: an upper bound, about 0.1% above."""

_LARGEST = 1e7
"""Epsilon of several rows beyond which the crude bound says as little."""


def epsilon(entries: Entries, delta: float, accountant: str = "pld", rows: int = 1) -> float:
    """Return the smallest epsilon that the accountant can prove for all the entries together.

    Guarantee: that of `equidp.kernel.epsilon.epsilon`, for datasets that differ in `rows` examples: those
    that one person owns.

    | case | epsilon |
    | --- | --- |
    | one row | `equidp.kernel.epsilon.epsilon` |
    | several rows, and steps by group | as if each row were drawn at the largest rate, with whole bounds |
    | several rows, delta < 10^-10 or near the rounding of so many steps | the looser `crude_epsilon` |
    | several rows, epsilon above about 10^7 | the same |
    | several rows, an accountant other than pld | SettingError |

    Args:
        entries: (step event, number of steps) pairs.
        delta: in (0, 1).
        accountant: a name from `ACCOUNTANTS`.
        rows: >= 1. Epsilon at the same delta is as a rule more than `rows` times that of one.

    Raises:
        SettingError: delta outside (0, 1) or NaN, an unknown accountant, or rows not whole and >= 1.

    >>> from equidp.kernel.ledger import StepEvent
    >>> step = StepEvent(sample_rate=0.02, noise_multiplier=1.0)
    >>> [round(epsilon([(step, 100)], delta=1e-5, rows=rows), 1) for rows in (1, 2, 4)]
    [1.4, 3.0, 6.5]
    """
    one_row.checked_delta(delta), one_row.checked_accountant(accountant)
    if checked_rows(rows) == 1:
        return one_row.epsilon(entries, delta, accountant)
    if accountant != "pld":
        raise SettingError(
            f"rows={rows} and accountant={accountant!r}; people with several rows are accounted for by "
            "privacy loss distributions alone: use accountant 'pld'."
        )
    return _epsilon_of_rows(tuple(entries), delta, int(rows))


def run_event(entries: Entries, rows: int = 1) -> dp_accounting.DpEvent:
    """Return the event of a whole run for somebody who owns `rows` examples, all added or removed at once.

    One row: `equidp.kernel.epsilon.run_event`. Several: a step draws each of
    them with probability q, so k ~ Binomial(rows, q) together, and k rows move statistics and gradient by at
    most k times the sensitivity. The step is dominated by a mixture of Gaussians with those sensitivities
    (Choquette-Choo et al. 2024, Corollary 4.7), of noise multiplier sigma_eff.

    | case of several rows | event |
    | --- | --- |
    | no step | NoOpDpEvent |
    | a step without noise | contains NonPrivateDpEvent: epsilon is infinite |
    | sample rate 1 | one Gaussian of sensitivity `rows` |
    | draws that are too rare or too many to list | counted as more rows drawn |

    Raises:
        SettingError: rows not a whole number >= 1.
    """
    if checked_rows(rows) == 1:
        return event_of_one_row(entries)
    kinds = count_kinds(entries)
    return compose_events([_steps_event(*kind, steps, int(rows)) for kind, steps in kinds.items() if steps])


def _steps_event(sample_rate: float, sigma: float, steps: int, rows: int) -> dp_accounting.DpEvent:
    if sigma == 0:
        return dp_accounting.NonPrivateDpEvent()
    if sample_rate == 1:
        step = dp_accounting.GaussianDpEvent(sigma / rows)
    else:
        step = dp_accounting.dp_event.MixtureOfGaussiansDpEvent(sigma, *rows_drawn(rows, sample_rate))
    return dp_accounting.SelfComposedDpEvent(step, int(steps))


def checked_rows(rows: int) -> int:
    """Return the number of rows that one person owns, or raise SettingError unless it is whole and >= 1."""
    check_whole(1, ", the examples that one person owns", rows=rows)
    return int(rows)


def rows_drawn(rows: int, sample_rate: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return how many of `rows` rows a sample holds, in increasing order, and how likely each number is.

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


@lru_cache(maxsize=1024)
def _epsilon_of_rows(entries: tuple[tuple[Event, int], ...], delta: float, rows: int) -> float:
    """Epsilon from bins that narrow until they are a small part of it; each width gives an upper bound."""
    single = event_of_one_row(entries)
    if single == dp_accounting.NoOpDpEvent():
        return 0.0
    renyi, event = renyi_accountant(single), run_event(entries, rows)
    orders, divergences = np.asarray(renyi.orders, dtype=float), np.asarray(renyi.rdp, dtype=float)
    found = crude_epsilon(event, rows, delta, orders, divergences)
    kept = delta - 10 * count_steps(event) * TRANSFORM_LOSS
    if delta < SURE_DELTA or kept < delta / 2:
        return found
    bound = math.inf
    while found < min(bound / 2, _LARGEST):
        bound, width = found, max(_COARSE, WIDEST * found)
        found = min(found, float(loss_distribution(event, width).get_epsilon_for_delta(kept)))
        if width == _COARSE:
            break
    return found


def crude_epsilon(
    event: dp_accounting.DpEvent, rows: int, delta: float, orders: Floats, divergences: Floats
) -> float:
    """Return an upper bound on epsilon for someone who owns several rows; loose, and cheap at any size.

    Guarantee: the smaller of two bounds at this delta.

    - Group privacy: from Renyi divergences r(o) of the run for one row, (m e, delta)-DP holds for m rows with
      e = ((o - 1) r(o) + log(m / delta)) / (o - m) at any order o > m, since delta grows by at most
      m e^((m - 1) e) (Vadhan 2017, Lemma 2.2) from e^((o - 1) (r(o) - e)) (Mironov 2017, Proposition 3).
    - Order 2: a step's divergence from the mixture is log E e^(k k' / sigma^2) over independent numbers k, k'
      of rows drawn, towards it at most log E e^(k^2 / sigma^2), since 1 / x is convex.

    Args:
        event: `run_event` of m rows.
        rows: m >= 2.
        delta: in (0, 1).
        orders, divergences: of the whole run for one row.
    """
    usable = orders > rows
    group = ((orders - 1) * divergences + math.log(rows / delta))[usable] / (orders - rows)[usable]
    total, missed = 0.0, 0.0
    for each in getattr(event, "events", [event]):
        if isinstance(each, dp_accounting.NonPrivateDpEvent):
            return math.inf
        step = each.event
        if isinstance(step, dp_accounting.GaussianDpEvent):
            total += each.count / step.noise_multiplier**2
        else:
            chances, shifts = np.asarray(step.sampling_probs), np.asarray(step.sensitivities)
            likely = chances > _RARE
            missed += each.count * chances[~likely].sum()
            chances, shifts = chances[likely], shifts[likely] / step.standard_deviation
            pairs = np.log(np.outer(chances, chances)) + np.outer(shifts, shifts)
            total += each.count * max(logsumexp(pairs), logsumexp(np.log(chances) + shifts**2))
    second = total + 3 * missed - math.log(delta - missed) if delta > missed else math.inf
    return float(min(rows * group.min(initial=math.inf), second))
