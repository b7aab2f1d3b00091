"""Accuracy and individual epsilon by class, on MNIST with 500 eights: does equal accuracy mean equal privacy?

    EQUIDP_DATA=... python benchmarks/privacy_by_group.py [--epochs 10] [--data mnist] [--out privacy.json]

Reads raw data without noise: for research on public data. Norms of all examples are taken once an epoch, so
epsilons are estimates.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path

import joblib
import torch

from equidp import IndividualAccountant, Plan, default_plan
from equidp.comparison.cells import split
from equidp.data import open_source
from equidp.training.build import build

METHODS = ("dpsgd", "dpsgd-f-code", "global-adapt")


def by_group(source_name: str, method: str, plan: Plan) -> list[dict[str, float | str]]:
    """One row per group: accuracy on the test data and the epsilons of the training data."""
    torch.set_num_threads(1)
    data = split(open_source(source_name), 0)
    accountant = IndividualAccountant(per_epoch=1)
    resolved = plan.resolve(method, len(data.train))
    trainer = build(resolved, data.train, seed=0, secure=False, callbacks=[accountant])
    run = trainer.fit()
    accuracy = run.metrics(data.test).set_index("group")["accuracy"]
    report = accountant.report(trainer, accountant="rdp")
    table = report.sensitive_by_group()
    return [
        {"method": method, "run": report.largest, "accuracy": float(accuracy[row["group"]]), **row}
        for row in table.to_dict("records")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--out", type=Path, default=Path("privacy.json"))
    chosen = parser.parse_args()
    plan = replace(default_plan(chosen.data), epochs=chosen.epochs)
    os.environ["OMP_NUM_THREADS"] = "1"
    runs = joblib.Parallel(n_jobs=-1)(
        joblib.delayed(by_group)(chosen.data, method, plan) for method in METHODS
    )
    rows = [row for run in runs for row in run]
    chosen.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print("method         class   accuracy  epsilon: mean  median  95%     over lowest   (run)")
    for row in rows:
        print(
            f"{row['method']:14s} {row['group']:6s} {row['accuracy']:8.4f} {row['mean']:14.4f} "
            f"{row['median']:7.4f} "
            f"{row['q95']:7.4f} {row['over_lowest']:10.3f} {row['run']:10.4f}"
        )


if __name__ == "__main__":
    main()
