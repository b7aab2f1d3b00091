"""Compares ways to help a group: larger rates, `asc`, `naive` and DP-SGD, tuned alike, on tables and images.

    EQUIDP_DATA=data python benchmarks/rates_by_group.py adult bank --jobs 2 --out rates-by-group.jsonl
    EQUIDP_DATA=data python benchmarks/rates_by_group.py mnist utkface --jobs 14 --out rates-by-group.jsonl

Models are linear: of columns cut into intervals, of scattering features (MNIST with 500 eights), and of
features of `efficientnet-lite0` at 112 pixels (gender on UTKFace). Each method has the same number of random
settings, and under one number the same values of what all methods share. They are chosen by the accuracy of
the worst group on a sixth of the training rows of another split, and reported on the test rows of each seed's
split. A method with rates also draws which group has the larger rate, and how large it is:

- rates: DP-SGD; noise is calibrated to the group with the larger rate, and the others have a smaller epsilon;
- asc: bounds follow, so that all groups have one epsilon.

`--given asc:Asian=2` adds a method at rates that are not drawn, with the settings chosen for DP-SGD.

Runs are appended to --out as they come, and read from there by the next call. Samples and noise are drawn
from seeds: for research on public data.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from equidp import DataSource, GroupedDataset, Plan, Target
from equidp.accounting.groups import numbers_by_group
from equidp.data import open_source
from equidp.policies.ranges import Log, OneOf, Range
from equidp.training.build import build

DRAWS_SEED, TUNING_SEED = 41, 100
METHODS = ("sgd", "dpsgd", "naive", "rates", "asc")
WITH_RATES = ("rates", "asc")
RATES = (1.5, 2.0, 3.0, 4.0)
"""Multiples of the sample rate of the group that is drawn more often; batches leave room for them."""
STEP = "step"
"""Learning rate times clipping bound: the length of a step, which is drawn in place of the former."""
_TABLES: Mapping[str, Range] = {
    STEP: Log(2, 50),
    "clipping_bound": Log(0.2, 4),
    "batch_size": OneOf((1024, 2048, 4096)),
    "epochs": OneOf((10, 20, 40)),
    "schedule": OneOf(("constant", "linear", "cosine")),
    "average": OneOf(("none", "tail", "ema")),
}
_IMAGES: Mapping[str, Range] = {
    **_TABLES,
    STEP: Log(0.5, 20),
    "clipping_bound": Log(0.05, 2),
    "batch_size": OneOf((2048, 3072)),
    "epochs": OneOf((10, 20, 40)),
    "momentum": OneOf((0.0, 0.9)),
}
_LARGE: Mapping[str, Range] = {"batch_size": OneOf((4096, 8192)), "epochs": OneOf((10, 20))}
_PLAIN: Mapping[str, Range] = {**_TABLES, "batch_size": OneOf((512, 1024, 2048))}


@dataclass(frozen=True)
class Task:
    """Data, and the settings that are tried on it.

    Attributes:
        source: opens the data.
        groups: candidates for the larger rate.
        delta: of every run.
        common: range of each setting that private methods share.
        plain: learning rates without privacy.
        fixed_split: every seed has the same rows.
    """

    source: Callable[[], DataSource]
    groups: tuple[str, ...]
    delta: float
    common: Mapping[str, Range]
    plain: Range
    fixed_split: bool = False
    plain_common: Mapping[str, Range] = field(default_factory=lambda: _PLAIN)


def _bank() -> DataSource:
    path = Path(os.environ["EQUIDP_DATA"]) / "tables" / "bank-full.csv"
    return open_source(str(path), target="y", group="marital", missing="category", encoding="cut")


TASKS = {
    "adult": Task(
        lambda: open_source("adult", encoding="cut"), ("Female", "Male"), 1e-6, _TABLES, Log(0.2, 10)
    ),
    "bank": Task(_bank, ("married", "single"), 1e-6, _TABLES, Log(0.2, 10)),
    "mnist": Task(
        lambda: open_source("mnist", features="scattering"),
        ("8",), 1e-6, {**_IMAGES, STEP: Log(0.5, 50), **_LARGE}, Log(0.001, 0.1), fixed_split=True,
        plain_common={**_PLAIN, "epochs": OneOf((10, 20))},
    ),
    "utkface": Task(
        lambda: open_source("papers.utkface:UTKFace", features="efficientnet-lite0@112"),
        ("Asian", "Indian", "Black", "Others"), 1e-5, _IMAGES, Log(0.2, 20),
    ),
}  # fmt: skip
"""Name -> task."""


class Job(NamedTuple):
    """One training: number of the settings, and the seed of the split and the noise."""

    task: str
    method: str
    epsilon: float
    number: int
    seed: int


Parts = tuple[GroupedDataset, GroupedDataset]
_parts: dict[tuple[str, int], Parts] = {}
"""(Task, seed) -> rows to train and to measure on: read once, and shared with processes that are forked."""


def read_parts(name: str, seed: int) -> Parts:
    """Return the rows to train on and to measure on; those of the tuning seed are of training rows alone."""
    task = TASKS[name]
    split = task.source().split(0 if task.fixed_split else seed)
    if seed != TUNING_SEED:
        return split.train, split.test
    order = torch.from_numpy(np.random.default_rng(TUNING_SEED).permutation(len(split.train)))
    held = len(order) // 6
    return split.train.subset(order[held:]), split.train.subset(order[:held])


def drawn_settings(task: Task, method: str, number: int) -> dict[str, Any]:
    """Return the settings of this number: what methods share is the same for all of them.

    A method such as "asc:8=4" has these rates, and draws none.
    """
    method, _, given = method.partition(":")
    shared, own = (np.random.default_rng([DRAWS_SEED, number, part]) for part in (0, 1))
    if method == "sgd":
        return {
            "learning_rate": task.plain.draw(shared),
            **{
                name: each.draw(shared)
                for name, each in task.plain_common.items()
                if name not in (STEP, "clipping_bound")
            },
        }
    found = {name: each.draw(shared) for name, each in task.common.items()}
    length = found.pop(STEP) * (1 - found.get("momentum", 0.0))
    found["learning_rate"] = float(f"{length / found['clipping_bound']:.3g}")
    if given:
        found["rates"] = numbers_by_group("rates", given)
    elif method in WITH_RATES:
        group, rate = OneOf(task.groups).draw(own), OneOf(RATES).draw(own)
        found["rates"] = {str(group): float(rate)}
    return found


def train(job: Job) -> dict[str, Any]:
    """Train once, and return figures of the rows that are not trained on."""
    task, (rows, others) = TASKS[job.task], _parts[job.task, job.seed]
    settings = drawn_settings(task, job.method, job.number)
    plan = Plan(model="logistic", delta=task.delta).with_changes(settings)
    method = job.method.partition(":")[0].replace("rates", "dpsgd")
    target = Target(None if method == "sgd" else job.epsilon)
    resolved = plan.resolve(method, len(rows), target, group_names=rows.group_names)
    run = build(resolved, rows, seed=job.seed, secure=False).fit()
    with torch.no_grad():
        logits = run.model.eval()(others.inputs)
    hits = (logits.argmax(1) == others.targets).double()
    losses = torch.nn.functional.cross_entropy(logits, others.targets, reduction="none").double()
    figures: dict[str, Any] = {"accuracy": {}, "log_loss": {}, "accuracy of all": float(hits.mean())}
    for number, name in enumerate(others.group_names):
        own = others.groups == number
        figures["accuracy"][name] = float(hits[own].mean())
        figures["log_loss"][name] = float(losses[own].mean())
    by_group = {} if method == "sgd" else run.epsilon_by_group()
    return {**job._asdict(), "settings": settings, "epsilons": by_group, **figures}


def train_missing(jobs: Sequence[Job], asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Train what --out lacks, in several processes, and return all results of the jobs."""
    lines = asked.out.read_text(encoding="utf-8").splitlines() if asked.out.exists() else []
    found = {Job(*(row[each] for each in Job._fields)): row for row in map(json.loads, lines)}
    missing = [each for each in jobs if each not in found]
    for name, seed in dict.fromkeys((each.task, each.seed) for each in missing):
        if (name, seed) not in _parts:
            same = seed != TUNING_SEED and TASKS[name].fixed_split and _parts.get((name, 0))
            _parts[name, seed] = same or read_parts(name, seed)
    for row in _results(missing, asked.jobs):
        found[Job(*(row[each] for each in Job._fields))] = row
        with asked.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    return [found[each] for each in jobs]


