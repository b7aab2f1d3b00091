"""Epsilon of what a ledger counts, by events and accountants of dp_accounting."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import absl.logging
import dp_accounting
import numpy as np
import numpy.typing as npt
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from equidp._validate import check_number, unknown_name
from equidp.kernel.ledger import ChoiceEvent, Event, StepEvent

Entries = Iterable[tuple[Event, int]]
"""(event, number of steps) pairs, as `Ledger.entries` gives them."""
FINE = 1e-4
"""Width of the bins that privacy losses are rounded up to, for final figures."""
SURE_DELTA, TRANSFORM_LOSS = 1e-10, 1e-15
"""dp_accounting's Fourier transforms lose about `TRANSFORM_LOSS` of delta a step: below `SURE_DELTA`, or if
that is no small part of delta, PLD says too little, and Renyi's bound is used."""
WIDEST = 1e-5
"""Width of the bins over epsilon, for an epsilon in the hundreds: narrower ones would fill memory."""


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


def count_kinds(entries: Entries) -> tuple[Counter[tuple[float, float]], Counter[ChoiceEvent]]:
    """Return steps by (sample rate, effective noise multiplier), and private choices; each in order."""
    steps: Counter[tuple[float, float]] = Counter()
    choices: Counter[ChoiceEvent] = Counter()
    for event, count in entries:
        if isinstance(event, ChoiceEvent):
            choices[event] += count
        else:
            sigma = effective_noise_multiplier(event.noise_multiplier, event.statistics_noise)
            steps[(float(event.sample_rate), sigma)] += count
    return steps, choices


def run_event(entries: Entries) -> dp_accounting.DpEvent:
    """Return the event of a whole run, for one example added or removed.

    For each kind of step it is a Poisson-subsampled Gaussian, self-composed.

    | case | event |
    | --- | --- |
    | no step | NoOpDpEvent |
    | a step without noise | contains NonPrivateDpEvent: epsilon is infinite |
    | the same kind in several entries | counted together, so their order does not matter |
    | whole-number multipliers | made floats: dp_accounting 0.6.0 misreads others in composed events |
    | a private choice | its tries, repeated a geometric number of times and selected from: Renyi's alone |
    """
    kinds, choices = count_kinds(entries)
    events = [_steps_event(*kind, steps) for kind, steps in kinds.items() if steps]
    return compose_events(
        [*events, *(_choices_event(event, count) for event, count in choices.items() if count)]
    )


def compose_events(events: Sequence[dp_accounting.DpEvent]) -> dp_accounting.DpEvent:
    """Return one event, which can be hashed, for all of them together."""
    if not events:
        return dp_accounting.NoOpDpEvent()
    return events[0] if len(events) == 1 else dp_accounting.ComposedDpEvent(tuple(events))


def _steps_event(sample_rate: float, sigma: float, steps: int) -> dp_accounting.DpEvent:
    if sigma == 0:
        return dp_accounting.NonPrivateDpEvent()
    step = dp_accounting.PoissonSampledDpEvent(sample_rate, dp_accounting.GaussianDpEvent(sigma))
    return dp_accounting.SelfComposedDpEvent(step, int(steps))


def _choices_event(choice: ChoiceEvent, count: int) -> dp_accounting.DpEvent:
    if any(0 in (each.noise_multiplier, each.statistics_noise) for each, _ in choice.tried):
        return dp_accounting.NonPrivateDpEvent()
    tries = dp_accounting.dp_event.RepeatAndSelectDpEvent(run_event(choice.tried), float(choice.mean), 1.0)
    return dp_accounting.SelfComposedDpEvent(tries, int(count))


def repeats(event: dp_accounting.DpEvent) -> bool:
    """Returns whether a `run_event` holds a private choice, which Renyi accounting alone can account for."""
    parts = [getattr(each, "event", each) for each in getattr(event, "events", [event])]
    return any(isinstance(each, dp_accounting.dp_event.RepeatAndSelectDpEvent) for each in parts)


def count_steps(event: dp_accounting.DpEvent) -> int:
    """Return the number of steps of a `run_event`."""
    return sum(getattr(each, "count", 0) for each in getattr(event, "events", [event]))


def transforms_lose_digits(event: dp_accounting.DpEvent, delta: float) -> bool:
    """Return whether rounding in Fourier transforms is no small part of delta."""
    return delta < SURE_DELTA or count_steps(event) * TRANSFORM_LOSS > 1e-3 * delta


