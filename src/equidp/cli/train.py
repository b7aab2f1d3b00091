"""`equidp train`: one private run, from data to model card, that survives whatever stops it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from cyclopts import App, ArgumentCollection, Group, Parameter

from equidp._files import command_line
from equidp.accounting.cache import epsilon
from equidp.accounting.planned import PlannedRun
from equidp.advice.advise import AUTO
from equidp.advice.chosen_plan import (
    PUBLISHED,
    RECOMMENDED,
    check_published,
    choose_plan,
    source_to_read,
)
from equidp.cli import metrics, options, releases
from equidp.cli.app import command, read_options
from equidp.cli.evaluate import print_run
from equidp.cli.messages import say, stoppable
from equidp.cli.process import rank, several_processes
from equidp.cli.settings import changes, part_settings, say_ignored, take_part, typed_setting
from equidp.data.table import encoding_of
from equidp.errors import BudgetError, EquidpError, SettingError, count_text
from equidp.evaluation.evaluation import Evaluation
from equidp.evaluation.predictions import has_diverged
from equidp.kernel.epsilon import epsilon_of_group
from equidp.kernel.ledger import GroupedStepEvent
from equidp.ledger.format import has_a_line, read_ledger
from equidp.policies.methods import check_not_fixed, method_named
from equidp.policies.setting import settings_of
from equidp.policies.table import BASELINE, STANDARD
from equidp.report.advice import advice_sentences, reason_sentence
from equidp.report.plan import plan_table
from equidp.report.planned import epsilon_of_groups_text, planned_sentences
from equidp.runs.begin import begin, check_new
from equidp.runs.cards import DIVERGED, unmeasured_costs
from equidp.runs.config import CardTexts, Execution, Measures, TrainConfig
from equidp.runs.layout import CONFIG, LEDGER, how_to_continue
from equidp.runs.prepare import Loaded, PreparedRun, prepare
from equidp.runs.train import train
from equidp.training.device import chosen_device
from equidp.training.plan import Plan
from equidp.training.progress import ProgressBar
from equidp.training.run import Run
from equidp.training.trainer import Callback


def resume_alone(_: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Refuse other options beside `--resume`: a run continues with its own settings."""
    names = [argument.name for argument in arguments if argument.tokens]
    others = [name for name in names if name not in ("--resume", "--previous", "--trust-code", "--device")]
    if "--resume" in names and others:
        raise SettingError(f"--resume continues with the settings of the run; leave out {', '.join(others)}.")


app = command(
    "train",
    "equidp train people.csv --target income --group sex --epsilon 3 --out run",
    "equidp train adult --method dpsgd-f --epsilon 3 --out run --dry-run",
    "equidp train --resume run",
    "equidp train people.csv --config train.toml --budget people.ledger \\\n"
    "      --budget-epsilon 3 --budget-delta 1e-6 --out run",
)
app.config = (read_options, resume_alone)


_MOST_NOTES = 20_000
"""Characters of notes for a card."""


@Parameter(name="*", group=Group("Continuing a run", sort_key=6))
@dataclass(frozen=True)
class ResumeOptions:
    """Which run to continue."""

    resume: Path | None = None
    """Continue the run in this folder, with its own settings."""
    previous: bool = False
    """With --resume: start from the checkpoint before the last."""
    trust_code: options.TrustCode = False


