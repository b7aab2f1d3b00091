"""Epsilon of a whole run, by accountants that dp_accounting keeps."""

from __future__ import annotations

import bisect
import math
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import final

import absl.logging
import dp_accounting
import numpy as np
import numpy.typing as npt
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from equidp._validate import check_number, unknown_name
from equidp.errors import PrivacyWarning, SettingError
from equidp.kernel.events import Entries, checked_rows, repeats, run_event
from equidp.kernel.ledger import Event, StepEvent
from equidp.kernel.losses import crude_epsilon, loss_distribution

_FINE = 1e-4
"""Width of the bins that privacy losses are rounded up to, for final figures."""

_COARSE = 1e-3
"""For figures during a run: ten times cheaper, still an upper bound, about 0.1% above."""

_LARGEST = 1e7
"""Epsilon of several rows beyond which the crude bound says as little."""

_SURE_DELTA, _ROUNDING = 1e-10, 1e-15
"""dp_accounting's Fourier transforms lose about `_ROUNDING` a step: below `_SURE_DELTA`, or where the loss is
no small part of delta, PLD says too little, and Renyi's bound is used."""


_WIDEST = 1e-5
"""Width of the bins over epsilon, for an epsilon in the hundreds: narrower ones would fill memory."""

_PROFILE = 2e-4
"""The same for whole privacy profiles: about 0.1% above."""


def _steps(event: dp_accounting.DpEvent) -> int:
    return sum(getattr(each, "count", 0) for each in getattr(event, "events", [event]))


def _transforms_lose(event: dp_accounting.DpEvent, delta: float) -> bool:
    return delta < _SURE_DELTA or _steps(event) * _ROUNDING > 1e-3 * delta


def _pld_with(interval: float) -> Callable[[dp_accounting.DpEvent, float], float]:
    def epsilon(event: dp_accounting.DpEvent, delta: float) -> float:
        # Wider bins for an epsilon in the thousands, which would take billions of them.
        renyi = _rdp(event, delta)
        width = max(interval, _WIDEST * renyi)
        if width > 1 or _transforms_lose(event, delta) or repeats(event):  # above 10^5, Renyi says as little
            return renyi
        return float(PLDAccountant(value_discretization_interval=width).compose(event).get_epsilon(delta))

    return epsilon


def _rdp(event: dp_accounting.DpEvent, delta: float) -> float:
    return float(_renyi(event).get_epsilon(delta))


def _renyi(event: dp_accounting.DpEvent) -> RdpAccountant:
    # Orders whose series do not converge are left out, which is safe; the library would log a line for each.
    level = absl.logging.get_verbosity()
    absl.logging.set_verbosity(absl.logging.ERROR)
    try:
        return RdpAccountant().compose(event)
    finally:
        absl.logging.set_verbosity(level)


def _rdp_classic(event: dp_accounting.DpEvent, delta: float) -> float:
    accountant = _renyi(event)
    orders = np.asarray(accountant.orders)
    return float(np.min(np.asarray(accountant.rdp) + math.log(1 / delta) / (orders - 1)))


def renyi_divergences(event: StepEvent) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Returns orders, and the Renyi divergence of one step at each (infinite where its series diverges)."""
    accountant = _renyi(run_event([(event, 1)]))
    return np.asarray(accountant.orders, dtype=np.float64), np.asarray(accountant.rdp, dtype=np.float64)


@lru_cache(maxsize=1024)
def renyi_of(
    entries: tuple[tuple[Event, int], ...],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Returns orders, and the Renyi divergence of all entries together at each: it adds up, order by order.

    >>> orders, divergences = renyi_of(((StepEvent(1.0, 2.0), 4),))
    >>> round(float(divergences[orders == 2.0][0]), 6)  # order / (2 sigma^2), for each step
    1.0
    """
    event = run_event(entries)
    orders = np.asarray(RdpAccountant().orders, dtype=np.float64)
    if event == dp_accounting.NoOpDpEvent():
        return orders, np.zeros(len(orders))
    return orders, np.asarray(_renyi(event).rdp, dtype=np.float64)


