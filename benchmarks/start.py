"""CPU seconds of whole commands: `import equidp` beside `import torch`, help, `account` and `train`.

    python benchmarks/start.py [--rounds 9]

`equidp train adult` needs the downloaded table (EQUIDP_DATA); without it, its time is infinite. Each turn
starts one process of each kind, so that other work on the machine slows all. Prints medians, and the median
of the ratios within a turn. The first turn, which fills caches, does not count. Compiled modules are kept,
as of an installed package, also where PYTHONDONTWRITEBYTECODE is set.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from statistics import median

_PLAN = ("--examples", "60000", "--batch-size", "256", "--epochs", "60")
COMMANDS = {
    "python": ("-c", "pass"),
    "import torch": ("-c", "import torch"),
    "import equidp": ("-c", "import equidp"),
    "equidp --help": ("-m", "equidp", "--help"),
    "equidp --version": ("-m", "equidp", "--version"),
    "equidp account": ("-m", "equidp", "account", *_PLAN, "--noise-multiplier", "0.8"),
    "equidp account to a target": ("-m", "equidp", "account", *_PLAN, "--epsilon", "3"),
    "equidp train adult": ("-m", "equidp", "train", "adult", "--epsilon", "3", "--out", "run"),
}
LIMITS = {
    "import equidp": "at most 1.2 times import torch",
    "equidp --help": "at most 0.3 s on an idle machine",
    "equidp account": "at most 2 s",
    "equidp train adult": "at most 5 s",
}


def seconds(arguments: tuple[str, ...]) -> float:
    """CPU seconds of a process, by user and system; infinite where it fails."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as folder:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, *arguments], capture_output=True, cwd=folder, env=kept | {"NO_COLOR": "1"}
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent if done.returncode == 0 else float("inf")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9, help="turns that count")
    rounds = parser.parse_args().rounds
    turns = [{name: seconds(command) for name, command in COMMANDS.items()} for _ in range(rounds + 1)][1:]
    print(f"{'':27s} {'seconds':>8s} {'times import torch':>20s}")
    for name in COMMANDS:
        ratio = median(turn[name] / turn["import torch"] for turn in turns)
        promise = f"   ({LIMITS[name]})" if name in LIMITS else ""
        print(f"{name:27s} {median(turn[name] for turn in turns):8.3f} {ratio:20.2f}{promise}")


if __name__ == "__main__":
    main()
