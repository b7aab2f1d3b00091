"""Numbers of the README, each with the commands that give it, in benchmarks/claims.toml.

    python benchmarks/claims.py --list                # claims and their commands
    python benchmarks/claims.py --check [NAME ...]    # run these commands, or all, and compare

Commands that need real data read it from EQUIDP_DATA. Exit code 1 where a number differs. To change
one, write what was measured into claims.toml and the README.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "benchmarks" / "claims.toml"
_WORDS = "two|three|four|five|six|seven|eight|nine|ten|twelve|twenty|hundred|thousand|half|third|twice|double"
_NUMBER = re.compile(rf"(?<![\w.])(?:\d[\d.,]*|\.\d+|(?:{_WORDS})\b)", re.IGNORECASE)
_QUOTED = re.compile(r"^```.*?^```|`[^`]*`|(?<=\])\([^)]*\)", re.DOTALL | re.MULTILINE)
"""Blocks of code, code in lines, and targets of links."""


@dataclass(frozen=True)
class Figure:
    """One number of a claim.

    Attributes:
        read: where the output has it: "json results[method=dpsgd,group=all].accuracy", "match PATTERN" (its
            group) or "count PATTERN".
        minus: what is subtracted.
        scale: factor from the output to the README.
        value: number, as it was measured last.
        error: standard error over seeds; `{name_error}` in the text.
        tolerance: how far another measurement may be from `value`.
    """

    read: str
    value: float
    minus: str = ""
    scale: float = 1.0
    error: float = 0.0
    tolerance: float = 0.0

    def values(self, output: str) -> list[float]:
        """Return the number in each run of an output."""
        found = read_values(self.read, output)
        less = read_values(self.minus, output) if self.minus else [0.0] * len(found)
        return [self.scale * (one - other) for one, other in zip(found, less, strict=True)]


@dataclass(frozen=True)
class Claim:
    """Numbers that some commands give, and the text of the README that states them.

    Attributes:
        name: of the claim.
        text: of the README, with `{name:.1f}` for figures; lines may break anywhere.
        file: kept file that has the figures; "": commands are run for them.
        commands: one after the other in an empty folder, for each seed where they have `{seed}`.
        output: file that they write; "": what they print.
        seeds: number of runs.
        figures: by name.
    """

    name: str
    text: str
    figures: Mapping[str, Figure]
    file: str = ""
    commands: Sequence[str] = ()
    output: str = ""
    seeds: int = 1

    def stated(self) -> str:
        """Return the text with its numbers, in one line."""
        values = {name: each.value for name, each in self.figures.items()}
        errors = {f"{name}_error": each.error for name, each in self.figures.items()}
        return self.text.format(seeds=self.seeds, **values, **errors)

    def differences(self, outputs: Sequence[str]) -> list[str]:
        """Return a sentence for each figure that outputs do not have."""
        wrong = []
        for name, figure in self.figures.items():
            values = [value for text in outputs for value in figure.values(text)]
            mean = fmean(values) if values else float("nan")
            error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
            if not abs(mean - figure.value) <= figure.tolerance + 1e-5 * abs(figure.value):
                wrong.append(f"{self.name}: {name} is {mean:g} ± {error:.2g}, not {figure.value:g}")
        return wrong

    def measure(self) -> list[str]:
        """Return the outputs of the kept file, or of the commands, once for each seed."""
        if self.file:
            return [(ROOT / self.file).read_text(encoding="utf-8")]
        several = any("{seed}" in command for command in self.commands)
        return [self._run(seed) for seed in range(self.seeds if several else 1)]

    def _run(self, seed: int) -> str:
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
        printed = ""
        with tempfile.TemporaryDirectory() as folder:
            for command in self.commands:
                words = shlex.split(command.replace("{seed}", str(seed)))
                program = [sys.executable, "-m", "equidp"] if words[0] == "equidp" else [sys.executable]
                words = [str(ROOT / word) if (ROOT / word).is_file() else word for word in words[1:]]
                done = subprocess.run(
                    [*program, *words],
                    cwd=folder,
                    env=environment,
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                printed += done.stdout
            return (Path(folder) / self.output).read_text(encoding="utf-8") if self.output else printed


@dataclass(frozen=True)
class Claims:
    """All claims, and patterns of texts whose numbers claim nothing."""

    claims: Sequence[Claim] = ()
    exempt: Sequence[str] = field(default=())

    @classmethod
    def load(cls) -> Claims:
        """Read the file of claims."""
        content = tomllib.loads(FILE.read_text(encoding="utf-8"))
        exempt = content.pop("exempt")
        made = (
            Claim(
                name,
                **{**each, "figures": {key: Figure(**figure) for key, figure in each["figures"].items()}},
            )
            for name, each in content.items()
        )
        return cls(tuple(made), exempt)

    def missing(self, page: str) -> list[str]:
        """Return texts of claims that a page lacks."""
        page = " ".join(page.split())
        return [each.stated() for each in self.claims if each.stated() not in page]

    def unsupported(self, page: str) -> list[str]:
        """Return numbers of a page that no claim, code, link or exemption has."""
        for claim in self.claims:
            page = re.sub(r"\s+".join(map(re.escape, claim.stated().split())), "", page)
        page = _QUOTED.sub("", page)
        for pattern in self.exempt:
            page = re.sub(pattern, "", page)
        return _NUMBER.findall(page)


def read_values(read: str, text: str) -> list[float]:
    """Return the numbers of an output; `read` as in `Figure`.

    >>> read_values("json rows[a=1].b", '{"rows": [{"a": 1, "b": 2}, {"a": 2, "b": 3}]}')
    [2.0]
    """
    way, _, place = read.partition(" ")
    if way == "count":
        return [float(len(re.findall(place, text, re.MULTILINE)))]
    if way == "match":
        return [float(number) for number in re.findall(place, text, re.MULTILINE)]
    found: list[Any] = [json.loads(text)]
    for name, wanted in re.findall(r"([^.\[\]]*)(?:\[([^\]]*)\])?\.?", place):
        found = [each[name] for each in found] if name else found
        if wanted:
            pairs = [pair.split("=") for pair in wanted.split(",")]
            found = [
                each
                for rows in found
                for each in rows
                if all(str(each[key]) == value for key, value in pairs)
            ]
    return [float(each) for each in found]


def main() -> None:
    """Print claims, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print claims and their commands")
    parser.add_argument("--check", nargs="*", metavar="NAME", help="run the commands of these, or of all")
    given = parser.parse_args()
    claims = Claims.load()
    if given.list or given.check is None:
        for each in claims.claims:
            print(f"{each.name}: {each.file or '; '.join(each.commands)}")
        return
    wrong = claims.missing((ROOT / "README.md").read_text(encoding="utf-8"))
    for each in claims.claims:
        if not given.check or each.name in given.check:
            print(each.name, flush=True)
            wrong += each.differences(each.measure())
    sys.exit("\n".join(wrong) or None)


if __name__ == "__main__":
    main()
