"""Times steps of equidp beside plain SGD, Opacus, JAX and an earlier commit; prints tables and saves them.

    python benchmarks/run.py --threads 1 2 --jax PEERS/bin/python    # a venv with jax-privacy and optax
    python benchmarks/run.py --models transformers [--only BERT]
    python benchmarks/run.py --models large --device cuda --contenders "plain SGD" "equidp ghost, dpsgd"
    python benchmarks/run.py --before CHECKOUT                       # made by git worktree add

Each contender has a process of its own. They train the same model, in float32 unless its name says otherwise,
on the same Poisson samples, whose sizes vary, and take turns in random order; on large models one after
another, for the memory. A turn is some steps, update included, until the device is done; drawing and loading
samples is not. Beside medians stand the least and the largest turn. The first 20 steps, or 10 seconds of
them, compile, and count in the seconds to 1,000 steps alone.

What differs: equidp adds norms and sums in float64 and its noise on a grid; "noise from the OS" is from a
cryptographic generator, which JAX lacks and Opacus has by a package that is not installed here. Others add in
float32. JAX pads samples to multiples of 32. Plain SGD and numpy keep no ledger and check nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import contenders
import torch
from subjects import KINDS, Subject

from equidp.training.device import chosen_device

HERE = Path(__file__).resolve().parent
OURS, PLAIN, BEFORE = "equidp ghost, dpsgd", "plain SGD", ", before"
OUTSIDE = ("JAX SGD", "JAX Privacy", "numpy by hand")
"""Contenders of peers.py, which another Python runs."""
TURN_SECONDS = 0.2


class Process:
    """A process of a contender, started when it is first asked."""

    def __init__(self, name: str, threads: int, asked: argparse.Namespace) -> None:
        outside = name in OUTSIDE
        source = asked.before if name.endswith(BEFORE) else HERE.parent
        path = str(HERE) if outside else os.pathsep.join((str(HERE), str(Path(source) / "src")))
        python, module = (asked.jax, "peers") if outside else (sys.executable, "contenders")
        self.name = name
        self._popen = subprocess.Popen(
            [python, str(HERE / "serve.py"), module, str(threads)],
            env=os.environ | {"PYTHONPATH": path, "KINETO_LOG_LEVEL": "5", "JAX_PLATFORMS": "cpu"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if asked.verbose else subprocess.DEVNULL,
            text=True,
        )

    def ask(self, request: object) -> Any:
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.write(json.dumps(request) + "\n")
        self._popen.stdin.flush()
        answer = self._popen.stdout.readline()
        if not answer:
            raise SystemExit(f"the process of {self.name} ended with {self._popen.wait()}; see --verbose")
        return json.loads(answer)

    def close(self) -> None:
        self._popen.communicate()


@dataclass
class Turns:
    """What a contender took on a subject: seconds of a step by turn, and their ratios to the reference's."""

    process: Process
    refused: str = ""
    bytes: float = float("nan")
    first_steps: int = 0
    first: float = 0.0
    seconds: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.process.name

    def time(self, steps: int) -> float:
        return float(self.process.ask(steps))


def begin(process: Process, subject: Subject, threads: int, device: str) -> Turns:
    """Return a contender that has taken its first steps, or says why it cannot."""
    answer = process.ask(
        {
            "contender": process.name.removesuffix(BEFORE),
            "subject": subject.name,
            "model": subject.published,
            "shape": subject.shape,
            "words": subject.words,
            "classes": subject.classes,
            "batch_size": subject.batch_size,
            "threads": threads,
            "device": device,
        }
    )
    if "refused" in answer:
        return Turns(process, refused=answer["refused"])
    return Turns(process, bytes=answer["bytes"], first_steps=answer["steps"], first=answer["seconds"])


def measure(
    subject: Subject, processes: Sequence[Process], threads: int, asked: argparse.Namespace
) -> list[Turns]:
    """Return the turns of contenders; the first is the reference."""
    every = [begin(process, subject, threads, asked.device) for process in processes]
    _take_turns(every, asked.rounds)
    for each in every:
        each.ratios = [own / base for own, base in zip(each.seconds, every[0].seconds, strict=False)]
    return every


def measure_alone(subject: Subject, threads: int, asked: argparse.Namespace) -> list[Turns]:
    """Return the same, with one contender in memory at a time, whose ratios are to the reference's median."""
    every = []
    for name in asked.contenders:
        process = Process(name, threads, asked)
        every.append(begin(process, subject, threads, asked.device))
        _take_turns(every[-1:], asked.rounds)
        process.close()
    reference = median(every[0].seconds) if every[0].seconds else float("nan")
    for each in every:
        each.ratios = [seconds / reference for seconds in each.seconds]
    return every


