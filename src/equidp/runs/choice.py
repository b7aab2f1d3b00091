"""A run on disk whose settings are chosen privately: prepared, and trained in one go."""

from __future__ import annotations

import io
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from equidp._files import check_writable, write_whole
from equidp._validate import check_whole, unknown_name
from equidp.accounting.calibration import calibrate_choice
from equidp.accounting.limit import Together
from equidp.accounting.planned import default_delta, release_event
from equidp.distributed.group import processes_here
from equidp.errors import DataError, SettingError
from equidp.evaluation.evaluation import Evaluation
from equidp.kernel.ledger import ChoiceEvent, MemoryLedger, StepEvent
from equidp.kernel.noise import SystemRandomness
from equidp.kernel.policy import statistics_noise
from equidp.ledger.file import LedgerFile
from equidp.ledger.format import seal_path
from equidp.policies.methods import method_named
from equidp.runs import layout
from equidp.runs.begin import run_name
from equidp.runs.cards import write_cards
from equidp.runs.config import TrainConfig
from equidp.runs.prepare import Prepared, make_trainer, open_budget
from equidp.runs.train import evaluate_run
from equidp.training.choice import choose, drawn_out, split_held_out
from equidp.training.device import CPU
from equidp.training.plan import Plan, ResolvedPlan
from equidp.training.run import Run

