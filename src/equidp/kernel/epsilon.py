"""Epsilon of a ledger's events, by label, with the accountants of dp_accounting.

Each example has one label in each column of labels. For that example, an event is one Poisson-subsampled
Gaussian mechanism (`Event.cost`), so whole runs are a composition of such mechanisms. A bound for every label
of a column is a bound for every example. If events have labels of several columns, each column gives such a
bound, and the smallest counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache

import absl.logging
import dp_accounting
import numpy as np
import numpy.typing as npt
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant, compute_epsilon

from equidp._validate import check_number, check_whole, unknown_name
from equidp.errors import SettingError
from equidp.kernel.event import Cost, Entries, Event, EventCounts, Label

FINE = 1e-4
"""Width of the bins to which privacy losses are rounded up, for final values."""
SURE_DELTA, TRANSFORM_LOSS = 1e-10, 1e-15
"""dp_accounting's Fourier transforms lose about `TRANSFORM_LOSS` of delta per step. If delta is below
`SURE_DELTA`, or the loss is not small compared with delta, PLD may report too small an epsilon, so Renyi's
bound is used."""
WIDEST = 1e-5
"""Bin width divided by epsilon, for an epsilon in the hundreds; narrower bins would fill the memory."""


def epsilon(entries: Entries, delta: float, accountant: str = "pld", label: Label | None = None) -> float:
    """Return the smallest epsilon that the accountant can prove for all entries together.

    Guarantee: the composed mechanism is (epsilon, delta)-differentially private for datasets that differ in
    one example, added or removed, provided that each entry's steps used independent Poisson samples and
    noise. `equidp.accounting.rows` covers several examples of one person.

    | case | epsilon |
    | --- | --- |
    | no steps | 0 |
    | a label | for an example with this label; other columns' events at the largest rate, whole bounds |
    | no label | for any example: the largest over a column's labels; with several columns, the smallest |
    | a step without noise | infinite |
    | hardly any noise: epsilon above about 10^5 | Renyi's bound, with any accountant |
    | pld, delta < 10^-10 or near the rounding error of this many steps | Renyi's bound |
    | pld, if Renyi's bound is smaller | Renyi's bound |

    Args:
        entries: (event, count) pairs.
        delta: delta in (0, 1).
        accountant: name from `ACCOUNTANTS`.
        label: label of the example. None: any example.

    Raises:
        SettingError: delta is NaN or outside (0, 1), the accountant is unknown, or entries are not such
            pairs.

    >>> round(epsilon([(Event(rate=0.02, noise=1.0), 100)], delta=1e-5, accountant="rdp"), 3)
    1.843
    """
    checked_delta(delta), checked_accountant(accountant)
    given = checked_entries(entries)

    def of_label(each: Label | None) -> float:
        return _epsilon(mechanism(given, each), delta, accountant)

    return of_label(label) if label is not None else over_labels(given, of_label)[0]


def mechanism(entries: Entries, label: Label | None = None) -> dp_accounting.DpEvent:
    """Return all entries as one dp_accounting event, for an example of a label, added or removed.

    Each cost becomes a self-composed Poisson-subsampled Gaussian mechanism, so the order of equal entries
    does not matter.

    | case | event |
    | --- | --- |
    | no step, or none that costs the label anything | NoOpDpEvent |
    | a step without noise | contains NonPrivateDpEvent: epsilon is infinite |
    """

    def repeated(cost: Cost, count: int) -> dp_accounting.DpEvent:
        if not cost.noise:
            return dp_accounting.NonPrivateDpEvent()
        sampled = dp_accounting.PoissonSampledDpEvent(cost.rate, dp_accounting.GaussianDpEvent(cost.noise))
        return dp_accounting.SelfComposedDpEvent(sampled, count)

    return compose_events([repeated(cost, count) for cost, count in count_costs(entries, label).items()])


def count_costs(entries: Entries, label: Label | None = None) -> Counter[Cost]:
    """Return how often an example of a label pays each cost, in order, without events that cost nothing."""
    counts: Counter[Cost] = Counter()
    for event, count in entries:
        if count and (cost := event.cost(label)).rate:
            counts[cost] += int(count)
    return counts


def compose_events(events: list[dp_accounting.DpEvent]) -> dp_accounting.DpEvent:
    """Return one hashable event for all of them together."""
    if not events:
        return dp_accounting.NoOpDpEvent()
    return events[0] if len(events) == 1 else dp_accounting.ComposedDpEvent(tuple(events))


def over_labels(entries: Entries, value: Callable[[Label | None], float]) -> tuple[float, Label | None]:
    """Return the value that holds for every example, computed from a value per label, and its label.

    For each column it is the largest value over its labels. With several columns it is the smallest of these.
    Without columns it is the value of None. Events without the name of their column may have different
    columns.
    """
    columns: dict[str, dict[Label, None]] = {}
    nameless = {event for event, _ in entries if event.shares and not event.column}
    for event, _ in entries:
        for label in event.labels if event.column or len(nameless) == 1 else ():
            columns.setdefault(label.column, {})[label] = None
    if not columns:
        return value(None), None
    return min(max((value(label), label) for label in labels) for labels in columns.values())


Numbers = npt.NDArray[np.float64]


def renyi_divergences(
    event: dp_accounting.DpEvent, orders: tuple[float, ...] | None = None
) -> tuple[Numbers, Numbers]:
    """Return orders and the Renyi divergence of a `mechanism` at each, [orders]. None: the library's orders.

    Guarantee: for any set of orders, the smallest epsilon over them is an upper bound. More orders never make
    it larger.
    """
    parts = getattr(event, "events", (event,))
    found = [_renyi_accountant(getattr(each, "event", each), orders) for each in parts]
    counts = [getattr(each, "count", 1) for each in parts]
    return found[0].orders, sum(count * each.rdp for count, each in zip(counts, found, strict=True))


@lru_cache(maxsize=64)
def _renyi_accountant(event: dp_accounting.DpEvent, orders: tuple[float, ...] | None) -> RdpAccountant:
    # Orders whose series do not converge are left out, which is safe; the library would log a line for each.
    level = absl.logging.get_verbosity()
    absl.logging.set_verbosity(absl.logging.ERROR)
    try:
        return RdpAccountant(orders).compose(event)
    finally:
        absl.logging.set_verbosity(level)


def pld_epsilon(event: dp_accounting.DpEvent, delta: float, interval: float = FINE) -> float:
    """Return epsilon by privacy loss distributions with a bin width; Renyi's bound if that is smaller."""
    renyi = _rdp(event, delta)
    width = max(interval, WIDEST * renyi)  # narrower bins would fill memory
    if width > 1 or transforms_lose_digits(event, delta):  # bins wider than 1 are useless
        return renyi
    return min(renyi, float(_pld_accountant(event, width).get_epsilon(delta)))


