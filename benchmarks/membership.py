"""Membership inference by group, with and without privacy: whose presence in the data can be detected?

    python benchmarks/membership.py [--data digits] [--methods sgd,dpsgd,global-adapt] [--shadow-models 16] \\
        [--out membership.csv]

Its figures come from raw data: for research on public data.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from torch import nn

from equidp import GroupedDataset, Plan, Risk, default_plan
from equidp.accounting.schedule import default_delta
from equidp.comparison.grid import split
from equidp.data import open_source
from equidp.data.dataset import ALL
from equidp.evaluation.membership import sensitive_membership_inference
from equidp.kernel.ledger import StepEvent
from equidp.kernel.policy import statistics_noise
from equidp.training.build import build

FIGURES = ["success_rate", "auc", "tpr_at_0.1%_fpr", "tpr_at_1%_fpr"]


def trained(method: str, plan: Plan, data: GroupedDataset, seed: int) -> nn.Module:
    torch.set_num_threads(1)
    return build(plan.resolve(method, len(data)), data, seed=seed, secure=False).fit().model


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="digits")
    parser.add_argument("--methods", default="sgd,dpsgd,global-adapt")
    parser.add_argument("--shadow-models", type=int, default=16)
    parser.add_argument("--out", type=Path, default=Path("membership.csv"))
    chosen = parser.parse_args()
    data = split(open_source(chosen.data), 0).train
    base = default_plan(chosen.data)
    if chosen.data == "digits":
        base = base.with_changes({"model": "small-cnn"})  # a linear model hardly remembers anyone
    plan = base.with_changes({"delta": base.delta or default_delta(len(data))})
    tables = []
    for method in chosen.methods.split(","):
        train = partial(trained, method, plan)
        half = plan.resolve(method, (len(data) + 1) // 2)  # the target model is trained on half of the data
        event = StepEvent(
            half.sample_rate, half.noise_multiplier, statistics_noise(half.policy, half.noise_multiplier)
        )
        risks = {ALL: Risk.of([(event, half.steps)])}
        table = sensitive_membership_inference(data, train, shadow_models=chosen.shadow_models, risks=risks)
        tables.append(table.assign(method=method))
        print(f"\n{method}: {chosen.shadow_models} shadow models, members: half of {len(data):,} examples")
        for row in table.to_dict("records"):
            shown = "  ".join(
                f"{name} {row[name]:.3f} ({row[name + '_low']:.3f} to {row[name + '_high']:.3f})"
                + (f", at most {row[name + '_at_most']:.3f}" if row["group"] == ALL else "")
                for name in FIGURES
            )
            print(f"{row['attack']:15s} {row['group']:5s} {shown}", flush=True)
        pd.concat(tables).to_csv(chosen.out, index=False)


if __name__ == "__main__":
    main()
