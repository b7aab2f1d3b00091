"""Simulates `asc` with rates that adapt during training, beside fixed ones and none, tuned alike.

    EQUIDP_DATA=data python benchmarks/adaptive_rates.py adult bank utkface --out adaptive-rates.jsonl

As in arXiv 2602.10820, each step gives a harder group a larger rate and a lower bound, by losses of groups
that were released before: every group has one of a few public pairs (rate, share of the bound), of equal
cost. Tasks, settings that methods share, and their tuning are those of `rates_by_group.py`; models are
softmax regressions in PyTorch, without equidp's Trainer. The three ways are

- plain: one pair, all of the rate and the bound: DP-SGD;
- fixed: one group has a larger rate throughout, `asc`;
- adaptive: logarithms of weights of groups grow by their released losses (group DRO), and a group's rate is
  the public one that is nearest to its weight.

Which pair a group has in a step depends on releases, so that privacy loss distributions of fixed steps do
not add up. Renyi divergences do: whatever was released before, a step costs an example at most the largest
divergence over the pairs, at each order. `run_epsilon` adds these up. Noise is calibrated to it, for all
three ways, and so are the shares: each pair costs at most what the first does, at the order that gives
epsilon.

Samples and noise are drawn from seeds: for research on public data.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from rates_by_group import (
    DRAWS_SEED,
    RATES,
    TASKS,
    TUNING_SEED,
    Job,
    drawn_settings,
    print_table,
    read_parts,
    worst,
)
from torch import Tensor

from equidp import GroupedDataset
from equidp.policies.ranges import Log, OneOf

WAYS = ("plain", "fixed", "adaptive")
MENU = (1.0, *RATES)
"""Public multiples of the sample rate that groups may have."""
ORDERS = tuple(range(2, 65))
STATISTICS_RATIO = 10.0
"""Noise multiplier of the released losses over that of the gradients."""
LARGEST_LOSS = 3.0
DECAY = 0.9
"""Weight of earlier sums of losses and counts."""


class Pairs(NamedTuple):
    """Public pairs of a run, and its noise multiplier."""

    multiples: tuple[float, ...]
    shares: tuple[float, ...]
    noise: float


@cache
def divergences(
    sample_rate: float, noise: float, orders: tuple[int, ...] = ORDERS
) -> npt.NDArray[np.float64]:
    """Renyi divergences of one step at the orders, by dp_accounting."""
    accountant = RdpAccountant(orders=orders)
    accountant.compose(PoissonSampledDpEvent(sample_rate, GaussianDpEvent(noise)))
    return np.asarray(accountant._rdp, dtype=np.float64)


def noise_of_pair(noise: float, share: float, has_statistics: bool) -> float:
    """Noise multiplier of both queries of a step for an example that may use a share of either's bound."""
    factor = math.sqrt(1 + STATISTICS_RATIO**-2) if has_statistics else 1.0
    return noise / (share * factor)


def run_epsilon(pairs: Pairs, rate: float, steps: int, delta: float, has_statistics: bool) -> float:
    """Epsilon of a run whose pairs may be chosen by earlier releases, for an example of any group.

    At each order, the conditional divergence of a step is at most the largest over the pairs, and such bounds
    add up under adaptive composition (Mironov 2017, Proposition 1; Feldman and Zrnic 2021).
    """
    each = [
        divergences(rate * multiple, noise_of_pair(pairs.noise, share, has_statistics))
        for multiple, share in zip(pairs.multiples, pairs.shares, strict=True)
    ]
    return float(compute_epsilon(ORDERS, steps * np.max(each, axis=0), delta)[0])


def _largest_share(rate: float, multiple: float, noise: float, order: int) -> float:
    """Largest share at which a step at the multiple costs at most one at the rate, at an order."""
    most = float(divergences(rate, noise, (order,))[0])
    low, high = 0.0, 1.0
    for _ in range(14):
        middle = (low + high) / 2
        fits = float(divergences(rate * multiple, noise / middle, (order,))[0]) <= most
        low, high = (middle, high) if fits else (low, middle)
    return low