def _take_turns(every: Sequence[Turns], rounds: int) -> None:
    ready = [each for each in every if not each.refused]
    steps = {each.name: max(1, round(TURN_SECONDS / each.time(2))) for each in ready}
    for _ in range(rounds):
        for each in random.sample(ready, len(ready)):
            each.seconds.append(each.time(steps[each.name]))


def table(subject: Subject, threads: int, every: Sequence[Turns]) -> str:
    """Return a subject's figures as Markdown."""
    lines = [
        f"\n## {subject.name}, batch {subject.batch_size}, {threads} thread{'s' * (threads > 1)}\n",
        "| | ms a step | times the first | s to 1,000 steps | peak MiB |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for each in every:
        if each.refused:
            lines.append(f"| {each.name} | refused: {each.refused} | | | |")
            continue
        milliseconds = [1000 * seconds for seconds in each.seconds]
        whole = each.first + (1000 - each.first_steps) * median(each.seconds)
        peak = "" if math.isnan(each.bytes) else f"{each.bytes / 2**20:.1f}"
        figures = (_with_range(milliseconds), _with_range(each.ratios), f"{whole:.1f}", peak)
        lines.append(f"| {each.name} | {' | '.join(figures)} |")
    return "\n".join(lines)


def _with_range(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})" if values else ""


def verdict(results: Sequence[Sequence[Turns]]) -> str:
    """Return how long others take beside equidp: the fastest of a kind, in geometric mean over models."""
    lines = [""]
    for kind in ("Opacus", "JAX Privacy"):
        ratios = []
        for every in results:
            seconds = {each.name: median(each.seconds) for each in every if each.seconds}
            others = [value for name, value in seconds.items() if name.startswith(kind)]
            if others and OURS in seconds:
                ratios.append(min(others) / seconds[OURS])
        if ratios:
            lines.append(
                f"{kind} at its fastest takes {geometric_mean(ratios):.2f} times as long as {OURS}, in "
                f"geometric mean over {len(ratios)} rows ({min(ratios):.2f} to {max(ratios):.2f})."
            )
    for every in results:
        now = {each.name: each for each in every}
        for name in (name for name in now if name.endswith(BEFORE) and now[name].seconds):
            new, old = now[name.removesuffix(BEFORE)], now[name]
            ratios = [a / b for a, b in zip(new.seconds, old.seconds, strict=True)]
            if median(ratios) > 1.03:
                lines.append(f"{new.name}: {_with_range(ratios)} times as long as before")
    return "\n\n".join(lines)


def heading(asked: argparse.Namespace) -> str:
    place = chosen_device(asked.device)
    where = torch.cuda.get_device_name(place) if place.type == "cuda" else platform.processor()
    packages = [f"{name} {version(name)}" for name in ("torch", "opacus", "equidp")]
    if asked.jax:
        code = "from importlib.metadata import version as v; print(v('jax'), v('jax-privacy'))"
        jax, privacy = _printed([asked.jax, "-c", code]).split()
        packages += [f"jax {jax}", f"jax-privacy {privacy}"]
    packages.append(f"commit {_printed(['git', 'describe', '--always', '--dirty'])}")
    about = (__doc__ or "").split("\n\n", 2)[2]
    return f"# Benchmarks\n\n{place.type} ({where or platform.machine()}); {', '.join(packages)}.\n\n{about}"


def _printed(command: list[str]) -> str:
    return subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", choices=KINDS, default="own")
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--contenders", nargs="+", help="the first is the reference; default: all")
    parser.add_argument("--threads", nargs="+", type=int, default=[torch.get_num_threads()])
    parser.add_argument("--rounds", type=int, default=9, help="turns of each contender")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, mps or auto")
    parser.add_argument("--jax", help="the Python of an environment with jax-privacy and optax")
    parser.add_argument("--before", help="a checkout of an earlier commit")
    parser.add_argument("--verbose", action="store_true", help="show what contenders say")
    parser.add_argument("--out", type=Path, default=HERE / "results.md")
    asked = parser.parse_args()
    if not asked.contenders:
        ours = [name for name in contenders.CONTENDERS if name.startswith("equidp")]
        earlier = [f"{name}{BEFORE}" for name in ours] if asked.before else []
        outside = OUTSIDE if asked.jax else ()
        asked.contenders = [*contenders.CONTENDERS, *earlier, *outside]
    lines, results = [heading(asked)], []
    print(lines[0], flush=True)
    for threads in asked.threads:
        alone = asked.models == "large"
        processes = [] if alone else [Process(name, threads, asked) for name in asked.contenders]
        for subject in KINDS[asked.models]:
            if asked.only.lower() not in subject.name.lower():
                continue
            every = (
                measure_alone(subject, threads, asked)
                if alone
                else measure(subject, processes, threads, asked)
            )
            results.append(every)
            lines.append(table(subject, threads, every))
            print(lines[-1], flush=True)
            asked.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
        for process in processes:
            process.close()
    lines.append(verdict(results))
    print(lines[-1])
    asked.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
