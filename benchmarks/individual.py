"""The cost of individual accounting: a million examples or more, with made-up norms, and a step of LeNet.

EQUIDP_DATA=... python benchmarks/individual.py [--examples 10000000] [--passes 10] [--steps 60]
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from equidp import DPSGD, GroupedDataset, IndividualAccountant, Trainer, default_plan
from equidp.comparison.cells import split
from equidp.data import open_source
from equidp.individual.epsilons import individual_epsilons
from equidp.individual.histories import Histories
from equidp.individual.history_files import HistoryFiles
from equidp.individual.step_counts import StepCounts
from equidp.kernel.ledger import StepEvent
from equidp.kernel.policy import Setting
from equidp.training.build import build

_WARMING_UP = 32
_STEPS = 1000  # between two passes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=1_000_000)
    parser.add_argument("--passes", type=int, default=10, help="times that norms are taken of all examples")
    parser.add_argument("--steps", type=int, default=320)
    parser.add_argument("--accountants", nargs="+", default=["rdp", "pld"])
    chosen = parser.parse_args()
    many(chosen.examples, chosen.passes, chosen.accountants)
    for method in ("dpsgd", "dpsgd-f", "global-adapt"):
        share = accounting_share(method, chosen.steps)
        print(f"LeNet on MNIST (54,649 examples), {method}: accounting takes {share:.2%} of a step.")


def many(examples: int, passes: int, accountants: list[str]) -> None:
    """Count steps of many examples with made-up norms, of which about a fifth is above the bound."""
    generator = np.random.default_rng(0)
    usual = generator.lognormal(0.0, 0.6, examples).astype(np.float32)
    groups = torch.from_numpy((generator.random(examples) < 0.1).astype(np.int64))
    data = GroupedDataset(torch.zeros(examples, 1), groups, groups, ("many", "few"), ("no", "yes"))
    policy = DPSGD(1.8)
    state = policy.init(Setting(2, 10_000.0, 1.0))
    before = peak()
    histories = Histories(examples)
    counts = StepCounts(data, policy, torch.device("cpu"), histories, exact=False)
    taking, stepping, saving, written = [], [], [], []
    with tempfile.TemporaryDirectory(dir=".") as folder:
        files = HistoryFiles(Path(folder), 0)
        for number in range(passes):
            norms = torch.from_numpy(usual * generator.lognormal(0.0, 0.2, examples).astype(np.float32))
            taking.append(seconds(lambda norms=norms: counts.take(norms)))
            stepping.append(seconds(lambda: [counts.step(state) for _ in range(_STEPS)]) / _STEPS)
            start = time.perf_counter()
            files.save(f"checkpoint-{number}", {}, counts)
            saving.append(time.perf_counter() - start)
            files.drop([f"checkpoint-{number - 1}", f"checkpoint-{number}"])
            written.append(sum(path.stat().st_size for path in Path(folder).iterdir()))
        found: list[Histories] = []
        loading = seconds(lambda: found.append(loaded(files, f"checkpoint-{passes - 1}", data, policy)))
        in_all = seconds(counts.settle)
    print(
        f"{examples:,} examples, norms taken {passes} times: {np.median(taking):.2f} s to take them in; "
        f"{1000 * np.median(stepping):.2f} ms a step; {np.median(saving):.2f} s by the clock a save (at most "
        f"{max(saving):.2f} s), {written[-1] / 1e6:,.0f} MB on disk at the end; {loading:.1f} s to restore; "
        f"{in_all:.2f} s to settle; peak {peak():.2f} GiB, of which {before:.2f} GiB before counting."
    )
    event = StepEvent(10_000 / examples, 1.0)
    for name in accountants:
        epsilons: list[np.ndarray] = []
        took = seconds(lambda: epsilons.append(individual_epsilons(histories, event, 1e-9, name)))  # noqa: B023
        print(f"epsilons by {name}: {took:.0f} s, mean {epsilons[0].mean():.4f}; peak {peak():.2f} GiB")


def loaded(files: HistoryFiles, checkpoint: str, data: GroupedDataset, policy: DPSGD) -> Histories:
    """Return histories as a resumed run has them."""
    found = files.load(checkpoint)
    assert found is not None
    facts, arrays = found
    counts = StepCounts(data, policy, torch.device("cpu"), Histories(len(data)), exact=False)
    files.load_parts(facts["parts"], counts.histories)
    counts.restore(*arrays)
    return counts.histories


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU time that it took."""
    start = time.process_time()
    work()
    return time.process_time() - start


def peak() -> float:
    """Return the largest memory of this process so far, GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


class TimedAccountant(IndividualAccountant):
    """Measures how long its part of each step takes."""

    def before_training(self, trainer: Trainer) -> None:
        super().before_training(trainer)
        self.seconds = [0.0]
        draw = self._started_counts.draw

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
    """Return the accountant's share of the time of training steps; norms are those of the batches.

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
