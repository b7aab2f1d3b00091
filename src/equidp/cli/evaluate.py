"""`equidp evaluate`: what a finished run guarantees, does to each group, and cost each group."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from equidp._extras import require_extra
from equidp._files import check_folder, check_outputs, write_whole
from equidp.cli import metrics, options
from equidp.cli.app import command
from equidp.errors import SettingError
from equidp.evaluation.evaluation import Evaluation, evaluate
from equidp.evaluation.metrics import Metric
from equidp.policies.table import BASELINE
from equidp.report.evaluation import (
    blind_spot_sentences,
    gap_sentences,
    print_evaluation,
    print_groups,
    reliability_table,
    risk_sentences,
    split_noisy_means,
)
from equidp.report.format import amount
from equidp.report.guarantee import attack_risk_sentences, guarantee_sentences
from equidp.runs.saved import FinishedRun, open_run
from equidp.training.device import chosen_device
from equidp.training.run import Run

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
    sep: options.RowsSep = None,
    charset: options.RowsCharset = None,
    metric: metrics.Metric | None = None,
    decision: metrics.DecisionOptions = metrics.DecisionOptions(),
    reliability: Annotated[
        bool, Parameter(help="Show mean predicted risk beside what happened, by group and predicted risk.")
    ] = False,
    include_sensitive: Annotated[
        bool, Parameter(help="Show metrics of few people as well, which must not be shared.")
    ] = False,
    json_file: options.JsonFile = None,
    figures: options.Figures = None,
    device: options.Device = "cpu",
    trust_code: options.TrustCode = False,
) -> None:
    """Show the guarantee of a run, its metrics by group, and what privacy cost each group.

    Groups of few people count in no metric, so that no difference between metrics is about them.
    Intervals treat the test examples as a sample.
    They do not show the variation between training runs.
    """
    place = chosen_device(device)
    check_outputs({"--json": json_file}, run, test, baseline)
    if figures is not None:
        from equidp.report.figures import save_evaluation_figures

        check_folder(figures)
    kept = open_run(run, trust_code=trust_code).with_file_format(sep, charset)
    check_outputs({"--json": json_file}, kept.config.data.name)
    data = kept.test() if test is None else kept.read_grouped(test)
    other = None if baseline is None else _open_baseline(kept, baseline, trust_code).run.model.to(place)
    found = evaluate(
        kept.run.model.to(place),
        data,
        level=level,
        baseline=other,
        metric=metric or kept.config.measures.metric,
        decision=decision.decision(kept.config.decision, kept.class_counts),
    )
    found = found if include_sensitive else found.withholding()
    if json_file is not None:
        _write_json(json_file, kept, found)
    if figures is not None:
        save_evaluation_figures(found, figures)
    if include_sensitive:
        print("Sensitive, not for release: these metrics include groups of few people.")
    print_run(kept.run, found)
    if reliability:
        if len(data.class_names) != 2:
            raise SettingError(
                f"--reliability is for two classes; this run has {len(data.class_names) or 'none'}."
            )
        if not found.reliability.empty:
            reliability_table(found).print()
    if kept.released:
        print(_means_sentence(kept))
    for sentence in gap_sentences(found):
        print(sentence)
    if found.costs is not None and not found.costs.empty:
        print_groups(found.costs, found.metric)
        groups = [name for name in data.group_names if name not in found.small.groups]
        there = found.costs["group"].isin(groups) & found.costs["privacy_cost"].notna()
        if there.any():
            print(_gap_sentence(found.costs[there], found.metric))


def _write_json(path: Path, kept: FinishedRun, found: Evaluation) -> None:
    facts = {"epsilon": kept.run.epsilon(), "delta": kept.run.delta, "released": kept.released}
    notes = [*blind_spot_sentences(found), *risk_sentences(found, kept.run.facts)]
    content = {**facts, **found.plain(), "notes": notes}
    write_whole(path, (json.dumps(content, indent=2) + "\n").encode())


def print_run(run: Run, found: Evaluation) -> None:
    """Print the guarantee of a run and its metrics by group; withhold metrics of few people before."""
    for sentence in (*guarantee_sentences(run), *attack_risk_sentences(run)):
        print(sentence)
    print_evaluation(found, run.facts)


def _means_sentence(kept: FinishedRun) -> str:
    clear, too_noisy = split_noisy_means(kept.released, kept.run.epsilon())
    means = [f"{row['group']} {row['mean']:.3g} ± {row['standard_error']:.2g}" for row in clear]
    means += [f"{name} not shown: too few people for the noise" for name in too_noisy]
    of = "each group's training examples, as released with noise"
    return f"Estimated mean epsilon of {of}: {', '.join(means)}."


def _gap_sentence(costs: pd.DataFrame, metric: Metric) -> str:
    by_group = costs.set_index("group")["privacy_cost"]
    gap = amount(metric, by_group.max() - by_group.min())
    most = "all groups the same" if gap == amount(metric, 0.0) else f"group {by_group.idxmax()} most"
    return (
        f"Privacy costs {most}; the largest gap between groups is {gap}. One run of each "
        "method shows no tendency: equidp compare does."
    )


def _open_baseline(kept: FinishedRun, folder: Path, trust_code: bool) -> FinishedRun:
    other = open_run(folder, trust_code=trust_code)
    if other.config.method != BASELINE:
        raise SettingError(
            f"{str(folder)!r} was trained by {other.config.method}; a baseline is a run by {BASELINE}, "
            "without privacy."
        )
    if kept.config.preprocessing is not None:
        raise SettingError(
            f"{str(kept.folder)!r} was preprocessed privately, so that a run by {BASELINE} reads other "
            "inputs; equidp compare --preprocessing private shows what privacy cost."
        )
    if other.facts["sensitive_data_sha256"] != kept.facts["sensitive_data_sha256"]:
        raise SettingError(
            f"{str(folder)!r} was trained on other data, or on another split of it, than "
            f"{str(kept.folder)!r}; train the baseline with the same data and --seed."
        )
    return other
