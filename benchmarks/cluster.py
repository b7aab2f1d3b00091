"""Compares on a cluster of two workers, kills one of them twice, and compares again without a cluster.

    python benchmarks/cluster.py

What is killed and counted is in tests/support/cluster.py; the test suite does the same.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import equidp
from support.cluster import GIVEN, compare_and_kill


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10, help="of 4 runs each")
    parser.add_argument("--kills", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        tally = compare_and_kill(Path(folder) / "cluster", seeds=arguments.seeds, kills=arguments.kills)
        middle = time.monotonic()
        alone = equidp.compare(**GIVEN, seeds=arguments.seeds, directory=Path(folder) / "alone", jobs=2)
        seconds = middle - began, time.monotonic() - middle
    same = tally.comparison.results.equals(alone.results)
    lost = tally.again & tally.before
    print(f"{len(tally.killed)} processes of one worker of two killed; {len(tally.kept)} runs kept")
    print(f"{len(tally.again)} runs made again: a killed worker had finished them, and not handed them over")
    print(f"{len(lost)} runs made again though they were kept")
    print(f"figures: {'the same' if same else 'other'} as of two processes without a cluster")
    print(f"{seconds[0]:.0f} seconds on the cluster, {seconds[1]:.0f} without")
    complete = len(tally.kept) == 4 * arguments.seeds and tally.kept == set(tally.finished)
    sys.exit(not (same and complete and not lost))


if __name__ == "__main__":
    main()
