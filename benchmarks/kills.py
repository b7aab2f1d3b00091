"""Kills training at random moments, over and over, and checks what is left each time.

    python benchmarks/kills.py --kills 200

A run of `equidp train` is killed by SIGKILL and resumed until it is complete; then the next one begins. After
each kill:

- the ledger is whole and counts at least the steps whose noise was drawn (each draw leaves a byte in a file
  beforehand);
- the last checkpoint is whole;

and every run completes, with no more steps than planned but for blocks that were paid for ahead.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import torch

from equidp.kernel import step as mechanism
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger_format import read_ledger
from equidp.runs.config import TrainConfig, plan_for
from equidp.runs.prepare import prepare
from equidp.runs.saved import open_run
from equidp.runs.train import begin, train
from equidp.training.checkpoint import Checkpoints

METHODS = ("dpsgd-f", "dpsgd", "global-adapt")


@dataclass
class Tally:
    """What was seen.

    Attributes:
        kills: processes killed while they ran.
        completed: runs that got to their end.
        understated: kills after which the ledger told of fewer steps than had drawn noise. Must stay 0.
        unreadable: kills after which no checkpoint could be read. Must stay 0.
        counted, drawn: steps that the ledgers of completed runs count, and steps that drew noise.
        torn: kills that left a ledger with a torn last line.
        epsilons: (as the ledger has it, of the noise drawn) of each completed run.
    """

    kills: int = 0
    completed: int = 0
    understated: int = 0
    unreadable: int = 0
    counted: int = 0
    drawn: int = 0
    torn: int = 0
    epsilons: list[tuple[float, float]] = field(default_factory=list)


def kill_over_and_over(
    kills: int, folder: Path, *, seed: int = 0, longest: float = 1.0, epochs: float = 400.0
) -> Tally:
    """Runs of three methods on scikit-learn's digits, one after the other, until so many processes were
    killed.

    Args:
        kills: how many.
        folder: where runs are kept.
        seed: of the moments of killing.
        longest: seconds; moments are uniform between 0 and this after a process began to train.
        epochs: of each run.
    """
    tally, moments = Tally(), random.Random(seed)
    while tally.kills < kills:
        method = METHODS[tally.completed % len(METHODS)]
        run = folder / f"run-{tally.completed}"
        changes = {"model": "logistic", "epochs": epochs, "batch_size": 256, "noise_multiplier": 4.0}
        config = TrainConfig(
            "digits", method, plan_for("digits", changes), accountant="rdp", checkpoint_seconds=0.02
        )
        begin(prepare(config), run)
        planned = prepare(config).trainer.steps
        # Far more processes than a run can need: each spends at least a step, or none did in its short life.
        for _ in range(100 * planned):
            if _trained(run, moments.uniform(0, longest), tally):
                break
        _check_complete(run, planned, tally)
    return tally


def _trained(run: Path, after: float, tally: Tally) -> bool:
    """Whether a process got to the end of the run before it was killed."""
    child = os.fork()
    if child == 0:
        _count_draws(run / "draws")
        try:
            train(run)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    deadline = time.monotonic() + after
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() >= deadline:
            os.kill(child, signal.SIGKILL)
            done = os.waitpid(child, 0)
            break
        time.sleep(0.001)
    if os.WIFEXITED(done[1]):
        if os.WEXITSTATUS(done[1]):
            raise SystemExit("a run could not be resumed")
        return True
    tally.kills += 1
    _check_killed(run, tally)
    return False


def _count_draws(path: Path) -> None:
    """Has every step leave a byte in a file before it draws noise."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    add_noise = mechanism.PrivateStep._add_noise

    def counted(self: mechanism.PrivateStep, sensitivity: float) -> None:
        os.write(file, b".")
        add_noise(self, sensitivity)

    mechanism.PrivateStep._add_noise = counted  # type: ignore[method-assign]


def _drawn(run: Path) -> int:
    return (run / "draws").stat().st_size if (run / "draws").exists() else 0


def _check_killed(run: Path, tally: Tally) -> None:
    if not (run / "ledger").exists() or not (run / "ledger").read_bytes().count(b"\n"):
        tally.understated += _drawn(run) > 0
        return
    content = read_ledger(run / "ledger")
    tally.torn += bool(content.torn)
    counted = sum(block.steps for block in content.blocks)
    tally.understated += counted < _drawn(run)
    if counted:
        try:
            Checkpoints(run).steps_kept()
        except Exception:
            tally.unreadable += 1


def _check_complete(run: Path, planned: int, tally: Tally) -> None:
    kept = open_run(run).run
    counted = sum(steps for _, steps in kept.entries)
    assert planned <= counted
    assert (run / "card.html").exists()
    tally.completed += 1
    tally.counted += counted
    tally.drawn += _drawn(run)
    drawn = ((kept.entries[0][0], _drawn(run)),)
    tally.epsilons.append((kept.epsilon(), epsilon(drawn, kept.delta, kept.accountant)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=float, default=1.0, help="seconds before a kill, at most")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tally = kill_over_and_over(
            arguments.kills, Path(folder), seed=arguments.seed, longest=arguments.longest
        )
    print(
        f"{tally.kills} kills, {tally.completed} runs, all completed, "
        f"in {time.monotonic() - began:.0f} seconds"
    )
    print(
        f"ledgers that told of fewer steps than had drawn noise: {tally.understated}; "
        f"torn last lines: {tally.torn}"
    )
    print(f"unreadable checkpoints: {tally.unreadable}")
    print(f"steps that drew noise: {tally.drawn:,}; steps counted: {tally.counted:,}")
    for spent, true in tally.epsilons:
        print(f"epsilon by the ledger {spent:.4f}, of the noise drawn {true:.4f}")
    sys.exit(bool(tally.understated or tally.unreadable))


if __name__ == "__main__":
    main()
