"""`equidp train`: one private run, from data to model card, that survives whatever stops it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import App, ArgumentCollection, Parameter

from equidp._files import command_line
from equidp.advice.advise import AUTO
from equidp.cli import options
from equidp.cli.app import command, read_options
from equidp.cli.messages import rank, say, several_processes, stoppable
from equidp.cli.result import print_result
from equidp.cli.settings import read_run
from equidp.display import shown_epsilon
from equidp.errors import SettingError
from equidp.evaluation.evaluation import Evaluation
from equidp.evaluation.predictions import has_diverged
from equidp.report.guarantee import epsilon_of_groups_text, planned_sentences
from equidp.runs.cards import DIVERGED
from equidp.runs.config import TrainConfig
from equidp.runs.folder import PAGE, RunFolder
from equidp.runs.owner import reference_text
from equidp.runs.prepare import PreparedRun, prepare
from equidp.runs.saved import open_run
from equidp.runs.session import ChosenConfig, Session, noting_how_to_continue
from equidp.runs.train import train
from equidp.training.device import chosen_device
from equidp.training.progress import ProgressBar
from equidp.training.run import Run
from equidp.training.trainer import Callback


def resume_alone(_: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Refuse other options beside `--resume`: a run continues with its own settings."""
    names = [argument.name for argument in arguments if argument.tokens]
    others = [name for name in names if name not in ("--resume", "--trust-code", "--device", "--reference")]
    if "--resume" in names and others:
        raise SettingError(f"--resume continues with the settings of the run; leave out {', '.join(others)}.")


app = command(
    "train",
    "equidp train people.csv --target income --group sex --epsilon 3 --out run",
    "equidp train people.csv --config run.toml --epsilon 3 --dry-run",
    "equidp train --resume run",
)
app.config = (read_options, resume_alone)


@app.default
def train_command(
    data: options.Data | None = None,
    *,
    table: options.TableOptions = options.TableOptions(),
    inputs: options.InputOptions = options.InputOptions(),
    metric: options.Metric | None = None,
    target: options.TargetOptions = options.TargetOptions(),
    method: options.MethodToTrain | None = None,
    settings_from: options.Settings | None = None,
    plan: options.PlanOptions = options.PlanOptions(),
    ledger: options.LedgerOptions = options.LedgerOptions(),
    seed: Annotated[
        int | None, Parameter(help="Of split and first weights; noise has none.", group=options.TRAINING)
    ] = None,
    device: Annotated[options.Device, Parameter(group=options.TRAINING)] = "cpu",
    reference: Annotated[
        bool,
        Parameter(help="Of a table, say what models without privacy reach.", group=options.TRAINING),
    ] = False,
    out: Annotated[
        Path | None,
        Parameter(help="Folder of the run: share/ to give away, private/ to keep.", group=options.RUN),
    ] = None,
    config: options.Config = None,
    set_fields: options.Set = (),
    dry_run: Annotated[
        bool,
        Parameter(help="Print run.toml with reasons; spend nothing.", group=options.RUN),
    ] = False,
    resume: Annotated[
        Path | None, Parameter(help="Continue the run in this folder.", group=options.RUN)
    ] = None,
    trust_code: Annotated[options.TrustCode, Parameter(show=False)] = False,
) -> None:
    """Train one model privately and write its model card.

    After Ctrl-C, SIGTERM or a crash the same command continues the run.
    """
    place = chosen_device(device)
    if resume is not None:
        with several_processes(place), _resumable(resume):
            trained = train(
                resume, callbacks=_callbacks(), on_resume=_say_resumed, device=place, trust_code=trust_code
            )
        _report(resume, *trained, reference=reference)
        return
    if data is None and config is None:
        raise SettingError("nothing to train on: give DATA and --out, or --resume with the folder of a run.")
    if out is None and not dry_run:
        raise SettingError("nowhere to keep the run: give --out with a new folder, or --dry-run.")
    parts = (table, inputs, target, plan, ledger)
    given = options.given_fields(*parts, method=method, settings=settings_from, seed=seed, metric=metric)
    run = read_run(config, set_fields, given, [method or AUTO])
    if rank():
        if out is not None and not dry_run:
            with several_processes(place), stoppable(""):
                train(out, device=place)
        return
    session = Session.of(run, data, config)
    with stoppable(lambda: f"stopped. {_stopped_sentence(None if dry_run else out, session.config)}"):
        if dry_run or out is None:
            chosen = session.choose()
            _say_plan(chosen, prepare(chosen.config, place, chosen.loaded))
            return
        with several_processes(place):
            chosen, begun = session.begin(out, place)
            for sentence in chosen.ignored:
                say(sentence)
            with _resumable(out):
                # Code of the user's is what the command itself names.
                trained = train(
                    out,
                    callbacks=_callbacks(),
                    prepared=begun,
                    on_resume=_say_resumed,
                    device=place,
                    trust_code=True,
                )
    _report(out, *trained, reference=reference)


