"""`equidp ablate`: which error of clipping hurts a group."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from equidp._files import check_writable, write_whole
from equidp._validate import names
from equidp.cli.app import app, progress_bar, stoppable
from equidp.cli.options import (
    BatchSize,
    Bounds,
    ClippingBound,
    DataOrDigits,
    Drop,
    Epochs,
    Group,
    Jobs,
    JsonFile,
    LearningRate,
    Missing,
    Model,
    NamedData,
    Target,
    TestShare,
    chosen_data,
    opened,
    plan_changes,
)
from equidp.comparison.ablation import ERRORS, ablate, ablation_summary
from equidp.data.table import TEST_SHARE
from equidp.policies.methods import METHODS
from equidp.report.terminal import ablation_table
from equidp.training.plan import default_plan


@app.command("ablate")
def ablate_command(
    context: typer.Context,
    data: DataOrDigits = None,
    named_data: NamedData = None,
    target: Target = None,
    group: Group = "",
    drop: Drop = "",
    missing: Missing = "refuse",
    bounds: Bounds = "",
    test_share: TestShare = TEST_SHARE,
    method: Annotated[str, typer.Option(help=f"Whose clipping: one of {', '.join(METHODS)}.")] = "dpsgd",
    errors: Annotated[str, typer.Option(help=f"Some of {', '.join(ERRORS)}.")] = ",".join(ERRORS),
    seeds: Annotated[int, typer.Option(help="How many runs with each error.")] = 5,
    model: Model = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    learning_rate: LearningRate = None,
    clipping_bound: ClippingBound = None,
    json_file: JsonFile = None,
    jobs: Jobs = None,
) -> None:
    """Train without noise and with one error of clipping at a time: magnitude, direction, both, none (Esipova et al., Table 1).

    No run is private. It shows which error hurts a group more over a whole training.

    Examples:

        equidp ablate --seeds 3

        equidp ablate mnist-esipova --errors magnitude,direction --seeds 1
    """
    data = chosen_data(data, named_data)
    if json_file is not None:
        check_writable(json_file, data)
    source = opened(
        data, target=target, group=group, drop=drop, missing=missing, bounds=bounds, test_share=test_share
    )
    with stoppable("stopped. No run of an ablation is kept."), progress_bar() as on_progress:
        table = ablate(
            source,
            method=method,
            errors=names(errors),
            seeds=seeds,
            plan=default_plan(source).with_changes(plan_changes(context, [method])),
            jobs=jobs,
            on_progress=on_progress,
        )
    summary = ablation_summary(table)
    Console().print(ablation_table(summary, method))
    if json_file is not None:
        write_whole(json_file, (summary.to_json(orient="records", indent=2) + "\n").encode())
