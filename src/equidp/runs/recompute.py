"""Epsilon of a finished run by dp_accounting alone: for auditors, this file imports nothing of equidp.

    python recompute.py RUN [DELTA]

reads settings.json in the folder of the run, turns each entry into an event of dp_accounting, and prints
epsilon at the run's delta, or at another one.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import absl.logging
import dp_accounting
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

Entry = tuple[Mapping[str, Any], int]
"""An event as settings.json has it, and how often the run spent it."""
MOST_COMBINATIONS = 64
"""Combinations of groups that are composed one by one; beyond them, whole steps are composed."""


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
    """
    grouped = [event["grouped"] for event, _ in entries if "grouped" in event]
    combinations: Iterable[tuple[Mapping[str, Any] | None, ...]] = itertools.product(
        *(event["by_group"] for event in grouped)
    )
    if _count(grouped) > MOST_COMBINATIONS:
        combinations = [(None,) * len(grouped)]
    return max(_epsilon_of_groups(entries, list(shares), delta) for shares in combinations)


def _count(grouped: Sequence[Mapping[str, Any]]) -> int:
    count = 1
    for event in grouped:
        count *= len(event["by_group"])
    return count


def _epsilon_of_groups(
    entries: Sequence[Entry], shares: list[Mapping[str, Any] | None], delta: float
) -> float:
    """Return the epsilon of an example that is in one given group of each kind of step by group."""
    left = iter(shares)
    events, has_choice = [], False
    for event, count in entries:
        share = next(left) if "grouped" in event else None
        has_choice |= "choice" in event
        made = _event_of(event, share)
        if made is not None and count:
            events.append(dp_accounting.SelfComposedDpEvent(made, count))
    if not events:
        return 0.0
    composed = dp_accounting.ComposedDpEvent(events)
    absl.logging.set_verbosity(absl.logging.ERROR)  # orders that do not converge are left out, which is safe
    by_orders = float(RdpAccountant().compose(composed).get_epsilon(delta))
    width = max(1e-4, 1e-5 * by_orders)  # of the bins of privacy losses; narrower ones would fill memory
    if has_choice or width > 1:
        return by_orders
    return float(PLDAccountant(value_discretization_interval=width).compose(composed).get_epsilon(delta))


def _event_of(
    event: Mapping[str, Any], share: Mapping[str, Any] | None = None
) -> dp_accounting.DpEvent | None:
    """Return the event of an entry, for an example of a group's share of it; None: it costs nothing."""
    if "choice" in event:
        tried = [
            dp_accounting.SelfComposedDpEvent(_gaussian(each, None), int(count))
            for each, count in event["choice"]["tried"]
        ]
        whole = dp_accounting.ComposedDpEvent(tried)
        return dp_accounting.dp_event.RepeatAndSelectDpEvent(whole, float(event["choice"]["mean"]), 1.0)
    return _gaussian(next(iter(event.values())), share)


def _gaussian(step: Mapping[str, Any], share: Mapping[str, Any] | None) -> dp_accounting.DpEvent | None:
    """Return the Poisson-subsampled Gaussian mechanism of a step or release."""
    of = share or {"sample_rate": step["sample_rate"], "bound_share": 1.0, "row_share": 1.0}
    queries = [(of["bound_share"], step["noise_multiplier"])]
    if step["statistics_noise"] is not None:
        queries.append((of["row_share"], step["statistics_noise"]))
    if any(size and not noise for size, noise in queries):
        return dp_accounting.NonPrivateDpEvent()
    precision = sum((size / noise) ** 2 for size, noise in queries if size)
    if not precision or not of["sample_rate"]:
        return None
    noise = dp_accounting.GaussianDpEvent(float(precision**-0.5))
    return dp_accounting.PoissonSampledDpEvent(float(of["sample_rate"]), noise)


def main(arguments: Sequence[str]) -> None:
    """Print the epsilon of the run in a folder."""
    entries, delta = read_entries(arguments[0])
    delta = float(arguments[1]) if len(arguments) > 1 else delta
    print(f"epsilon {recompute_epsilon(entries, delta):.6g} at delta {delta:g}")


if __name__ == "__main__":
    main(sys.argv[1:])
