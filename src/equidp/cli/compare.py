"""`equidp compare`: one model trained several ways, and what privacy cost each group."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from equidp._files import check_writable
from equidp._validate import names
from equidp.cli.app import app, numbers, progress_bar, say, stoppable
from equidp.cli.options import (
    BatchSize,
    Bounds,
    DataOrDigits,
    Delta,
    Drop,
    Engine,
    Epochs,
    Group,
    Individual,
    InitialBound,
    Jobs,
    JsonFile,
    Missing,
    Model,
    NamedData,
    ReleaseEpsilon,
    Smoothing,
    Target,
    TestShare,
    chosen_data,
    opened,
    plan_changes,
    release_cost,
)
from equidp.comparison.compare import DEFAULT_METHODS, compare
from equidp.comparison.result import Comparison
from equidp.data.table import TEST_SHARE
from equidp.diagnostics import DiagnosisPlan
from equidp.errors import SettingError
from equidp.policies.methods import METHODS
from equidp.report.diagnosis_section import sensitive_findings
from equidp.report.page import write_report
from equidp.report.terminal import print_comparison
from equidp.training.plan import default_plan


@app.command("compare")
def compare_command(
    context: typer.Context,
    data: DataOrDigits = None,
    named_data: NamedData = None,
    target: Target = None,
    group: Group = "",
    drop: Drop = "",
    missing: Missing = "refuse",
    bounds: Bounds = "",
    methods: Annotated[str, typer.Option(help=f"Some of {', '.join(METHODS)}.")] = ",".join(DEFAULT_METHODS),
    seeds: Annotated[int, typer.Option(help="How many runs of each method.")] = 5,
    model: Model = None,
    epsilon: Annotated[
        str | None,
        typer.Option(help="Calibrate the noise to this epsilon; several, with commas, show the trade-off."),
    ] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise as a multiple of the sensitivity.")
    ] = None,
    delta: Delta = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of SGD, for every method.")] = None,
    clipping_bound: Annotated[
        float | None, typer.Option(help="C, or the base bound, for every method.")
    ] = None,
    test_share: TestShare = TEST_SHARE,
    smoothing: Smoothing = None,
    initial_bound: InitialBound = None,
    tau: Annotated[float, typer.Option(help="Largest gap in privacy cost that counts as equal.")] = 0.05,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report here.")] = None,
    json_file: JsonFile = None,
    directory: Annotated[Path, typer.Option(help="Where finished runs are kept.")] = Path("equidp-runs"),
    jobs: Jobs = None,
    engine: Engine = "ghost",
    individual: Individual = False,
    release_epsilon: ReleaseEpsilon = None,
    include_sensitive: Annotated[
        bool, typer.Option("--include-sensitive", help="Add the groups' true epsilons to the report.")
    ] = False,
    diagnose: Annotated[
        bool,
        typer.Option("--diagnose", help="Find out where the disparity comes from; reads raw training data."),
    ] = False,
    diagnose_every: Annotated[
        int | None, typer.Option(help=f"Steps between diagnoses; default {DiagnosisPlan.every}.")
    ] = None,
    diagnose_groups: Annotated[str, typer.Option(help="Groups to diagnose, with commas; default: all.")] = "",
) -> None:
    """Train one model several ways, private and not, and show what privacy cost each group.

    Samples and noise come from seeds, so that methods are compared fairly: the models are for choosing a method, not for release.

    Examples:

        equidp compare --report report.html

        equidp compare adult --methods sgd,dpsgd,dpsgd-f --seeds 5

        equidp compare people.csv --target income --group sex --epsilon 1,3,8 --report report.html

        equidp compare --individual --report report.html
    """
    data = chosen_data(data, named_data)
    if include_sensitive and not (individual and report):
        raise SettingError(
            "--include-sensitive adds to a report with individual privacy; give --individual and --report too."
        )
    release_epsilon = release_cost(individual, release_epsilon)
    for path in (report, json_file):
        if path is not None:
            check_writable(path, data)
    if epsilon is not None and noise_multiplier is not None:
        raise SettingError(
            f"--epsilon {epsilon} and --noise-multiplier {noise_multiplier}; give one of the two."
        )
    if not diagnose and (diagnose_groups or diagnose_every is not None):
        raise SettingError("--diagnose-groups and --diagnose-every say how to diagnose; give --diagnose too.")
    epsilons = [] if epsilon is None else numbers("--epsilon", epsilon)
    source = opened(
        data, target=target, group=group, drop=drop, missing=missing, bounds=bounds, test_share=test_share
    )
    chosen = names(methods)
    stopped = "stopped. Finished runs are kept: the same command goes on from them."
    with stoppable(stopped), progress_bar() as on_progress:
        comparison = compare(
            source,
            methods=chosen,
            seeds=seeds,
            plan=default_plan(source).with_changes(plan_changes(context, chosen)),
            epsilons=epsilons,
            tau=tau,
            engine=engine,
            directory=directory,
            jobs=jobs,
            on_progress=on_progress,
            command=shlex.join(["equidp", *sys.argv[1:]]),
            release_epsilon=release_epsilon,
            diagnosis=DiagnosisPlan(
                DiagnosisPlan.every if diagnose_every is None else diagnose_every,
                tuple(names(diagnose_groups)) or None,
            )
            if diagnose
            else None,
        )
    _deliver(comparison, report, json_file, include_sensitive=include_sensitive)


def _deliver(
    comparison: Comparison, report: Path | None, json_file: Path | None, *, include_sensitive: bool
) -> None:
    if json_file is not None:
        comparison.to_json(json_file)
    if report is not None:
        write_report(comparison, report, include_sensitive=include_sensitive)
    print_comparison(comparison)  # last: the reader may close the pipe
    for sentence in sensitive_findings(comparison):
        typer.echo(sentence)
    if report is not None:
        say(f"Report: {report.resolve()}")
