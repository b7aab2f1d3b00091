"""`equidp train`: one private run, from data to model card, that survives whatever stops it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from equidp._validate import names
from equidp.accounting import ACCOUNTANTS
from equidp.accounting.planned import PlannedRun
from equidp.cli.app import app, say, stoppable
from equidp.cli.options import (
    DATA,
    BatchSize,
    Bounds,
    Budget,
    BudgetDelta,
    BudgetEpsilon,
    ClippingBound,
    Delta,
    Drop,
    Engine,
    Epochs,
    Group,
    Individual,
    InitialBound,
    LearningRate,
    Missing,
    ReleaseEpsilon,
    Smoothing,
    Target,
    TestShare,
    plan_changes,
    release_cost,
)
from equidp.cli.parse import parse_bounds
from equidp.cli.toml import read_config
from equidp.data import SOURCES, GroupedDataset
from equidp.data.table import TEST_SHARE
from equidp.errors import SettingError
from equidp.evaluation.evaluation import evaluate
from equidp.evaluation.predict import diverged
from equidp.kernel.epsilon import epsilon as epsilon_of
from equidp.models import MODELS
from equidp.policies.methods import METHODS
from equidp.report.card import guarantee_in_words
from equidp.report.format import counted_steps
from equidp.report.terminal import print_groups, print_recalls
from equidp.runs.config import TrainConfig, plan_for
from equidp.runs.prepare import Prepared, prepare, seconds_per_step
from equidp.runs.train import DIVERGED, begin, check_new, train
from equidp.training.parts import BEYOND_BUDGET, Callback
from equidp.training.progress import ProgressBar
from equidp.training.run import Run

_NOT_BEGUN = (
    "stopped between two steps of the command. To go on: equidp train --resume, with the run's folder."
)


@app.command("train")
def train_command(
    context: typer.Context,
    data: Annotated[str | None, DATA] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the run: model, ledger, checkpoints, model card.")
    ] = None,
    target: Target = None,
    group: Group = "",
    drop: Drop = "",
    missing: Missing = "refuse",
    bounds: Bounds = "",
    test_share: TestShare = TEST_SHARE,
    method: Annotated[
        str, typer.Option(help=f"One of {', '.join(METHODS)}.", autocompletion=lambda: list(METHODS))
    ] = "dpsgd",
    model: Annotated[
        str | None,
        typer.Option(
            help=f"One of {', '.join(MODELS)}; default: the data's.", autocompletion=lambda: list(MODELS)
        ),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Calibrate the noise to this epsilon.")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise as a multiple of the sensitivity, instead of --epsilon.")
    ] = None,
    delta: Delta = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    learning_rate: LearningRate = None,
    momentum: Annotated[float | None, typer.Option(help="Of SGD.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Of SGD.")] = None,
    clipping_bound: ClippingBound = None,
    smoothing: Smoothing = None,
    initial_bound: InitialBound = None,
    seed: Annotated[
        int, typer.Option(help="Of the split and the initial weights; noise never has a seed.")
    ] = 0,
    engine: Engine = "ghost",
    accountant: Annotated[str, typer.Option(help=f"One of {', '.join(ACCOUNTANTS)}.")] = "pld",
    budget: Budget = None,
    budget_epsilon: BudgetEpsilon = None,
    budget_delta: BudgetDelta = None,
    beyond_budget: Annotated[
        str, typer.Option(help=f"Where the plan does not fit: {' or '.join(BEYOND_BUDGET)}.")
    ] = "refuse",
    individual: Individual = False,
    release_epsilon: ReleaseEpsilon = None,
    checkpoint_seconds: Annotated[float, typer.Option(help="Between two checkpoints.")] = 30.0,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    previous: Annotated[
        bool, typer.Option("--previous", help="With --resume: from the checkpoint before the last.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be spent and how long it would take.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML file with any of these options, such as epsilon = 3; the command line goes first.",
            is_eager=True,
            callback=read_config,
        ),
    ] = None,
) -> None:
    """Train one model privately, and write its model card.

    Samples and noise come from the operating system. The run goes on after Ctrl-C, SIGTERM or a crash with --resume.

    Examples:

        equidp train people.csv --target income --group sex --method dpsgd-f --epsilon 3 --out run

        equidp train adult --method dpsgd-f --epsilon 3 --out run --dry-run

        equidp train --resume run

        equidp train people.csv --config train.toml --budget people.ledger --budget-epsilon 3 --budget-delta 1e-6 --out run
    """
    if resume is not None:
        _refuse_others(context)
        with stoppable(_NOT_BEGUN):
            trained = train(resume, previous=previous, callbacks=_bar(), on_resume=_say_resumed)
        _report(resume, *trained)
        return
    if previous:
        raise SettingError("--previous is for --resume.")
    if data is None or (out is None and not dry_run):
        raise SettingError("nothing to train on, or nowhere to keep it: give DATA and --out, or --resume.")
    if epsilon is not None and noise_multiplier is not None:
        raise SettingError(
            f"--epsilon {epsilon} and --noise-multiplier {noise_multiplier}; give one of the two."
        )
    if data not in SOURCES and method != "sgd" and epsilon is None and noise_multiplier is None:
        raise SettingError("how private should it be? Give --epsilon, or --noise-multiplier.")
    if out is not None:
        check_new(out)
    wanted = TrainConfig(
        data=str(Path(data).absolute()) if data not in SOURCES and Path(data).exists() else data,
        method=method,
        plan=plan_for(data, plan_changes(context, [method])),
        target=target,
        group=tuple(names(group)),
        drop=tuple(names(drop)),
        missing=missing,
        bounds=parse_bounds(bounds),
        test_share=test_share,
        epsilon=epsilon,
        seed=seed,
        engine=engine,
        accountant=accountant,
        budget=None if budget is None else str(budget.absolute()),
        budget_epsilon=budget_epsilon,
        budget_delta=budget_delta,
        beyond_budget=beyond_budget,
        checkpoint_seconds=checkpoint_seconds,
        release_epsilon=release_cost(individual, release_epsilon),
    )
    prepared = prepare(wanted)
    if dry_run or out is None:
        _say_plan(prepared)
        return
    begin(prepared, out)
    with stoppable(_NOT_BEGUN):
        trained = train(out, callbacks=_bar(), prepared=prepared)
    _report(out, *trained)


def _refuse_others(context: typer.Context) -> None:
    """A run goes on with its own settings."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in ("resume", "previous") and source is not None and source.name != "DEFAULT":
            raise SettingError(
                f"--resume goes on with the settings of the run; leave out {name.replace('_', '-')}."
            )


