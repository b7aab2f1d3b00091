"""`python -m papers membership`: membership inference by group, with and without privacy."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import pandas as pd
import torch
from cyclopts import Parameter
from torch import nn

from equidp import METHODS, GroupedDataset, Plan, Risk, default_plan
from equidp.accounting.planned import default_delta
from equidp.cli import options
from equidp.cli.app import command
from equidp.comparison.cells import split
from equidp.data import open_source
from equidp.data.dataset import ALL
from equidp.extend import check_outputs
from equidp.kernel.event import Event
from equidp.kernel.policy import statistics_noise
from equidp.training.build import build
from papers.membership import sensitive_membership_inference

FIGURES = ["success_rate", "auc", "tpr_at_0.1%_fpr", "tpr_at_1%_fpr"]

app = command(
    "membership",
    "python -m papers membership --methods sgd,dpsgd",
    "EQUIDP_DATA=... python -m papers membership adult --shadow-models 64 --out adult.csv",
)


@app.default
def membership_command(
    data: options.Data = "digits",
    *,
    methods: Annotated[tuple[str, ...], Parameter(help="Methods to attack.", choices=METHODS)] = (
        "sgd",
        "dpsgd",
        "global-adapt",
    ),
    shadow_models: Annotated[int, Parameter(help="Models that the attacks learn from: an even number.")] = 16,
    out: Annotated[
        Path, Parameter(help="Write the figures to this CSV file.", converter=options.file_name)
    ] = Path("membership.csv"),
    jobs: options.Jobs = None,
) -> None:
    """Attack models of each method with a threshold on the loss and with shadow models.

    Figures come from raw data: for research on public data.
    """
    check_outputs({"--out": out}, data)
    train_data = split(open_source(data), 0).train
    base = default_plan(data)
    if data == "digits":
        base = base.with_changes({"model": "small-cnn"})  # a linear model hardly remembers anyone
    plan = base.with_changes({"delta": base.delta or default_delta(len(train_data))})
    tables = []
    for method in methods:
        # The target model is trained on half of the data.
        half = plan.for_method(method).resolve((len(train_data) + 1) // 2)
        event = Event(
            half.sample_rate, half.noise_multiplier, statistics_noise(half.policy, half.noise_multiplier)
        )
        risks = {ALL: Risk.of([(event, half.steps)])}
        table = sensitive_membership_inference(
            train_data, partial(_train, method, plan), shadow_models=shadow_models, jobs=jobs, risks=risks
        )
        tables.append(table.assign(method=method))
        print(f"\n{method}: {shadow_models} shadow models, members: half of {len(train_data):,} examples")
        for row in table.to_dict("records"):
            known = row if row["group"] == ALL else {}
            shown = "  ".join(
                f"{name} {row[name]:.3f} ({row[name + '_low']:.3f} to {row[name + '_high']:.3f})"
                + (f", at most {row[f'{name}_at_most']:.3f}" if f"{name}_at_most" in known else "")
                for name in FIGURES
            )
            print(f"{row['attack']:15s} {row['group']:5s} {shown}", flush=True)
        pd.concat(tables).to_csv(out, index=False)


def _train(method: str, plan: Plan, data: GroupedDataset, seed: int) -> nn.Module:
    torch.set_num_threads(1)
    return build(plan.for_method(method).resolve(len(data)), data, weights_seed=seed, seed=seed).fit().model
