"""Audits every method, and the audit itself by planted faults: the tables of docs/evidence-privacy.md.

    EQUIDP_DATA=... python benchmarks/audit.py step adult digits       # one step at epsilon 4
    python benchmarks/audit.py faults                                  # runs that each planted fault takes

Samples and noise have seeds here.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import torch

import equidp
from equidp.data import open_source
from equidp.policies.table import METHODS

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.faults import FAULTS

EPSILON = 4.0
RUNS = {"digits": 800, "adult": 3000}
LARGER = {("digits", "naive"): {"batch_size": 512}}
MORE = {("digits", "naive"): 2400}
"""Among 256 digits, the noise of counts hides which group is the smallest; naive favours it alone."""
TRIED = (100, 150, 200, 300, 400, 600, 800, 1200)
"""Fewer are refused, and so are 100 for audits that sample."""


def step(data: str) -> None:
    """A line by method: the claim, the bound overall, and by group."""
    source = open_source(data)
    train = source.split(0).train
    plan = equidp.default_plan(source)
    print(f"\n| {data}, one step | claimed | at least | share | by group | any mechanism |")
    print("|---|---|---|---|---|---|")
    for method in private_methods():
        began = time.time()
        own = plan.with_changes(LARGER.get((data, method), {}))
        audit = equidp.audit_step(
            train,
            method,
            plan=own,
            epsilon=EPSILON,
            runs=MORE.get((data, method), RUNS[data]),
            secure=False,
        )
        groups = ", ".join(f"{each.group} {each.epsilon:.2f}" for each in audit.bounds[:-1])
        share = f"{audit.bound / audit.claimed:.0%}"
        free = audit.bounds[-1].assumption_free
        print(
            f"| {method} | {audit.claimed:.2f} | {audit.bound:.2f} | {share} | {groups} | {free:.2f} |",
            flush=True,
        )
        print(f"{method}: {time.time() - began:.0f} s", file=sys.stderr, flush=True)


def faults() -> None:
    """A line by fault: the fewest runs of those tried that catch it, and the bound without it."""
    print(
        "\n| fault | claimed | runs with and without | at least | without the fault |\n|---|---|---|---|---|"
    )
    for name, (plant, _, settings) in FAULTS.items():
        for runs in TRIED if settings.get("sample_rate", 1) == 1 else TRIED[1:]:
            with pytest.MonkeyPatch.context() as planted:
                plant(planted)
                faulty = equidp.audit_step(runs=runs, secure=False, **settings)
            if faulty.exceeds:
                break
        sound = equidp.audit_step(runs=runs, secure=False, **settings)
        bounds = f"{faulty.bound:.2f} | {sound.bound:.2f}"
        print(f"| {name} | {faulty.claimed:.2f} | {runs:,} | {bounds} |", flush=True)


def private_methods() -> list[str]:
    """All methods that claim an epsilon."""
    return [name for name, method in METHODS.items() if method.policy.private]


def main() -> None:
    """Run what the command line names."""
    torch.set_num_threads(1)
    kind, *datasets = sys.argv[1:]
    if kind == "faults":
        faults()
    for data in datasets:
        step(data)


if __name__ == "__main__":
    main()
