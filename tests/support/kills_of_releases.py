"""Kills, forks and copies of runs that release more than their steps, in one ledger, and checks after each.

Every draw of noise leaves a letter in two files beforehand, one beside the run and one beside the ledger, so
that what was drawn is counted apart from the product. After each event, the ledger counts at least as many
steps and releases of each name as were drawn, of the run and in all.

| event | what happens |
| --- | --- |
| "killed" | `kill -9` at a random moment, of a run that begins or goes on |
| "paid" | a process kills itself after it paid for a release, before it is drawn |
| "drawn" | the same after it was drawn, before it is kept |
| "copied" | the folder of a stopped run is copied, and both go on to their end |
| "forked" | a process forks before a step or a release, and both try to take it and to go on |
| "together" | two processes begin runs in the same ledger at once |
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from equidp.data import class_counts
from equidp.errors import BudgetError
from equidp.individual import report
from equidp.kernel.epsilon import epsilon
from equidp.kernel.noise import SystemRandomness
from equidp.kernel.run import PrivateRun
from equidp.kernel.step import PrivateStep
from equidp.ledger.ledger import Ledger
from equidp.runs import begin as beginning, train as training
from equidp.runs.begin import prepare
from equidp.runs.config import DatasetLedger, RunData, TrainConfig
from equidp.runs.folder import RELEASED, RunFolder
from equidp.runs.releases import CountsRelease, IndividualRelease, PreprocessingRelease, preprocessing
from equidp.tables.recipe import Column, Recipe
from equidp.training.plan import Plan

EVENTS = {"killed": 24, "paid": 10, "drawn": 10, "copied": 12, "forked": 6, "together": 10}
"""Event -> how many of 72."""
STEP, _LAST = "step", "individual privacy"
_LETTERS = {
    STEP: "s",
    "preprocessing": "p",
    "class counts": "c",
    _LAST: "i",
}


@dataclass
class Tally:
    """What was seen.

    Attributes:
        events: by kind.
        checks: comparisons of a ledger with what was drawn.
        understated: those in which the ledger counted less. Must stay 0.
        completed: runs that got to their end.
        drawn, counted: in all runs together, by name: what was drawn, and what the ledgers count.
        epsilon_drawn, epsilon_counted: of the same.
        of_people: runs whose examples are people.
    """

    events: Counter[str] = field(default_factory=Counter)
    checks: int = 0
    understated: int = 0
    completed: int = 0
    drawn: Counter[str] = field(default_factory=Counter)
    counted: Counter[str] = field(default_factory=Counter)
    epsilon_drawn: float = 0.0
    epsilon_counted: float = 0.0
    of_people: int = 0


def release_over_and_over(folder: Path, events: dict[str, int] | None = None, seed: int = 0) -> Tally:
    """Make all events, in an order that follows from the seed, each on a run of its own.

    Args:
        folder: where runs, and a ledger for rows and one for people, are kept.
        events: event -> how many; None: `EVENTS`.
        seed: of the order, and of random moments.
    """
    tally, chances = Tally(), random.Random(seed)
    _write_table(folder / "visits.csv")
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)  # loads what each child would
    listed = [event for event, count in (EVENTS if events is None else events).items() for _ in range(count)]
    chances.shuffle(listed)
    for number, event in enumerate(listed):
        people = bool(number % 2)
        tally.of_people += people
        tally.events[event] += 1
        _Story(folder, f"run-{number}", people, tally, chances).happen(event)
    for ledger in folder.glob("shared-*.ledger"):
        entries, drawn = Ledger.read(ledger).entries(), _drawn(Path(f"{ledger}.draws"))
        tally.drawn += drawn
        for event, count in entries:
            tally.counted[event.name] += count
        taken = []
        for event, count in entries:  # steps and noise are the same in all runs
            taken.append((event, min(count, drawn[event.name])))
        tally.epsilon_counted += epsilon(entries, 1e-5, "rdp")
        tally.epsilon_drawn += epsilon(taken, 1e-5, "rdp")
    return tally


class _Story:
    """One run and what happens to it."""

    def __init__(self, folder: Path, name: str, people: bool, tally: Tally, chances: random.Random) -> None:
        self.folder, self.run, self.people = folder, folder / name, people
        self.ledger = folder / f"shared-{'people' if people else 'rows'}.ledger"
        self.tally, self.chances = tally, chances

    def happen(self, event: str) -> None:
        getattr(self, f"_{event}")()
        self._complete(self.run)

    def _killed(self) -> None:
        self._go_on(self.run, kill_after=self.chances.uniform(0.0, 3.0))

    def _paid(self) -> None:
        self._go_on(self.run, die=("paid", self.chances.choice(list(_LETTERS)[1:])))

    def _drawn(self) -> None:
        self._go_on(self.run, die=("drawn", _LAST))

    def _copied(self) -> None:
        moment = self.chances.choice([("drawn", _LAST), ("paid", _LAST), ("steps", STEP)])
        self._go_on(self.run, die=moment)
        copy = self.run.with_name(f"{self.run.name}-copy")
        shutil.copytree(self.run, copy)
        self._complete(copy)

    def _forked(self) -> None:
        self._go_on(self.run, fork_at=self.chances.choice(list(_LETTERS)))

    def _together(self) -> None:
        other = self.run.with_name(f"{self.run.name}-beside")
        first, second = self._start(self.run), self._start(other)
        for child in (first, second):
            os.waitpid(child, 0)
        self._check(self.run), self._check(other)
        self._complete(other)

    def _go_on(self, run: Path, *, kill_after: float | None = None, **moment: Any) -> bool:
        child = self._start(run, **moment)
        if kill_after is not None:
            time.sleep(kill_after)
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        self._check(run)
        return status == 0

    def _complete(self, run: Path) -> None:
        for _ in range(5):
            if self._go_on(run):
                break
        error = run.with_name(f"{run.name}.error")
        told = error.read_text() if error.exists() else ""
        assert RunFolder(run).is_finished, f"{run} was not completed: {told}"
        self.tally.completed += 1

    def _start(self, run: Path, **moment: Any) -> int:
        child = os.fork()
        if child:
            return child
        code = 1
        try:
            with _watched(run, self.ledger, **moment):
                self._train(run)
            code = 0
        except BudgetError as error:
            code = 2 if "in use" in str(error) else 1
            if code == 1:
                (run.parent / f"{run.name}.error").write_text(str(error))
        except BaseException as error:
            (run.parent / f"{run.name}.error").write_text(repr(error))
        finally:
            os._exit(code)

    def _train(self, run: Path) -> None:
        if not RunFolder(run).has_begun:
            who: dict[str, Any] = {"person": "id", "rows_per_person": 3} if self.people else {}
            columns = dict.fromkeys(("age",) if self.people else ("age", "id"), Column(range=(0.0, 100.0)))
            config = TrainConfig(
                RunData(
                    str(run.parent / "visits.csv"),
                    Recipe(target="ill", group=("sex",), columns=columns, **who),
                ),
                Plan(batch_size=1, epochs=6.0, delta=1e-5, model="logistic").with_changes(
                    method="dpsgd",
                    epsilon=3.0,
                    accountant="rdp",
                    releases=(
                        PreprocessingRelease(0.1),
                        CountsRelease(0.1, balanced=True),
                        IndividualRelease(0.2),
                    ),
                ),
                DatasetLedger(self.ledger, epsilon=1e4, delta=1e-5),
                checkpoint_seconds=0.0,
            )
            train = config.load()[0].train
            plan = replace(
                config.plan, batch_size=len(train)
            )  # all in each step, which is quick to account for
            beginning.begin(prepare(replace(config, plan=plan)), run)
        training.train(run)

    def _check(self, run: Path) -> None:
        """The ledger counts at least what was drawn, of this run with its copies and of all runs."""
        if not self.ledger.exists():
            return
        own = RunFolder(run).read_settings()[2]["run"] if RunFolder(run).has_begun else None
        ledger = Ledger.read(self.ledger)
        for entries, draws in (
            (ledger.entries(own) if own else (), run / "draws"),
            (ledger.entries(), Path(f"{self.ledger}.draws")),
        ):
            drawn = _drawn(draws)
            if not drawn:
                continue
            counted: Counter[str] = Counter()
            for event, count in entries:
                counted[event.name] += count
            self.tally.checks += 1
            self.tally.understated += bool(drawn - counted)


def _drawn(path: Path) -> Counter[str]:
    """What was drawn, by name, from its letters."""
    letters = path.read_text() if path.exists() else ""
    return Counter({name: letters.count(letter) for name, letter in _LETTERS.items() if letter in letters})


@contextmanager
def _watched(
    run: Path,
    ledger: Path,
    die: tuple[str, str] | None = None,
    fork_at: str | None = None,
) -> Iterator[None]:
    """Make every draw leave its letter, and the process die or fork at a moment."""
    kept_for_later: list[str] = []  # drawn before the folder is there

    def tell(name: str) -> None:
        for path in (Path(f"{ledger}.draws"), run / "draws"):
            if path.parent.exists():
                with path.open("a") as file:
                    file.write(_LETTERS[name])
            else:
                kept_for_later.append(name)

    def happened(moment: str, name: str) -> None:
        if die == (moment, name):
            os.kill(os.getpid(), signal.SIGKILL)

    def fork(name: str) -> None:
        nonlocal fork_at
        if fork_at == name:
            fork_at = None
            child = os.fork()
            if child:
                os.waitpid(child, 0)

    release, put = Ledger.release, os.replace

    def watched_release(self: Ledger, run: str, name: str, noise: float, draw: Callable[[float], Any]) -> Any:
        fork(name)

        def watched_draw(noise: float) -> Any:
            happened("paid", name)
            return draw(noise)

        return release(self, run, name, noise, watched_draw)

    def watched_replace(source: Any, target: Any) -> None:
        if Path(target).name == RELEASED:
            happened("drawn", _LAST)
        put(source, target)
        if Path(target) == run and kept_for_later:
            (run / "draws").write_text("".join(_LETTERS[name] for name in kept_for_later))
            kept_for_later.clear()

    Ledger.release, os.replace = watched_release, watched_replace  # type: ignore[method-assign]
    _before_noise(tell, happened, fork)
    yield


def _before_noise(
    tell: Callable[[str], None], happened: Callable[[str, str], None], fork: Callable[[str], None]
) -> None:
    """Count steps by their first draw of noise, and releases where theirs is about to be drawn."""
    step, normal, in_step, taken = PrivateStep.__call__, SystemRandomness.normal, [False], [0]

    def watched_step(self: PrivateStep, *args: Any, **kwargs: Any) -> Any:
        in_step[0] = True
        return step(self, *args, **kwargs)

    def watched_normal(self: SystemRandomness, *args: Any, **kwargs: Any) -> Any:
        if in_step[0]:
            in_step[0] = False
            tell(STEP)
            taken[0] += 1
            if taken[0] == 3:
                happened("steps", STEP)
        return normal(self, *args, **kwargs)

    take = PrivateRun.step

    def watched_take(self: PrivateRun) -> bool:
        fork(STEP)
        return take(self)

    PrivateRun.step = watched_take  # type: ignore[method-assign]
    PrivateStep.__call__ = watched_step  # type: ignore[method-assign]
    SystemRandomness.normal = watched_normal  # type: ignore[method-assign]

    def told(name: str, draw: Callable[..., Any]) -> Callable[..., Any]:
        def telling(*args: Any, **kwargs: Any) -> Any:
            tell(name)
            return draw(*args, **kwargs)

        return telling

    watched: Any = (report, class_counts, preprocessing)
    watched[0].private_sum = told(_LAST, report.private_sum)
    watched[1].private_counts = told("class counts", class_counts.private_counts)
    watched[2].Release = told("preprocessing", preprocessing.Release)


def _write_table(path: Path) -> None:
    rng, n = np.random.default_rng(0), 90
    table = pd.DataFrame({"age": rng.integers(20, 80, n), "sex": rng.choice(["f", "m"], n)})
    table["id"], table["ill"] = np.arange(n) // 2, rng.choice(["no", "yes"], n)
    table.to_csv(path, index=False)
