"""Epsilon of a finished run, only by dp_accounting. For auditors: this file imports nothing of equidp.

    python recompute.py RUN [DELTA]

reads run.json in `share/` of the run, or in a copy of it. It turns each entry into an event of dp_accounting,
and prints epsilon at the run's delta, or at another delta.
"""

from __future__ import annotations

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
"""An event as run.json has it, and how often the run spent it."""
Label = tuple[str, str]
"""Column of labels, and the name of one of them."""
Cost = tuple[float, float]
"""Sampling rate and noise multiplier of an event, to an example of one label; noise 0: no privacy."""
SURE_DELTA, TRANSFORM_LOSS = 1e-10, 1e-15
"""dp_accounting's Fourier transforms lose about `TRANSFORM_LOSS` of delta per step. If delta is below
`SURE_DELTA`, or the loss is not small compared with delta, privacy losses may report too small an epsilon, so
Renyi's bound is used."""


def read_entries(folder: str | Path) -> tuple[list[Entry], float]:
    """Return the entries of a run, and its delta."""
    places = [Path(folder, *each, "run.json") for each in (("share",), ("private", "results"), ())]
    run = json.loads(next((each for each in places if each.exists()), places[-1]).read_text())
    return [(event, int(count)) for event, count in run["entries"]], float(run["delta"])


def recompute_epsilon(entries: Sequence[Entry], delta: float) -> float:
    """Return the epsilon that dp_accounting proves for all entries together, for any one example.

    Each event is a Poisson-subsampled Gaussian mechanism. A release has rate 1. Statistics and gradient use
    one sample. Together they are one Gaussian mechanism of noise multiplier ((c / sigma)^2 + (r /
    sigma_s)^2)^(-1/2) (Andrew et al. 2021, Theorem 1), with shares c and r of an example's label. Epsilon is
    the largest over the labels of a column. With several columns, it is the smallest of these.

    Raises:
        ValueError: an entry a number of times below 0.
    """
    counts = [count for _, count in entries]
    if min(counts, default=0) < 0:
        raise ValueError(f"entries {counts} times; expected 0 or more of each.")
    columns: dict[str, set[str]] = {}
    for event, _ in entries:
        for share in event["shares"]:
            columns.setdefault(event["column"], set()).add(share["label"])
    bounds = []
    for column, labels in (columns or {"": {""}}).items():
        costs = {tuple(_cost(event, (column, label)) for event, _ in entries) for label in labels}
        bounds.append(max(_composed_epsilon(each, counts, delta) for each in costs))
    return min(bounds)


def _composed_epsilon(costs: Sequence[Cost | None], counts: Sequence[int], delta: float) -> float:
    """Return the epsilon of an example to which the entries have these costs."""
    events, steps = [], 0
    for cost, count in zip(costs, counts, strict=True):
        made = _mechanism(cost)
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
    by_losses = PLDAccountant(value_discretization_interval=width).compose(composed).get_epsilon(delta)
    return min(by_orders, float(by_losses))


def _cost(event: Mapping[str, Any], label: Label) -> Cost | None:
    """Return what an event costs an example of a label. None: nothing."""
    of = {"rate": event["rate"], "bound": 1.0, "row": 1.0}
    for share in event["shares"]:
        if label == (event["column"], share["label"]):
            of = share
    queries = [(of["bound"], event["noise"])]
    if event["statistics_noise"] is not None:
        queries.append((of["row"], event["statistics_noise"]))
    used = [(size, noise) for size, noise in queries if size]
    if not used or not of["rate"]:
        return None
    if not all(noise for _, noise in used):
        return float(of["rate"]), 0.0
    return float(of["rate"]), float(sum((size / noise) ** 2 for size, noise in used) ** -0.5)


def _mechanism(cost: Cost | None) -> dp_accounting.DpEvent | None:
    """Return the Poisson-subsampled Gaussian mechanism of a cost. None: there is none."""
    if cost is None:
        return None
    rate, noise = cost
    if not noise:
        return dp_accounting.NonPrivateDpEvent()
    return dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))


def main(arguments: Sequence[str]) -> None:
    """Print the epsilon of the run in a folder, or end with an error about the arguments."""
    if len(arguments) not in (1, 2):
        sys.exit("usage: python recompute.py RUN [DELTA]")
    try:
        entries, delta = read_entries(arguments[0])
    except (OSError, ValueError, LookupError, TypeError) as error:
        sys.exit(f"{arguments[0]} holds no run.json of a run: {type(error).__name__}: {error}")
    try:
        delta = float(arguments[1]) if len(arguments) > 1 else delta
    except ValueError:
        delta = 0.0
    if not 0 < delta < 1:
        sys.exit(f"delta {arguments[-1]}; expected a number between 0 and 1, such as 1e-6")
    print(f"epsilon {recompute_epsilon(entries, delta):.6g} at delta {delta:g}")


if __name__ == "__main__":
    main(sys.argv[1:])