@cache
def solve_pairs(
    epsilon: float, rate: float, steps: int, delta: float, multiples: tuple[float, ...], has_statistics: bool
) -> Pairs:
    """Return the pairs of least noise whose `run_epsilon` is at most epsilon."""

    def pairs_at(noise: float) -> Pairs:
        whole = noise_of_pair(noise, 1.0, has_statistics)
        order = int(compute_epsilon(ORDERS, steps * divergences(rate, whole), delta)[1])
        shares = tuple(1.0 if each == 1 else _largest_share(rate, each, whole, order) for each in multiples)
        return Pairs(multiples, shares, noise)

    low, high = math.log(0.3), math.log(50.0)
    for _ in range(12):
        middle = (low + high) / 2
        fits = run_epsilon(pairs_at(math.exp(middle)), rate, steps, delta, has_statistics) <= epsilon
        low, high = (low, middle) if fits else (middle, high)
    return pairs_at(math.exp(high))


class Choice:
    """Pair of each group, by losses that were released."""

    def __init__(self, groups: int, pairs: Pairs, speed: float, fixed: Tensor | None) -> None:
        self.chosen = torch.zeros(groups, dtype=torch.int64) if fixed is None else fixed
        self._logs, self._sums = torch.zeros(groups), torch.zeros((groups, 2))
        self._multiples, self._speed = torch.tensor(pairs.multiples), speed

    def update(self, released: Tensor, least: float) -> None:
        """Take the released sums of (count, loss) by group, [groups, 2], and choose anew."""
        self._sums = DECAY * self._sums + (1 - DECAY) * released
        losses = self._sums[:, 1] / self._sums[:, 0].clamp(min=least)
        self._logs += self._speed * losses.clamp(0, LARGEST_LOSS)
        self._logs -= self._logs.logsumexp(0)
        wanted = len(self._logs) * self._logs.exp()
        self.chosen = (wanted[:, None] - self._multiples).abs().argmin(1)


def _pace(schedule: str, done: float) -> float:
    if schedule == "linear":
        return 1 - done
    return (1 + math.cos(math.pi * done)) / 2 if schedule == "cosine" else 1.0


