"""Private choice among settings: train a random number of times, release the best.

After Papernot and Steinke (2022). Each try draws one of the plans at random, trains a model, and scores it on
held-out examples of the training data: the accuracy of the worst group, from noisy counts. The number of
tries is random too (`number_of_tries`). The best model leaves with its settings and its score. Nothing of the
other tries is kept, logged or returned.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from equidp._files import write_whole
from equidp._validate import check_number, check_whole, unknown_name
from equidp.accounting.calibration import calibrate_choice
from equidp.accounting.limit import EventCounts
from equidp.accounting.planned import default_delta, release_event
from equidp.data.dataset import DataSplit, GroupedDataset
from equidp.data.people import first_rows
from equidp.distributed.group import processes_here
from equidp.engines import runs_batches
from equidp.engines.model import device_of
from equidp.errors import DataError, SettingError
from equidp.evaluation.evaluation import Evaluation
from equidp.evaluation.predictions import predict
from equidp.kernel.epsilon import Entries
from equidp.kernel.ledger import ChoiceEvent, Ledger, MemoryLedger, run_of
from equidp.kernel.noise import Randomness, SystemRandomness
from equidp.ledger.file import LedgerFile
from equidp.ledger.format import has_a_line, read_ledger, seal_path
from equidp.policies.methods import method_named
from equidp.runs import layout
from equidp.runs.cards import write_cards
from equidp.runs.config import TrainConfig
from equidp.runs.prepare import PreparedRun, make_trainer
from equidp.runs.releases.release import RunRelease
from equidp.runs.saved import read_trained
from equidp.runs.train import check_budget_of_run, evaluate_run, write_weights
from equidp.tables.release import private_counts
from equidp.training.build import build
from equidp.training.device import CPU
from equidp.training.example_accounts import check_conflicts
from equidp.training.plan import GROUP_OPTIONS, Plan, ResolvedPlan
from equidp.training.recalibration import recalibrate
from equidp.training.run import Run, RunFacts
from equidp.training.trainer import Trainer

SCORE_SHARE = 0.1
"""Share of epsilon that the score of a try would cost alone."""
_MOST = 100
_COSTS = (
    *("batch_size", "epochs", "noise_multiplier", "delta", "recalibration", "training_loss"),
    "individual_filter",
    *("method_settings", "by_method"),
    *GROUP_OPTIONS,
)


@final
@dataclass(frozen=True)
class PrivateChoice(RunRelease):
    """Best of a random number of trainings, each with settings drawn from a space.

    It takes the place of a run's steps, and costs the whole of the target epsilon that other releases leave.

    Attributes:
        tries: mean number of tries, at least 2.
        space: setting -> values to choose among, each combination of them; None: `default_space`.
    """

    name = "private choice"
    file = "chosen.json"
    contents = "the settings that a private choice released, and their noisy score; counted in epsilon."
    dated = False
    audited = ("runs/experimental/private_choice.py", "tables/release.py")

    tries: int
    space: Mapping[str, Sequence[Any]] | None = None

    def epsilon(self, target: float | None) -> float | None:
        return None

    def check(self, epsilon: float | None, method: str, plan: Plan) -> None:
        check_whole(2, " tries on average, as there is nothing to choose with fewer", choose=self.tries)
        if epsilon is None or not method_named(method).policy.private:
            raise SettingError(
                "a private choice needs a target epsilon and a private method; give --epsilon.",
                field="epsilon",
            )
        if groups := plan.for_method(method).groups:
            raise SettingError(
                f"a private choice among runs with {groups.field} has no account; treat groups equally, or "
                "leave out --choose.",
                field=groups.field,
            )
        if plan.for_method(method).training_loss:
            raise SettingError(
                "a private choice releases the best of its tries alone; leave out the training loss.",
                field="training_loss",
            )
        check_conflicts("individual_filter", plan.for_method(method).individual_filter, {"choice": True})

    def how_to_continue(self, folder: Path) -> str:
        if (folder / layout.MANIFEST).exists():
            return f"The private choice in {os.fspath(folder)!r} is made and finished: nothing is left to do."
        if (folder / layout.MODEL).exists():
            return (
                "The choice is made and its best model is kept; the card is missing. To write it, which "
                f"spends nothing more:\n{layout.resume_command(folder)}"
            )
        config, plan, _ = layout.read_config(folder)
        if is_charged(folder, config):
            target = "" if config.target.epsilon is None else f"epsilon {config.target.epsilon:g} "
            return (
                f"The private choice in {os.fspath(folder)!r} is charged: {target}at delta {plan.delta:g} is "
                "spent. Nothing of its tries is kept, and it cannot be resumed: another one, in another "
                "folder, is charged again."
            )
        early = [each for each in config.all_releases if each.name in config.release_costs]
        before = ", ".join(each.name for each in early if each.is_kept_in(folder))
        charged = f"Charged is {before}, but not the choice" if before else "Nothing is charged"
        again = ", and charges that again" if before else ""
        return (
            f"The private choice in {os.fspath(folder)!r} was stopped before its first try. {charged}. "
            f"Remove that folder; then the same command begins again{again}."
        )

    def card_entries(self, epsilon: float | None, folder: Path, units: str) -> dict[str, str]:
        chosen = read_chosen(folder)
        listed = ", ".join(f"{name} {value}" for name, value in chosen["settings"].items())
        return {
            "settings chosen privately": f"{listed}: the best of a random number of tries, {self.tries} on "
            f"average, by the noisy accuracy, {chosen['score']:.3f}, of the worst group that is large beside "
            f"the noise, on a tenth of the training {units}"
        }


def read_chosen(folder: Path) -> dict[str, Any]:
    """Read the settings that a private choice released, with their noisy score."""
    path = folder / PrivateChoice.file
    try:
        chosen: dict[str, Any] = json.loads(path.read_text())
        return chosen
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path.name} in {os.fspath(folder)!r} is not as equidp wrote it; bring it back.",
            field=path.name,
        ) from error


def choice_in(config: TrainConfig) -> PrivateChoice:
    """Return the private choice of a configuration that has one."""
    return next(each for each in config.releases if isinstance(each, PrivateChoice))


def default_space(config: TrainConfig, num_examples: int) -> dict[str, Sequence[Any]]:
    """A quarter, once and four times the plan's learning rate, and so of the clipping bound of a method that
    has one."""
    plan = config.plan.for_method(config.method).with_changes({"recalibration": 0.0})
    resolved = plan.resolve(config.method, num_examples)
    space: dict[str, Sequence[Any]] = {"learning_rate": _around(resolved.learning_rate)}
    if (bound := getattr(resolved.policy, "clipping_bound", None)) is not None:
        space["clipping_bound"] = _around(bound)
    return space


def _around(value: float) -> tuple[float, ...]:
    return value / 4, value, 4 * value


def combinations(config: TrainConfig, num_examples: int) -> list[dict[str, Any]]:
    """All settings to choose among.

    Raises:
        SettingError: an unknown setting, one that changes the privacy cost, values that are no list, or a
            single combination.
    """
    space = choice_in(config).space or default_space(config, num_examples)
    known = {each.name for each in fields(Plan)} | {
        each.name
        for each in fields(method_named(config.method).policy)  # type: ignore[arg-type]
    }
    for name, values in space.items():
        if name not in known:
            raise unknown_name("setting to choose", name, known)
        if name in _COSTS:
            raise SettingError(
                f"{name} cannot be chosen: it changes what a step costs, or what is released.", field=name
            )
        if not isinstance(values, list | tuple) or not values:
            raise SettingError(
                f"{name} = {values!r} to choose from; expected a list, such as [0.1, 1].", field=name
            )
    listed = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
    if not 2 <= len(listed) <= _MOST:
        raise SettingError(
            f"there are {len(listed)} combinations of settings to choose from; expected 2 to {_MOST}.",
            field="choose_from",
        )
    return listed


def choice_of(config: TrainConfig, num_examples: int) -> tuple[list[ResolvedPlan], ChoiceEvent]:
    """The plans to choose among, and what the choice costs.

    Args:
        config: with a `PrivateChoice`.
        num_examples: that are trained on, without those held out.

    Raises:
        SettingError: nothing to choose from, no target epsilon, one that is too small, or a setting that
            does not go with a choice.
    """
    if later := [each.name for each in config.releases if each.after_training]:
        raise SettingError(
            f"a private choice has no {', '.join(later)}; leave it out (--individual).", field="individual"
        )
    if config.data.recipe.target_bounds is not None:
        raise SettingError(
            "a private choice is of classifiers, by the accuracy of the worst group.", field="target"
        )
    plans = [
        replace(
            config,
            plan=config.plan.for_method(config.method).with_changes(each),
            target=replace(config.target, accountant="rdp"),
        ).resolve(num_examples)
        for each in combinations(config, num_examples)
    ]
    first = plans[0]
    paid = tuple((event, 1) for event in config.release_events(first.delta, config.releases).values())
    epsilon = config.target.epsilon
    assert epsilon is not None  # as its check says
    beside = (*first.releases, release_event(SCORE_SHARE * epsilon, first.delta))
    mean, ratio = float(choice_in(config).tries), first.policy.statistics_ratio
    noise = calibrate_choice(epsilon, first.delta, first.sample_rate, first.steps, mean, ratio, beside, paid)
    plans = [replace(plan, noise_multiplier=noise) for plan in plans]
    steps = plans[0].step_event(), first.steps
    return plans, ChoiceEvent((steps, *((event, 1) for event in beside)), mean)


def prepare_choice(config: TrainConfig, device: torch.device = CPU) -> tuple[PreparedRun, Tensor]:
    """Load the data and check a private choice before budget is spent; write nothing.

    Returns:
        The run, and the mask [n] of the training examples that tries are scored on.

    Raises:
        EquidpError: says what is wrong.
    """
    if processes_here().count > 1:
        raise SettingError("a private choice trains in one process; leave out torchrun.", field="processes")
    split, encoder = config.load()
    config.check_measures(split.test.class_names)
    if config.plan.for_method(config.method).delta is None:  # one for all that is paid, whatever the draw
        config = replace(config, plan=replace(config.plan, delta=default_delta(len(split.train))))
    held_out = drawn_out(len(split.train), SystemRandomness())
    fit = split_held_out(split.train, held_out)[0]
    if (batch := config.plan.for_method(config.method).batch_size) is not None and batch > len(fit):
        raise SettingError(
            f"batch_size={batch} is more than the {len(fit)} of {len(split.train)} training examples that "
            "are not held out to score tries; choose a smaller batch size."
        )
    plans, event = choice_of(config, len(fit))
    for plan in plans:
        trainer = make_trainer(config, plan, replace(split, train=fit), None, None, device=device)
    drawn = config.release_events(plans[0].delta, config.releases).values()
    stated: EventCounts = (*((each, 1) for each in drawn), (event, 1))
    with ExitStack() as stack:
        if config.budget is not None:
            budget = stack.enter_context(config.budget.rehearse(config.name))
            budget.for_data(split.train.source, split.train.unit)
            budget.ledger(MemoryLedger()).promise(stated)
    return PreparedRun(config, plans[0], split, encoder, trainer, device, stated), held_out


def train_choice(
    folder: str | os.PathLike[str], prepared: PreparedRun, held_out: Tensor
) -> tuple[Run, Evaluation]:
    """Make the choice of a folder that `begin` made, and write the best model and its card.

    The whole choice is in the ledger, and in the budget, before the first try. A choice that is stopped
    before its best model is kept is spent, and cannot be resumed; `finish_choice` completes it after that.
    How long it took, which follows from the number of tries, shows neither in
    the ledger nor in the times of files.

    Args:
        folder: of the run.
        prepared: by `prepare_choice`, and what `begin` made of it.
        held_out: by `prepare_choice`.

    Raises:
        DataError: the choice was begun before.
        EquidpError: says what is wrong.
    """
    place = Path(folder)
    config, facts, split = prepared.config, prepared.facts, prepared.split
    fit, scored = split_held_out(split.train, held_out)
    plans, event = choice_of(config, len(fit))
    counted = prepared.plan.plan.class_weights
    if counted != config.plan.for_method(config.method).class_weights:  # weights by released counts
        plans = [plan.with_class_weight(counted) for plan in plans]
    with ExitStack() as stack:
        ledger = stack.enter_context(LedgerFile(place / layout.LEDGER, run=config.name, dated=False))
        if any(isinstance(spent, ChoiceEvent) for spent, _ in ledger.entries):
            raise DataError(choice_in(config).how_to_continue(place), field="resume")
        budget = None if config.budget is None else stack.enter_context(config.budget.open(config.name))
        if budget is not None:
            budget.for_data(split.train.source, split.train.unit)
        account = ledger if budget is None else budget.ledger(ledger)
        account.take_unit(split.train.unit)
        found = choose(
            plans,
            fit,
            scored,
            event,
            account,
            seed=config.data.seed,
            randomness=SystemRandomness(),
            engine=config.execution.engine,
            device=prepared.device,
        )
        plan, settings = plans[found.place], combinations(config, len(fit))[found.place]
        evaluation = evaluate_run(found.run, split, config)
        content = {"config": config.to_plain(), "plan": plan.to_plain(), "facts": facts}
        write_whole(place / layout.CONFIG, layout.salted_json(content).encode())
        chosen = {"settings": settings, "score": found.score}
        write_whole(place / PrivateChoice.file, (json.dumps(chosen, indent=2) + "\n").encode())
        write_weights(found.run.model, place)
        write_cards(place, found.run, evaluation, config, facts, ledger.check, budget)
        layout.write_last(place, config, plan, facts, found.run.entries)
    _level_times(place, None if config.budget is None else config.budget.path)
    return found.run, evaluation


def is_chosen(folder: str | os.PathLike[str]) -> bool:
    """Return True for a folder with the best model of a private choice, with or without its card.

    Raises:
        DataError: there is no run, or its settings are not as equidp wrote them.
    """
    config, _, _ = layout.read_config(Path(folder))
    return (
        any(isinstance(each, PrivateChoice) for each in config.releases)
        and (Path(folder) / layout.MODEL).exists()
    )


def is_charged(folder: Path, config: TrainConfig) -> bool:
    """Return True where the ledger of a choice's folder, or its budget, is charged for the choice."""
    path = folder / layout.LEDGER
    if not has_a_line(path):
        return False
    own = read_ledger(path)
    blocks = [*own.blocks]
    if config.budget is not None and has_a_line(config.budget.path):  # which is charged first
        blocks += read_ledger(config.budget.path).blocks
    return any(
        isinstance(each.event, ChoiceEvent) and run_of(each.session) == own.facts["id"] for each in blocks
    )