def _callbacks() -> tuple[Callback, ...]:
    return (ProgressBar(),) if sys.stdout.isatty() and not rank() else ()


def _stopped_sentence(folder: Path | None, config: TrainConfig) -> str:
    """Sentence on what a run that was stopped has spent, and how to go on; folder: None for a dry run."""
    if folder is not None and RunFolder(folder).has_begun:
        return RunFolder(folder).how_to_continue()
    early = [each.name for each in config.plan.releases if each.prepares()]
    if folder is not None and config.ledger is not None and early:
        shown = command_line("equidp", "verify", config.ledger.path)
        return (
            f"Nothing was written. The ledger may be charged for {', '.join(early)}; this shows it:\n{shown}"
        )
    return "Nothing was spent or written: the same command begins again."


@contextmanager
def _resumable(folder: Path) -> Iterator[None]:
    """Name the command that continues a run which was stopped, or whose files could not be used."""
    with (
        stoppable(lambda: f"stopped. {RunFolder(folder).how_to_continue()}"),
        noting_how_to_continue(folder),
    ):
        yield


def _say_resumed(spent: int, lost: int) -> None:
    say(f"Continuing: {spent:,} steps are spent, {lost:,} of them lost since the last checkpoint.")


def _say_plan(chosen: ChosenConfig, prepared: PreparedRun) -> None:
    """Print the whole run.toml, with what the run would spend at its head."""
    for sentence in chosen.ignored:
        say(sentence)
    print(chosen.to_toml(prepared.plan, _plan_sentences(prepared)), end="", flush=True)
    say("Nothing was spent or written.")


def _plan_sentences(prepared: PreparedRun) -> Iterator[str]:
    """Yield what a run would spend."""
    plan = prepared.plan
    if not plan.policy.private:
        yield f"{plan.steps:,} steps without noise: no privacy, epsilon is infinite."
    else:
        yield from planned_sentences(replace(plan, releases=()))
    if beside := plan.release_costs():
        costs = " and ".join(f"{name} (epsilon {shown_epsilon(cost):g})" for name, cost in beside.items())
        in_all, accountant = plan.epsilon(), plan.plan.accountant
        yield f"Beside the steps it would release {costs}: epsilon {in_all:.4f} in all ({accountant})."
        if own := plan.epsilon_by_group():
            yield f"By group, in all: epsilon {epsilon_of_groups_text(own)} ({accountant})."
    if (rows := prepared.split.train.rows) is not None:
        people = len(prepared.split.train)
        yield f"This holds for each of {people:,} people, of whose rows at most {rows} are used."


def _report(folder: Path, run: Run, found: Evaluation, *, reference: bool) -> None:
    """Print what came of a run, and where its card is; of several processes, the first."""
    if rank():
        return
    if has_diverged(run.model):
        say(f"warning: {DIVERGED} Try a smaller learning rate.")
    place = RunFolder(folder)
    metric = place.read_settings(trust_code=True)[0].measures.metric
    shown = found.withholding()
    print_result(run, shown, metric, place.results / PAGE)
    if reference:
        print(reference_text(open_run(folder, trust_code=True), shown))
