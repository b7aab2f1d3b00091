"""`equidp train`: one private run, from data to model card, that survives whatever stops it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import App, ArgumentCollection, Parameter

from equidp._files import command_line
from equidp.cli import options
from equidp.cli.app import command, read_options
from equidp.cli.messages import rank, say, several_processes, stoppable
from equidp.cli.result import print_result
from equidp.cli.settings import read_run
from equidp.display import shown_epsilon
from equidp.errors import SettingError
from equidp.evaluation.evaluation import Evaluation
from equidp.evaluation.predictions import has_diverged
from equidp.policies.table import AUTO
from equidp.report.guarantee import epsilon_of_groups_text, planned_sentences
from equidp.runs.begin import PreparedRun, prepare
from equidp.runs.folder import PAGE, RunFolder
from equidp.runs.owner import reference_text
from equidp.runs.run_text import run_toml
from equidp.runs.saved import open_run
from equidp.runs.session import ChosenConfig, Session, noting_how_to_continue
from equidp.runs.train import train
from equidp.training.device import chosen_device
from equidp.training.progress import ProgressBar
from equidp.training.trainer import Callback, Trainer


def resume_alone(_: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Reject other options with `--resume`: a run continues with its own settings."""
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
        int | None, Parameter(help="Seed of split and first weights; noise has none.", group=options.TRAINING)
    ] = None,
    device: Annotated[options.Device, Parameter(group=options.TRAINING)] = "cpu",
    reference: Annotated[
        bool,
        Parameter(help="For a table, show what models without privacy reach.", group=options.TRAINING),
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
    place, folder, session = chosen_device(device), resume or out, None
    if resume is None:
        if data is None and config is None:
            raise SettingError("nothing to train on: give DATA and --out, or --resume with a run's folder.")
        if out is None and not dry_run:
            raise SettingError("nowhere to keep the run: give --out with a new folder, or --dry-run.")
        parts = (table, inputs, target, plan, ledger)
        given = options.given_fields(*parts, method=method, settings=settings_from, seed=seed, metric=metric)
        session = Session.of(read_run(config, set_fields, given, [method or AUTO]), data, config)
    if session is not None and (dry_run or folder is None):
        with stoppable(f"stopped. {_UNSPENT}"):
            chosen = session.choose()
            _say_plan(chosen, prepare(chosen.config, place, chosen.loaded))
        return
    assert folder is not None
    stopped = partial(_stopped_sentence, folder, session)
    with stoppable(stopped), noting_how_to_continue(folder), several_processes(place):
        begun = None
        if session is not None and not rank():
            chosen, begun = session.begin(folder, place)
            for sentence in chosen.ignored:
                say(sentence)
        _, found = train(
            folder,
            callbacks=() if rank() else (ProgressBar() if sys.stderr.isatty() else _LinesInLog(),),
            prepared=begun,
            on_resume=_say_resumed,
            device=place,
            trust_code=trust_code or session is not None,  # code that the command itself names
        )
    _report(folder, found, reference=reference)


_UNSPENT = "Nothing was spent or written: the same command begins again."


class _LinesInLog(Callback):
    """Logs the progress of training at most once a minute, if standard error is not a terminal."""

    seconds = 60.0

    def before_training(self, trainer: Trainer) -> None:
        self._said = time.monotonic()

    def after_step(self, trainer: Trainer) -> None:
        if time.monotonic() - self._said >= self.seconds:
            say(f"Training: {trainer.steps_done / trainer.steps:.0%} of {trainer.steps:,} steps.")
            self._said = time.monotonic()


def _stopped_sentence(folder: Path, session: Session | None) -> str:
    """Sentence on what a stopped run has spent, and how to continue."""
    if session is None or RunFolder(folder).has_begun:
        return f"stopped. {RunFolder(folder).how_to_continue()}"
    config = session.config
    early = [each.name for each in config.plan.releases if each.prepares()]
    if config.ledger is not None and early:
        shown = command_line("equidp", "verify", config.ledger.path)
        return (
            f"stopped. Nothing was written. The ledger may be charged for {', '.join(early)}; this shows "
            f"it:\n{shown}"
        )
    return f"stopped. {_UNSPENT}"


def _say_resumed(spent: int, lost: int) -> None:
    say(f"Continuing: {spent:,} steps are spent, {lost:,} of them lost since the last checkpoint.")


def _say_plan(chosen: ChosenConfig, prepared: PreparedRun) -> None:
    """Print the whole run.toml, with what the run would spend at its head."""
    for sentence in chosen.ignored:
        say(sentence)
    print(
        run_toml(chosen.config, prepared.plan, chosen.advice, _plan_sentences(prepared)), end="", flush=True
    )
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


def _report(folder: Path, found: Evaluation, *, reference: bool) -> None:
    """Print the result of a run, and the path of its card, in the first process only."""
    if rank():
        return
    from equidp.runs.cards import DIVERGED  # not before: it loads matplotlib

    finished, shown = open_run(folder, trust_code=True), found.withholding()
    if has_diverged(finished.run.model):
        say(f"warning: {DIVERGED} Try a smaller learning rate.")
    print_result(finished.run, shown, finished.config.metric, RunFolder(folder).results / PAGE)
    if reference:
        print(reference_text(finished, shown))
