"""`python -m papers ablate`: which error of clipping hurts a group."""

from __future__ import annotations

import math
from typing import Annotated

import pandas as pd
from cyclopts import Parameter

from equidp import Column, Table, default_plan
from equidp.cli import options
from equidp.cli.app import command
from equidp.cli.messages import progress_bar, stoppable
from equidp.cli.settings import read_run
from equidp.extend import check_outputs, write_whole
from papers.ablation import ERRORS, ablate, ablation_summary

app = command(
    "ablate",
    "python -m papers ablate --seeds 3",
    "python -m papers ablate mnist-esipova --errors magnitude,direction --seeds 1",
)
Errors = Annotated[tuple[str, ...], Parameter(help="Errors to train with.", choices=ERRORS)]


@app.default
def ablate_command(
    data: options.Data = "digits",
    *,
    method: options.Method = "dpsgd",
    errors: Errors = tuple(ERRORS),
    seeds: Annotated[int, Parameter(help="Number of runs with each error.")] = 5,
    json_file: options.JsonFile = None,
    jobs: options.Jobs = None,
    device: options.Device = "cpu",
    config: options.Config = None,
    table: options.TableOptions = options.TableOptions(),
    plan: options.PlanOptions = options.PlanOptions(),
    set_fields: options.Set = (),
) -> None:
    """Train without noise and with one error of clipping at a time: magnitude, direction, both, none.

    Shows which error hurts a group more over a whole training (Esipova et al., Table 1).
    No run is private.
    """
    check_outputs({"--json": json_file}, data, config)
    run = read_run(config, set_fields, options.given_fields(table, plan), [method])
    source = run.run_data(data).source()
    changed = default_plan(source).with_changes(run.options)
    with stoppable("stopped. No run of an ablation is kept."), progress_bar() as on_progress:
        figures = ablate(
            source,
            method=method,
            errors=errors,
            seeds=seeds,
            plan=changed,
            jobs=jobs,
            device=device,
            on_progress=on_progress,
        )
    summary = ablation_summary(figures)
    ablation_table(summary, method).print()
    if json_file is not None:
        write_whole(json_file, (summary.to_json(orient="records", indent=2) + "\n").encode())


def ablation_table(summary: pd.DataFrame, method: str) -> Table:
    """Accuracy by error of clipping and group, in %, with standard errors over seeds.

    Args:
        summary: from `ablation_summary`.
        method: whose clipping.
    """
    title = f"Accuracy, %, after training without noise and with one error of {method}'s clipping"
    columns = [Column("group", "name"), *(Column(str(error)) for error in dict.fromkeys(summary["error"]))]
    rows = []
    for group, part in summary.groupby("group", sort=False):
        ends = ["" if math.isnan(error) else f" ± {_points(error)}" for error in part["accuracy_se"]]
        cells = [_points(value) + end for value, end in zip(part["accuracy"], ends, strict=True)]
        rows.append((str(group), *cells))
    return Table(columns, rows, title)


def _points(value: float) -> str:
    return f"{round(100 * value, 1) + 0.0:.1f}"
