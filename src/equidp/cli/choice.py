"""`equidp train --choose`: options of a private choice among settings, and how one is made."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cyclopts import Group, Parameter

from equidp._files import command_line, toml_failure
from equidp.cli.messages import say, stoppable
from equidp.errors import BudgetError, DataError, SettingError
from equidp.evaluation.evaluation import Evaluation
from equidp.kernel.epsilon import epsilon
from equidp.runs.begin import begin
from equidp.runs.cards import units_of
from equidp.runs.config import TrainConfig
from equidp.runs.experimental.private_choice import (
    PrivateChoice,
    choice_in,
    choice_of,
    combinations,
    prepare_choice,
    train_choice,
)
from equidp.runs.layout import CONFIG, how_to_continue
from equidp.runs.prepare import PreparedRun
from equidp.runs.releases import RunRelease
from equidp.training.run import Run


@Parameter(name="*", group=Group("Private choice among settings", sort_key=4))
@dataclass(frozen=True)
class ChoiceOptions:
    """Options of the private choice of settings by results, whose privacy cost --epsilon includes."""

    choose: int | None = None
    """Try a random number of settings, this many on average, and release the best for the worst group."""
    choose_from: Path | None = None
    """TOML file with values to choose among, such as learning_rate = [0.1, 1.0]; default: a quarter, once and
    four times the learning rate, and so of the clipping bound."""

    def releases(self) -> tuple[RunRelease, ...]:
        """Return the private choice among the run's releases; empty without one."""
        if self.choose_from is not None and self.choose is None:
            raise SettingError("--choose-from is for --choose: say how many tries on average, as --choose 8.")
        if self.choose is None:
            return ()
        return (PrivateChoice(self.choose, None if self.choose_from is None else _read(self.choose_from)),)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"--choose-from {str(path)!r} {toml_failure(error)}.") from error


def stopped_sentence(folder: Path | None, config: TrainConfig) -> str:
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


def choose_among(
    config: TrainConfig,
    out: Path | None,
    device: Any,
    report: Callable[[Path, tuple[Run, Evaluation]], None],
) -> None:
    """Make a private choice and report the best; without a folder, say what it would cost."""
    prepared, held_out = prepare_choice(config, device)
    if out is not None:
        with stoppable(lambda: f"stopped. {stopped_sentence(out, config)}"):
            say("Trying settings. Nothing is shown of them until the best is released.")
            begun = begin(prepared, out)
            try:
                trained = train_choice(out, begun, held_out)
            except (OSError, BudgetError) as error:
                error.add_note(stopped_sentence(out, config))
                raise
            report(out, trained)
        return
    config = prepared.config
    train, tries = prepared.split.train, choice_in(config).tries
    examples = int((~held_out).sum())
    plans, event = choice_of(config, examples)
    delta, step = prepared.plan.delta, event.tried[0][0]
    print(f"Settings to choose among, {len(plans)} in all:")
    for each in combinations(config, examples):
        print("  " + ", ".join(f"{name} {value}" for name, value in each.items()))
    paid = tuple((each, 1) for each in config.release_events(delta, config.releases).values())
    print(
        f"Each try takes {event.tried[0][1]:,} steps ({step}), and is scored by the noisy accuracy "
        f"of the worst group on about {len(train) - examples:,} training "
        f"{units_of(config.data.recipe)}, held out."
    )
    print(f"The whole choice: epsilon {epsilon(((event, 1), *paid), delta):.4f} at delta {delta:g} (rdp).")
    print_people(prepared)
    print(
        f"There are {tries} tries on average, and more than {3 * tries} in 1 of 20 choices. "
        "Nothing was spent or written."
    )


def print_people(prepared: PreparedRun) -> None:
    """Print whom epsilon holds for, where examples are people."""
    train = prepared.split.train
    if train.rows is not None:
        print(f"This holds for each of {len(train):,} people, of whose rows at most {train.rows} are used.")
