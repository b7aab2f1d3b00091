"""How long equidp takes to start: `import equidp` beside `import torch`, and `equidp --help` and `--version`.

    python benchmarks/start.py [--rounds 9]

Each turn starts one process of each kind, so that other work on the machine slows all. Prints medians,
and the median of the ratios within a turn. The first turn, which fills caches, does not count.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from statistics import median

COMMANDS = {
    "python": ("-c", "pass"),
    "import torch": ("-c", "import torch"),
    "import equidp": ("-c", "import equidp"),
    "equidp --help": ("-m", "equidp", "--help"),
    "equidp --version": ("-m", "equidp", "--version"),
}
LIMITS = {"import equidp": "at most 1.2 times import torch", "equidp --help": "under 0.5 s on an idle core"}


def seconds(arguments: tuple[str, ...]) -> float:
    """How long a process takes from its start to its end; infinite where it fails."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, env=os.environ | {"NO_COLOR": "1"}
    )
    return time.perf_counter() - start if done.returncode == 0 else float("inf")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9, help="turns that count")
    rounds = parser.parse_args().rounds
    turns = [{name: seconds(command) for name, command in COMMANDS.items()} for _ in range(rounds + 1)][1:]
    print(f"{'':18s} {'seconds':>8s} {'times import torch':>20s}")
    for name in COMMANDS:
        ratio = median(turn[name] / turn["import torch"] for turn in turns)
        promise = f"   ({LIMITS[name]})" if name in LIMITS else ""
        print(f"{name:18s} {median(turn[name] for turn in turns):8.3f} {ratio:20.2f}{promise}")


if __name__ == "__main__":
    main()
