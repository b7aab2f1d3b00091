"""The cost of individual accounting: a million examples with 100 updates of their norms, and a step of LeNet.

EQUIDP_DATA=... python benchmarks/individual.py [--examples 1000000] [--updates 100] [--steps 60]
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np
import torch

from equidp import IndividualAccountant, Trainer, default_plan
from equidp.comparison.grid import split
from equidp.data import open_source
from equidp.individual.epsilons import individual_epsilons
from equidp.individual.histories import Histories
from equidp.kernel.ledger import StepEvent
from equidp.training.build import build

_WARMING_UP = 32


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=1_000_000)
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--steps", type=int, default=320)
    chosen = parser.parse_args()
    generator = np.random.default_rng(0)
    usual = generator.random(chosen.examples)
    start = time.perf_counter()
    histories = Histories(chosen.examples)
    for _ in range(chosen.updates):
        shares = np.minimum(usual * generator.uniform(0.5, 1.5), 1.0)
        histories.add(histories.cells(shares), steps=100)
    accumulated = time.perf_counter()
    epsilons = individual_epsilons(histories, StepEvent(256 / chosen.examples, 0.8), 1e-8, "rdp")
    done = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{chosen.examples:,} examples, {chosen.updates} updates: {accumulated - start:.1f} s to accumulate, "
        f"{done - accumulated:.1f} s for all epsilons by Renyi (mean {epsilons.mean():.4f}); "
        f"peak {peak:.2f} GiB in all."
    )
    for method in ("dpsgd", "dpsgd-f", "global-adapt"):
        share = accounting_share(method, chosen.steps)
        print(f"LeNet on MNIST (54,649 examples), {method}: accounting takes {share:.2%} of a step.")


class TimedAccountant(IndividualAccountant):
    """Measures how long its part of each step takes."""

    def before_training(self, trainer: Trainer) -> None:
        super().before_training(trainer)
        self.seconds = [0.0]
        draw = self._counted.draw

        def timed(indices: torch.Tensor, norms: torch.Tensor) -> None:
            start = time.perf_counter()
            draw(indices, norms)
            self.seconds[-1] += time.perf_counter() - start

        trainer.limit_shares(None)
        trainer.limit_shares(timed)

    def after_step(self, trainer: Trainer) -> None:
        start = time.perf_counter()
        super().after_step(trainer)
        self.seconds[-1] += time.perf_counter() - start
        self.seconds.append(0.0)


def accounting_share(method: str, steps: int) -> float:
    """Returns the accountant's share of the time of training steps; norms are those of the batches.

    Means, because the accountant counts steps together; without the first steps, which warm up.
    """
    train = split(open_source("mnist"), 0).train
    accountant = TimedAccountant("sampled")
    plan = default_plan("mnist").resolve(method, len(train))
    trainer = build(plan, train, seed=0, secure=False, callbacks=[accountant])
    accountant.before_training(trainer)
    wholes = []
    for batch, _ in zip(trainer.batches(), range(steps), strict=False):
        start = time.perf_counter()
        trainer.step(batch)
        wholes.append(time.perf_counter() - start)
    return float(np.mean(accountant.seconds[_WARMING_UP:-1]) / np.mean(wholes[_WARMING_UP:]))


if __name__ == "__main__":
    main()
