"""The command line. It parses, calls, and turns equidp's own errors into one clear message and exit code 2."""

from __future__ import annotations

import json
import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from equidp.account import account
from equidp.accounting import ACCOUNTANTS
from equidp.compare import DEFAULT_METHODS, RELEASE_EPSILON, Comparison, compare, default_plan
from equidp.data import SOURCES, open_source, parse_bounds
from equidp.data.tabular import TEST_SHARE
from equidp.diagnostics import DiagnosisPlan
from equidp.diagnostics.ablation import ERRORS, ablate, ablation_summary
from equidp.engines import ENGINES
from equidp.errors import ApproximationWarning, EquidpError, PrivacyWarning, SettingError
from equidp.models import MODELS
from equidp.plans import METHODS
from equidp.report.diagnosis import sensitive_findings
from equidp.report.html import check_writable
from equidp.report.table import ablation_table
from equidp.runs import Progress as ProgressHook

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Train with differential privacy so that every group pays the same price for it.",
)
_messages = Console(stderr=True)


def main() -> None:
    """Entry point of the `equidp` command."""
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    try:
        app()
    except EquidpError as error:
        _messages.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        _messages.print("stopped. Finished runs are kept: the same command goes on from them.")
        sys.exit(130)


def _show_warning(message: Warning | str, category: type[Warning], *_: Any) -> None:
    if issubclass(category, PrivacyWarning | ApproximationWarning):
        _messages.print(f"[bold yellow]warning:[/] {escape(str(message))}", highlight=False, soft_wrap=True)


@app.callback()
def _commands() -> None:
    """Keeps `compare` a command of its own although it is the main one."""


