"""Epsilon of what a ledger counts, by events and accountants of dp_accounting."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import product

import absl.logging
import dp_accounting
import numpy as np
import numpy.typing as npt
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from equidp._validate import check_number, check_whole, unknown_name
from equidp.errors import SettingError
from equidp.kernel.ledger import Event, GroupedStepEvent, StepEvent

Entries = Iterable[tuple[Event, int]]
"""(event, number of steps) pairs, as `Ledger.entries` gives them."""
FINE = 1e-4
"""Width of the bins that privacy losses are rounded up to, for final values."""
SURE_DELTA, TRANSFORM_LOSS = 1e-10, 1e-15
"""dp_accounting's Fourier transforms lose about `TRANSFORM_LOSS` of delta a step: below `SURE_DELTA`, or if
that is no small part of delta, PLD says too little, and Renyi's bound is used."""
MOST_COMBINATIONS = 64
"""Combinations of groups that are accounted for one by one; beyond, the largest rate and whole bounds."""
WIDEST = 1e-5
"""Width of the bins over epsilon, for an epsilon in the hundreds: narrower ones would fill memory."""


def effective_noise_multiplier(noise_multiplier: float, statistics_noise: float | None) -> float:
    """Return sigma_eff = (sigma^-2 + sigma_s^-2)^(-1/2), of a gradient and a statistics query on one sample.

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


def checked_entries(entries: Entries) -> tuple[tuple[Event, int], ...]:
    """Return (event, number of steps) pairs as they are; others would be counted as fewer steps, or fail.

    Raises:
        SettingError: says what was given and what was expected.

    >>> checked_entries([(StepEvent(0.02, 1.0), 2.5)])
    Traceback (most recent call last):
    equidp.errors.SettingError: steps=2.5; expected a whole number >= 0.
    """
    pairs = []
    for entry in entries if isinstance(entries, Iterable) else [entries]:
        pair = isinstance(entry, tuple | list) and len(entry) == 2
        if not pair or not isinstance(entry[0], StepEvent):
            raise SettingError(
                f"entries hold {entry!r}; expected (event, number of steps) pairs, such as "
                "[(StepEvent(sample_rate=0.02, noise_multiplier=1.0), 100)].",
                field="entries",
            )
        check_whole(0, steps=entry[1])
        pairs.append((entry[0], int(entry[1])))
    return tuple(pairs)


def count_kinds(entries: Entries) -> Counter[tuple[float, float]]:
    """Return the number of steps by (sample rate, effective noise multiplier), in order."""
    steps: Counter[tuple[float, float]] = Counter()
    for event, count in entries:
        sigma = effective_noise_multiplier(event.noise_multiplier, event.statistics_noise)
        steps[(float(event.sample_rate), sigma)] += count
    return steps


def project_groups(entries: Entries) -> tuple[tuple[tuple[Event, int], ...], ...]:
    """Return what entries cost an example, without groups, for each combination of groups it may be in.

    Formal guarantee: whatever groups an example is in, one for each kind of step, one of the results is at
    least as costly as what the entries cost it, entry by entry and by any accountant.

    A step by group is replaced by what it costs an example of one of its groups (`of_group`), everywhere by
    the same. Groups of two kinds of steps are two groupings, also where they have the same names: a label may
    have changed in between, or mean something else. Steps of one kind, equal in names, rates, bounds and
    noise, have one label for each example: one that is of another group in some of them may pay more than
    in either throughout.

    | case | result |
    | --- | --- |
    | no step by group | the entries alone |
    | another event | counts for every group |
    | a group that costs no more than another of the same step | left out: the other one is there |
    | a group that costs nothing | its steps are left out |
    | more than `MOST_COMBINATIONS` | kinds of steps beyond them, in their order, count at the largest rate
      and the whole bounds; what those before them cost is as without them |

    >>> from equidp.kernel.ledger import GroupShare
    >>> event = GroupedStepEvent(0.2, 1.0, by_group=(GroupShare("a", 0.2, 0.5), GroupShare("b", 0.1)))
    >>> [str(each[0][0]) for each in project_groups([(event, 5)])]
    ['sample rate 0.2, noise multiplier 2', 'sample rate 0.1, noise multiplier 1']
    """
    given = tuple(entries)
    return tuple(replace_events(given, costs) for costs in combine_groups(given))


Costs = Mapping[Event, StepEvent | None]
"""Steps by group -> what each costs an example of one of its groups; None: nothing."""


def combine_groups(entries: Entries) -> tuple[Costs, ...]:
    """Return the costs of all steps by group for each combination of groups; see `project_groups`."""
    grouped = list(dict.fromkeys(event for event, _ in entries if isinstance(event, GroupedStepEvent)))
    choices: list[tuple[StepEvent | None, ...]] = []
    for event in grouped:
        own = _costliest_groups(event)
        if len(own) * math.prod(map(len, choices)) > MOST_COMBINATIONS:
            own = (StepEvent(event.sample_rate, event.noise_multiplier, event.statistics_noise),)
        choices.append(own)
    return tuple(dict(zip(grouped, each, strict=True)) for each in product(*choices))


def replace_events(entries: Entries, costs: Costs) -> tuple[tuple[Event, int], ...]:
    """Replace steps by group by their costs; steps that cost nothing are left out."""
    found = ((costs.get(event, event), count) for event, count in entries)
    return tuple((event, count) for event, count in found if event is not None)


def entries_of_group(entries: Entries, name: str) -> tuple[tuple[Event, int], ...]:
    """Return what entries cost an example that is in the group of this name in every step that has one.

    Steps by group that have no group of this name stay as they are: `epsilon` then takes their largest.
    """
    given = tuple(entries)
    named: dict[Event, StepEvent | None] = {
        event: event.of_group(name)
        for event, _ in given
        if isinstance(event, GroupedStepEvent) and name in [each.name for each in event.by_group]
    }
    return replace_events(given, named)


def _costliest_groups(event: GroupedStepEvent) -> tuple[StepEvent | None, ...]:
    """Costs of a step by group, without those that another group's is no less than in rate and noise."""
    kinds: dict[tuple[float, float], StepEvent] = {}
    for share in event.by_group:
        if (cost := event.of_group(share.name)) is not None:
            noise = effective_noise_multiplier(cost.noise_multiplier, cost.statistics_noise)
            kinds.setdefault((cost.sample_rate, noise), cost)
    costliest = tuple(
        cost
        for (rate, noise), cost in kinds.items()
        if not any(r >= rate and s <= noise and (r, s) != (rate, noise) for r, s in kinds)
    )
    return costliest or (None,)


