"""Steps of two checkouts beside each other: one process for each, which take turns (called by run.py).

Each process imports a checkout's own `src` and `benchmarks`, so that each is measured through its own
interface. Plain SGD is a contender too: its code is the same in both, so its ratio shows how noisy the
machine is.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve()
AFTER = HERE.parents[1]
_TURN_SECONDS = 0.1
_MOST_SECONDS = 10.0  # of the turns of one contender in one process
_CONTROL = "plain SGD"
_START = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
"""Runs this file without its folder on the path, so that it imports the checkout's own benchmarks."""


class Checkout:
    """A process that takes steps with a checkout's code when asked."""

    def __init__(self, tree: Path, threads: int) -> None:
        path = os.pathsep.join(str(tree / folder) for folder in ("benchmarks", "src"))
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(HERE), str(threads)],
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, *request: Any) -> Any:
        """The answer of `serve`; raises RuntimeError where the process ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process that should answer {request} ended with {self._process.wait()}")
        return json.loads(answer)

    def close(self) -> None:
        self._process.communicate()


@dataclass
class Found:
    """Figures of one contender before and after: seconds and ratios of turns, and peak bytes."""

    seconds: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    ratios: list[list[float]] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return median(each for process in self.ratios for each in process)

    @property
    def memory_ratio(self) -> float:
        return self.memory[1] / self.memory[0]


def beside(before: Path, subject: str, *, rounds: int, processes: int, threads: int) -> dict[str, Found]:
    """Figures of each contender that both checkouts can train the subject with.

    Args:
        before: the other checkout.
        subject: its name in `SUBJECTS`.
        rounds: turns of each contender in a pair of processes.
        processes: pairs of processes, one after another, since two processes of the same code differ too.
        threads: of torch.
    """
    found: dict[str, Found] = {}
    for _ in range(processes):
        pair = [Checkout(tree, threads) for tree in (before, AFTER)]
        names = [each.ask("contenders") for each in pair]
        for name in (name for name in names[1] if name in names[0]):
            made = [each.ask("make", subject, name) for each in pair]
            if None not in made:
                each = found.setdefault(name, Found())
                each.memory = [memory for _, memory in made]
                seconds = made[1][0]
                turns = max(3, min(rounds, round(_MOST_SECONDS / seconds)))
                _take_turns(each, pair, max(1, round(_TURN_SECONDS / seconds)), turns)
        for checkout in pair:
            checkout.close()
    return found


def _take_turns(found: Found, pair: list[Checkout], repeats: int, rounds: int) -> None:
    found.ratios.append([])
    for _ in range(rounds):
        turn = [0.0, 0.0]
        for at in random.sample((0, 1), 2):
            turn[at] = pair[at].ask("time", repeats)
            found.seconds[at].append(turn[at])
        found.ratios[-1].append(turn[1] / turn[0])


def table(found: dict[str, Found]) -> str:
    """Times, ratios with the range over pairs of processes, and memory, as Markdown."""
    rows = []
    for name, each in found.items():
        old, new = (1000 * median(seconds) for seconds in each.seconds)
        medians = [median(ratios) for ratios in each.ratios]
        memory = " | ".join(f"{peak / 2**20:.1f}" for peak in each.memory)
        rows.append(
            f"| {name} | {old:.2f} | {new:.2f} | {each.ratio:.3f} ({min(medians):.3f} to {max(medians):.3f}) "
            f"| {memory} | {each.memory_ratio:.3f} |"
        )
    return "\n".join(
        [
            "\nBeside the commit before; in brackets, medians of single pairs of processes.\n",
            "| | ms before | ms now | now / before | MiB before | MiB now | now / before |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
            *rows,
        ]
    )


def verdict(found: dict[str, dict[str, Found]], slower: float = 1.03, larger: float = 1.005) -> str:
    """Which private steps are more than 3% slower than before, and which take more memory."""
    every = [
        (f"{subject}: {name}", each)
        for subject, contenders in found.items()
        for name, each in contenders.items()
        if name != _CONTROL
    ]
    slow = [f"{name} ({each.ratio:.3f})" for name, each in every if each.ratio > slower]
    large = [f"{name} ({each.memory_ratio:.3f})" for name, each in every if each.memory_ratio > larger]
    return (
        f"\nSlower than before by more than {slower - 1:.0%}: {'; '.join(slow) or 'none'} of {len(every)}."
        f"\n\nMore memory than before: {'; '.join(large) or 'none'} of {len(every)}.\n"
    )


def serve(threads: int) -> None:
    """Answer requests, one JSON value a line: the contenders' names, [seconds, peak bytes] or seconds."""
    import warnings

    import torch
    from contenders import CONTENDERS
    from measure import peak_bytes
    from subjects import SUBJECTS

    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    subjects = {subject.name: subject for subject in SUBJECTS}
    step: Any = None

    def seconds(repeats: int) -> float:
        """Seconds of one step, on average."""
        start = time.perf_counter()
        for _ in range(repeats):
            step()
        return (time.perf_counter() - start) / repeats

    for line in sys.stdin:
        kind, *rest = json.loads(line)
        answer: Any = None
        if kind == "contenders":
            answer = [name for name in CONTENDERS if not name.startswith("Opacus")]
        elif kind == "make":
            subject, step = subjects[rest[0]], None
            torch.manual_seed(0)
            try:
                step = CONTENDERS[rest[1]](subject.make(), subject.batch())
                memory = subject.resting_bytes() + peak_bytes(step)
                answer = seconds(1), memory
            except Exception as error:
                print(f"{rest}: {type(error).__name__}: {error}", file=sys.stderr)
        elif kind == "time":
            answer = seconds(rest[0])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[-1]))
