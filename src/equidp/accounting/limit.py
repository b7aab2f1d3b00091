"""Limits on epsilon over several runs, also where later runs are chosen by results of earlier ones.

**Stated** is what is known before the first result: the whole plan of the first run, or of several runs. It
is counted whole, used or not, and by the accountant of the limit as any plan is. **All else** may be chosen
by what came out so far, and privacy loss distributions do not add up then: an analyst who goes on with heavy
tails where the loss so far is high exceeds delta. Renyi divergences do add up, at an order that is fixed
before the first result (Feldman and Zrnic 2021, theorem 3.1). Two routes lead through the limit (`Route`):

*Alone.* At one order a, the divergences of all that was spent add up to at most r. All of it together then
has a Renyi divergence of at most r at order a, however it was chosen, and so is (epsilon, d)-private with
epsilon = r + log(1 - 1/a) - log(d a) / (a - 1) (Canonne, Kamath and Steinke 2020, proposition 12).

*Beside.* What was stated is used in any order, in whole or in part; beside it, before, between and after, the
divergences of all else add up to at most r at one order a. Then delta at epsilon is at most

    E D(epsilon - r - log(1 - 1/a) - X),  X exponential with mean 1 / (a - 1),

where D is the hockey-stick divergence of all that was stated, the larger of both directions.

Proof. Let G(t) be the largest hockey-stick divergence at t, sup P(A) - t Q(A), of mechanisms of divergence at
most r at order a. It is convex in t, G(0) = 1, and at most (1/a) ((1 - 1/a) e^r / t)^(a-1); so it is at most
the convex envelope of both, which is the mean of (1 - t / k)+ over k = (1 - 1/a) e^r e^X. Let S be the loss
of all that was stated, by its dominating pair. By induction from the end, whatever loss x there is so far,
delta of the rest is at most W = E G(e^(epsilon - x - S)), with S of what is left of the stated:

1. It ends: (1 - t)+ <= E (1 - t e^-S)+ <= W, since E e^-S <= 1 and (1 - t)+ is convex.
2. A stated mechanism: W is convex in e^-x, so its loss may be replaced by that of its dominating pair (Zhu,
   Dong and Wang 2022); which of the stated ones comes first does not matter, since their losses are added.
3. Another mechanism of divergence r': followed by one of r - r' it has at most r at order a, so that the mean
   of G for r - r' is at most G for r.

The formula is E G with the mean over k outside.

*Both routes.* Shares of delta, fixed with the orders, add up to 1. Every course of events that stays within
either route is counted by one of them, so the whole is (epsilon, delta)-private (a union bound). Orders and
shares follow from epsilon, delta and what was stated, and from no result.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter

from equidp.accounting.privacy_losses import has_profile, privacy_profile
from equidp.kernel.epsilon import (
    Costs,
    Entries,
    combine_groups,
    effective_noise_multiplier,
    epsilon as epsilon_of,
    renyi_of,
    replace_events,
    run_event,
)
from equidp.kernel.ledger import Event, GroupedStepEvent, StepEvent, kind_of

Floats = npt.NDArray[np.float64]
EventCounts = tuple[tuple[Event, int], ...]
"""(event, number of steps) pairs."""

_MAIN_SHARE = 0.9
"""Share of delta for the route beside what was stated; the rest is for the route alone, which takes less
epsilon where much of what was stated is not used in the end."""
_ORDERS = 1.5, 64.0
"""Least and largest Renyi order to choose from."""
_USUAL = StepEvent(0.05, 1.0)
"""Step that the order is chosen for where nothing was stated."""
_FROM, _STEP = -40.0, 1e-3
"""Least privacy loss of the grid, and its spacing."""


class Route(NamedTuple):
    """One way to count what may have been chosen by results.

    Attributes:
        order: of the Renyi divergence, fixed before the first result.
        base: epsilon where the divergence is 0.
        beside: True where the stated steps count in `base`; False where their divergence adds to that of all
            other steps.
        share: share of delta that the route uses.
    """

    order: float
    base: float
    beside: bool
    share: float

    def epsilon(self, spent: EventCounts, stated: EventCounts) -> float:
        """Epsilon by this route."""
        counted = unstated_entries(spent, stated) if self.beside else spent
        orders, divergences = renyi_of(counted)
        return self.base + float(divergences[orders == self.order][0])


@dataclass(frozen=True)
class Limit:
    """The most that all runs together may spend, by one accountant.

    Attributes:
        epsilon, delta: limit on all runs together.
        accountant: a name from `ACCOUNTANTS`, for the stated steps. "pld" allows both routes; any other
            allows the route alone only.
        stated: (event, number) pairs that were stated before the first result; None: there is no result yet,
            and all steps count as stated.
        fixed: the routes, where they are fixed already; None: they are worked out each time, as they are for
            stated steps by group, by each combination of groups.

    >>> from equidp.kernel.ledger import StepEvent
    >>> event = StepEvent(sample_rate=0.02, noise_multiplier=1.0)
    >>> Limit(3.0, 1e-5, "rdp", stated=None).most_steps((), event, 10_000)
    447
    >>> first = ((event, 100),)
    >>> Limit(3.0, 1e-5, "rdp", stated=first).most_steps(first, event, 10_000) + 100
    447
    """

    epsilon: float
    delta: float
    accountant: str
    stated: EventCounts | None = ()
    fixed: tuple[Route, ...] | None = None

    def compute_epsilon(self, entries: Entries, delta: float | None = None) -> float:
        """Return epsilon of all these steps, at the limit's delta or another.

        Of steps by group it is the largest over the groups that an example may be in: the guarantee is to
        one example, and what it was stated to pay, what it paid and its routes are by the same groups. Steps
        that were stated come first, so that what they cost, and with it the routes, does not follow from
        later ones (`combine_groups`).
        """
        whole, delta = merge_entries(*entries), self.delta if delta is None else delta
        return max(
            self._of_groups(costs)._compute_of_one(replace_events(whole, costs), delta)
            for costs in combine_groups((*self._stated, *whole))
        )

    def _of_groups(self, costs: Costs) -> Limit:
        """The limit of an example whose steps by group have these costs."""
        stated = replace_events(self._stated, costs)
        return self if stated == self._stated else replace(self, stated=stated, fixed=None)

    def _compute_of_one(self, whole: EventCounts, delta: float) -> float:
        if self.stated is None or not unstated_entries(whole, self.stated):
            return epsilon_of(whole, delta, self.accountant)
        known = (
            self.routes
            if delta == self.delta
            else find_routes(self._stated, self.epsilon, delta, self.accountant)
        )
        return min(route.epsilon(whole, self._stated) for route in known)

    def holds(self, entries: Entries) -> bool:
        """True where all these steps stay within the limit."""
        return self.compute_epsilon(entries) <= float(self.epsilon)

    @property
    def routes(self) -> tuple[Route, ...]:
        """Routes through the limit; what is spent must stay within one of them."""
        return self.fixed or find_routes(self._stated, self.epsilon, self.delta, self.accountant)

    @property
    def _stated(self) -> EventCounts:
        return self.stated or ()

    def most_steps(self, spent: Entries, event: Event, steps: int) -> int:
        """The largest number of steps, up to `steps`, that fits beside what was spent; 0: not even one."""

        def fits(number: int) -> bool:
            return not number or self.holds((*spent, (event, number)))

        if fits(steps):
            return steps
        # Renyi accounting is cheap and hardly ever below PLD: begin with what fits by it.
        low, high = self.steps_by_renyi(spent, event, steps), steps
        while not fits(low):
            low, high = low - 1, low
        step = 1 + low // 16
        while low + step < high and fits(low + step):
            low, step = low + step, 2 * step
        candidates = range(low + 1, min(high, low + step))
        return low + bisect_left(candidates, True, key=lambda number: not fits(number))

    def steps_by_renyi(self, spent: Entries, event: Event, steps: int) -> int:
        """Quickly, a number of steps up to `steps` that fits, or one more: the most by Renyi accounting."""
        quick = self
        if self.stated is None and self.accountant == "pld":
            quick = Limit(self.epsilon, self.delta, "rdp", None)
        return bisect_left(
            range(1, steps + 1), True, key=lambda number: not quick.holds((*spent, (event, number)))
        )


@lru_cache(maxsize=64)
def find_routes(stated: EventCounts, epsilon: float, delta: float, accountant: str) -> tuple[Route, ...]:
    """Return the routes after the stated steps, each at the order at which these would fit most often."""
    if accountant == "pld" and has_profile(run_event(stated), delta):
        both = (
            _route_beside(stated, epsilon, delta, _MAIN_SHARE),
            _route_alone(stated, epsilon, delta, 1 - _MAIN_SHARE),
        )
        if both[0].base <= epsilon:
            return both
        if (all_of_delta := _route_beside(stated, epsilon, delta, 1.0)).base <= epsilon:
            return (all_of_delta,)
        taken = float(_profile(stated, epsilon, np.array([epsilon]))[0])  # by what was stated, and no more
        return (_route_alone(stated, epsilon, delta, max(1 - taken / delta, 1e-9)),)
    return (_route_alone(stated, epsilon, delta, 1.0, classic=accountant == "rdp-classic", fitting=True),)


def _route_alone(
    stated: EventCounts,
    epsilon: float,
    delta: float,
    share: float,
    *,
    classic: bool = False,
    fitting: bool = False,
) -> Route:
    """Return the route alone, by Renyi divergences of all steps.

    Args:
        fitting: True where all of delta is for this route, so that the stated steps must fit by it; where
            they fit at no order, no other step fits.
    """
    orders, divergences, usable = _candidate_orders(stated)
    bases = np.log(1 / (share * delta)) / (orders - 1)
    if not classic:
        bases += np.log1p(-1 / orders) - np.log(orders) / (orders - 1)
    fits = divergences <= epsilon - bases
    if fitting and stated and not (usable & fits).any():
        usable = np.isfinite(divergences)
        if not (usable & fits).any():  # delta is taken by what was stated, so that nothing fits beside it
            bases = np.maximum(bases, np.nextafter(float(epsilon), math.inf))
    if fitting and (usable & fits).any():
        usable = usable & fits
    return _best_route(orders, bases, divergences, usable, epsilon, beside=False, share=share)


def _route_beside(stated: EventCounts, epsilon: float, delta: float, share: float) -> Route:
    orders, divergences, usable = _candidate_orders(stated)
    step = max(_STEP, 1e-4 * epsilon)
    places = np.arange(_FROM, epsilon + 1, step)
    deltas = _profile(stated, epsilon, places)
    bases = np.full(len(orders), math.inf)
    for number in np.flatnonzero(usable):
        order = orders[number]
        kept = math.exp(-(order - 1) * step)
        # F(y) = E D(y - X) at y + step is at most (1 - kept) D(y) + kept F(y), since D never rises.
        means = lfilter([0.0, 1 - kept], [1.0, -kept], deltas - 1.0) + 1.0
        enough = np.flatnonzero(means <= share * delta)
        if len(enough):
            bases[number] = places[enough[0]] + math.log1p(-1 / order)
    return _best_route(orders, bases, divergences, usable, epsilon, beside=True, share=share)


def _candidate_orders(stated: EventCounts) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
    """Return Renyi orders, divergences of the stated steps or of `_USUAL`, and which orders are usable."""
    orders, divergences = renyi_of(stated or ((_USUAL, 1),))
    usable = (orders >= _ORDERS[0]) & (orders <= _ORDERS[1])
    return orders, divergences, usable & np.isfinite(divergences)


def _best_route(
    orders: Floats,
    bases: Floats,
    divergences: Floats,
    usable: npt.NDArray[np.bool_],
    epsilon: float,
    *,
    beside: bool,
    share: float,
) -> Route:
    """Return the route whose order lets the stated steps fit most often; if none does, of least epsilon."""
    with np.errstate(invalid="ignore"):
        room = np.where(usable, (epsilon - bases) / divergences, -math.inf)
    if math.isinf(epsilon) or not room.max() > 0:
        room = np.where(usable, -(bases + divergences), -math.inf)
    best = int(np.argmax(room))
    return Route(float(orders[best]), float(bases[best]), beside, share)


def _profile(stated: EventCounts, epsilon: float, places: Floats) -> Floats:
    usual = epsilon if math.isfinite(epsilon) else 1.0
    return privacy_profile(run_event(stated), places, usual)


def merge_entries(*entries: tuple[Event, int]) -> EventCounts:
    """Merge equal events, so that equal totals have one cache entry.

    >>> from equidp.kernel.ledger import StepEvent
    >>> event = StepEvent(sample_rate=0.02, noise_multiplier=1.0)
    >>> merge_entries((event, 1), (event, 2)) == ((event, 3),)
    True
    """
    counts: dict[Event, int] = {}
    for event, steps in entries:
        counts[kind_of(event)] = counts.get(kind_of(event), 0) + steps
    return tuple((event, steps) for event, steps in counts.items() if steps)


def unstated_entries(spent: EventCounts, stated: EventCounts) -> EventCounts:
    """Return the steps of each event that were spent beyond those stated.

    Steps of equal sample rate and noise are the same mechanism. A step of another mechanism never counts as a
    stated one, even if it costs less: which of the stated steps it used up would follow from later results,
    and the proof would not hold.

    >>> from equidp.kernel.ledger import ReleaseEvent
    >>> one, other = StepEvent(0.02, 1.0), StepEvent(0.02, 2.0)
    >>> unstated_entries(((one, 5), (other, 1)), ((one, 3), (other, 4))) == ((one, 2),)
    True
    >>> unstated_entries(((ReleaseEvent(1.0, 9.0, name="fit"), 3),), ((StepEvent(1.0, 9.0), 2),))[0][1]
    1
    >>> unstated_entries(((StepEvent(0.01, 1.5), 3),), ((one, 2),)) == ((StepEvent(0.01, 1.5), 3),)
    True
    """
    left: dict[Event | tuple[float, float], int] = {}
    for event, steps in stated:
        left[_mechanism(event)] = left.get(_mechanism(event), 0) + steps
    more = []
    for event, steps in spent:
        taken = min(steps, left.get(_mechanism(event), 0))
        if taken:
            left[_mechanism(event)] -= taken
        more.append((event, steps - taken))
    return tuple((event, steps) for event, steps in more if steps)


def _mechanism(event: Event) -> Event | tuple[float, float]:
    """Key of an event's mechanism: equal for events of the same mechanism."""
    if isinstance(event, GroupedStepEvent):
        return event
    noise = effective_noise_multiplier(event.noise_multiplier, event.statistics_noise)
    return float(event.sample_rate), noise


BySession = Mapping[str, Mapping[Event, int]]


def uncharged_entries(known: BySession, counted: BySession) -> tuple[tuple[Event, int, str], ...]:
    """Return (event, steps, session) of steps that `counted` holds beyond `known`, session by session.

    Steps are not compared in total, since steps of another run with the same settings would hide missing
    steps of this one. Releases are compared by the id of their payment, for the same reason.

    >>> from equidp.kernel.ledger import StepEvent
    >>> event = StepEvent(sample_rate=0.02, noise_multiplier=1.0)
    >>> budget, run = {"other": {event: 9}, "this": {event: 1}}, {"this": {event: 3}}
    >>> uncharged_entries(budget, run) == ((event, 2, "this"),)
    True
    """
    return tuple(
        (event, steps - known.get(session, {}).get(event, 0), session)
        for session, spent in counted.items()
        for event, steps in spent.items()
        if steps > known.get(session, {}).get(event, 0)
    )