def finish_choice(folder: str | os.PathLike[str], device: torch.device = CPU) -> tuple[Run, Evaluation]:
    """Write the card of a private choice whose best model is kept; spend nothing.

    Args:
        folder: of a choice that was stopped after its last try, or is finished.
        device: to evaluate on.

    Raises:
        EquidpError: the folder, its data, code or budget does not allow it; the message says why.
    """
    place = Path(folder)
    config, plan, facts = layout.read_config(place)
    if (place / layout.MANIFEST).exists():
        layout.check_files(place, config)
    layout.check_code(plan, facts, place)
    split = layout.load_same(config, layout.read_encoder(place, config), facts, place)
    with ExitStack() as stack:
        ledger = stack.enter_context(LedgerFile(place / layout.LEDGER, run=config.name, dated=False))
        budget = None
        if config.budget is not None:
            check_budget_of_run(config.budget.path, facts.get("budget_id", ""), place)
            budget = stack.enter_context(config.budget.open(config.name))
            budget.for_data(split.train.source, split.train.unit)
            budget.ledger(ledger)  # an older copy of the budget is charged
        run = _run_of_the_best(place, config, plan, facts, split, ledger.entries, device)
        evaluation = evaluate_run(run, split, config)
        write_cards(place, run, evaluation, config, facts, ledger.check, budget)
        layout.write_last(place, config, plan, facts, run.entries)
    _level_times(place, None if config.budget is None else config.budget.path)
    return run, evaluation


