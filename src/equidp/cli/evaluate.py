"""`equidp evaluate`: what a finished run guarantees, does to each group, and cost each group."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from equidp._extras import require_extra
from equidp._files import check_outputs, write_whole
from equidp.cli import options
from equidp.cli.app import command
from equidp.cli.result import print_result
from equidp.evaluation.evaluation import Evaluation
from equidp.evaluation.metrics import Metric
from equidp.report.format import amount
from equidp.runs.folder import PAGE, RunFolder
from equidp.runs.saved import FinishedRun, open_run
from equidp.training.device import chosen_device

with require_extra("tables"):
    import pandas as pd

app = command(
    "evaluate",
    "equidp evaluate run",
    "equidp evaluate run --metric auc --positive yes --threshold 0.08",
    "equidp evaluate run others.csv --baseline run-sgd --json figures.json",
)


@app.default
def evaluate_command(
    run: options.RunFolder,
    test: options.Rows = None,
    /,
    *,
    baseline: Annotated[
        Path | None,
        Parameter(help="Folder of a run by --method sgd on the same data, to show what privacy cost."),
    ] = None,
    level: Annotated[float, Parameter(help="Level of the intervals.")] = 0.95,
    lacking: options.Lacking = (),
    sep: options.RowsSep = None,
    charset: options.RowsCharset = None,
    metric: options.Metric | None = None,
    decision: options.DecisionOptions = options.DecisionOptions(),
    include_sensitive: Annotated[
        bool, Parameter(help="Show metrics of few people as well, which must not be shared.")
    ] = False,
    json_file: options.JsonFile = None,
    device: options.Device = "cpu",
    trust_code: options.TrustCode = False,
) -> None:
    """Show the guarantee of a run, its metrics by group, and what privacy cost each group.

    Groups of few people are left out of all metrics, so that no difference reveals them.
    Intervals treat the test examples as a sample.
    They do not show the variation between training runs.
    """
    chosen_device(device)  # refuses one that is not here before the folder is read
    check_outputs({"--json": json_file}, run, test, baseline)
    kept = open_run(run, trust_code=trust_code)
    check_outputs({"--json": json_file}, kept.config.data.name)
    found = kept.evaluate(
        test,
        baseline=None if baseline is None else open_run(baseline, trust_code=trust_code),
        level=level,
        metric=metric,
        **vars(decision),
        lacking=lacking,
        sep=sep,
        charset=charset,
        include_sensitive=include_sensitive,
        device=device,
    )
    if json_file is not None:
        _write_json(json_file, kept, found)
    if include_sensitive:
        print("Sensitive, not for release: these metrics include groups of few people.")
    card = RunFolder(run).results / PAGE
    in_card = card.exists() and not any((test, metric, *vars(decision).values()))
    print_result(kept.run, found, metric or kept.config.metric, card if in_card else None)
    if found.costs is not None and not found.costs.empty:
        groups = [name for name in kept.facts["group_names"] if name not in found.small.groups]
        there = found.costs["group"].isin(groups) & found.costs["privacy_cost"].notna()
        if there.any():
            print(_gap_sentence(found.costs[there], found.metric))


def _write_json(path: Path, kept: FinishedRun, found: Evaluation) -> None:
    facts = {"epsilon": kept.run.epsilon(), "delta": kept.run.delta, "released": kept.released}
    content = {**facts, **found.plain()}
    write_whole(path, (json.dumps(content, indent=2) + "\n").encode())


def _gap_sentence(costs: pd.DataFrame, metric: Metric) -> str:
    by_group = costs.set_index("group")["privacy_cost"]
    gap = amount(metric, by_group.max() - by_group.min())
    most = "all groups the same" if gap == amount(metric, 0.0) else f"group {by_group.idxmax()} most"
    return (
        f"Privacy costs {most}; the largest gap between groups is {gap}. One run of each "
        "method shows no tendency: equidp compare does."
    )
