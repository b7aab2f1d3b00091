"""Epsilon for replacing one example by another, instead of adding or removing one."""

from __future__ import annotations

import math

from equidp.kernel.epsilon import checked_delta, checked_entries, epsilon
from equidp.kernel.event import Entries

_MOST_ROUNDS, _SLACK = 60, 1e-3
_LARGEST = 600.0
"""Epsilon of adding or removing one beyond which no delta leaves room for the other."""


def replacement_epsilon(entries: Entries, delta: float, accountant: str = "pld") -> float:
    """Return an epsilon that holds for datasets in which one example was replaced by another.

    To replace an example is to remove one and to add one. If (e, d) holds for each, (2 e, d (1 + exp(e)))
    holds for both together (Vadhan 2017, Lemma 2.2). d is chosen so that this delta is the requested one.
    This is an upper bound for any mechanism. A Gaussian without sampling has less.

    Arguments are as in `epsilon`. The result is infinite if none was found, at 1,200 at the latest.

    >>> from equidp.kernel.event import Event
    >>> entries = [(Event(rate=0.02, noise=1.0), 100)]
    >>> 2 * epsilon(entries, 1e-5, "rdp") < replacement_epsilon(entries, 1e-5, "rdp") < 5.2
    True
    """
    checked_delta(delta)
    given, exponent = checked_entries(entries), math.log(2.0)  # where epsilon is 0
    for _ in range(_MOST_ROUNDS):
        smaller = delta * math.exp(-exponent)
        single = epsilon(given, smaller, accountant) if smaller > 0 else math.inf
        if not single < _LARGEST:
            return math.inf
        needed = math.log1p(math.exp(single))
        if exponent >= needed:
            return 2 * single
        exponent = needed + _SLACK
    return math.inf