def train_model(
    rows: GroupedDataset, settings: Mapping[str, Any], way: str, epsilon: float, delta: float, seed: int
) -> tuple[Tensor, dict[str, Any]]:
    """Train a softmax regression, and return its weights, [inputs + 1, classes], with facts of the run."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.cat([rows.inputs.flatten(1), torch.ones(len(rows), 1)], dim=1)
    lengths, groups, classes = inputs.norm(dim=1), rows.groups, rows.num_classes
    rate = settings["batch_size"] / len(rows)
    steps = math.ceil(settings["epochs"] / rate)
    given = dict(settings.get("rates", {}))
    multiples = MENU if way == "adaptive" else (1.0, *given.values()) if way == "fixed" else (1.0,)
    statistics = way == "adaptive"
    pairs = solve_pairs(epsilon, rate, steps, delta, multiples, statistics)
    fixed = torch.tensor([int(name in given and way == "fixed") for name in rows.group_names])
    choice = Choice(len(fixed), pairs, settings.get("speed", 0.0), None if statistics else fixed)
    rates, shares = rate * torch.tensor(pairs.multiples), torch.tensor(pairs.shares)
    bound, weights = settings["clipping_bound"], torch.zeros(inputs.shape[1], classes)
    moved, average, seen = torch.zeros_like(weights), torch.zeros_like(weights), 0.0
    times = torch.zeros(len(fixed), dtype=torch.float64)
    for step in range(steps):
        own = choice.chosen
        times += torch.tensor(pairs.multiples).double()[own]
        drawn = torch.where(torch.rand(len(rows), generator=generator) < rates[own][groups])[0]
        part, labels = inputs[drawn], groups[drawn]
        logits = part @ weights
        losses = torch.nn.functional.cross_entropy(logits, rows.targets[drawn], reduction="none")
        errors = logits.softmax(1) - torch.nn.functional.one_hot(rows.targets[drawn], classes)
        most = bound * shares[own][labels]
        scale = (most / (errors.norm(dim=1) * lengths[drawn]).clamp(min=1e-10)).clamp(max=1.0)
        total = part.T @ (errors * scale[:, None])
        total += pairs.noise * bound * torch.randn(weights.shape, generator=generator)
        if statistics:
            two = torch.stack([torch.ones_like(losses), losses.clamp(max=LARGEST_LOSS) / LARGEST_LOSS], dim=1)
            cells = torch.zeros(len(fixed), 2).index_add_(0, labels, two / math.sqrt(2))
            noise = STATISTICS_RATIO * pairs.noise * torch.randn(cells.shape, generator=generator)
            released = math.sqrt(2) * (cells + noise / shares[own][:, None])  # rows are cut to shares too
            choice.update(released * torch.tensor([1.0, LARGEST_LOSS]), 0.01 * settings["batch_size"])
        moved = settings.get("momentum", 0.0) * moved + total / settings["batch_size"]
        weights = weights - settings["learning_rate"] * _pace(settings["schedule"], step / steps) * moved
        if step >= steps / 2:
            seen += 1
            least = 0.0 if settings["average"] == "tail" else min(1.0, 10 / steps)
            average += (weights - average) * max(1 / seen, least)
    facts = {"noise": pairs.noise, "shares": pairs.shares, "epsilon": epsilon}
    facts["mean multiple"] = dict(zip(rows.group_names, (times / steps).tolist(), strict=True))
    return (average if settings["average"] != "none" else weights), facts


def settings_of(task: str, way: str, number: int) -> dict[str, Any]:
    """Return the settings of this number: those of `rates_by_group.py`, and a speed of adapting."""
    found = drawn_settings(TASKS[task], "asc" if way == "fixed" else "dpsgd", number)
    if way == "adaptive":
        own = np.random.default_rng([DRAWS_SEED, number, 2])
        found["speed"] = Log(0.01, 1).draw(own) if number % 4 else OneOf((0.003, 3.0)).draw(own)
    return found


@cache
def _parts(task: str, seed: int) -> tuple[GroupedDataset, GroupedDataset]:
    return read_parts(task, seed)


def train(job: Job) -> dict[str, Any]:
    """Train once, and return figures of the rows that are not trained on."""
    rows, others = _parts(job.task, job.seed)
    settings = settings_of(job.task, job.method, job.number)
    weights, facts = train_model(rows, settings, job.method, job.epsilon, TASKS[job.task].delta, job.seed)
    logits = torch.cat([others.inputs.flatten(1), torch.ones(len(others), 1)], dim=1) @ weights
    hits = (logits.argmax(1) == others.targets).double()
    accuracy = {
        name: float(hits[others.groups == number].mean()) for number, name in enumerate(others.group_names)
    }
    return {
        **job._asdict(),
        "settings": settings,
        "epsilons": facts["mean multiple"],
        "accuracy": accuracy,
        "accuracy of all": float(hits.mean()),
        **facts,
        "epsilon": job.epsilon,
    }


def train_missing(jobs: Sequence[Job], out: Path) -> list[dict[str, Any]]:
    """Train what the file lacks, and return the results of all jobs."""
    lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    found = {Job(*(row[each] for each in Job._fields)): row for row in map(json.loads, lines)}
    for job in jobs:
        if job not in found:
            found[job] = train(job)
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found[job]) + "\n")
    return [found[each] for each in jobs]


def main() -> None:
    """Train what --out lacks, and print means; the last column is the mean multiple of each group's rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("tasks", nargs="+", choices=TASKS)
    parser.add_argument("--out", type=Path, default=Path("adaptive-rates.jsonl"))
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--draws", type=int, default=12)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for task in asked.tasks:
        for way in WAYS:
            jobs = [Job(task, way, asked.epsilon, each, TUNING_SEED) for each in range(asked.draws)]
            best = max(train_missing(jobs, asked.out), key=worst)["number"]
            found += train_missing(
                [Job(task, way, asked.epsilon, best, each) for each in asked.seeds], asked.out
            )
    print_table(pd.DataFrame(found))


if __name__ == "__main__":
    main()