def pld_epsilon(interval: float) -> Callable[[dp_accounting.DpEvent, float], float]:
    """Return the accountant by privacy loss distributions in bins of a width."""

    def epsilon(event: dp_accounting.DpEvent, delta: float) -> float:
        # Wider bins for an epsilon in the thousands, which would take billions of them.
        renyi = _rdp(event, delta)
        width = max(interval, WIDEST * renyi)
        if (
            width > 1 or transforms_lose_digits(event, delta) or repeats(event)
        ):  # bins wider than 1 are useless
            return renyi
        return float(_pld_accountant(event, width).get_epsilon(delta))

    return epsilon


@lru_cache(maxsize=4)
def _pld_accountant(event: dp_accounting.DpEvent, width: float) -> PLDAccountant:
    return PLDAccountant(value_discretization_interval=width).compose(event)


def _rdp(event: dp_accounting.DpEvent, delta: float) -> float:
    return float(renyi_accountant(event).get_epsilon(delta))


@lru_cache(maxsize=16)
def renyi_accountant(event: dp_accounting.DpEvent, orders: tuple[float, ...] | None = None) -> RdpAccountant:
    """Return dp_accounting's Renyi accountant after a `run_event`.

    Guarantee: its epsilon is the smallest over orders, so that of any orders is an upper bound, and that of
    more orders is no larger.

    Args:
        event: of a whole run.
        orders: at least one, above 1; None: those of dp_accounting.
    """
    # Orders whose series do not converge are left out, which is safe; the library would log a line for each.
    level = absl.logging.get_verbosity()
    absl.logging.set_verbosity(absl.logging.ERROR)
    try:
        return RdpAccountant(orders).compose(event)
    finally:
        absl.logging.set_verbosity(level)


def _rdp_classic(event: dp_accounting.DpEvent, delta: float) -> float:
    accountant = renyi_accountant(event)
    orders = np.asarray(accountant.orders)
    return float(np.min(np.asarray(accountant.rdp) + math.log(1 / delta) / (orders - 1)))


def renyi_divergences(event: StepEvent) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Returns orders, and the Renyi divergence of one step at each (infinite where its series diverges)."""
    accountant = renyi_accountant(run_event([(event, 1)]))
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
    return orders, np.asarray(renyi_accountant(event).rdp, dtype=np.float64)


ACCOUNTANTS: dict[str, Callable[[dp_accounting.DpEvent, float], float]] = {
    "pld": pld_epsilon(FINE),
    "rdp": _rdp,
    "rdp-classic": _rdp_classic,
}
"""Name -> (event, delta) -> epsilon.

pld: privacy loss distributions, tight, the default. rdp: Renyi, for comparison with papers. rdp-classic:
Renyi with the older and looser conversion o(alpha) + log(1 / delta) / (alpha - 1), as Xu et al. (KDD 2021)
print it.
"""


def epsilon(entries: Entries, delta: float, accountant: str = "pld") -> float:
    """Return the smallest epsilon that the accountant can prove for all the entries together.

    Guarantee: the composed mechanism is (epsilon, delta)-differentially private for datasets that differ in
    one example, added or removed, provided that each entry's steps used independent Poisson samples and
    noise. `equidp.accounting.rows` says the same of several examples of one person.

    | case | epsilon |
    | --- | --- |
    | no steps | 0 |
    | a step without noise | infinite |
    | hardly any noise: epsilon above about 10^5 | Renyi's bound, by any accountant |
    | pld, with a private choice among the entries | Renyi's bound |
    | pld, delta < 10^-10 or near the rounding of so many steps | Renyi's bound |

    Args:
        entries: (step event, number of steps) pairs.
        delta: in (0, 1).
        accountant: a name from `ACCOUNTANTS`.

    Raises:
        SettingError: delta outside (0, 1) or NaN, or an unknown accountant.

    >>> step = StepEvent(sample_rate=0.02, noise_multiplier=1.0)
    >>> round(epsilon([(step, 100)], delta=1e-5, accountant="rdp"), 3)
    1.843
    """
    checked_delta(delta), checked_accountant(accountant)
    return _with_accountant(tuple(entries), delta, accountant)


@lru_cache(maxsize=1024)
def _with_accountant(entries: tuple[tuple[Event, int], ...], delta: float, accountant: str) -> float:
    event = run_event(entries)
    if event == dp_accounting.NoOpDpEvent():
        return 0.0
    return ACCOUNTANTS[accountant](event, delta)


def checked_accountant(accountant: str) -> str:
    """Returns the name, or raises a SettingError that lists the known ones."""
    if accountant not in ACCOUNTANTS:
        raise unknown_name("accountant", accountant, ACCOUNTANTS)
    return accountant


def checked_delta(delta: float) -> float:
    """Returns delta, or raises a SettingError unless it is in (0, 1)."""
    check_number("(0, 1)", ", a probability well below 1 / n", delta=delta)
    return delta
