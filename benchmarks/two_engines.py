"""Compares accuracy and loss of every group after whole runs with each engine (called by same_figures.py).

The engines add the same products in a different order. In float64 no figure shows it. In float32 a network's
runs may differ, as they do between two machines that add in different orders; so both are printed.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import joblib
import pandas as pd
import torch
from torch import nn

from equidp import Plan, default_plan
from equidp.comparison.cells import split
from equidp.data import GroupedDataset, open_source
from equidp.models import MODELS
from equidp.training.build import build

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
    data = split(open_source(name), seed)
    train, test = in_dtype(data.train, dtype), in_dtype(data.test, dtype)
    own = plan.for_method(method).resolve(len(train))
    own = replace(own, plan=replace(own.plan, model=partial(_model, own.plan.model, dtype)))
    run = build(own, train, weights_seed=seed, seed=seed, engine=engine).fit()
    return run.metrics(test).set_index("group")


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


CHANGED = {"digits": {"model": "small-cnn"}}
"""Changes of plans by data, so that convolutions are compared too."""


def compare_engines(names: list[str], seeds: int, epochs: float | None, out: Path) -> None:
    """Train with both engines, print the largest differences and write all of them as JSON."""
    plans = {name: default_plan(name).with_changes(CHANGED.get(name, {})) for name in names}
    if epochs:
        plans = {name: replace(plan, epochs=epochs) for name, plan in plans.items()}
    jobs = [
        (name, method, seed, plans[name], dtype)
        for name in names
        for dtype, seed, method in product((torch.float64, torch.float32), range(seeds), METHODS[name])
    ]
    rows = joblib.Parallel(n_jobs=-1)(joblib.delayed(compared)(*job) for job in jobs)
    out.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    table = pd.DataFrame(rows).groupby(["data", "method", "dtype"], sort=False)
    print(table[["accuracy differs by", "loss differs by"]].max().to_string(float_format="{:.2g}".format))