def _results(jobs: Sequence[Job], processes: int) -> Iterator[dict[str, Any]]:
    if processes == 1 or len(jobs) < 2:
        yield from map(train, jobs)
        return
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        yield from pool.imap_unordered(train, jobs)


def worst(row: Mapping[str, Any]) -> float:
    """Accuracy of the worst group."""
    return min(row["accuracy"].values())


def run_task(name: str, asked: argparse.Namespace) -> pd.DataFrame:
    """Tune and measure all methods on a task."""
    cells = [
        (method, epsilon)
        for method in asked.methods
        for epsilon in (asked.epsilons[:1] if method == "sgd" else asked.epsilons)
    ]
    tried = train_missing(
        [Job(name, *cell, number, TUNING_SEED) for number in range(asked.draws) for cell in cells], asked
    )
    best = {
        cell: max((row for row in tried if (row["method"], row["epsilon"]) == cell), key=worst)["number"]
        for cell in cells
    }
    numbers = best | {
        (method, epsilon): best["dpsgd", epsilon] for method in asked.given for epsilon in asked.epsilons
    }
    jobs = [Job(name, *cell, number, seed) for seed in asked.seeds for cell, number in numbers.items()]
    return pd.DataFrame(train_missing(jobs, asked))


def print_table(rows: pd.DataFrame) -> None:
    """Print means over seeds, with the standard error of the worst group's accuracy."""
    print("| data, epsilon | method | worst group (se) | all | accuracy by group | epsilon by group |")
    print("| --- | --- | ---: | ---: | --- | --- |")
    for (task, epsilon, method), own in rows.groupby(["task", "epsilon", "method"], sort=False):
        lowest = 100 * own.apply(worst, axis=1)
        accuracy, epsilons = (pd.DataFrame(list(own[each])).mean() for each in ("accuracy", "epsilons"))
        by_group = ", ".join(f"{name} {100 * value:.1f}" for name, value in accuracy.items())
        budgets = ", ".join(f"{name} {value:.2f}" for name, value in epsilons.items())
        given = own["settings"].iloc[0].get("rates", "")
        print(
            f"| {task}, {epsilon:g} | {method} {given} | {lowest.mean():.2f} ({lowest.sem():.2f}) | "
            f"{100 * own['accuracy of all'].mean():.2f} | {by_group} | {budgets} |"
        )


def main() -> None:
    """Train what --out lacks, and print means with their standard errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("tasks", nargs="+", choices=TASKS)
    parser.add_argument("--out", type=Path, default=Path("rates-by-group.jsonl"))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument(
        "--given", nargs="+", default=[], help="such as asc:8=4 rates:8=4: these rates, at DP-SGD's settings"
    )
    parser.add_argument("--epsilons", nargs="+", type=float, default=[3.0, 1.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print_table(pd.concat([run_task(name, asked) for name in asked.tasks]))


if __name__ == "__main__":
    main()
