"""Time and memory of a run against examples, parameters and groups, drawn and as a table.

    python benchmarks/scaling.py --out docs/scaling.png

Each point is a process of its own: one thread, DPSGD-F, noise from the operating system, a ledger on disk.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib.pyplot as plt
import torch
from torch import nn

import equidp

WIDTH, STEPS = 16, 25
AXES: dict[str, tuple[str, list[int]]] = {
    "examples": ("training examples", [10**4, 10**5, 10**6, 10**7]),
    "parameters": ("trained parameters", [10**3, 10**4, 10**5, 10**6]),
    "groups": ("groups", [2, 10, 100, 1000]),
}
USUAL = {"examples": 10**5, "parameters": 0, "groups": 2}
"""What stays the same on the other axes; 0 parameters: logistic regression."""


def measured(examples: int, parameters: int, groups: int) -> dict[str, float]:
    """Seconds until the first step, milliseconds of a step, and MiB beyond what the libraries take."""
    torch.set_num_threads(1)
    libraries = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    generator = torch.Generator().manual_seed(0)
    members = torch.randint(0, groups, (examples,), generator=generator)
    data = equidp.GroupedDataset(
        torch.randn(examples, WIDTH, generator=generator),
        torch.randint(0, 2, (examples,), generator=generator),
        members,
        tuple(map(str, range(groups))),
        ("no", "yes"),
    )
    hidden = parameters // (WIDTH + 3)  # weights and biases of two layers
    model = (
        nn.Sequential(nn.Linear(WIDTH, hidden), nn.ReLU(), nn.Linear(hidden, 2))
        if hidden
        else nn.Linear(WIDTH, 2)
    )
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        trainer = equidp.Trainer(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            data,
            policy=equidp.DPSGDF(),
            batch_size=1024,
            steps=STEPS,
            noise_multiplier=1.0,
            delta=1e-8,
            ledger=equidp.LedgerFile(Path(folder, "ledger")),
        )
        seconds: list[float] = []
        ready = time.perf_counter()
        for batch in trainer.batches():
            trainer.step(batch)
            seconds.append(time.perf_counter() - ready)
            ready = time.perf_counter()
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "before the first step, s": sum(seconds[:1]) + time.perf_counter() - began - sum(seconds),
        "step, ms": 1000 * median(seconds[5:]),
        "memory, MiB": (largest - libraries) / 1024,
    }


def points() -> Iterator[tuple[str, dict[str, float]]]:
    """(axis, what was measured) of each point, by a process of its own."""
    for axis, (_, values) in AXES.items():
        for value in values:
            given = {**USUAL, axis: value}
            asked = [sys.executable, __file__, "--point", json.dumps(given)]
            printed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
            yield axis, {axis: value, **json.loads(printed)}


def draw(found: list[tuple[str, dict[str, float]]], path: Path) -> None:
    figure, places = plt.subplots(2, len(AXES), figsize=(10, 5.4), sharex="col", layout="constrained")
    for column, (axis, (label, _)) in enumerate(AXES.items()):
        rows = [row for name, row in found if name == axis]
        for place, figure_name in zip(places[:, column], ("step, ms", "memory, MiB"), strict=True):
            place.loglog([row[axis] for row in rows], [row[figure_name] for row in rows], "o-")
            place.grid(alpha=0.3)
            place.set_ylim(bottom=min(row[figure_name] for row in rows) / 3)
            if column == 0:
                place.set_ylabel(figure_name)
        places[1, column].set_xlabel(label)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("scaling.png"))
    parser.add_argument("--point", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.point is not None:
        print(json.dumps(measured(**arguments.point)))
        return
    found: list[tuple[str, dict[str, Any]]] = []
    print("| | before the first step, s | step, ms | memory, MiB |\n| --- | --- | --- | --- |")
    for axis, row in points():
        found.append((axis, row))
        times = " | ".join(f"{row[name]:.3g}" for name in list(row)[1:])
        print(f"| {row[axis]:,} {axis} | {times} |", flush=True)
    draw(found, arguments.out)


if __name__ == "__main__":
    main()