ACCOUNTANTS: dict[str, Callable[[dp_accounting.DpEvent, float], float]] = {
    "pld": _pld_with(_FINE),
    "rdp": _rdp,
    "rdp-classic": _rdp_classic,
}
"""Name -> (event, delta) -> epsilon.

pld: privacy loss distributions, tight, the default. rdp: Renyi, for comparison with papers. rdp-classic:
Renyi with the older and looser conversion o(alpha) + log(1 / delta) / (alpha - 1), as Xu et al. (KDD 2021)
print it.
"""


def epsilon(entries: Entries, delta: float, accountant: str = "pld", rows: int = 1) -> float:
    """Returns the smallest epsilon that the accountant can prove for all the entries together.

    Guarantee: the composed mechanism is (epsilon, delta)-differentially private for datasets that differ in
    one example, added or removed, provided that each entry's steps used independent Poisson samples and
    noise. With `rows`, for datasets that differ in that many examples: those that one person owns.

    | case | epsilon |
    | --- | --- |
    | no steps | 0 |
    | a step without noise | infinite |
    | hardly any noise: epsilon above about 10^5 | Renyi's bound, by any accountant |
    | pld, with a private choice among the entries | Renyi's bound |
    | several rows, and a private choice | what follows from the epsilon of one row at smaller deltas |
    | pld, delta < 10^-10 or near the rounding of so many steps | Renyi's bound |
    | several rows, in the last two cases or above about 10^7 | the looser `losses.crude_epsilon` |
    | several rows, an accountant other than pld | SettingError |

    Args:
        entries: (step event, number of steps) pairs.
        delta: in (0, 1).
        accountant: a name from `ACCOUNTANTS`.
        rows: >= 1. Epsilon at the same delta is as a rule more than `rows` times that of one.

    Raises:
        SettingError: delta outside (0, 1) or NaN, an unknown accountant, or rows not whole and >= 1.

    >>> step = StepEvent(sample_rate=0.02, noise_multiplier=1.0)
    >>> round(epsilon([(step, 100)], delta=1e-5, accountant="rdp"), 3)
    1.843
    >>> [round(epsilon([(step, 100)], delta=1e-5, rows=rows), 1) for rows in (1, 2, 4)]
    [1.4, 3.0, 6.5]
    """
    checked_delta(delta), checked_accountant(accountant)
    if checked_rows(rows) > 1 and accountant != "pld":
        raise SettingError(
            f"rows={rows} and accountant={accountant!r}; people with several rows are accounted for by "
            "privacy loss distributions alone: use accountant 'pld'."
        )
    return _with_accountant(tuple(entries), delta, accountant, int(rows))


@lru_cache(maxsize=1024)
def _with_accountant(
    entries: tuple[tuple[StepEvent, int], ...], delta: float, accountant: str, rows: int
) -> float:
    event = run_event(entries)
    if event == dp_accounting.NoOpDpEvent():
        return 0.0
    if rows > 1 and repeats(event):
        return _of_a_group(event, delta, rows)
    if rows > 1:
        return _of_several_rows(event, run_event(entries, rows), delta, rows)
    return ACCOUNTANTS[accountant](event, delta)


def _of_a_group(event: dp_accounting.DpEvent, delta: float, rows: int) -> float:
    """Epsilon by group privacy (Vadhan 2017, Lemma 2.2): (e, d) of one row is (k e, d sum_i e^(i e)) of k."""
    renyi, best = _renyi(event), math.inf
    for exponent in np.linspace(0.0, 300.0, 301):
        smaller = delta * math.exp(-exponent)
        single = float(renyi.get_epsilon(smaller)) if smaller > 0 else math.inf
        if rows * single < 600 and smaller * sum(math.exp(i * single) for i in range(rows)) <= delta:
            best = min(best, rows * single)
    return best


