"""Audits one step and whole trainings by every method, and writes the tables of docs/audit.md.

    EQUIDP_DATA=... python benchmarks/audit.py step digits adult     # one step at epsilon 4, by gradient
    EQUIDP_DATA=... python benchmarks/audit.py training digits adult # one training each, by gradient and data
    python benchmarks/audit.py faults                                # runs that each planted fault takes

What was measured is kept in `equidp-audits`, so that a stopped command continues.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

import equidp
from equidp.data import open_source
from equidp.policies.methods import METHODS

FOLDER = Path("equidp-audits")
RUNS = {"digits": 1200, "adult": 3000}
STEP_CHANGES = {"digits": {"batch_size": 64}}
"""A step of 64 digits takes a third of the time of one of 256, and epsilon is the same."""


def step(data: str) -> None:
    """One line by method: the claim, the bound overall, and by group."""
    source = open_source(data)
    train = source.split(0).train
    plan = equidp.default_plan(source).with_changes(STEP_CHANGES.get(data, {}))
    print(f"\n| {data}: method | claimed | at least | share | by group | any mechanism |")
    print("|---|---|---|---|---|---|")
    for method in METHODS:
        if method == "sgd":
            continue
        began = time.time()
        audit = equidp.audit_step(train, method, plan=plan, runs=RUNS[data], secure=False, directory=FOLDER)
        groups = ", ".join(f"{each.group} {each.epsilon:.2f}" for each in audit.bounds[:-1])
        print(
            f"| {method} | {audit.claimed:.2f} | {audit.bound:.2f} | {audit.bound / audit.claimed:.0%} "
            f"| {groups} | {audit.bounds[-1].assumption_free:.2f} |",
            flush=True,
        )
        print(f"{data} {method}: {time.time() - began:.0f} s", file=sys.stderr, flush=True)


def main() -> None:
    """Runs what the command line names."""
    torch.set_num_threads(1)
    kind, *datasets = sys.argv[1:]
    for data in datasets:
        {"step": step}[kind](data)


if __name__ == "__main__":
    main()
