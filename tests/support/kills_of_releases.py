"""Kills, forks and copies of runs that release more than their steps, on one budget, and checks after each.

Every draw of noise leaves a letter in two files beforehand, one beside the run and one beside the budget, so
that what was drawn is counted apart from the product. After each event, the run's ledger and the budget count
at least as many steps and releases of each name as were drawn.

| event | what happens |
| --- | --- |
| "killed" | `kill -9` at a random moment, of a run that begins or goes on |
| "paid" | a process kills itself after it paid for a release, before it is drawn |
| "drawn" | the same after it was drawn, before it is kept |
| "copied" | the folder of a stopped run is copied, and both go on to their end |
| "forked" | a process forks between a payment and its draw, and both try to draw and go on |
| "together" | two processes begin runs on the same budget at once |
| "restored" | the budget is put back to an older copy, and the run goes on |
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

from equidp.accounting.cache import remembered
from equidp.accounting.target import Target
from equidp.data import Recipe, class_counts
from equidp.errors import BudgetError
from equidp.individual import report
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import Ledger, Payment, ReleaseEvent
from equidp.kernel.noise import SystemRandomness
from equidp.kernel.step import PrivateStep
from equidp.ledger.format import read_ledger
from equidp.runs import begin as beginning, layout, train as training
from equidp.runs.config import BudgetFile, Execution, RunData, TrainConfig
from equidp.runs.prepare import prepare
from equidp.runs.releases import CountsRelease, IndividualRelease, PreprocessingRelease, preprocessing
from equidp.training.plan import Plan

EVENTS = {"killed": 24, "paid": 10, "drawn": 10, "copied": 12, "forked": 6, "together": 5, "restored": 5}
"""Event -> how many of 72."""
STEP, _LAST = "step", "individual privacy"
_LETTERS = {
    STEP: "s",
    "preprocessing": "p",
    "class counts": "c",
    _LAST: "i",
}
_DIED = 77


@dataclass
class Tally:
    """What was seen.

    Attributes:
        events: by kind.
        checks: comparisons of a ledger or a budget with what was drawn.
        understated: those in which a ledger or a budget counted less. Must stay 0.
        completed: runs that got to their end.
        drawn, counted: in all runs together, by name: what was drawn, and what the budget counts.
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
        folder: where runs, and a budget for rows and one for people, are kept.
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
    for budget in folder.glob("budget-*.ledger"):
        entries, drawn = read_ledger(budget).entries, _drawn(Path(f"{budget}.draws"))
        tally.drawn += drawn
        for event, count in entries:
            tally.counted[_name(event)] += count
        taken = []
        for event, count in entries:  # steps and noise are the same in all runs
            taken.append((event, min(count, drawn[_name(event)])))
        tally.epsilon_counted += epsilon(entries, 1e-5, "rdp")
        tally.epsilon_drawn += epsilon(taken, 1e-5, "rdp")
    return tally


class _Story:
    """One run and what happens to it."""

    def __init__(self, folder: Path, name: str, people: bool, tally: Tally, chances: random.Random) -> None:
        self.folder, self.run, self.people = folder, folder / name, people
        self.budget = folder / f"budget-{'people' if people else 'rows'}.ledger"
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

    def _restored(self) -> None:
        self._go_on(self.run, die=("steps", STEP))
        older = {path: path.read_bytes() for path in self.folder.glob(f"{self.budget.name}*")}
        self._go_on(self.run, die=("paid", _LAST))
        for path, content in older.items():
            if not path.name.endswith(".draws"):
                path.write_bytes(content)
        self._complete(self.run)  # which charges what the run spent since

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
        assert (run / layout.MANIFEST).exists(), f"{run} was not completed: {told}"
        self.tally.completed += 1

    def _start(self, run: Path, **moment: Any) -> int:
        child = os.fork()
        if child:
            return child
        code = 1
        try:
            with _watched(run, self.budget, **moment), remembered(self.folder):
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
        if not (run / layout.CONFIG).exists():
            who: dict[str, Any] = {"person": "id", "rows_per_person": 3} if self.people else {}
            bounds = (("age", 0.0, 100.0),) + (() if self.people else (("id", 0.0, 100.0),))
            config = TrainConfig(
                RunData(
                    str(run.parent / "visits.csv"),
                    Recipe(target="ill", group=("sex",), bounds=bounds, **who),
                ),
                "dpsgd",
                Plan(batch_size=1, epochs=6.0, delta=1e-5, model="logistic"),
                Target(3.0, accountant="rdp"),
                BudgetFile(self.budget, epsilon=1e4, delta=1e-5),
                execution=Execution(checkpoint_seconds=0.0),
                releases=(
                    PreprocessingRelease(0.1),
                    CountsRelease(0.1, balanced=True),
                    IndividualRelease(0.2),
                ),
            )
            train = config.load()[0].train
            plan = replace(
                config.plan, batch_size=len(train)
            )  # all in each step, which is quick to account for
            beginning.begin(prepare(replace(config, plan=plan)), run)
        training.train(run)

    def _check(self, run: Path) -> None:
        """Ledger and budget count at least what was drawn."""
        for ledger, draws in (
            (run / layout.LEDGER, run / "draws"),
            (self.budget, Path(f"{self.budget}.draws")),
        ):
            drawn = _drawn(draws)
            if not drawn:
                continue
            counted: Counter[str] = Counter()
            for event, count in read_ledger(ledger).entries:
                counted[_name(event)] += count
            self.tally.checks += 1
            self.tally.understated += bool(drawn - counted)


def _name(event: Any) -> str:
    return event.name if isinstance(event, ReleaseEvent) else STEP


def _drawn(path: Path) -> Counter[str]:
    """What was drawn, by name, from its letters."""
    letters = path.read_text() if path.exists() else ""
    return Counter({name: letters.count(letter) for name, letter in _LETTERS.items() if letter in letters})


@contextmanager
def _watched(
    run: Path,
    budget: Path,
    die: tuple[str, str] | None = None,
    fork_at: str | None = None,
) -> Iterator[None]:
    """Make every draw leave its letter, and the process die or fork at a moment."""
    kept_for_later: list[str] = []  # drawn before the folder is there

    def tell(name: str) -> None:
        for path in (Path(f"{budget}.draws"), run / "draws"):
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

    pay, put = Ledger.pay, os.replace

    def watched_pay(self: Ledger, name: str, noise: float) -> Payment:
        payment = pay(self, name, noise)
        happened("paid", name)
        fork(name)
        return payment

    def watched_replace(source: Any, target: Any) -> None:
        if Path(target).name == layout.RELEASED:
            happened("drawn", _LAST)
        put(source, target)
        if Path(target) == run and kept_for_later:
            (run / "draws").write_text("".join(_LETTERS[name] for name in kept_for_later))
            kept_for_later.clear()

    Ledger.pay, os.replace = watched_pay, watched_replace  # type: ignore[method-assign]
    _before_noise(tell, happened, fork)
    yield


def _before_noise(
    tell: Callable[[str], None], happened: Callable[[str, str], None], fork: Callable[[str], None]
) -> None:
    """Count steps by their first draw of noise, and releases where theirs is about to be drawn."""
    step, normal, in_step, taken = PrivateStep.__call__, SystemRandomness.normal, [False], [0]

    def watched_step(self: PrivateStep, *args: Any, **kwargs: Any) -> Any:
        fork(STEP)
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
