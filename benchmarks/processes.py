"""Steps of several processes of one thread beside one process of several threads, in turns.

    python benchmarks/processes.py --rounds 9

Needs as many cores as processes. Sums travel by Gloo over this machine's own network.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch.distributed as dist
from subjects import SUBJECTS

import equidp

_EXAMPLES, _TURN_SECONDS = 10_000, 1.0


def serve(pipe: Connection, name: str, rank: int, count: int, threads: int, store: str) -> None:
    """Take as many steps as the pipe says, and answer with their seconds."""
    torch.set_num_threads(threads)
    if count > 1:
        dist.init_process_group("gloo", rank=rank, world_size=count, store=dist.FileStore(store, count))
    subject = next(each for each in SUBJECTS if each.name.startswith(name))
    generator = torch.Generator().manual_seed(0)
    data = equidp.GroupedDataset(
        torch.randn(_EXAMPLES, *subject.shape, generator=generator),
        torch.randint(0, subject.classes, (_EXAMPLES,), generator=generator),
        torch.randint(0, 2, (_EXAMPLES,), generator=generator),
        ("a", "b"),
        tuple(map(str, range(subject.classes))),
    )
    torch.manual_seed(0)
    model = subject.make()
    trainer = equidp.Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.01),
        data,
        method=equidp.DPSGDF(),
        batch_size=subject.batch_size,
        steps=10**7,
        noise_multiplier=1.0,
        delta=1e-5,
    )
    pipe.send(sum(each.numel() for each in model.parameters()))
    while steps := pipe.recv():
        began = time.perf_counter()
        for _ in range(steps):
            trainer.step()
        pipe.send(time.perf_counter() - began)
    os._exit(0)


class Team:
    """One or several processes that wait for their turn without using a core."""

    def __init__(self, name: str, count: int, threads: int, folder: str) -> None:
        context, store = multiprocessing.get_context("spawn"), f"{folder}/{name}-{count}-{threads}"
        self.pipes = []
        for rank in range(count):
            ours, theirs = context.Pipe()
            given: Any = (theirs, name, rank, count, threads, store)
            context.Process(target=serve, args=given, daemon=True).start()
            self.pipes.append(ours)
        self.parameters = max(pipe.recv() for pipe in self.pipes)
        self.steps = 8
        self.steps = max(2, round(8 * _TURN_SECONDS / self.turn() / 8))

    def turn(self) -> float:
        """Seconds of a step."""
        for pipe in self.pipes:
            pipe.send(self.steps)
        return max(pipe.recv() for pipe in self.pipes) / self.steps

    def end(self) -> None:
        for pipe in self.pipes:
            pipe.send(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--models", default="LeNet,MLP")
    arguments = parser.parse_args()
    count = arguments.processes
    print(f"load {os.getloadavg()[0]:.1f}; one process of 1 and of {count} threads, {count} of one thread")
    print("| model | b | sent a step | one thread | threads | processes | processes / threads |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.models.split(","):
            teams = [Team(name, *shape, folder) for shape in ((1, 1), (1, count), (count, 1))]
            turns = [[team.turn() for team in teams] for _ in range(arguments.rounds)]
            for team in teams:
                team.end()
            alone, threads, processes = (1000 * median(each) for each in zip(*turns, strict=True))
            ratio = median(several / threaded for _, threaded, several in turns)
            size = next(each.batch_size for each in SUBJECTS if each.name.startswith(name))
            sent = f"{8 * teams[0].parameters / 1000:,.0f} kB"
            times = " | ".join(f"{each:.2f} ms" for each in (alone, threads, processes))
            print(f"| {name} | {size} | {sent} | {times} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
