"""Finds how well images of a rare group are recognised, by method, on fixed features.

One group is thinned to a share of its training images, and linear models are trained on public features at
each epsilon, by DP-SGD as it is and with three remedies, and `prototypes` beside them:

- balanced: weights of the groups' losses by counts that are released with noise;
- priors: logits less the logarithm of each class's released share, where groups are classes;
- rates: images of the rare group are drawn four times as often, at bounds by which all have one epsilon.

Counts take --counts-share of epsilon. Data:

- cifar10: 12,000 training images of which cat, horse or ship is thinned, `efficientnet-lite0` at 112 pixels,
  scaled to norm 1;
- utkface: gender of 15,800 faces of which Black, Asian or Indian people are thinned, the same features;
- mnist: 50,000 training images of which the eights are thinned to 500, scattering as it is.

Learning rate and clipping bound are chosen for each data set, method, epsilon and share with the first group
thinned by the first seed, on other training images (3,000; mnist: 10,000), by the mean of the rare group's
accuracy and that of the others; test images are read after that alone.
Figures are appended to --out as they come, and read from there by the next call:

    EQUIDP_DATA=data python benchmarks/rare_classes.py --out rare-classes.jsonl --seeds 0 1 2

Samples and noise are drawn from seeds: for research on public data.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional

from equidp import DataSource, DataSplit, GroupedDataset, Plan, Target
from equidp.data import open_source
from equidp.data.cifar10 import CIFAR10
from equidp.data.class_counts import balanced_class_weights, count_classes
from equidp.data.features import WithFeatures
from equidp.data.mnist import MNIST
from equidp.kernel.ledger import StepEvent
from equidp.kernel.noise import SeededRandomness
from equidp.training.build import build

TRAIN, VALIDATION, TEST = 12_000, 3_000, 5_000
DELTA = 1e-5
BATCHES = 5
"""Batches of an epoch."""
CHOICES = ((2.0, 0.5), (8.0, 0.5), (32.0, 0.5), (128.0, 0.5), (512.0, 0.5), (40.0, 0.1))
"""Learning rates and clipping bounds."""
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


class Study(NamedTuple):
    """Data set whose groups are thinned in turn.

    Attributes:
        source: opens it.
        features: of its images.
        groups: that are thinned.
        shares: of a group that are kept.
        size: training images of each group before thinning; None: five sixths of it.
        normalized: whether features are scaled to norm 1.
    """

    source: Callable[[], DataSource]
    features: str
    groups: tuple[str, ...]
    shares: tuple[float, ...]
    size: int | None
    normalized: bool = True


STUDIES = {
    "cifar10": Study(Images, "efficientnet-lite0@112", ("cat", "horse", "ship"), (0.1, 0.02), TRAIN // 10),
    "utkface": Study(
        lambda: open_source("papers.utkface:UTKFace"),
        "efficientnet-lite0@112",
        ("Black", "Asian", "Indian"),
        (0.1, 0.02),
        None,
    ),
    "mnist": Study(
        lambda: MNIST("mnist", kept_eights=None, keep_probability=1.0),
        "scattering",
        ("8",),
        (0.1,),
        5_000,
        False,
    ),
}


class Cell(NamedTuple):
    """One training, but for its learning rate."""

    data: str
    method: str
    share: float
    epsilon: float
    rare: str
    seed: int


class Parts(NamedTuple):
    """Images to train on, to choose settings on, and to test on."""

    train: GroupedDataset
    validation: GroupedDataset
    test: GroupedDataset


def _parts(study: Study) -> Parts:
    split = WithFeatures(study.source(), study.features).split(0)
    train, test = (
        replace(part, inputs=functional.normalize(rows) if study.normalized else rows)
        for part, rows in ((each, each.one_tensor.flatten(1)) for each in (split.train, split.test))
    )
    places = [torch.where(train.groups == k)[0] for k in range(train.num_groups)]
    sizes = [study.size or len(each) * 5 // 6 for each in places]
    first = torch.cat([each[:size] for each, size in zip(places, sizes, strict=True)])
    rest = torch.cat([each[size:] for each, size in zip(places, sizes, strict=True)])
    return Parts(train.subset(first), train.subset(rest), test)


def _thinned(train: GroupedDataset, rare: str, share: float, seed: int) -> GroupedDataset:
    own = torch.where(train.groups == train.group_names.index(rare))[0]
    order = np.random.default_rng(seed).permutation(len(own))
    dropped = own[torch.from_numpy(order[round(share * len(own)) :])]
    kept = torch.ones(len(train), dtype=torch.bool)
    kept[dropped] = False
    return train.subset(torch.where(kept)[0])


def _plan(cell: Cell, choice: tuple[float, float], batch: int) -> Plan:
    if cell.method == "prototypes":
        return Plan(delta=DELTA)
    plan = Plan(
        model="logistic",
        learning_rate=choice[0],
        batch_size=batch,
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
    cell: Cell,
    choice: tuple[float, float],
    batch: int,
    train: GroupedDataset,
    inputs: list[Tensor],
    share: float,
) -> list[Tensor]:
    """Outputs of a model that is trained on the rows for some inputs."""
    target, spent, noise = Target(epsilon=cell.epsilon), (), 0.0
    if cell.method in _COUNTED:
        noise = Target(epsilon=share * cell.epsilon).noise_multiplier(DELTA, StepEvent(1.0, 1.0), 1, ())
        spent = ((StepEvent(1.0, noise), 1),)
    name = "prototypes" if cell.method == "prototypes" else "dpsgd"
    plan = _plan(cell, choice, batch).resolve(
        name, len(train), target, also_spent=spent, group_names=train.group_names
    )
    counts: dict[str, float] = {}
    if noise:
        by_group = replace(train, targets=train.groups, class_names=train.group_names)
        counts = count_classes(by_group, noise, SeededRandomness(1000 + cell.seed))
    if cell.method == "balanced":
        weights = torch.tensor(list(balanced_class_weights(counts, noise).values()))
        train = replace(train, weights=(weights / weights.max()).float()[train.groups])
    run = build(plan, train, seed=cell.seed, secure=False).fit()
    prior = torch.zeros(train.num_classes)
    if cell.method == "priors":
        known = torch.tensor(list(counts.values())).clamp(min=noise)
        prior = (known / known.sum()).log().float()
    model = run.model.eval()
    with torch.no_grad():
        return [model(each) - prior for each in inputs]


def _figures(logits: Tensor, rows: GroupedDataset, rare: str) -> dict[str, float]:
    """Accuracy of the rare group, and the mean of the others'."""
    hit = (logits.argmax(1) == rows.targets).double()
    by_group = {name: float(hit[rows.groups == k].mean()) for k, name in enumerate(rows.group_names)}
    accuracy = by_group.pop(rare)
    return {"rare accuracy": accuracy, "others": sum(by_group.values()) / len(by_group)}


