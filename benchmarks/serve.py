"""A process of one contender, which takes steps when run.py asks (it starts this file; nothing else does).

    PYTHON serve.py MODULE THREADS

MODULE is `contenders` (PyTorch) or `peers` (JAX, numpy). Reads one JSON value a line and answers each by one:
what to make, or how many steps of it to time. Needs numpy alone.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any, NamedTuple

import numpy as np

RATE = 1 / 8
"""Chance of a row to be in a sample."""
WARM_UP, WARM_UP_SECONDS = 20, 10
"""Steps that are not timed, as they compile, for sizes of samples too; fewer where they take longer."""


class Sample(NamedTuple):
    """Inputs, targets and groups of the rows of a Poisson sample, and which rows they are."""

    inputs: np.ndarray
    targets: np.ndarray
    groups: np.ndarray
    indices: np.ndarray


class Draws:
    """Made-up rows, and Poisson samples of them: the same ones in each process.

    Args:
        shape: of one input.
        words: inputs are whole numbers below it; None: inputs are normal.
        classes: number of classes.
        batch_size: expected size of a sample.
    """

    def __init__(self, shape: list[int], words: int | None, classes: int, batch_size: int) -> None:
        draw, n = np.random.default_rng(0), round(batch_size / RATE)
        inputs = (
            draw.integers(1, words, (n, *shape)) if words else draw.standard_normal((n, *shape), np.float32)
        )
        self.rows = Sample(inputs, draw.integers(0, classes, n), draw.integers(0, 2, n), np.arange(n))
        self.begin(seed=1)

    def begin(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def next(self) -> Sample:
        chosen = self._random.random(len(self.rows.indices)) < RATE
        return Sample(*(column[chosen] for column in self.rows))


def make(module: Any, asked: dict[str, Any]) -> tuple[Any, Draws, dict[str, Any]]:
    """Return a contender after its first steps, what it takes steps on, and the answer to run.py."""
    draws = Draws(asked["shape"], asked["words"], asked["classes"], asked["batch_size"])
    began = time.perf_counter()
    try:
        contender = module.Stepper(asked, draws.rows)
        steps = 0
        while steps < 2 or (steps < WARM_UP and time.perf_counter() - began < WARM_UP_SECONDS):
            contender.take([contender.ready(draws.next())])
            steps += 1
    except Exception as error:
        return None, draws, {"refused": f"{type(error).__name__}: {str(error).splitlines()[0][:140]}"}
    answer = {"steps": steps, "seconds": time.perf_counter() - began}
    answer["bytes"] = contender.peak_bytes(draws.next())
    draws.begin(seed=2)  # the same samples for all, whatever they took before
    return contender, draws, answer


def main() -> None:
    """Answer until the input ends."""
    name, threads = sys.argv[1], int(sys.argv[2])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])  # before libraries count them
    answers = sys.stdout
    sys.stdout = sys.stderr  # libraries may print
    module = importlib.import_module(name)
    contender: Any = None
    draws: Any = None
    answer: Any
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, dict):
            contender = None  # frees the last one
            contender, draws, answer = make(module, asked)
        else:
            samples = [contender.ready(draws.next()) for _ in range(asked)]
            began = time.perf_counter()
            contender.take(samples)
            answer = (time.perf_counter() - began) / len(samples)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
