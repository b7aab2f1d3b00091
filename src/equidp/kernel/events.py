"""From what the ledger says to a dp_accounting event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import dp_accounting

from equidp.kernel.ledger import ChoiceEvent, Event

Entries = Iterable[tuple[Event, int]]
"""(event, number of steps) pairs, as `Ledger.entries` gives them."""


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
