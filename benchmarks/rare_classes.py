"""Finds how often a rare class of images is recognised, by method, on fixed features of CIFAR-10.

One class of 12,000 training images is thinned to a share of its images, 120 at 10% and 24 at 2%. Linear
models on features of `efficientnet-lite0` at 112 pixels are trained at each epsilon by DP-SGD, as it is and
with three remedies, and `prototypes` beside them:

- balanced: weights of the classes' losses by counts that are released with noise;
- priors: logits less the logarithm of each class's released share;
- rates: images of the rare class are drawn four times as often, at bounds by which all have one epsilon.

Counts take --counts-share of epsilon. Learning rate and clipping bound are chosen for each method, epsilon
and share on 3,000 other training images, by the mean of the rare class's accuracy and that of the others;
5,000 test images are read after that alone.
Figures are appended to --out as they come, and read from there by the next call:

    EQUIDP_DATA=data python benchmarks/rare_classes.py --out rare-classes.jsonl --seeds 0 1 2

Samples and noise are drawn from seeds: for research on public data.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from equidp import DataSplit, GroupedDataset, Plan, Target
from equidp.data.cifar10 import CIFAR10
from equidp.data.class_counts import balanced_class_weights, count_classes
from equidp.data.features import WithFeatures
from equidp.kernel.ledger import StepEvent
from equidp.kernel.noise import SeededRandomness
from equidp.training.build import build

TRAIN, VALIDATION, TEST = 12_000, 3_000, 5_000
DELTA = 1e-5
BATCH = 2_400
CHOICES = ((2.0, 0.5), (8.0, 0.5), (32.0, 0.5), (40.0, 0.1))
"""Learning rates and clipping bounds; features have norm 1."""
METHODS = ("dpsgd", "balanced", "priors", "rates", "prototypes")
_COUNTED = ("balanced", "priors")


@dataclass(frozen=True)
class Images:
    """CIFAR-10 with 15,000 training and 5,000 test images, the same for all seeds."""

    name: str = "cifar10-part"
    highlighted_groups: tuple[str, str] | None = None
    pixel_range: ClassVar[tuple[float, float]] = CIFAR10.pixel_range

    def split(self, seed: int) -> DataSplit:
        """Return the training images, those of validation last, and the test images."""
        return self.choose_examples(seed, *self.everything())

    def everything(self) -> tuple[GroupedDataset, GroupedDataset]:
        """Return both parts."""
        whole, generator = CIFAR10().split(0), np.random.default_rng(0)
        train, test = (
            part.subset(torch.from_numpy(generator.permutation(len(part))[:size]))
            for part, size in ((whole.train, TRAIN + VALIDATION), (whole.test, TEST))
        )
        return train, test

    def choose_examples(self, seed: int, *parts: GroupedDataset) -> DataSplit:
        """Return the parts as they are."""
        return DataSplit(*parts)


class Cell(NamedTuple):
    """One training, but for its learning rate."""

    method: str
    share: float
    epsilon: float
    rare: str
    seed: int


def _parted(rows: GroupedDataset) -> tuple[GroupedDataset, GroupedDataset]:
    """Equally many images of each class to train on, and the others."""
    places = [torch.where(rows.targets == k)[0] for k in range(rows.num_classes)]
    size = TRAIN // rows.num_classes
    first, rest = (
        torch.cat(part) for part in ([each[:size] for each in places], [each[size:] for each in places])
    )
    return rows.subset(first), rows.subset(rest)


def _thinned(train: GroupedDataset, rare: str, share: float, seed: int) -> GroupedDataset:
    own = torch.where(train.targets == train.class_names.index(rare))[0]
    order = np.random.default_rng(seed).permutation(len(own))
    dropped = own[torch.from_numpy(order[round(share * len(own)) :])]
    kept = torch.ones(len(train), dtype=torch.bool)
    kept[dropped] = False
    return train.subset(torch.where(kept)[0])


def _plan(cell: Cell, choice: tuple[float, float]) -> Plan:
    if cell.method == "prototypes":
        return Plan(delta=DELTA)
    plan = Plan(
        model="logistic",
        learning_rate=choice[0],
        batch_size=BATCH,
        epochs=15,
        delta=DELTA,
        momentum=0.9,
        schedule="cosine",
        method_settings={"clipping_bound": choice[1]},
    )
    if cell.method == "rates":
        return replace(plan, rates={cell.rare: 4.0, "*": 1.0}, protect_by="scaling")
    return plan


def _logits(
    cell: Cell, choice: tuple[float, float], train: GroupedDataset, inputs: list[Tensor], share: float
) -> list[Tensor]:
    """Outputs of a model that is trained on the rows for some inputs."""
    target, spent, noise = Target(epsilon=cell.epsilon), (), 0.0
    if cell.method in _COUNTED:
        noise = Target(epsilon=share * cell.epsilon).noise_multiplier(DELTA, StepEvent(1.0, 1.0), 1, ())
        spent = ((StepEvent(1.0, noise), 1),)
    name = "prototypes" if cell.method == "prototypes" else "dpsgd"
    plan = _plan(cell, choice).resolve(
        name, len(train), target, also_spent=spent, group_names=train.group_names
    )
    counts = count_classes(train, noise, SeededRandomness(1000 + cell.seed)) if noise else {}
    weights = balanced_class_weights(counts, noise) if cell.method == "balanced" else None
    run = build(plan, train, seed=cell.seed, secure=False, class_weight=weights).fit()
    prior = torch.zeros(train.num_classes)
    if cell.method == "priors":
        known = torch.tensor(list(counts.values())).clamp(min=noise)
        prior = (known / known.sum()).log().float()
    model = run.model.eval()
    with torch.no_grad():
        return [model(each) - prior for each in inputs]


def _figures(logits: Tensor, rows: GroupedDataset, rare: str) -> dict[str, float]:
    """Accuracy of the rare class, and the mean of the others'."""
    hit = (logits.argmax(1) == rows.targets).double()
    by_class = {name: float(hit[rows.targets == k].mean()) for k, name in enumerate(rows.class_names)}
    accuracy = by_class.pop(rare)
    return {"rare accuracy": accuracy, "others": sum(by_class.values()) / len(by_class)}


