"""Kills, forks and copies runs at counted events, over and over, and checks what is left each time.

A process kills itself by SIGKILL at its k-th write, sync, checkpoint, message or draw of noise, so that
nothing depends on how fast the machine is. Every draw of noise leaves a line in a file beforehand, so that
what was drawn is counted apart from the product. After each kill:

- the ledger is whole and counts at least the steps and the releases of each name that were drawn, of the run
  and in all;
- the last checkpoint is whole, and the histories of single examples beside it count its steps, each of them
  once for everyone;
- other processes of the run have ended too;

and every run completes, with no more steps than planned but for blocks that were paid for ahead. Every second
run is in a ledger that all of them share, the others in one of their own.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch.distributed as dist

import equidp.report.card  # noqa: F401 - once, not in each child
from equidp.accounting.planned import INDIVIDUAL
from equidp.errors import EquidpError
from equidp.kernel.epsilon import epsilon
from equidp.kernel.event import STEP
from equidp.kernel.noise import SeededRandomness, SystemRandomness
from equidp.kernel.run import PrivateRun
from equidp.kernel.step import PrivateStep
from equidp.ledger.ledger import Ledger
from equidp.runs.begin import begin, prepare
from equidp.runs.config import DatasetLedger, RunData, TrainConfig
from equidp.runs.folder import RunFolder
from equidp.runs.releases import CountsRelease, IndividualRelease, PreprocessingRelease
from equidp.runs.saved import open_run
from equidp.runs.train import train
from equidp.tables.recipe import Column, Recipe
from equidp.training.checkpoint import Checkpoints
from equidp.training.plan import Plan

METHODS = ("dpsgd-f", "dpsgd", "global-adapt")
SECONDS = 60.0
"""What other processes may take to notice; they take a fraction of a second on an idle machine."""


class Moment(NamedTuple):
    """When a process kills itself or forks: at the `count`-th event of a kind."""

    kind: str
    count: int


KINDS = {
    "torn line": 5,  # half of a line of the ledger is written
    "line": 5,  # it is written, not yet synced
    "synced line": 5,
    "paid release": 2,  # a release is about to be drawn
    "drawn release": 2,  # it was, and is not kept yet
    "forked step": 8,  # it forks before a step; the copy goes on first, then it itself up to its next noise
    "noise": 8,  # a step is about to draw it
    "unnamed histories": 6,  # of single examples, written under a temporary name
    "histories": 6,  # before the checkpoint that they belong to
    "unnamed checkpoint": 2,
    "checkpoint": 2,
    "message of the first": 40,  # it is about to be sent to the other processes
    "message of another": 40,
}
"""Kind -> the most events of it that a process waits for."""


@dataclass
class Tally:
    """What was seen.

    Attributes:
        kills: processes killed, or forked, while they ran, by kind of moment.
        torn: kills that left a ledger with a torn last line.
        completed: runs that got to their end.
        counts: numbers of processes that runs went on with.
        drawn, counted: what was drawn, by name, and what the ledgers count, in all runs.
        epsilons: (as the ledger has it, of the noise drawn) of each ledger.
    """

    kills: Counter[str] = field(default_factory=Counter)
    torn: int = 0
    completed: int = 0
    counts: set[int] = field(default_factory=set)
    drawn: Counter[str] = field(default_factory=Counter)
    counted: Counter[str] = field(default_factory=Counter)
    epsilons: list[tuple[float, float]] = field(default_factory=list)


def kill_over_and_over(rounds: int, folder: Path, *, seed: int = 0) -> Tally:
    """Train on a table, one run after the other, until each kind of moment has come; let each run end.

    Args:
        rounds: how often each kind has to come.
        folder: where runs are kept.
        seed: of the moments.
    """
    tally, chances = Tally(), random.Random(seed)
    _write_table(folder / "visits.csv")
    for number in count():
        run = _Run(folder, number, tally)
        if not run.shared:  # a ledger of its own goes with a folder that was not begun
            run.go_on(1, begins=True)
        for _ in range(5):
            left = [kind for kind in KINDS if tally.kills[kind] < rounds]
            if not left:
                break
            kind = chances.choice(left)
            if run.go_on(run.processes_for(kind, chances), Moment(kind, chances.randint(1, KINDS[kind]))):
                break
        if number == 2:
            run.copy().complete()
        run.complete()
        if all(tally.kills[kind] >= rounds for kind in KINDS):
            break
    _begin_together(_Run(folder, 1001, tally), _Run(folder, 1003, tally))
    for ledger in folder.glob("*.ledger"):
        _add_epsilons(ledger, tally)
    return tally


def _begin_together(*runs: _Run) -> None:
    """Begin runs in one ledger at once: one is refused, or waits; both get to their end."""
    for child in [each.start(0, 1) for each in runs]:
        os.waitpid(child, 0)
    for each in runs:
        each.check()
        each.complete()


def _add_epsilons(ledger: Path, tally: Tally) -> None:
    drawn, entries = Counter(name for _, name in _draws(ledger)), Ledger.read(ledger).entries()
    tally.drawn += drawn
    left, of_draws = Counter(drawn), []
    for event, number in entries:
        tally.counted[event.name] += number
        taken = min(number, left[event.name])
        left[event.name] -= taken
        of_draws.append((event, taken))
    tally.epsilons.append((epsilon(entries, 1e-5, "rdp"), epsilon(of_draws, 1e-5, "rdp")))


def _draws(ledger: Path) -> list[tuple[str, str]]:
    """(run, name) of each draw of noise that was told of in a ledger's file of draws."""
    file = Path(f"{ledger}.draws")
    lines = file.read_text().splitlines() if file.exists() else []
    return [(run, name) for run, _, name in (line.partition(" ") for line in lines)]