@app.command("compare")
def compare_command(
    data: Annotated[
        str, typer.Option(help=f"One of {', '.join(SOURCES)}; or a path to a CSV or Parquet file.")
    ] = "digits",
    target: Annotated[str | None, typer.Option(help="Column to predict, where --data is a file.")] = None,
    group: Annotated[
        str,
        typer.Option(help="Column of the groups, where --data is a file; several, with commas, are crossed."),
    ] = "",
    drop: Annotated[str, typer.Option(help="Columns of the file to leave out, with commas.")] = "",
    missing: Annotated[str, typer.Option(help="Missing values in a file: refuse, or category.")] = "refuse",
    bounds: Annotated[
        str,
        typer.Option(
            help="Public ranges of numbers in a file, as age=0:100,hours=0:99, instead of its statistics."
        ),
    ] = "",
    methods: Annotated[str, typer.Option(help=f"Some of {', '.join(METHODS)}.")] = ",".join(DEFAULT_METHODS),
    seeds: Annotated[int, typer.Option(help="How many runs of each method.")] = 5,
    model: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(MODELS)}; default: the data's.")
    ] = None,
    epsilon: Annotated[
        str | None,
        typer.Option(help="Calibrate the noise to this epsilon; several, with commas, show the trade-off."),
    ] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise as a multiple of the sensitivity.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Delta of the whole run.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the training data.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Expected size of a Poisson sample.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of SGD, for every method.")] = None,
    clipping_bound: Annotated[
        float | None, typer.Option(help="C, or the base bound, for every method.")
    ] = None,
    test_share: Annotated[
        float, typer.Option(help="Share of a file's rows to test on, in (0, 1).")
    ] = TEST_SHARE,
    smoothing: Annotated[
        float | None, typer.Option(help="DPSGD-F's average over released counts, 0 to 1.")
    ] = None,
    tau: Annotated[float, typer.Option(help="Largest gap in privacy cost that counts as equal.")] = 0.05,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report here.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures as JSON here.")] = None,
    directory: Annotated[Path, typer.Option(help="Where finished runs are kept.")] = Path("equidp-runs"),
    jobs: Annotated[int | None, typer.Option(help="Processes; default: one a core.")] = None,
    engine: Annotated[str, typer.Option(help=f"One of {', '.join(ENGINES)}.")] = "ghost",
    diagnose: Annotated[
        bool,
        typer.Option("--diagnose", help="Find out where the disparity comes from; reads raw training data."),
    ] = False,
    diagnose_every: Annotated[int, typer.Option(help="Steps between diagnoses.")] = 200,
    diagnose_groups: Annotated[str, typer.Option(help="Groups to diagnose, with commas; default: all.")] = "",
    individual: Annotated[
        bool,
        typer.Option("--individual", help="Account for each example; release each group's mean epsilon."),
    ] = False,
    release_epsilon: Annotated[
        float | None,
        typer.Option(
            help=f"What that release may cost each run, with --individual; default {RELEASE_EPSILON}."
        ),
    ] = None,
    include_sensitive: Annotated[
        bool, typer.Option("--include-sensitive", help="Add the groups' true epsilons to the report.")
    ] = False,
) -> None:
    """Train one model several ways, private and not, and show what privacy cost each group.

    Samples and noise come from seeds, so that methods are compared fairly: the models are for choosing a method, not for release.

    Examples:

        equidp compare --report report.html

        equidp compare --data adult --methods sgd,dpsgd,dpsgd-f --seeds 5

        equidp compare --data people.csv --target income --group sex --epsilon 1,3,8 --report report.html

        equidp compare --individual --report report.html
    """
    if include_sensitive and not (individual and report):
        raise SettingError(
            "--include-sensitive adds to a report with individual privacy; give --individual and --report too."
        )
    if release_epsilon is not None and not individual:
        raise SettingError(
            f"--release-epsilon {release_epsilon} releases individual privacy; give --individual too."
        )
    for path in (report, json_file):
        if path is not None:
            check_writable(path)
    if epsilon is not None and noise_multiplier is not None:
        raise SettingError(
            f"--epsilon {epsilon} and --noise-multiplier {noise_multiplier}; give one of the two."
        )
    source = open_source(
        data,
        target=target,
        group=tuple(_names(group)),
        drop=tuple(_names(drop)),
        missing=missing,
        bounds=parse_bounds(bounds) if bounds else None,
        test_share=test_share,
    )
    given = {
        "model": model,
        "noise_multiplier": noise_multiplier,
        "delta": delta,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "clipping_bound": clipping_bound,
        "smoothing": smoothing,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    with _progress() as on_progress:
        comparison = compare(
            source,
            methods=_names(methods),
            seeds=seeds,
            plan=default_plan(source).with_changes(changes),
            epsilons=_numbers("--epsilon", epsilon or ""),
            tau=tau,
            engine=engine,
            directory=directory,
            jobs=jobs,
            on_progress=on_progress,
            command=shlex.join(["equidp", *sys.argv[1:]]),
            diagnosis=DiagnosisPlan(diagnose_every, tuple(_names(diagnose_groups)) or None)
            if diagnose
            else None,
            release_epsilon=(RELEASE_EPSILON if release_epsilon is None else release_epsilon)
            if individual
            else None,
        )
    _deliver(comparison, report, json_file, include_sensitive=include_sensitive)


def _deliver(
    comparison: Comparison, report: Path | None, json_file: Path | None, *, include_sensitive: bool
) -> None:
    comparison.table()
    for sentence in sensitive_findings(comparison):
        typer.echo(sentence)
    if json_file is not None:
        comparison.to_json(json_file)
    if report is not None:
        comparison.report(report, include_sensitive=include_sensitive)
        _messages.print(f"Report: {report.resolve()}", highlight=False, soft_wrap=True)


@app.command("ablate")
def ablate_command(
    data: Annotated[
        str, typer.Option(help=f"One of {', '.join(SOURCES)}; or a path to a CSV or Parquet file.")
    ] = "digits",
    target: Annotated[str | None, typer.Option(help="Column to predict, where --data is a file.")] = None,
    group: Annotated[str, typer.Option(help="Column of the groups, where --data is a file.")] = "",
    method: Annotated[str, typer.Option(help=f"Whose clipping: one of {', '.join(METHODS)}.")] = "dpsgd",
    errors: Annotated[str, typer.Option(help=f"Some of {', '.join(ERRORS)}.")] = ",".join(ERRORS),
    seeds: Annotated[int, typer.Option(help="How many runs with each error.")] = 5,
    model: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(MODELS)}; default: the data's.")
    ] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the training data.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Expected size of a Poisson sample.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of SGD.")] = None,
    clipping_bound: Annotated[float | None, typer.Option(help="C, or the base bound.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures as JSON here.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Processes; default: one a core.")] = None,
) -> None:
    """Train without noise and with one error of clipping at a time: magnitude, direction, both, none (Esipova et al., Table 1).

    No run is private. It shows which error hurts a group more over a whole training.

    Examples:

        equidp ablate --seeds 3

        equidp ablate --data mnist-esipova --errors magnitude,direction --seeds 1
    """
    if json_file is not None:
        check_writable(json_file)
    source = open_source(data, target=target, group=tuple(_names(group)))
    given = {
        "model": model,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "clipping_bound": clipping_bound,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    with _progress() as on_progress:
        table = ablate(
            source,
            method=method,
            errors=_names(errors),
            seeds=seeds,
            plan=default_plan(source).with_changes(changes),
            jobs=jobs,
            on_progress=on_progress,
        )
    summary = ablation_summary(table)
    Console().print(ablation_table(summary, method))
    if json_file is not None:
        json_file.write_text(summary.to_json(orient="records", indent=2) + "\n")


@app.command("account")
def account_command(
    examples: Annotated[int, typer.Option(help="n, the number of training examples.")],
    batch_size: Annotated[int, typer.Option(help="Expected size of a Poisson sample.")],
    epochs: Annotated[float | None, typer.Option(help="Passes over the data; or give --steps.")] = None,
    steps: Annotated[int | None, typer.Option(help="Number of private steps.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise: epsilon is worked out.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Target: the noise is worked out.")] = None,
    delta: Annotated[
        float | None, typer.Option(help="Default: a tenth of 1 / n, rounded down to a power of ten.")
    ] = None,
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "dpsgd",
    accountant: Annotated[str, typer.Option(help=f"One of {', '.join(ACCOUNTANTS)}.")] = "pld",
) -> None:
    """Work out epsilon from noise, or noise from epsilon, for a plan. No data is touched.

    Examples:

        equidp account --examples 60000 --batch-size 256 --epochs 60 --noise-multiplier 0.8

        equidp account --examples 36177 --batch-size 256 --epochs 20 --epsilon 3 --method dpsgd-f
    """
    plan = account(
        examples,
        batch_size,
        epochs=epochs,
        steps=steps,
        noise_multiplier=noise_multiplier,
        target_epsilon=epsilon,
        delta=delta,
        method=method,
        accountant=accountant,
    )
    for line in plan.in_words():
        typer.echo(line)


@app.command("methods")
def methods_command(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """List the methods: what each does, in a line."""
    if as_json:
        typer.echo(json.dumps({name: method.summary for name, method in METHODS.items()}, indent=2))
        return
    rows = Table("method", "what it does", box=None)
    for name, method in METHODS.items():
        rows.add_row(name, method.summary)
    Console().print(rows)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(number) for number in _names(text)]
    except ValueError:
        raise SettingError(
            f"{option} {text!r}; expected a number, or several with commas between them."
        ) from None


@contextmanager
def _progress() -> Iterator[ProgressHook]:
    """A bar over the steps of all runs, with the time left; shown on a terminal only."""
    columns = (
        TextColumn("training"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=_messages, transient=True, disable=not _messages.is_terminal) as progress:
        task = progress.add_task("training", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


if __name__ == "__main__":
    main()
