"""Renyi divergences at one order: they add up, even if a run depends on the results of earlier runs.

Source: Feldman and Zrnic 2021, Theorem 3.1.
"""

from __future__ import annotations

import math
from functools import lru_cache

from equidp.kernel.epsilon import count_costs, mechanism, over_labels, renyi_divergences
from equidp.kernel.event import Cost, Entries, Event, Label

_ORDERS: tuple[float, ...] = (
    *(float(1 + 0.05 * 1.12**k) for k in range(45)),
    *map(float, range(9, 65)),
    *(float(round(64 * 1.12**k)) for k in range(1, 25)),
)
"""Orders to choose from."""


def renyi_epsilon(entries: Entries, order: float, delta: float) -> float:
    """Return epsilon of entries by their divergence at one order, or 0 for nothing.

    Source: Canonne, Kamath and Steinke 2020, Proposition 12.

    >>> round(renyi_epsilon([(Event(1.0, 2.0), 4)], order=2.0, delta=1e-5), 3)
    11.127
    """
    divergence, _ = _largest_divergence(entries, order)
    found = divergence + _base(order, delta)
    return 0.0 if not divergence or found < 0 else found


def renyi_code(entries: Entries, order: float, delta: float) -> str:
    """Return an expression of dp_accounting with the value of `renyi_epsilon`, for checks."""
    given = tuple(entries)
    _, label = _largest_divergence(given, order)
    return f"RdpAccountant([{order!r}]).compose({mechanism(given, label)}).get_epsilon({delta!r})"


def best_order(plan: Entries, limit: tuple[float, float] | None, delta: float) -> float:
    """Return the order at which a plan fits a limit most often; without a limit, that of least epsilon."""

    def value(order: float) -> float:
        divergence, _ = _largest_divergence(plan, order)
        if limit is None or math.isinf(limit[0]):
            return -divergence - _base(order, delta if limit is None else limit[1])
        return (limit[0] - _base(order, limit[1])) / divergence if divergence else 0.0

    return max(_ORDERS, key=value)


def _largest_divergence(entries: Entries, order: float) -> tuple[float, Label | None]:
    """Return the divergence of all entries to the example that pays most, and its label."""
    given = tuple(entries)

    def of_label(label: Label | None) -> float:
        return sum(count * _divergence(cost, order) for cost, count in count_costs(given, label).items())

    return over_labels(given, of_label)


@lru_cache(maxsize=1024)
def _divergence(cost: Cost, order: float) -> float:
    return float(renyi_divergences(mechanism([(Event(*cost), 1)]), (order,))[1][0])


def _base(order: float, delta: float) -> float:
    """Epsilon of a divergence of almost 0 at an order."""
    return math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