@app.default
def train_command(
    data: options.Data | None = None,
    *,
    out: Annotated[
        Path | None, Parameter(help="Folder for model, ledger, checkpoints and model card.")
    ] = None,
    method: options.MethodToTrain = AUTO,
    settings_from: options.Settings = RECOMMENDED,
    privacy: options.TargetOptions = options.TargetOptions(),
    seed: Annotated[
        int, Parameter(help="Seed of the split and the initial weights; noise never has a seed.")
    ] = 0,
    dry_run: Annotated[bool, Parameter(help="Say what would be spent.")] = False,
    config: options.Config = None,
    table: options.TableOptions = options.TableOptions(),
    plan: options.PlanOptions = options.PlanOptions(),
    settings: options.MoreSettings = options.MoreSettings(),
    budget: options.BudgetOptions = options.BudgetOptions(),
    release: releases.ReleaseOptions = releases.ReleaseOptions(),
    metric: metrics.Metric | None = None,
    card_notes: Annotated[
        Path | None,
        Parameter(help="Text file that the card shows: who answers, purpose, access, how long it is kept."),
    ] = None,
    decision: metrics.DecisionOptions = metrics.DecisionOptions(),
    device: options.Device = "cpu",
    resumed: ResumeOptions = ResumeOptions(),
) -> None:
    """Train one model privately and write its model card.

    Samples and noise come from the operating system.
    Several processes train together by torchrun --nproc-per-node 4 -m equidp train ...
    After Ctrl-C, SIGTERM or a crash, --resume continues the run.
    """
    place = chosen_device(device)
    bar = (ProgressBar(),) if sys.stdout.isatty() and not rank() else ()
    if resumed.resume is not None:
        _resume(resumed.resume, resumed, bar, place)
        return
    if resumed.previous or resumed.trust_code:
        raise SettingError(f"{'--previous' if resumed.previous else '--trust-code'} is for --resume.")
    if data is None:
        raise SettingError("nothing to train on: give DATA and --out, or --resume with the folder of a run.")
    if out is None and not dry_run:
        raise SettingError("nowhere to keep the run: give --out with a new folder, or --dry-run.")
    changed = changes(plan, settings, [method], (*part_settings(Execution, flag=False), *releases.COSTS))
    execution = take_part(changed, Execution)
    released = releases.take_releases(release, changed, base_rate_threshold=decision.at_counted_rate)
    options.check_noise([] if privacy.epsilon is None else [privacy.epsilon], changed, privacy.risk)
    target, published = privacy.target(changed), settings_from == PUBLISHED
    _check_method(method, published=published, noisy=not target.is_open or "noise_multiplier" in changed)
    if rank():
        if out is not None and not dry_run:
            with several_processes(place), stoppable(""):
                train(out, device=place)
        return
    if out is not None:
        check_new(out)
    wanted = TrainConfig(
        table.run_data(data, seed),
        STANDARD if method == AUTO else method,
        Plan().with_changes(changed),
        target,
        budget.file(data, config, table.recipe),
        released,
        Measures(metric, decision.decision_to_train()),
        CardTexts(notes="" if card_notes is None else _read_notes(card_notes)),
        execution,
    )
    if published:
        check_published(wanted.data.source())
    with stoppable(lambda: f"stopped. {_stopped_sentence(None if dry_run else out, wanted)}"):
        choose = partial(_choose_plan, wanted, changed, settings_from, method)
        if dry_run or out is None:
            chosen, loaded, why = choose()
            prepared = prepare(chosen, place, loaded)
            print(*why, sep="", end="")
            _say_plan(prepared)
            return
        with several_processes(place):
            chosen, loaded, why = choose()
            prepared = begin(prepare(chosen, place, loaded), out)
            print(*why, sep="", end="", flush=True)
            with _resumable(out):
                trained = train(out, callbacks=bar, prepared=prepared, device=place)
    by_rules = not published and (method == AUTO or not changed)
    _report(out, *trained, given=list(changed) if by_rules else None)


def _resume(folder: Path, given: ResumeOptions, callbacks: Sequence[Callback], device: torch.device) -> None:
    """Continue the run in a folder, and report on it."""
    with several_processes(device), _resumable(folder):
        trained = train(
            folder,
            previous=given.previous,
            callbacks=callbacks,
            on_resume=_say_resumed,
            device=device,
            trust_code=given.trust_code,
        )
    _report(folder, *trained)


def _check_method(method: str, *, published: bool, noisy: bool) -> None:
    """Refuse a method that has no published settings, or that lacks a level of privacy.

    Args:
        method: name, or "auto".
        published: True where settings are the published ones.
        noisy: True where noise is given, or follows from a target.
    """
    if published and method == AUTO:
        raise SettingError(
            f"settings={PUBLISHED!r} with method {AUTO!r}, which takes recommended settings; name a "
            f"method, such as --method {STANDARD}."
        )
    if not published and method != BASELINE and not noisy:
        raise SettingError(
            f"method {method!r} without a level of privacy; give --epsilon, --risk or --noise-multiplier."
        )


