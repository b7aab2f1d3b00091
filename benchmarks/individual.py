"""Individual accounting at size: one million examples, 100 times new norms, and everyone's epsilon.

python benchmarks/individual.py [--examples 1000000] [--updates 100]
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

from equidp.accounting import Histories, individual_epsilons
from equidp.ledger import StepEvent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=1_000_000)
    parser.add_argument("--updates", type=int, default=100)
    chosen = parser.parse_args()
    generator = np.random.default_rng(0)
    usual = generator.random(chosen.examples)
    start = time.perf_counter()
    histories = Histories(chosen.examples)
    for _ in range(chosen.updates):
        shares = np.minimum(usual * generator.uniform(0.5, 1.5), 1.0)
        histories.add(histories.cells(shares), steps=100)
    accumulated = time.perf_counter()
    epsilons = individual_epsilons(histories, StepEvent(256 / chosen.examples, 0.8), 1e-8)
    done = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{chosen.examples:,} examples, {chosen.updates} updates: {accumulated - start:.1f} s to accumulate, "
        f"{done - accumulated:.1f} s for all epsilons (mean {epsilons.mean():.4f}); peak {peak:.2f} GiB in all."
    )


if __name__ == "__main__":
    main()