def _cells(name: str, parts: Parts, asked: argparse.Namespace) -> Iterator[Cell]:
    study = STUDIES[name]
    of_classes = parts.train.group_names == parts.train.class_names
    for seed in asked.seeds:
        for share in asked.shares or study.shares:
            for epsilon in asked.epsilons:
                for method in asked.methods:
                    for rare in asked.groups or study.groups:
                        if of_classes or method != "priors":
                            yield Cell(name, method, share, epsilon, rare, seed)


def _measure(
    cell: Cell, parts: Parts, choices: Sequence[tuple[float, float]], counts_share: float
) -> dict[str, Any]:
    """Settings of the best choice on images of validation, and its figures on test images."""
    rows, batch = _thinned(parts.train, cell.rare, cell.share, cell.seed), len(parts.train) // BATCHES
    best, found = -math.inf, {}
    for rate, bound in choices:
        inputs = [parts.validation.one_tensor, parts.test.one_tensor]
        held, shown = _logits(cell, (rate, bound), batch, rows, inputs, counts_share)
        figure = sum(_figures(held, parts.validation, cell.rare).values())
        if figure > best:
            best, found = figure, {"rate": rate, "bound": bound, **_figures(shown, parts.test, cell.rare)}
    return found


def _print(found: pd.DataFrame) -> None:
    """Means over groups and seeds in percent, rare group / others, and the standard error of the former."""
    epsilons = sorted(found["epsilon"].unique())
    print(f"| data | kept | method | {' | '.join(f'epsilon {each:g}' for each in epsilons)} |")
    print(f"| --- | ---: | --- |{' ---: |' * len(epsilons)}")
    cells = {}
    for key, rows in found.groupby(["data", "share", "method", "epsilon"]):
        rare, others = 100 * rows["rare accuracy"], 100 * rows["others"]
        cells[key] = f"{rare.mean():.0f} ({rare.sem():.0f}) / {others.mean():.0f}"
    for name in STUDIES:
        for share in sorted(found["share"].unique(), reverse=True):
            for method in METHODS:
                row = [cells.get((name, share, method, epsilon), "") for epsilon in epsilons]
                if any(row):
                    print(f"| {name} | {100 * share:g}% | {method} | {' | '.join(row)} |")


def main() -> None:
    """Train what --out lacks, and print means with their standard errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("rare-classes.jsonl"))
    parser.add_argument("--data", nargs="+", choices=STUDIES, default=list(STUDIES))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--epsilons", nargs="+", type=float, default=[0.5, 1.0, 3.0])
    parser.add_argument("--shares", nargs="+", type=float, help="of a group that are kept")
    parser.add_argument("--groups", nargs="+", help="that are thinned")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--counts-share", type=float, default=0.1)
    asked = parser.parse_args()
    lines = asked.out.read_text(encoding="utf-8").splitlines() if asked.out.exists() else []
    found: list[dict[str, Any]] = [json.loads(line) for line in lines]
    done = {tuple(each[name] for name in Cell._fields) for each in found}
    # the first cell of these chooses settings; all others take them
    chosen = {tuple(each[name] for name in Cell._fields[:4]): (each["rate"], each["bound"]) for each in found}
    for name in asked.data:
        parts = _parts(STUDIES[name])
        for cell in _cells(name, parts, asked):
            if cell in done:
                continue
            choices = CHOICES[:1] if cell.method == "prototypes" else CHOICES
            key = cell[:4]
            figures = _measure(cell, parts, (chosen[key],) if key in chosen else choices, asked.counts_share)
            chosen[key] = figures["rate"], figures["bound"]
            found.append({**cell._asdict(), **figures})
            with asked.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found[-1]) + "\n")
    _print(pd.DataFrame(found))


if __name__ == "__main__":
    main()
