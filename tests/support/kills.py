"""Kills training at counted events, over and over, and checks what is left each time.

A process kills itself by SIGKILL at its k-th write, sync, checkpoint or draw of noise, so that nothing
depends on how fast the machine is. After each kill:

- the ledger is whole and counts at least the steps whose noise was drawn (each leaves a byte in a file
  beforehand);
- the last checkpoint is whole, and the histories of single examples beside it count its steps, each of them
  once for everyone;

and every run completes, with no more steps than planned but for blocks that were paid for ahead. Every second
run is in a ledger that all of them share, the others in one of their own.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import equidp.report.card  # noqa: F401 - once, not in each child
from equidp.kernel.epsilon import epsilon
from equidp.kernel.noise import SeededRandomness, SystemRandomness
from equidp.kernel.step import PrivateStep
from equidp.ledger.ledger import Ledger
from equidp.runs.begin import begin, prepare
from equidp.runs.config import DatasetLedger, RunData, TrainConfig
from equidp.runs.folder import RunFolder
from equidp.runs.releases import IndividualRelease
from equidp.runs.saved import open_run
from equidp.runs.train import train
from equidp.training.checkpoint import Checkpoints
from equidp.training.plan import default_plan

METHODS = ("dpsgd-f", "dpsgd", "global-adapt")


class Moment(NamedTuple):
    """When a process kills itself: at the `count`-th event of a kind.

    Kinds: "torn line" (half of a line of the ledger is written), "line" (written, not yet synced), "synced
    line", "noise" (a step is about to draw it), "unnamed checkpoint" (written, under a temporary name),
    "checkpoint", "unnamed histories", "histories" (of single examples, written before the checkpoint that
    they belong to).
    """

    kind: str
    count: int


KINDS = {
    "torn line": 5,
    "line": 5,
    "synced line": 5,
    "noise": 8,
    "unnamed histories": 6,
    "histories": 6,
    "unnamed checkpoint": 2,
    "checkpoint": 2,
}
"""Kind -> the most events of it that a process waits for."""


@dataclass
class Tally:
    """What was seen.

    Attributes:
        kills: processes killed while they ran, by kind of moment.
        completed: runs that got to their end.
        understated: kills after which the ledger told of fewer steps than had drawn noise. Must stay 0.
        uncharged: completed runs whose card says fewer steps than the ledger. Must stay 0.
        unreadable: kills after which no checkpoint could be read. Must stay 0.
        miscounted: kills after which some example's history did not count the checkpoint's steps. Must stay
            0.
        left: completed runs whose folder still holds histories of single examples. Must stay 0.
        counted, drawn: steps that the ledgers of completed runs count, and steps that drew noise.
        torn: kills that left a ledger with a torn last line.
        epsilons: (as the ledger has it, of the noise drawn) of each completed run.
    """

    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    completed: int = 0
    understated: int = 0
    uncharged: int = 0
    unreadable: int = 0
    miscounted: int = 0
    left: int = 0
    counted: int = 0
    drawn: int = 0
    torn: int = 0
    epsilons: list[tuple[float, float]] = field(default_factory=list)


def kill_over_and_over(
    rounds: int, folder: Path, *, seed: int = 0, kills: int = 6, epochs: float = 40.0
) -> Tally:
    """Train three methods on scikit-learn's digits, one run after the other; kill each a few times, then
    let it end.

    Args:
        rounds: number of runs.
        folder: where runs are kept.
        seed: of the moments of killing.
        kills: the most of one run: each kind of moment comes equally often.
        epochs: of each run.
    """
    tally, moments = Tally(), random.Random(seed)
    for number in range(rounds):
        run = folder / f"run-{number}"
        prepared = prepare(config_of_run(number, folder, epochs))
        begin(prepared, run)
        kinds = [
            kind for _ in range(-(-kills // len(KINDS))) for kind in moments.sample(list(KINDS), len(KINDS))
        ]
        for kind in [*kinds[:kills], None]:
            moment = None if kind is None else Moment(kind, moments.randint(1, KINDS[kind]))
            if _trained(run, moment, tally):
                break
        check_complete(run, prepared.trainer.steps, tally)
    return tally


def config_of_run(number: int, folder: Path, epochs: float) -> TrainConfig:
    """Configuration of a run on scikit-learn's digits, by one method after the other."""
    changes = {"model": "logistic", "epochs": epochs, "batch_size": 256, "noise_multiplier": 4.0}
    return TrainConfig(
        RunData("digits"),
        default_plan("digits")
        .with_changes(changes)
        .with_changes(method=METHODS[number % 3], accountant="rdp", releases=(IndividualRelease(0.1),))
        .with_usual_noise(),
        DatasetLedger(folder / "shared", epsilon=1e3, delta=1e-5) if number % 2 else None,
        checkpoint_seconds=0.0,
    )