class _Run:
    """One run, and what happens to it."""

    def __init__(self, folder: Path, number: int, tally: Tally) -> None:
        self.number, self.tally, self.processes = number, tally, 1
        self.folder, self.name = folder / f"run-{number}", f"run-{number}"
        self.shared, self.people = bool(number % 2), number % 4 > 1
        self.ledger = folder / (f"people-{self.people}.ledger" if self.shared else f"{self.name}.ledger")

    def config(self) -> TrainConfig:
        who: dict[str, Any] = {"person": "id", "rows_per_person": 3} if self.people else {}
        columns = dict.fromkeys(("age",) if self.people else ("age", "id"), Column(range=(0.0, 100.0)))
        recipe = Recipe(target="ill", group=("sex",), columns=columns, **who)
        releases = PreprocessingRelease(0.1), CountsRelease(0.1, balanced=True), IndividualRelease(0.1)
        config = TrainConfig(
            RunData(str(self.folder.parent / "visits.csv"), recipe),
            Plan(epochs=60.0, batch_size=1, delta=1e-5, model="logistic").with_changes(
                method=METHODS[self.number % 3], epsilon=3.0, accountant="rdp", releases=releases
            ),
            DatasetLedger(self.ledger, epsilon=1e4, delta=1e-5),
            checkpoint_seconds=0.0,
        )
        everyone = len(config.load()[0].train)  # in each step, which is quick to account for
        return replace(config, plan=replace(config.plan, batch_size=everyone))

    def processes_for(self, kind: str, chances: random.Random) -> int:
        """A number of processes, other than before where that can be, that a kind of moment comes in."""
        if not RunFolder(self.folder).has_begun or kind == "forked step":
            return 1
        numbers = [2, 3] if kind.startswith("message") else [1, 2, 3]
        self.processes = chances.choice([each for each in numbers if each != self.processes])
        return self.processes

    def copy(self) -> _Run:
        """The run in a copy of its folder, which goes on as the same run."""
        other = _Run(self.folder.parent, self.number, self.tally)
        other.folder = self.folder.with_name(f"{self.name}-copy")
        shutil.copytree(self.folder, other.folder)
        return other

    def complete(self) -> None:
        if not RunFolder(self.folder).is_finished:
            assert self.go_on(1), "a run could not be resumed"
        kept = open_run(self.folder).run
        planned = RunFolder(self.folder).read_settings()[1].steps
        assert planned <= sum(number for event, number in kept.entries if event.name == STEP)
        entries = Ledger.read(self.ledger).entries(self._id())
        assert Counter(dict(kept.entries)) == Counter(dict(entries)), "the card says other than the ledger"
        assert (self.folder / "share" / "card.html").exists()
        assert not any(self.folder.rglob("*sensitive*"))
        self.tally.completed += 1

    def go_on(self, processes: int, moment: Moment | None = None, *, begins: bool = False) -> bool:
        """Whether the processes got to the end of the run before the moment of one of them came."""
        victim = processes - 1 if moment and moment.kind == "message of another" else 0
        self.tally.counts.add(processes)
        store = self.folder.parent / f"store-{time.monotonic_ns()}"
        children = [
            self.start(rank, processes, store, moment if rank == victim else None, begins=begins)
            for rank in range(processes)
        ]
        status = os.waitpid(children.pop(victim), 0)[1]
        codes = [*map(_code_of, children)]
        self.check()
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and moment:
            self.tally.kills[moment.kind] += 1
            return False
        assert [os.waitstatus_to_exitcode(status), *codes] == [0] * processes, "a run could not be resumed"
        return True

    def start(
        self,
        rank: int,
        processes: int,
        store: Path | None = None,
        moment: Moment | None = None,
        *,
        begins: bool = False,
    ) -> int:
        """A process of the run, which begins it, if it has not begun, and goes on to its end."""
        child = os.fork()
        if child:
            return child
        code = 1
        try:
            self._watch(moment, rank)
            if processes > 1:
                store = dist.FileStore(str(store), processes)
                dist.init_process_group("gloo", rank=rank, world_size=processes, store=store)
            if not RunFolder(self.folder).has_begun:
                begin(prepare(self.config()), self.folder)
            if not begins:
                train(self.folder)
            code = 0
        except EquidpError as error:
            print(f"process {rank} of {processes}: {type(error).__name__}: {error}", file=sys.stderr)
        except BaseException:
            traceback.print_exc(file=sys.stderr)
        sys.stderr.flush()
        os._exit(code)

    def check(self) -> None:
        """The ledger counts what was drawn, and the last checkpoint and its histories are whole."""
        ledger, draws = self.ledger, _draws(self.ledger)
        if not ledger.exists() or not ledger.read_bytes().count(b"\n"):
            assert not draws, "the ledger is gone"
            return
        self.tally.torn += not ledger.read_bytes().endswith(b"\n")
        begun = RunFolder(self.folder).has_begun
        own = [name for run, name in draws if run == self.name and name in (STEP, INDIVIDUAL)]
        pairs = [(None, [name for _, name in draws]), *([(self._id(), own)] if begun else [])]
        for run, drawn in pairs:
            counted: Counter[str] = Counter()
            for event, number in Ledger.read(ledger).entries(*([run] if run else [])):
                counted[event.name] += number
            assert not Counter(drawn) - counted, f"drawn {Counter(drawn)}, counted {counted}"
        if not begun or RunFolder(self.folder).is_finished or STEP not in own:
            return
        steps = Checkpoints(self.folder / "private").steps_kept()
        last = max(self.folder.glob("private/checkpoint-*")).stem.removeprefix("checkpoint-")
        with np.load(self.folder / "private" / "sensitive" / f"individual-{last}.npz") as saved:
            assert json.loads(str(saved["facts"]))["steps"] == steps
            assert (saved["counts"].sum(axis=1) == steps).all()

    def _id(self) -> str:
        return str(RunFolder(self.folder).read_settings()[2]["run"])

    def _watch(self, moment: Moment | None, rank: int) -> None:
        """Make every draw leave a line in a file, and this process die or fork at its moment.

        A clock of its own, .1 seconds a look, decides on checkpoints and on blocks of the ledger.
        """
        looks, seen = count(), Counter[str]()
        time.monotonic = lambda: next(looks) / 10
        write, sync, replace, release = os.write, os.fsync, os.replace, Ledger.release
        draws = os.open(f"{self.ledger}.draws", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def happened(kind: str) -> None:
            nonlocal moment
            seen[kind] += 1
            if moment is None or (kind, seen[kind]) != moment:
                return
            if kind != "forked step":
                os.kill(os.getpid(), signal.SIGKILL)
            moment = None
            if child := os.fork():
                os.waitpid(child, 0)
                moment = Moment("noise", seen["noise"] + 1)

        def tell(name: str) -> None:
            write(draws, f"{self.name} {name}\n".encode())

        def is_ledger(file: int) -> bool:
            return self.ledger.exists() and os.path.samestat(os.fstat(file), os.stat(self.ledger))

        def counted_write(file: int, content: bytes) -> int:
            if not is_ledger(file):
                return write(file, content)
            half = len(content) // 2
            written = write(file, content[:half])
            happened("torn line")
            written += write(file, content[half:])
            happened("line")
            return written

        def counted_sync(file: int) -> None:
            sync(file)
            if is_ledger(file):
                happened("synced line")

        def counted_replace(source: Any, target: Any) -> None:
            starts = {"checkpoint-": "checkpoint", "individual-": "histories"}
            kinds = [kind for start, kind in starts.items() if Path(target).name.startswith(start)]
            for kind in kinds:
                happened(f"unnamed {kind}")
            replace(source, target)
            for kind in kinds:
                happened(kind)

        def counted_release(ledger: Ledger, run: str, name: str, noise: float, draw: Any) -> Any:
            def counted_draw(noise: float) -> Any:
                happened("paid release")
                tell(name)
                drawn = draw(noise)
                happened("drawn release")
                return drawn

            return release(ledger, run, name, noise, counted_draw)

        os.write, os.fsync, os.replace = counted_write, counted_sync, counted_replace  # type: ignore[assignment]
        Ledger.release = counted_release  # type: ignore[method-assign]
        if rank == 0:
            _before(PrivateRun, "step", lambda: happened("forked step"))
            _before_noise(lambda: (tell(STEP), happened("noise")))
        for name in ("broadcast", "reduce"):
            _before(dist, name, lambda: happened(f"message of {'another' if rank else 'the first'}"))


def _before(place: Any, name: str, tell: Callable[[], object]) -> None:
    """Call `tell` before each call of a function or method."""
    call = getattr(place, name)

    def told(*args: Any, **kwargs: Any) -> Any:
        tell()
        return call(*args, **kwargs)

    setattr(place, name, told)


def _before_noise(tell: Callable[[], object]) -> None:
    """Call `tell` once in every private step, before its first draw."""
    in_step = [False]

    def drawn() -> None:
        if in_step[0]:
            in_step[0] = False
            tell()

    _before(PrivateStep, "__call__", lambda: in_step.__setitem__(0, True))
    for source in (SeededRandomness, SystemRandomness):
        _before(source, "normal", drawn)


def _code_of(child: int) -> int:
    """Exit status of a process that another one's end stops too."""
    began = time.monotonic()
    while time.monotonic() < began + SECONDS:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    raise AssertionError(f"a process went on for {SECONDS} seconds after another had ended")


def _write_table(path: Path) -> None:
    rng, n = np.random.default_rng(0), 90
    table = pd.DataFrame({"age": rng.integers(20, 80, n), "sex": rng.choice(["f", "m"], n)})
    table["id"], table["ill"] = np.arange(n) // 2, rng.choice(["no", "yes"], n)
    table.to_csv(path, index=False)