def _cells(asked: argparse.Namespace) -> Iterator[Cell]:
    for seed in asked.seeds:
        for share in asked.shares:
            for epsilon in asked.epsilons:
                for method in asked.methods:
                    for rare in asked.classes:
                        yield Cell(method, share, epsilon, rare, seed)


def _print(found: pd.DataFrame) -> None:
    """Means over classes and seeds in percent, rare class / others, and the standard error of the former."""
    epsilons = sorted(found["epsilon"].unique())
    print(f"| kept | method | {' | '.join(f'epsilon {each:g}' for each in epsilons)} |")
    print(f"| ---: | --- |{' ---: |' * len(epsilons)}")
    cells = {}
    for key, rows in found.groupby(["share", "method", "epsilon"]):
        rare, others = 100 * rows["rare accuracy"], 100 * rows["others"]
        cells[key] = f"{rare.mean():.0f} ({rare.sem():.0f}) / {others.mean():.0f}"
    for share in sorted(found["share"].unique(), reverse=True):
        for method in METHODS:
            row = [cells.get((share, method, epsilon), "") for epsilon in epsilons]
            if any(row):
                print(f"| {100 * share:g}% | {method} | {' | '.join(row)} |")


def main() -> None:
    """Trains what --out lacks, and prints means with their standard errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("rare-classes.jsonl"))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--epsilons", nargs="+", type=float, default=[0.5, 1.0, 3.0])
    parser.add_argument("--shares", nargs="+", type=float, default=[0.1, 0.02])
    parser.add_argument("--classes", nargs="+", default=["cat", "horse", "ship"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--features", default="efficientnet-lite0@112")
    parser.add_argument("--counts-share", type=float, default=0.1)
    asked = parser.parse_args()
    lines = asked.out.read_text(encoding="utf-8").splitlines() if asked.out.exists() else []
    found: list[dict[str, Any]] = [json.loads(line) for line in lines]
    done = {tuple(each[name] for name in Cell._fields) for each in found}
    chosen = {
        (each["method"], each["share"], each["epsilon"]): (each["rate"], each["bound"]) for each in found
    }
    data = WithFeatures(Images(), asked.features).split(0)
    train, validation = _parted(data.train)
    test = data.test
    for cell in _cells(asked):
        if cell in done:
            continue
        rows = _thinned(train, cell.rare, cell.share, cell.seed)
        key = (cell.method, cell.share, cell.epsilon)
        best, kept = -math.inf, test.inputs.new_empty(0)
        # the first cell of a method, epsilon and share chooses these; all others take them
        choices = (chosen[key],) if key in chosen else CHOICES[: 1 if cell.method == "prototypes" else None]
        for choice in choices:
            held, shown = _logits(cell, choice, rows, [validation.inputs, test.inputs], asked.counts_share)
            figure = sum(_figures(held, validation, cell.rare).values())
            if figure > best:
                best, kept, chosen[key] = figure, shown, choice
        rate, bound = chosen[key]
        figures = _figures(kept, test, cell.rare)
        found.append({**cell._asdict(), "rate": rate, "bound": bound, **figures})
        with asked.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(found[-1]) + "\n")
    _print(pd.DataFrame(found))


if __name__ == "__main__":
    main()
