"""Epsilon of a finished run by dp_accounting alone: for auditors, this file imports nothing of equidp.

    python recompute.py RUN [DELTA]

reads settings.json in the folder of the run, turns each entry into an event of dp_accounting, and prints
epsilon at the run's delta, or at another one.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import absl.logging
import dp_accounting
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

Entry = tuple[Mapping[str, Any], int]
"""An event as settings.json has it, and how often the run spent it."""
Cost = tuple[float, float]
"""Sample rate and noise multiplier of a step, to an example of one group; noise 0: no privacy."""
WORDS = ("spend", "release", "grouped")
"""Kinds of entries: a step, a release, a step by group."""
MOST_COMBINATIONS = 64
"""Combinations of groups that are composed one by one; kinds of steps beyond them are composed whole."""
SURE_DELTA, TRANSFORM_LOSS = 1e-10, 1e-15
"""dp_accounting's Fourier transforms lose about `TRANSFORM_LOSS` of delta a step: below `SURE_DELTA`, or if
that is no small part of delta, privacy losses say too little, and Renyi's bound is taken."""


def read_entries(folder: str | Path) -> tuple[list[Entry], float]:
    """Return the entries of a run, and its delta."""
    settings = json.loads((Path(folder) / "settings.json").read_text())
    return [(event, int(count)) for event, count in settings["entries"]], float(settings["plan"]["delta"])


def recompute_epsilon(entries: Sequence[Entry], delta: float) -> float:
    """Return the epsilon that dp_accounting proves for all entries together, for one example of any group.

    Each step is a Poisson-subsampled Gaussian mechanism, and each release a Gaussian mechanism. Statistics
    and gradient read one sample: together they are one Gaussian mechanism of noise multiplier
    (sigma^-2 + sigma_s^-2)^(-1/2) (Andrew et al. 2021, Theorem 1). Where rates or bounds differ by group,
    epsilon is the largest over the groups that an example may be in.

    Raises:
        ValueError: an entry of no kind, or of several, or a number of times that is none.
    """
    for event, count in entries:
        if len(event) != 1 or next(iter(event)) not in WORDS or count < 0:
            raise ValueError(f"entry {event!r}, {count} times; expected one of {', '.join(WORDS)}.")
    choices: list[list[Cost | None]] = []
    combinations = 1
    for event, _ in entries:
        if "grouped" in event:
            costs = _costs_by_group(event["grouped"])
            if len(costs) * combinations > MOST_COMBINATIONS:
                costs = [_cost(event["grouped"])]
            choices.append(costs)
            combinations *= len(costs)
    return max(_composed_epsilon(entries, costs, delta) for costs in itertools.product(*choices))


def _composed_epsilon(entries: Sequence[Entry], costs: Sequence[Cost | None], delta: float) -> float:
    """Return the epsilon of an example to which the kinds of steps by group have these costs."""
    left = iter(costs)
    events, steps = [], 0
    for event, count in entries:
        made = _step_event(next(left) if "grouped" in event else _cost(next(iter(event.values()))))
        if made is not None and count:
            events.append(dp_accounting.SelfComposedDpEvent(made, count))
            steps += count
    if not events:
        return 0.0
    composed = dp_accounting.ComposedDpEvent(events)
    absl.logging.set_verbosity(absl.logging.ERROR)  # orders that do not converge are left out, which is safe
    by_orders = float(RdpAccountant().compose(composed).get_epsilon(delta))
    width = max(1e-4, 1e-5 * by_orders)  # of the bins of privacy losses; narrower ones would fill memory
    if delta < SURE_DELTA or width > 1 or steps * TRANSFORM_LOSS > 1e-3 * delta:
        return by_orders
    return float(PLDAccountant(value_discretization_interval=width).compose(composed).get_epsilon(delta))


def _costs_by_group(step: Mapping[str, Any]) -> list[Cost | None]:
    """Return what a step costs an example of each group, without costs that are below another's."""
    costs = dict.fromkeys(cost for share in step["by_group"] if (cost := _cost(step, share)) is not None)
    costliest = [
        (rate, noise)
        for rate, noise in costs
        if not any(r >= rate and s <= noise and (r, s) != (rate, noise) for r, s in costs)
    ]
    return [*costliest] or [None]


def _cost(step: Mapping[str, Any], share: Mapping[str, Any] | None = None) -> Cost | None:
    """Return what a step or release costs an example; None: nothing."""
    of = share or {"sample_rate": step["sample_rate"], "bound_share": 1.0, "row_share": 1.0}
    queries = [(of["bound_share"], step["noise_multiplier"])]
    if step["statistics_noise"] is not None:
        queries.append((of["row_share"], step["statistics_noise"]))
    if any(size and not noise for size, noise in queries):
        return float(of["sample_rate"]), 0.0
    precision = sum((size / noise) ** 2 for size, noise in queries if size)
    return (float(of["sample_rate"]), float(precision**-0.5)) if precision and of["sample_rate"] else None


def _step_event(cost: Cost | None) -> dp_accounting.DpEvent | None:
    """Return the Poisson-subsampled Gaussian mechanism of a step or release; None: it costs nothing."""
    if cost is None:
        return None
    rate, noise = cost
    if not noise:
        return dp_accounting.NonPrivateDpEvent()
    return dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))


def main(arguments: Sequence[str]) -> None:
    """Print the epsilon of the run in a folder, or end with what is wrong with the arguments."""
    if len(arguments) not in (1, 2):
        sys.exit("usage: python recompute.py RUN [DELTA]")
    try:
        entries, delta = read_entries(arguments[0])
    except (OSError, ValueError, LookupError, TypeError) as error:
        sys.exit(f"{arguments[0]} holds no settings.json of a run: {type(error).__name__}: {error}")
    try:
        delta = float(arguments[1]) if len(arguments) > 1 else delta
    except ValueError:
        delta = 0.0
    if not 0 < delta < 1:
        sys.exit(f"delta {arguments[-1]}; expected a number between 0 and 1, such as 1e-6")
    print(f"epsilon {recompute_epsilon(entries, delta):.6g} at delta {delta:g}")


if __name__ == "__main__":
    main(sys.argv[1:])