SCORE_SHARE = 0.1
"""Of epsilon, that the score of a try would cost alone."""
_MOST = 100
_COSTS = (
    *("batch_size", "epochs", "noise_multiplier", "delta", "recalibration"),
    *("method_settings", "by_method"),
)


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
        SettingError: an unknown setting, one that changes the price, values that are no list, or a single
            combination.
    """
    space: Mapping[str, Sequence[Any]] = config.choose_from or default_space(config, num_examples)
    known = {each.name for each in fields(Plan)} | {
        each.name
        for each in fields(method_named(config.method).policy)  # type: ignore[arg-type]
    }
    for name, values in space.items():
        if name not in known:
            raise unknown_name("setting to choose", name, known)
        if name in _COSTS:
            raise SettingError(f"{name} cannot be chosen: it changes what a step costs, or what is released.")
        if not isinstance(values, list | tuple) or not values:
            raise SettingError(f"{name} = {values!r} to choose from; expected a list, such as [0.1, 1].")
    listed = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
    if not 2 <= len(listed) <= _MOST:
        raise SettingError(
            f"there are {len(listed)} combinations of settings to choose from; expected 2 to {_MOST}."
        )
    return listed


def choice_of(config: TrainConfig, num_examples: int) -> tuple[list[ResolvedPlan], ChoiceEvent]:
    """The plans to choose among, and what the choice costs.

    Args:
        config: with `choose`.
        num_examples: that are trained on, without those held out.

    Raises:
        SettingError: nothing to choose from, no target epsilon, one that is too small, or a setting that
            does not go with a choice.
    """
    check_whole(2, " tries on average, as there is nothing to choose with fewer", choose=config.choose)
    private = method_named(config.method).policy.private
    if config.epsilon is None or not private:
        raise SettingError("a private choice needs a target epsilon and a private method; give --epsilon.")
    if later := [each.name for each in config.releases if each.after_training]:
        raise SettingError(f"a private choice has no {', '.join(later)}; leave it out (--individual).")
    if config.recipe.target_bounds is not None:
        raise SettingError("a private choice is of classifiers, by the accuracy of the worst group.")
    plans = [
        replace(
            config, plan=config.plan.for_method(config.method).with_changes(each), accountant="rdp"
        ).resolve(num_examples)
        for each in combinations(config, num_examples)
    ]
    first = plans[0]
    paid = tuple((event, 1) for event in config.release_events(first.delta, config.releases).values())
    beside = (*first.releases, release_event(SCORE_SHARE * config.epsilon, first.delta))
    mean, ratio = float(config.choose or 0), first.policy.statistics_ratio
    noise = calibrate_choice(
        config.epsilon, first.delta, first.sample_rate, first.steps, mean, ratio, beside, paid
    )
    plans = [replace(plan, noise_multiplier=noise) for plan in plans]
    step = StepEvent(first.sample_rate, noise, statistics_noise(first.policy, noise))
    return plans, ChoiceEvent(((step, first.steps), *((event, 1) for event in beside)), mean)


def prepare_choice(config: TrainConfig, device: torch.device = CPU) -> Prepared:
    """Loads the data and checks a private choice before budget is spent; writes nothing.

    Raises:
        EquidpError: says what is wrong.
    """
    if processes_here().count > 1:
        raise SettingError("a private choice trains in one process; leave out torchrun.")
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
    stated: Together = (*((each, 1) for each in drawn), (event, 1))
    with ExitStack() as stack:
        if config.budget is not None:
            check_writable(config.budget)
            path = config.budget if os.path.exists(config.budget) else None
            budget = stack.enter_context(open_budget(config, path)).rehearsal()
            budget.for_data(split.train.source, split.train.unit)
            budget.ledger(MemoryLedger()).promise(stated)
    return Prepared(config, plans[0], split, encoder, trainer, device, stated, held_out)


def train_choice(folder: str | os.PathLike[str], prepared: Prepared) -> tuple[Run, Evaluation]:
    """Makes the choice of a folder that `begin` made, and writes the best model and its card.

    The whole choice is in the ledger, and in the budget, before the first try. A choice that is stopped is
    spent, and cannot be resumed. How long it took, which follows from the number of tries, shows neither in
    the ledger nor in the times of files.

    Args:
        folder: of the run.
        prepared: by `prepare_choice`, and what `begin` made of it.

    Raises:
        DataError: the choice was begun before.
        EquidpError: says what is wrong.
    """
    place = Path(folder)
    config, facts, split = prepared.config, prepared.facts, prepared.split
    assert prepared.held_out is not None
    fit, held_out = split_held_out(split.train, prepared.held_out)
    plans, event = choice_of(config, len(fit))
    counted = prepared.plan.plan.class_weights
    if counted != config.plan.for_method(config.method).class_weights:  # weights by released counts
        plans = [plan.with_class_weight(counted) for plan in plans]
    with ExitStack() as stack:
        ledger = stack.enter_context(LedgerFile(place / layout.LEDGER, run=run_name(config), dated=False))
        if any(isinstance(spent, ChoiceEvent) for spent, _ in ledger.entries):
            raise DataError(layout.MADE_ONCE.strip())
        budget = None if config.budget is None else stack.enter_context(open_budget(config, config.budget))
        if budget is not None:
            budget.for_data(split.train.source, split.train.unit)
        account = ledger if budget is None else budget.ledger(ledger)
        account.take_unit(split.train.unit)
        found = choose(
            plans,
            fit,
            held_out,
            event,
            account,
            seed=config.seed,
            randomness=SystemRandomness(),
            engine=config.engine,
            device=prepared.device,
        )
        plan, settings = plans[found.place], combinations(config, len(fit))[found.place]
        evaluation = evaluate_run(found.run, split, config)
        content = {"config": config.to_dict(), "plan": plan.to_dict(), "facts": facts}
        write_whole(place / layout.CONFIG, layout.salted_json(content).encode())
        chosen = {"settings": settings, "score": found.score}
        write_whole(place / layout.CHOSEN, (json.dumps(chosen, indent=2) + "\n").encode())
        weights = io.BytesIO()
        torch.save(found.run.model.cpu().state_dict(), weights)
        write_whole(place / layout.MODEL, weights.getvalue())
        write_cards(place, found.run, evaluation, config, plan, facts, ledger.check, budget)
        layout.write_last(place, config, plan, facts, found.run.entries)
    _level_times(place, config.budget)
    return found.run, evaluation


def _level_times(place: Path, budget: str | None) -> None:
    """Gives files one time, that of the beginning of this day: no two of them tell how long the tries took.

    Those of the folder are written anew, since a file system keeps when each was made as well.
    """
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
    files = [path for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
    for path in files:
        write_whole(path, path.read_bytes())
    charged = [] if budget is None else [Path(budget), seal_path(budget)]
    for path in (*files, *charged, place):
        os.utime(path, (today, today))