def _of_several_rows(
    single: dp_accounting.DpEvent, event: dp_accounting.DpEvent, delta: float, rows: int
) -> float:
    """Epsilon from bins that narrow until they are a small part of it; each width gives an upper bound."""
    renyi = _renyi(single)
    orders, divergences = np.asarray(renyi.orders, dtype=float), np.asarray(renyi.rdp, dtype=float)
    found = crude_epsilon(event, rows, delta, orders, divergences)
    kept = delta - 10 * _steps(event) * _ROUNDING
    if delta < _SURE_DELTA or kept < delta / 2:
        return found
    bound = math.inf
    while found < min(bound / 2, _LARGEST):
        bound, width = found, max(_COARSE, _WIDEST * found)
        found = min(found, float(loss_distribution(event, width).get_epsilon_for_delta(kept)))
        if width == _COARSE:
            break
    return found


def privacy_profile(
    event: dp_accounting.DpEvent, epsilons: npt.NDArray[np.float64], usual: float
) -> npt.NDArray[np.float64]:
    """Returns delta at each epsilon, of both directions the larger: the whole trade-off, not one point of it.

    Guarantee: for every pair, what `epsilon` guarantees.

    | case | delta |
    | --- | --- |
    | no steps | 0 |
    | a step without noise, or usual above 10^5 | 1 |
    | epsilon below 0 | the hockey-stick divergence at e^epsilon |

    Args:
        event: a `run_event`.
        epsilons: increasing, [n]; >= 0 where the event holds no step or a private choice.
        usual: about the epsilon at a small delta; bins are a small part of it.

    >>> event = run_event([(StepEvent(sample_rate=1.0, noise_multiplier=1.0), 1)])
    >>> privacy_profile(event, np.array([0.0, 1.0]), usual=5.0).round(3)
    array([0.383, 0.127])
    """
    if event == dp_accounting.NoOpDpEvent():
        return np.zeros(len(epsilons))
    if repeats(event):
        renyi = _renyi(event)
        return np.array([min(1.0, float(renyi.get_delta(each))) for each in epsilons])
    width = max(_FINE, _PROFILE * usual)
    distribution = None if usual > 1 / _WIDEST else loss_distribution(event, width)
    if distribution is None:
        return np.ones(len(epsilons))
    deltas = np.asarray(distribution.get_delta_for_epsilon(epsilons), dtype=np.float64)
    return np.clip(deltas + 10 * (100 + _steps(event)) * _ROUNDING, 0.0, 1.0)


def checked_accountant(accountant: str) -> str:
    """Returns the name, or raises a SettingError that lists the known ones."""
    if accountant not in ACCOUNTANTS:
        raise unknown_name("accountant", accountant, ACCOUNTANTS)
    return accountant


def checked_delta(delta: float) -> float:
    """Returns delta, or raises a SettingError unless it is in (0, 1)."""
    check_number("(0, 1)", ", a probability well below 1 / n", delta=delta)
    return delta


def check_delta(delta: float, num_examples: int) -> None:
    """Warns of a delta of 1 / n or more, which publishing one example in the clear would satisfy."""
    if checked_delta(delta) >= 1 / num_examples:
        warnings.warn(
            f"delta={delta:g} is not below 1/n = {1 / num_examples:.2g}: with it, a method that publishes "
            "one example whole counts as private. Choose a smaller delta.",
            PrivacyWarning,
            stacklevel=3,
        )


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
        """Returns an upper bound of epsilon after `steps` steps, 0 <= steps <= total_steps."""
        reached = self._grid[bisect.bisect_left(self._grid, steps)] if steps else 0
        entries = (*self._before, *([(self._event, reached)] if reached else ()))
        if reached == self._grid[-1]:
            return epsilon(entries, self._delta, self._accountant)
        return _on_the_way(entries, self._delta, self._accountant) if entries else 0.0


def has_profile(event: dp_accounting.DpEvent, delta: float) -> bool:
    """Whether `privacy_profile` is made of privacy losses, and is exact enough beside this delta."""
    private = not any(
        isinstance(each, dp_accounting.NonPrivateDpEvent) for each in getattr(event, "events", [event])
    )
    known = event != dp_accounting.NoOpDpEvent() and not repeats(event) and private
    return known and not _transforms_lose(event, delta)


@lru_cache(maxsize=4096)
def _on_the_way(entries: tuple[tuple[StepEvent, int], ...], delta: float, accountant: str) -> float:
    compute = _pld_with(_COARSE) if accountant == "pld" else ACCOUNTANTS[accountant]
    return compute(run_event(entries), delta)
