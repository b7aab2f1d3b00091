"""Epsilon of a whole run, by accountants that dp_accounting keeps."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import absl.logging
import dp_accounting
import numpy as np
import numpy.typing as npt
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from equidp._validate import check_number, unknown_name
from equidp.kernel.events import Entries, repeats, run_event
from equidp.kernel.ledger import Event, StepEvent

FINE = 1e-4
"""Width of the bins that privacy losses are rounded up to, for final figures."""

SURE_DELTA, TRANSFORM_LOSS = 1e-10, 1e-15
"""dp_accounting's Fourier transforms lose about `TRANSFORM_LOSS` of delta a step: below `SURE_DELTA`, or if
that is no small part of delta, PLD says too little, and Renyi's bound is used."""


WIDEST = 1e-5
"""Width of the bins over epsilon, for an epsilon in the hundreds: narrower ones would fill memory."""


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
def renyi_accountant(event: dp_accounting.DpEvent) -> RdpAccountant:
    """Return dp_accounting's Renyi accountant after a `run_event`."""
    # Orders whose series do not converge are left out, which is safe; the library would log a line for each.
    level = absl.logging.get_verbosity()
    absl.logging.set_verbosity(absl.logging.ERROR)
    try:
        return RdpAccountant().compose(event)
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