def _trained(run: Path, moment: Moment | None, tally: Tally) -> bool:
    """Whether a process got to the end of the run before its moment came."""
    child = os.fork()
    if child == 0:
        try:
            prepare_child(run, moment)
            train(run)
        except BaseException:
            traceback.print_exc(file=sys.stderr)
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and moment is not None:
        tally.kills[moment.kind] += 1
        check_killed(run, tally)
        return False
    assert os.waitstatus_to_exitcode(status) == 0, "a run could not be resumed"
    return True


def prepare_child(run: Path, moment: Moment | None) -> None:
    """Make every step leave a byte in a file before it draws noise, and the process die at its moment.

    A clock of its own, .1 seconds a look, decides on checkpoints and on blocks of the ledger.
    """
    looks = count()
    time.monotonic = lambda: next(looks) / 10
    seen = dict.fromkeys(KINDS, 0)
    write, sync, replace = os.write, os.fsync, os.replace
    draws = os.open(run / "draws", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def happened(kind: str) -> None:
        seen[kind] += 1
        if moment is not None and (kind, seen[kind]) == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    ledger = ledger_of(run)

    def is_ledger(file: int) -> bool:
        return ledger.exists() and os.path.samestat(os.fstat(file), os.stat(ledger))

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

    os.write, os.fsync, os.replace = counted_write, counted_sync, counted_replace  # type: ignore[assignment]
    _before_noise(lambda: (write(draws, b"."), happened("noise")))


def _before_noise(tell: Callable[[], object]) -> None:
    """Call `tell` once in every private step, before its first draw."""
    step, in_step = PrivateStep.__call__, [False]

    def counted_step(self: PrivateStep, *args: Any, **kwargs: Any) -> Any:
        in_step[0] = True
        return step(self, *args, **kwargs)

    def counted(normal: Callable[..., Any]) -> Callable[..., Any]:
        def counted_normal(*args: Any, **kwargs: Any) -> Any:
            if in_step[0]:
                in_step[0] = False
                tell()
            return normal(*args, **kwargs)

        return counted_normal

    PrivateStep.__call__ = counted_step  # type: ignore[method-assign]
    for source in (SeededRandomness, SystemRandomness):
        source.normal = counted(source.normal)  # type: ignore[method-assign]


def _drawn(run: Path) -> int:
    return (run / "draws").stat().st_size if (run / "draws").exists() else 0


def ledger_of(run: Path) -> Path:
    """The ledger of a run, its own or the one that runs share."""
    kept = RunFolder(run).read_settings()[0].ledger
    return run / "private" / "ledger" if kept is None else kept.path


def counted_steps(run: Path) -> int:
    """Steps and releases that the ledger counts of a run."""
    entries = Ledger.read(ledger_of(run)).entries(RunFolder(run).read_settings()[2]["run"])
    return sum(count for _, count in entries)


def check_killed(run: Path, tally: Tally) -> None:
    ledger = ledger_of(run)
    if not ledger.exists() or not ledger.read_bytes().count(b"\n"):
        tally.understated += _drawn(run) > 0
        return
    tally.torn += not ledger.read_bytes().endswith(b"\n")
    tally.understated += counted_steps(run) < _drawn(run)
    if _drawn(run):
        try:
            steps = Checkpoints(run / "private").steps_kept()
        except Exception:
            tally.unreadable += 1
        else:
            tally.miscounted += not _counts_steps(run, steps)


def _counts_steps(run: Path, steps: int) -> bool:
    """Whether every example's history beside the last checkpoint counts so many steps."""
    last = max(run.glob("private/checkpoint-*")).stem.removeprefix("checkpoint-")
    with np.load(run / "private" / "sensitive" / f"individual-{last}.npz") as saved:
        counted = json.loads(str(saved["facts"]))["steps"]
        return counted == steps and bool((saved["counts"].sum(axis=1) == steps).all())


def check_complete(run: Path, planned: int, tally: Tally) -> None:
    kept = open_run(run).run
    counted = sum(steps for _, steps in kept.entries)
    assert planned <= counted
    tally.uncharged += counted < counted_steps(run)
    assert (run / "share" / "card.html").exists()
    tally.left += any(run.rglob("*sensitive*"))
    tally.completed += 1
    tally.counted += counted
    tally.drawn += _drawn(run)
    drawn = ((kept.entries[0][0], _drawn(run)),)
    tally.epsilons.append((kept.epsilon(), epsilon(drawn, kept.delta, kept.accountant)))