def _read_notes(path: Path) -> str:
    """The text of a file of notes for the card."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise SettingError(f"--card-notes {str(path)!r} cannot be read: {why}.") from error
    if not 0 < len(text.strip()) <= _MOST_NOTES:
        raise SettingError(
            f"--card-notes {str(path)!r} holds {len(text):,} characters; expected 1 to {_MOST_NOTES:,}."
        )
    return text


def _choose_plan(
    wanted: TrainConfig, changed: Mapping[str, Any], settings: str, method: str
) -> tuple[TrainConfig, Loaded | None, list[str]]:
    """Fill in the settings, and the method where it is auto.

    Return the settings, the data unless features of it are inputs, and what is said of the choice.
    """
    data, source = wanted.data, wanted.data.source()
    encoding = encoding_of(source_to_read(source, changed, settings))
    loaded = replace(wanted, data=replace(data, encoding=encoding)).load()
    chosen = choose_plan(
        source,
        loaded[0].train,
        data.seed,
        changed,
        settings,
        method=method,
        target=wanted.target,
    )
    taken = chosen.method if method == AUTO else method
    check_not_fixed(changed, taken)
    if method == AUTO:
        say_ignored(changed, [taken])
    reasons: tuple[str, ...] = ()
    why: list[str] = []
    if chosen.advice is not None:
        reasons = tuple(map(reason_sentence, chosen.advice.reasons))
        begin_with = "auto takes" if method == AUTO else "Training by"
        why = [f"{line}\n" for line in advice_sentences(chosen.advice, begin_with)]
    inputs = {
        "features": data.features or chosen.features,
        "encoding": data.encoding or chosen.encoding,
    }
    names = (*Plan.names(), *inputs, *(each.name for each in settings_of(method_named(taken).policy)))
    origins = {name: chosen.origin(name, taken) for name in names}
    found = replace(
        wanted,
        data=replace(data, features=inputs["features"], encoding=inputs["encoding"]),
        method=taken,
        plan=chosen.plan,
        card=replace(wanted.card, reasons=reasons, origins=origins),
    )
    return found, loaded if inputs["features"] == data.features else None, why


def _stopped_sentence(folder: Path | None, config: TrainConfig) -> str:
    """Sentence on what a run that was stopped has spent, and how to go on; folder: None for a dry run."""
    if folder is not None and (folder / CONFIG).exists():
        return how_to_continue(folder)
    paid = config.release_costs
    early = [each.name for each in config.all_releases if each.name in paid and not each.after_training]
    if folder is not None and config.budget is not None and early:
        shown = command_line("equidp", "ledger", "show", config.budget.path)
        return (
            f"Nothing was written. The budget may be charged for {', '.join(early)}; this shows it:\n{shown}"
        )
    return "Nothing was spent or written: the same command begins again."


@contextmanager
def _resumable(folder: Path) -> Iterator[None]:
    """Name the command that continues a run which was stopped, or whose files could not be used."""
    with stoppable(lambda: f"stopped. {how_to_continue(folder)}"):
        try:
            yield
        except (OSError, EquidpError) as error:
            unwritten = isinstance(error, OSError) or isinstance(error.__cause__, OSError)
            in_use = isinstance(error, BudgetError) and error.field == "lock"
            if (unwritten or in_use) and (folder / CONFIG).exists():
                error.add_note(how_to_continue(folder))
            elif isinstance(error, BudgetError) and _is_uncharged(folder):
                error.add_note(
                    f"Nothing of the run in {str(folder)!r} is charged; remove that folder to begin another "
                    "there."
                )
            raise


def _is_uncharged(folder: Path) -> bool:
    """Return True for the folder of a run that was begun, and whose ledger holds nothing."""
    with suppress(BudgetError):
        ledger = folder / LEDGER
        return (folder / CONFIG).exists() and not (has_a_line(ledger) and read_ledger(ledger).entries)
    return False


def _say_resumed(spent: int, lost: int) -> None:
    say(f"Continuing: {spent:,} steps are spent, {lost:,} of them lost since the last checkpoint.")


def _say_plan(prepared: PreparedRun) -> None:
    trainer, config = prepared.trainer, prepared.config
    assert trainer is not None  # nothing was drawn
    plan_table(config.setting_rows(prepared.plan)).print()
    if not prepared.plan.policy.private:
        print(f"{trainer.steps:,} steps without noise: no privacy, epsilon is infinite.")
    else:
        for line in planned_sentences(PlannedRun(trainer.event, trainer.steps, trainer.delta)):
            print(line)
    if config.release_costs:
        costs = " and ".join(f"{name} (epsilon {cost:g})" for name, cost in config.release_costs.items())
        accountant = config.target.accountant
        in_all = epsilon(prepared.stated, trainer.delta, accountant)
        print(f"Beside the steps it would release {costs}: epsilon {in_all:.4f} in all ({accountant}).")
        if isinstance(trainer.event, GroupedStepEvent):
            own = {
                each.name: epsilon_of_group(prepared.stated, each.name, trainer.delta, accountant)
                for each in trainer.event.by_group
            }
            print(f"By group, in all: epsilon {epsilon_of_groups_text(own)} ({accountant}).")
    if (rows := prepared.split.train.rows) is not None:
        people = len(prepared.split.train)
        print(f"This holds for each of {people:,} people, of whose rows at most {rows} are used.")
    print("Nothing was spent or written.")


def _better(given: Sequence[str] | None) -> str:
    """Sentence on what may do better than a run; options given beside recommended settings are named."""
    if given is None:
        return "Other settings may do better: equidp train chooses them by rules where no option is given."
    if not given:
        return "Settings are those of the rules: a larger epsilon, or more data, would help most."
    listed = ", ".join(map(typed_setting, given))
    return (
        f"Settings are those of the rules, but for {listed}: a larger epsilon, more data, or leaving out "
        "options may do better."
    )


def _report(folder: Path, run: Run, found: Evaluation, *, given: Sequence[str] | None = None) -> None:
    """Print the guarantee, what the run does to each group, and where its card is; of several processes,
    the first.

    Args:
        folder: of the run.
        run: as it was trained.
        found: its evaluation.
        given: options given beside recommended settings; None where settings are others.
    """
    if rank():
        return
    taken, planned = run.facts.steps, run.facts.planned_steps
    if taken is not None and planned is not None and taken < planned:
        held = f"the budget held {count_text(taken, 'step')} of the plan's {planned:,}"
        say(f"warning: {held}; training stopped there.")
    if has_diverged(run.model):
        say(f"warning: {DIVERGED} Try a smaller learning rate.")
    print_run(run, found.withholding())
    if found.blind_spots or found.risks_off:
        say(_better(given))
    for sentence in unmeasured_costs(run):
        print(sentence)
    print(f"Model card: {folder / 'card.html'}")