@lru_cache(maxsize=4)
def _pld_accountant(event: dp_accounting.DpEvent, width: float) -> PLDAccountant:
    return PLDAccountant(value_discretization_interval=width).compose(event)


def count_steps(event: dp_accounting.DpEvent) -> int:
    """Return the number of steps of a `mechanism`."""
    return sum(getattr(each, "count", 0) for each in getattr(event, "events", [event]))


def transforms_lose_digits(event: dp_accounting.DpEvent, delta: float) -> bool:
    """Return whether rounding in Fourier transforms is not small compared with delta."""
    return delta < SURE_DELTA or count_steps(event) * TRANSFORM_LOSS > 1e-3 * delta


def _rdp(event: dp_accounting.DpEvent, delta: float) -> float:
    return float(compute_epsilon(*renyi_divergences(event), delta)[0])


def _rdp_classic(event: dp_accounting.DpEvent, delta: float) -> float:
    orders, divergences = renyi_divergences(event)
    return float(np.min(divergences + math.log(1 / delta) / (orders - 1)))


ACCOUNTANTS: dict[str, Callable[[dp_accounting.DpEvent, float], float]] = {
    "pld": pld_epsilon,
    "rdp": _rdp,
    "rdp-classic": _rdp_classic,
}
"""Name -> (event, delta) -> epsilon.

pld: privacy loss distributions, tight, the default. rdp: Renyi, for comparison with papers. rdp-classic:
Renyi with the older and looser conversion o(alpha) + log(1 / delta) / (alpha - 1), printed by Xu et al. (KDD
2021).
"""


@lru_cache(maxsize=1024)
def _epsilon(event: dp_accounting.DpEvent, delta: float, accountant: str) -> float:
    if event == dp_accounting.NoOpDpEvent():
        return 0.0
    return ACCOUNTANTS[accountant](event, delta)


def checked_entries(entries: Entries) -> EventCounts:
    """Return (event, count) pairs, or raise a SettingError: otherwise half a step would count as none.

    >>> checked_entries([(Event(0.02, 1.0), 2.5)])
    Traceback (most recent call last):
    equidp.errors.SettingError: steps=2.5; expected a whole number >= 0.
    """
    pairs = tuple(entries) if isinstance(entries, Iterable) else (entries,)
    for pair in pairs:
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], Event)):
            raise SettingError(
                f"entries hold {pair!r}; expected (event, number of steps) pairs, such as "
                "[(Event(rate=0.02, noise=1.0), 100)].",
                field="entries",
            )
        check_whole(0, steps=pair[1])
    return tuple((event, int(count)) for event, count in pairs)


def checked_accountant(accountant: str) -> str:
    """Return the name, or raise a SettingError that lists the known ones."""
    if accountant not in ACCOUNTANTS:
        raise unknown_name("accountant", accountant, ACCOUNTANTS)
    return accountant


def checked_delta(delta: float) -> float:
    """Return delta, or raise a SettingError unless it is in (0, 1)."""
    check_number("(0, 1)", ", a probability well below 1 / n", delta=delta)
    return delta
