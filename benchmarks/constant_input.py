"""Compares training with and without the constant input of tables of few rows (`TableEncoder.constant`).

Models are trained by the settings that `equidp train` takes.

    EQUIDP_DATA=data python benchmarks/constant_input.py --rows 800 --epsilons 0.5 1 3
    python benchmarks/constant_input.py --tables turnout --csv turnout.csv --target vote --group race

Tables: parts of those of `tables.py`, a CSV file, and made-up ones of ten columns of numbers: `rare` (2.5%
positive, two columns matter), `eight` (8 classes, the largest has 39%) and `random` (4 classes of .7, .2, .07
and .03 that no column says anything about). Prints log loss less that of the shares of classes. Samples and
noise are drawn from seeds: for research on public data.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch.nn import functional

from equidp import GroupedDataset, Plan, Target
from equidp.advice.advise import advise
from equidp.data import open_source
from equidp.training.build import build
from tables import TABLES

TEST_ROWS = 4000
MADE_UP = ("rare", "eight", "random")


def make_table(name: str, size: int) -> pd.DataFrame:
    """Return a made-up table with columns x0 to x9, group and target."""
    generator, weights = np.random.default_rng(0), np.random.default_rng(7)
    numbers = generator.standard_normal((size, 10))
    logits = np.zeros((size, 2))
    if name == "rare":
        logits[:, 1] = numbers[:, 0] + numbers[:, 1] - 4.6
    elif name == "eight":
        logits = 0.8 * numbers[:, :4] @ weights.standard_normal((4, 8)) - 0.7 * np.arange(8)
    else:
        logits = np.tile(np.log([0.7, 0.2, 0.07, 0.03]), (size, 1))
    target = (logits + generator.gumbel(size=logits.shape)).argmax(1)
    rows = pd.DataFrame(numbers, columns=[f"x{place}" for place in range(10)])
    return rows.assign(group=generator.choice(["A", "B"], size), target=[f"class {each}" for each in target])


def read_parts(name: str, asked: argparse.Namespace) -> tuple[GroupedDataset, GroupedDataset]:
    """Return training rows of a table, as many as --rows or four fifths of it, and test rows."""
    size = asked.rows + TEST_ROWS
    target, group = "target", "group"
    if name in MADE_UP:
        rows = make_table(name, size)
    elif name in TABLES:
        rows = TABLES[name].read(Path(os.environ["EQUIDP_DATA"]))
        target, group = TABLES[name].target, TABLES[name].group
    else:
        rows = pd.read_csv(asked.csv)
        target, group = asked.target, asked.group
    order = np.random.default_rng(11).permutation(len(rows))[:size]
    share = max(0.2, 1 - asked.rows / len(order))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        rows.iloc[order].to_csv(path, index=False)
        source = open_source(
            str(path), target=target, group=group, drop=asked.drop, missing="category",
            test_share=round(share, 4), encoding="cut",
        )  # fmt: skip
        split = source.split(0)
    return split.train, split.test


def constant_of(dataset: GroupedDataset) -> float:
    """Return the square of the constant input, the last one; 0 where there is none."""
    last = dataset.one_tensor[:, -1]
    return float(last[0]) ** 2 if bool((last == last[0]).all()) else 0.0


def without_constant(dataset: GroupedDataset, square: float) -> GroupedDataset:
    """Return the rows without the constant input of this square, and of norm 1 in the mean again."""
    rows = dataset.one_tensor
    return replace(dataset, inputs=rows[:, :-1] / (1 - square) ** 0.5) if square else dataset


def excess(train: GroupedDataset, test: GroupedDataset, epsilon: float, seeds: Sequence[int]) -> float:
    """Return the mean log loss of private models on the test rows, less that of the classes' shares."""
    target = Target(epsilon)
    plan = advise(train, target, encoding="cut").plan(Plan())
    resolved = plan.resolve("dpsgd", len(train), target, group_names=train.group_names)
    losses = []
    for seed in seeds:
        model = build(resolved, train, seed=seed, secure=False).fit().model.eval()
        with torch.no_grad():
            losses.append(float(functional.cross_entropy(model(test.one_tensor), test.targets)))
    shares = torch.bincount(train.targets, minlength=train.num_classes).double() / len(train)
    return float(np.mean(losses)) + float(shares.clamp(min=1e-9).log()[test.targets].mean())


def main() -> None:
    """Train with and without the input, and print what log loss becomes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=[*MADE_UP, "adult", "bank", "credit", "law"])
    parser.add_argument("--rows", type=int, default=800, help="to train on")
    parser.add_argument("--epsilons", nargs="+", type=float, default=[0.5, 1.0, 3.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--csv", type=Path, help="file of a table of another name")
    parser.add_argument("--target", help="of --csv")
    parser.add_argument("--group", help="of --csv")
    parser.add_argument("--drop", nargs="+", default=[], help="columns of --csv to leave out")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print("| table | training rows | square of the input | epsilon | without it | with it |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name in asked.tables:
        parts = read_parts(name, asked)
        square = constant_of(parts[0])
        without = [without_constant(each, square) for each in parts]
        for epsilon in asked.epsilons:
            found = [excess(*each, epsilon, asked.seeds) for each in (without, parts)]
            first = f"| {name} | {len(parts[0]):,} | {square:.2f} | {epsilon:g} |"
            print(f"{first} {found[0]:+.3f} | {found[1]:+.3f} |", flush=True)


if __name__ == "__main__":
    main()
