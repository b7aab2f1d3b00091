"""Kills training at counted events by the hundred, and checks what is left each time.

    python benchmarks/kills.py --runs 20
    python benchmarks/kills.py --releases

The second makes 72 kills, forks and copies of runs with releases, for rows and for people, in two ledgers.
What is killed and checked is in tests/support/kills.py and kills_of_releases.py; the test suite does a few.
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

from support.kills import kill_over_and_over
from support.kills_of_releases import release_over_and_over


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--kills", type=int, default=12, help="of each run, at most")
    parser.add_argument("--releases", action="store_true", help="72 events of runs with releases")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    began = time.monotonic()
    if arguments.releases:
        sys.exit(of_releases(arguments.seed))
    with tempfile.TemporaryDirectory() as folder:
        tally = kill_over_and_over(arguments.runs, Path(folder), seed=arguments.seed, kills=arguments.kills)
    seconds = time.monotonic() - began
    print(
        f"{sum(tally.kills.values())} kills, {tally.completed} runs, all completed, in {seconds:.0f} seconds"
    )
    print("by moment: " + ", ".join(f"{kind} {count}" for kind, count in tally.kills.items()))
    print(
        f"ledgers that recorded fewer steps than had drawn noise: {tally.understated}; torn last lines: "
        f"{tally.torn}"
    )
    print(f"completed runs whose card says fewer steps than their ledger: {tally.uncharged}")
    print(f"unreadable checkpoints: {tally.unreadable}")
    print(f"histories that did not count their checkpoint's steps: {tally.miscounted}; left: {tally.left}")
    print(f"steps that drew noise: {tally.drawn:,}; steps counted: {tally.counted:,}")
    for spent, true in tally.epsilons:
        print(f"epsilon by the ledger {spent:.4f}, of the noise drawn {true:.4f}")
    wrong = (tally.understated, tally.uncharged, tally.unreadable, tally.miscounted, tally.left)
    sys.exit(any(wrong))


def of_releases(seed: int) -> bool:
    """Make 72 events, print what was drawn and what was counted, and return whether too little was."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tally = release_over_and_over(Path(folder), seed=seed)
    events = ", ".join(f"{name} {count}" for name, count in sorted(tally.events.items()))
    print(f"{tally.events.total()} events in {time.monotonic() - began:.0f} seconds: {events}")
    print(f"{tally.completed} runs completed; {tally.of_people} events on people, the others on rows")
    print(f"{tally.checks} comparisons with what was drawn; counted less: {tally.understated}")
    print(f"{'':<20}{'drawn':>8}{'counted':>9}")
    for name in tally.counted:
        print(f"{name:<20}{tally.drawn[name]:>8,}{tally.counted[name]:>9,}")
    print(f"{'epsilon':<20}{tally.epsilon_drawn:>8.2f}{tally.epsilon_counted:>9.2f}")
    return bool(tally.understated or tally.epsilon_drawn > tally.epsilon_counted)


if __name__ == "__main__":
    main()