def _bar() -> tuple[Callback, ...]:
    return (ProgressBar(),) if sys.stdout.isatty() else ()


def _say_resumed(spent: int, lost: int) -> None:
    say(f"Going on: {spent:,} steps are spent, {lost:,} of them lost since the last checkpoint.")


def _say_plan(prepared: Prepared) -> None:
    trainer, config = prepared.trainer, prepared.config
    if config.method == "sgd":
        typer.echo(f"{trainer.steps:,} steps without noise: no privacy, epsilon is infinite.")
    else:
        for line in PlannedRun(trainer.event, trainer.steps, trainer.delta).in_words():
            typer.echo(line)
        if config.release_epsilon is not None:
            entries = (*trainer.ledger.entries, (trainer.event, trainer.steps))
            total = epsilon_of(entries, trainer.delta, config.accountant)
            typer.echo(
                f"Releasing each group's mean epsilon costs {config.release_epsilon:g} besides: epsilon {total:.4f} in all "
                f"({config.accountant})."
            )
    seconds = seconds_per_step(prepared)
    typer.echo(
        f"Training would take about {_duration(seconds * trainer.steps)} on this machine, {1000 * seconds:.3g} ms a step. "
        "Nothing was spent or written."
    )


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{max(1, round(seconds))} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 6000 else f"{seconds / 3600:.1f} hours"


def _report(folder: Path, run: Run, test: GroupedDataset) -> None:
    """What a person wants to know, and where the rest is."""
    for sentence in guarantee_in_words(run):
        typer.echo(sentence)
    taken, planned = run.settings["planned steps"], run.settings["steps of the whole plan"]
    if taken < planned:
        say(
            f"warning: the budget held {counted_steps(taken)} of the plan's {planned:,}; training stopped there."
        )
    if diverged(run.model):
        say(f"warning: {DIVERGED} Try a smaller learning rate.")
    found = evaluate(run.model, test)
    print_groups(found.groups)
    print_recalls(found.recalls)
    for sentence in found.blind_spots:
        typer.echo(sentence)
    if len(found.blind_spots) > 1:
        say("Other settings may do better: equidp advise, with the same data and options, works some out.")
    typer.echo(f"Model card: {folder / 'card.html'}")
