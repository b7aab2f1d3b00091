"""The cost of diagnosing one step: LeNet of 431,080 parameters, two groups, and MNIST's size with 500 eights.

    python benchmarks/diagnostics.py [--examples 54649] [--rounds 3]

Times are CPU time on one thread, so that other work on the machine matters little. Inputs are random:
their values do not change the cost of a diagnosis, since the number of vectors is fixed here.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import torch
from contenders import repeated
from measure import peak_bytes

import equidp
from equidp.diagnostics import Effort, diagnose
from equidp.models import MODELS

BATCH_SIZE = 256
SUBSAMPLE = Effort(
    batches=4,
    gradient_examples=2000,
    curvature_examples=32,
    trace_vectors=100,
    trace_error=0.0,
    eigenvalue_products=12,
    eigenvalue_error=0.0,
)
SETTINGS = {"subsample": SUBSAMPLE, "all gradients": replace(SUBSAMPLE, gradient_examples=None)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=54_649)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contender")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    data = drawn(chosen.examples)
    model = MODELS["lenet"]((1, 28, 28), 10).to(memory_format=torch.channels_last)
    step, policy = training_step(model, data), equidp.DPSGD(clipping_bound=1.0)

    def diagnosis(effort: Effort) -> Callable[[], object]:
        given = {"batch_size": BATCH_SIZE, "learning_rate": 0.01, "noise_multiplier": 0.8}
        return lambda: diagnose(model, policy, data, effort=effort, **given)

    resting = sum(parameter.numel() * 4 for parameter in model.parameters()) + BATCH_SIZE * 28 * 28 * 4
    step_memory = peak_bytes(step) + resting
    print(f"training step: {1000 * seconds(step):.0f} ms, peak {step_memory / 2**20:.0f} MiB")
    for name, effort in SETTINGS.items():
        ratios = [seconds(diagnosis(effort), 1) / seconds(step) for _ in range(chosen.rounds)]
        # Vectors are drawn one after another, so their number does not change the peak.
        few = replace(effort, trace_vectors=2, gradient_examples=2000)
        memory = peak_bytes(diagnosis(few)) + resting
        print(
            f"{name}: {median(ratios):.0f} training steps' time (from {min(ratios):.0f} to "
            f"{max(ratios):.0f}), peak "
            f"{memory / 2**20:.0f} MiB, {memory / step_memory:.2f} times a training step's; {effort}",
            flush=True,
        )


def drawn(examples: int) -> equidp.GroupedDataset:
    """Return images of noise; 500 examples are in the second group."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(examples, 1, 28, 28, generator=generator)
    targets = torch.randint(0, 10, (examples,), generator=generator)
    groups = (torch.arange(examples) < 500).long()
    return equidp.GroupedDataset(inputs, targets, groups, ("rest", "eights"), tuple("0123456789"))


def training_step(model: torch.nn.Module, data: equidp.GroupedDataset) -> Callable[[], object]:
    """Return a private step of DP-SGD, noise and optimizer included, on one batch."""
    trainer = equidp.Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        data,
        policy=equidp.DPSGD(clipping_bound=1.0),
        batch_size=BATCH_SIZE,
        steps=100_000,
        noise_multiplier=0.8,
        delta=1e-6,
        secure=False,
        seed=0,
    )
    return repeated(trainer, next(trainer.batches()))


def seconds(work: Callable[[], object], repeats: int = 20) -> float:
    """Return CPU time of one repeat."""
    if repeats > 1:
        work()
    start = time.process_time()
    for _ in range(repeats):
        work()
    return (time.process_time() - start) / repeats


if __name__ == "__main__":
    main()