def largest_over_groups(cost: Callable[[tuple[tuple[Event, int], ...]], float], entries: Entries) -> float:
    """Return the largest cost of entries over the groups that an example may be in (`project_groups`)."""
    return max(map(cost, project_groups(entries)))


def costliest_entries(
    entries: Entries, delta: float, accountant: str = "pld"
) -> tuple[tuple[Event, int], ...]:
    """Return the entries, without groups, of the combination of groups whose epsilon is the largest."""
    return max(project_groups(entries), key=lambda each: epsilon(each, delta, accountant))


def run_event(entries: Entries) -> dp_accounting.DpEvent:
    """Return the event of a whole run, for one example added or removed.

    For each kind of step it is a Poisson-subsampled Gaussian, self-composed.

    | case | event |
    | --- | --- |
    | a step by group | that of its largest rate and the whole bounds; `project_groups` has one a group |
    | no step | NoOpDpEvent |
    | a step without noise | contains NonPrivateDpEvent: epsilon is infinite |
    | the same kind in several entries | counted together, so their order does not matter |
    | whole-number multipliers | made floats: dp_accounting 0.6.0 misreads others in composed events |
    """
    kinds = count_kinds(entries)
    return compose_events([_steps_event(*kind, steps) for kind, steps in kinds.items() if steps])


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
        if width > 1 or transforms_lose_digits(event, delta):  # bins wider than 1 are useless
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
    """Return orders, and the Renyi divergence of one step at each (infinite where its series diverges)."""
    accountant = renyi_accountant(run_event([(event, 1)]))
    return np.asarray(accountant.orders, dtype=np.float64), np.asarray(accountant.rdp, dtype=np.float64)


@lru_cache(maxsize=1024)
def renyi_of(
    entries: tuple[tuple[Event, int], ...],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return orders, and the Renyi divergence of all entries together at each: it adds up, order by order.

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
    | steps by group | the largest over the groups that an example may be in (`project_groups`) |
    | a step without noise | infinite |
    | hardly any noise: epsilon above about 10^5 | Renyi's bound, by any accountant |
    | pld, delta < 10^-10 or near the rounding of so many steps | Renyi's bound |

    Args:
        entries: (step event, number of steps) pairs.
        delta: in (0, 1).
        accountant: a name from `ACCOUNTANTS`.

    Raises:
        SettingError: delta outside (0, 1) or NaN, an unknown accountant, or entries that are no such pairs.

    >>> step = StepEvent(sample_rate=0.02, noise_multiplier=1.0)
    >>> round(epsilon([(step, 100)], delta=1e-5, accountant="rdp"), 3)
    1.843
    """
    checked_delta(delta), checked_accountant(accountant)
    entries = checked_entries(entries)
    return largest_over_groups(lambda each: _with_accountant(each, delta, accountant), entries)


def epsilon_of_group(entries: Entries, name: str, delta: float, accountant: str = "pld") -> float:
    """Return the epsilon of an example that is in the group of this name in every step that has one.

    Guarantee: that of `epsilon`, for datasets that differ in one such example, added or removed. It is known
    before the first step, and at most `epsilon`.

    >>> from equidp.kernel.ledger import GroupShare
    >>> event = GroupedStepEvent(0.02, 1.0, by_group=(GroupShare("a", 0.02), GroupShare("b", 0.0)))
    >>> epsilon_of_group([(event, 100)], "a", 1e-5) == epsilon([(event, 100)], 1e-5)
    True
    >>> epsilon_of_group([(event, 100)], "b", 1e-5)
    0.0
    """
    given = tuple(entries)
    own = entries_of_group(given, name)
    found = epsilon(own, delta, accountant)
    return found if own == given else min(found, epsilon(given, delta, accountant))


@lru_cache(maxsize=1024)
def _with_accountant(entries: tuple[tuple[Event, int], ...], delta: float, accountant: str) -> float:
    event = run_event(entries)
    if event == dp_accounting.NoOpDpEvent():
        return 0.0
    return ACCOUNTANTS[accountant](event, delta)


def checked_accountant(accountant: str) -> str:
    """Return the name, or raise a SettingError that lists the known ones."""
    if accountant not in ACCOUNTANTS:
        raise unknown_name("accountant", accountant, ACCOUNTANTS)
    return accountant


def checked_delta(delta: float) -> float:
    """Return delta, or raise a SettingError unless it is in (0, 1)."""
    check_number("(0, 1)", ", a probability well below 1 / n", delta=delta)
    return delta
