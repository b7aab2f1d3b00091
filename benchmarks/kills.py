"""Kills training at counted events by the hundred, and checks what is left each time.

    python benchmarks/kills.py --rounds 10

What is killed and checked is in tests/support/kills.py; the test suite does one round.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.bins import COARSE_BINS, round_privacy_losses
from support.kills import kill_over_and_over


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10, help="kills at each kind of moment, at least")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    round_privacy_losses(COARSE_BINS)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tally = kill_over_and_over(arguments.rounds, Path(folder), seed=arguments.seed)
    seconds = time.monotonic() - began
    print(f"{tally.kills.total()} kills, {tally.completed} runs, all completed, in {seconds:.0f} seconds")
    print("by moment: " + ", ".join(f"{kind} {count}" for kind, count in tally.kills.items()))
    print(f"torn last lines: {tally.torn}")
    print(f"{'':<20}{'drawn':>8}{'counted':>9}")
    for name in tally.counted:
        print(f"{name:<20}{tally.drawn[name]:>8,}{tally.counted[name]:>9,}")
    print(
        "After every kill, ledger, checkpoint and histories counted all steps and releases that were drawn."
    )


if __name__ == "__main__":
    main()
