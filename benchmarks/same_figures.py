"""Do comparisons give the same figures with either engine? Accuracy and loss of every group after whole runs,
side by side.

    EQUIDP_DATA=... python benchmarks/same_figures.py [--data digits,adult,dutch] [--seeds 2] [--epochs 2] \\
        [--out same.json]

The engines add the same products in another order. In float64 that is far below what any figure shows. In
float32 a network's run may part from its twin, as two runs of one engine do on machines that add in another
order; so both are printed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import joblib
import pandas as pd
import torch
from torch import nn

from equidp import Plan, default_plan
from equidp.comparison.grid import RunSpec, split
from equidp.data import DataSplit, GroupedDataset, open_source
from equidp.models import MODELS
from equidp.training.build import make_trainer

METHODS = {
    "digits": ("sgd", "dpsgd", "dpsgd-f", "global-adapt"),
    "mnist": ("sgd", "dpsgd", "naive", "dpsgd-f", "dpsgd-f-code", "global-adapt"),
    "adult": ("sgd", "dpsgd", "naive", "dpsgd-f", "dpsgd-f-code"),
    "dutch": ("sgd", "dpsgd", "naive", "dpsgd-f", "dpsgd-f-code"),
}
ENGINES = ("ghost", "functional")


def in_dtype(data: GroupedDataset, dtype: torch.dtype) -> GroupedDataset:
    """The same examples in another precision."""
    return replace(data, inputs=data.inputs.to(dtype))


def figures(name: str, method: str, seed: int, plan: Plan, dtype: torch.dtype, engine: str) -> pd.DataFrame:
    """A trained run's figures, one row per group."""
    torch.set_num_threads(1)
    source = open_source(name)
    data = split(source, seed)
    data = DataSplit(in_dtype(data.train, dtype), in_dtype(data.test, dtype), data.notes)
    own = plan.for_method(method)
    assert isinstance(own.model, str)
    own = replace(own, model=partial(_model, own.model, dtype), delta=own.delta or 1e-5)
    run = make_trainer(RunSpec(source, method, own, "", math.nan, seed, engine), data).fit()
    return run.metrics(data.test).set_index("group")


def _model(name: str, dtype: torch.dtype, shape: tuple[int, ...], classes: int) -> nn.Module:
    return MODELS[name](shape, classes).to(dtype)


def compared(name: str, method: str, seed: int, plan: Plan, dtype: torch.dtype) -> dict[str, float | str]:
    """The largest differences over groups between the two engines' runs."""
    one, other = (figures(name, method, seed, plan, dtype, engine) for engine in ENGINES)
    row: dict[str, float | str] = {
        "data": name,
        "method": method,
        "seed": seed,
        "dtype": str(dtype).removeprefix("torch."),
        "accuracy": float(one.loc["all", "accuracy"]),
        "accuracy differs by": float((one["accuracy"] - other["accuracy"]).abs().max()),
        "loss differs by": float((one["loss"] - other["loss"]).abs().max()),
    }
    print(row, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="digits,adult,dutch", help=f"some of {','.join(METHODS)}")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epochs", type=float, help="default: each dataset's own")
    parser.add_argument("--out", type=Path, default=Path("same.json"))
    chosen = parser.parse_args()
    names = chosen.data.split(",")
    if unknown := set(names) - set(METHODS):
        parser.error(f"unknown data {', '.join(sorted(unknown))}; expected some of {', '.join(METHODS)}")
    plans = {name: default_plan(name) for name in names}
    if chosen.epochs:
        plans = {name: replace(plan, epochs=chosen.epochs) for name, plan in plans.items()}
    os.environ["OMP_NUM_THREADS"] = "1"
    jobs = [
        (name, method, seed, plans[name], dtype)
        for name in names
        for dtype, seed, method in product((torch.float64, torch.float32), range(chosen.seeds), METHODS[name])
    ]
    rows = joblib.Parallel(n_jobs=-1)(joblib.delayed(compared)(*job) for job in jobs)
    chosen.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    table = pd.DataFrame(rows).groupby(["data", "method", "dtype"], sort=False)
    print(table[["accuracy differs by", "loss differs by"]].max().to_string(float_format="{:.2g}".format))


if __name__ == "__main__":
    main()