def _run_of_the_best(
    place: Path,
    config: TrainConfig,
    plan: ResolvedPlan,
    facts: dict[str, Any],
    split: DataSplit,
    entries: Entries,
    device: torch.device,
) -> Run:
    """Read the best try: its kept weights, and facts of a trainer like the one that made them."""
    kept = read_trained(place, config, plan, facts, entries)
    examples = round(plan.plan.batch_size / plan.sample_rate)  # that were not held out
    known = replace(
        RunFacts.of(make_trainer(config, plan, split, None, None)),
        num_examples=examples,
        expected_batch_size=plan.sample_rate * examples,
        steps=plan.steps,
        steps_left=0,
        releases_left=(),
        recalibrated=plan.recalibration_noise is not None,
    )
    return replace(kept, model=kept.model.to(device), accountant="rdp", facts=known)


def _level_times(place: Path, budget: Path | None) -> None:
    """Give files one time, that of the beginning of this day: no two of them tell how long the tries took.

    Those of the folder are rewritten, since a file system keeps when each was made as well.
    """
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
    files = [path for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
    for path in files:
        write_whole(path, path.read_bytes())
    charged = [] if budget is None else [budget, seal_path(budget)]
    for path in (*files, *charged, place):
        os.utime(path, (today, today))


HELD_OUT = 0.1
"""Share of the training examples that tries are scored on."""


@final
@dataclass(frozen=True)
class Chosen:
    """Release of a private choice: the best try and its noisy score.

    Attributes:
        run: of the best try; its entries are those of the ledger that paid for the choice.
        place: index of its plan among the plans to choose from.
        score: noisy accuracy of the worst group on the held-out examples.
    """

    run: Run
    place: int
    score: float


def drawn_out(num_examples: int, randomness: Randomness) -> Tensor:
    """Mask [n] of the examples to score on: about a tenth, each drawn independently.

    Adding or removing an example moves no other example to the other part, as it could if places or an exact
    number were drawn. So what is private on one of the parts is private on all. Draw once for a choice.

    Args:
        num_examples: n, all that are to be trained on or scored on.
        randomness: of the draw, which must not be known before.

    Raises:
        SettingError: fewer than 20 examples.
    """
    if num_examples < 20:
        raise SettingError(
            f"{num_examples} training examples; a private choice takes at least 20.", field="num_examples"
        )
    held = np.zeros(num_examples, dtype=np.bool_)
    while not 0 < held.sum() < num_examples:
        held = randomness.uniform(num_examples) < HELD_OUT
    return torch.from_numpy(held)


def split_held_out(train: GroupedDataset, held_out: Tensor) -> tuple[GroupedDataset, GroupedDataset]:
    """Split examples by a mask [n]: the examples to train on, and the masked ones, to score on."""
    return train.subset((~held_out).nonzero()[:, 0]), train.subset(held_out.nonzero()[:, 0])


def worst_group(
    run: Run,
    held_out: GroupedDataset,
    noise_multiplier: float,
    randomness: Randomness,
    *,
    together: bool = True,
) -> float:
    """Return the noisy accuracy of the worst group.

    Formal guarantee: each example counts in one of 2 K cells (its group, correct or wrong), by its first row,
    so this is a Gaussian mechanism of this noise multiplier, without sampling.

    | case | outcome |
    | --- | --- |
    | a group whose noisy size is below 4 standard deviations of its noise | not judged |
    | no group that can be judged | accuracy of all groups together |
    | predictions that are NaN | wrong, or of class 0 |

    Args:
        together: as in `predict`.
    """
    held_out = first_rows(held_out)
    with randomness.for_model(device_of(run.model)):  # which may draw in evaluation too
        outputs = predict(run.model, held_out.inputs, together=together)
        right = outputs.argmax(dim=1) == held_out.targets.cpu()
    codes = (2 * held_out.groups.cpu() + right).numpy()
    cells = private_counts(
        codes, 2 * held_out.num_groups, noise_multiplier=noise_multiplier, randomness=randomness
    ).reshape(-1, 2)
    sizes = cells.sum(axis=1)
    known = sizes >= 4 * math.sqrt(2) * noise_multiplier
    if not known.any():
        return float(cells[:, 1].sum() / max(sizes.sum(), 1.0))
    return float((cells[known, 1] / sizes[known]).min())


@contextmanager
def _unseen() -> Iterator[None]:
    """Drop what Python code prints, logs or warns of inside."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            open(os.devnull, "w") as nowhere,
            redirect_stdout(nowhere),
            redirect_stderr(nowhere),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def choose(
    plans: Sequence[ResolvedPlan],
    train: GroupedDataset,
    held_out: GroupedDataset,
    event: ChoiceEvent,
    ledger: Ledger,
    *,
    seed: int,
    randomness: Randomness,
    engine: str = "ghost",
    device: torch.device | None = None,
) -> Chosen:
    """Try plans a random number of times and return the best; the whole is charged before the first.

    Formal guarantee: one `event`, of which each try is `event.tried`: the steps and releases of a plan, and a
    score. A choice that is stopped is spent; begun again, it is another one.

    The number of tries is secret, and what a try prints, logs or warns of would be counted: all of that is
    dropped, in the whole process, once each plan was made without. What a model of your own does elsewhere
    (files, native code that prints), and how long the call takes, tell it.

    Args:
        plans: to choose among; steps and noise are the same in all.
        train, held_out: examples to train on, and to score on.
        event: one try ends with a score at sample rate 1.
        ledger: charged once.
        seed: of the initial weights.
        randomness: where plans, number of tries and noise of scores come from. Noise of training comes from
            the operating system.
        engine, device: see `equidp.training.build.build`.

    Raises:
        SettingError, DataError, ModelError: a plan that cannot be trained, or costs something else than the
            event says; before anything is spent.
        BudgetError: the ledger cannot pay.

    >>> from equidp.kernel.ledger import MemoryLedger, StepEvent
    >>> from equidp.kernel.noise import SystemRandomness
    >>> from dataclasses import replace
    >>> from equidp.training.plan import Plan
    >>> inputs, groups = torch.randn(100, 3), torch.zeros(100, dtype=torch.int64)
    >>> data = GroupedDataset(inputs, torch.arange(100) % 2, groups, ("a",), ("n", "y"))
    >>> randomness = SystemRandomness()
    >>> fit, held = split_held_out(data, drawn_out(len(data), randomness))
    >>> asked = Plan(batch_size=len(fit) // 3, epochs=1)
    >>> plans = [replace(asked, learning_rate=rate).resolve("dpsgd", len(fit)) for rate in (0.1, 1.0)]
    >>> step = StepEvent(plans[0].sample_rate, 1.0)
    >>> event = ChoiceEvent(((step, plans[0].steps), (StepEvent(1.0, 5.0), 1)), 2.0)
    >>> found = choose(plans, fit, held, event, MemoryLedger(), seed=0, randomness=randomness)
    >>> found.run.entries == ((event, 1),)
    True
    """

    def trainer_of(plan: ResolvedPlan) -> Trainer:
        return build(plan, train, seed=seed, secure=True, engine=engine, device=device)

    *tried, (score, times) = event.tried
    for plan in plans:
        trainer = trainer_of(plan)
        costs = [(trainer.event, trainer.steps), *((each, 1) for each in plan.releases)]
        if costs != tried or (times, score.sample_rate) != (1, 1.0):
            raise SettingError(
                "the settings to choose among change what a step costs; leave sample rate, steps and noise "
                "as they are (batch_size, epochs, noise_multiplier, delta, recalibration).",
                field="tried",
            )
    ledger.spend(event)
    ledger.settle()
    best: tuple[float, int, Run] | None = None
    with _unseen():
        for _ in range(number_of_tries(event.mean, randomness)):
            place = min(int(randomness.uniform(1)[0] * len(plans)), len(plans) - 1)
            trainer = trainer_of(plans[place])
            run = recalibrate(trainer.fit(), trainer, plans[place].recalibration_noise)
            together = runs_batches(trainer.engine, evaluating=True)
            found = worst_group(run, held_out, score.noise_multiplier, randomness, together=together)
            if best is None or found > best[0]:
                best = found, place, run
    assert best is not None
    value, place, run = best
    facts = replace(run.facts, run_id="")  # steps of the tries are in the choice's entries
    paid = Run(run.model, ledger.entries, run.delta, run.loss, "rdp", facts)
    return Chosen(paid, place, value)


def number_of_tries(mean: float, randomness: Randomness) -> int:
    """Return a draw from the geometric distribution on 1, 2, ... with this mean.

    Guarantee: made this many times with fresh randomness, with the best outcome released and nothing of the
    others, queries of Renyi divergence rho(alpha) have that of Papernot and Steinke (2022, Theorem 2 with
    eta = 1): `ChoiceEvent`. It fails where the number is chosen by what the tries show, or where the choice
    is begun again after some of them: such a choice is another one, and paid for again.

    | case | number |
    | --- | --- |
    | mean 1 | 1 |
    | any other mean | unbounded: more than 3 times the mean in 1 of 20 choices |
    | mean below 1, or NaN | SettingError |

    >>> from equidp.kernel.noise import SeededRandomness
    >>> number_of_tries(1.0, SeededRandomness(0))
    1
    """
    check_number("[1, inf)", mean=mean)
    draw = float(randomness.uniform(1)[0])
    return 1 if mean == 1 else 1 + math.floor(math.log(draw) / math.log1p(-1 / mean))
