"""Results of the leaderboard, one file a dataset, and the choice of settings by them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from equidp.extend import write_whole
from equidp.policies.table import BASELINE

FINALISTS = 3
"""Settings of a method that are tried on every tuning seed; the others on the first alone."""
TUNING_SEEDS = (100, 101, 102)
CHOSEN, PUBLISHED = "chosen", "published"

Accuracies = Sequence[float]
"""Accuracy of each group, and last that of all together."""


@dataclass(frozen=True)
class Tried:
    """Accuracies of one setting on the validation part of one tuning seed."""

    method: str
    epsilon: float | None
    number: int
    seed: int
    accuracies: Accuracies


@dataclass(frozen=True)
class Reported:
    """A run on a test set.

    Attributes:
        kind: settings `CHOSEN` by tuning, or `PUBLISHED` ones.
        epsilon: what was asked for; None without privacy.
        spent: epsilon of the run; None without privacy.
        accuracies: of each group and all.
        predicted, observed: mean predicted risk and share of positives, likewise; empty unless two classes.
        privacy: mean epsilon of the training examples of each group; empty where it was not accounted for.
    """

    method: str
    epsilon: float | None
    kind: str
    seed: int
    spent: float | None
    accuracies: Accuracies
    predicted: Accuracies = ()
    observed: Accuracies = ()
    privacy: Accuracies = ()


@dataclass
class Results:
    """All results of a contest.

    Attributes:
        settings: method -> number -> random settings, as they were tried.
        made: commits and commands that runs were made by.
    """

    contest: str
    groups: tuple[str, ...] = ()
    seconds: float = 0.0
    made: list[str] = field(default_factory=list)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    tried: list[Tried] = field(default_factory=list)
    reported: list[Reported] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path, contest: str) -> Results:
        """Read a file of results; without a file, there are none yet."""
        if not path.exists():
            return cls(contest)
        content = json.loads(path.read_text(encoding="utf-8"))
        tried = [
            Tried(method, epsilon, number, seed, tuple(accuracies))
            for method, epsilon, number, seed, accuracies in content.pop("tried")
        ]
        reported = [Reported(**row) for row in content.pop("reported")]
        return cls(**{**content, "groups": tuple(content["groups"])}, tried=tried, reported=reported)

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all, a run a line."""
        plain = {
            "contest": self.contest,
            "groups": list(self.groups),
            "seconds": round(self.seconds),
            "made": self.made,
        }
        lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in plain.items()]
        settings = (
            f"  {json.dumps(name)}: {{\n" + ",\n".join(f"   {json.dumps(key)}: {json.dumps(value)}"
            for key, value in own.items()) + "}"
            for name, own in sorted(self.settings.items())
        )  # fmt: skip
        lines.append(' "settings": {\n' + ",\n".join(settings) + "}")
        tried = sorted(self.tried, key=lambda row: (row.method, row.epsilon or 0, row.seed, row.number))
        lines.append(_json_lines("tried", (list(vars(row).values()) for row in tried)))
        order = sorted(self.reported, key=lambda row: (row.kind, row.epsilon or 0, row.method, row.seed))
        lines.append(_json_lines("reported", (vars(row) for row in order)))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())

    def accuracies(self, method: str, epsilon: float | None, number: int, seed: int) -> Accuracies | None:
        """Accuracies of a setting; None where it was not tried."""
        key = method, epsilon, number, seed
        found = (row.accuracies for row in self.tried if _key(row) == key)
        return next(found, None)

    def runs(self, method: str, epsilon: float | None, kind: str = CHOSEN) -> dict[int, Reported]:
        """Seed -> the reported run."""
        asked = None if method == BASELINE else epsilon
        rows = (row for row in self.reported if (row.method, row.epsilon, row.kind) == (method, asked, kind))
        return {row.seed: row for row in rows}

    def finalists(self, method: str, epsilon: float | None, numbers: Sequence[int]) -> list[int]:
        """The numbers that did best on the first tuning seed."""
        return sorted(numbers, key=lambda number: self._place(method, epsilon, number, 1))[:FINALISTS]

    def choice(self, method: str, epsilon: float | None, numbers: Sequence[int]) -> int:
        """The finalist that did best over all tuning seeds."""
        finalists = self.finalists(method, epsilon, numbers)
        return min(finalists, key=lambda number: self._place(method, epsilon, number, len(TUNING_SEEDS)))

    def score(self, method: str, epsilon: float | None, number: int, seed: int) -> float:
        """The accuracy that the worst group lost against the chosen baseline of the same seed.

        Of the baseline, what is lacking to an overall accuracy of 1.
        """
        reached = self.accuracies(method, epsilon, number, seed)
        assert reached is not None
        if method == BASELINE:
            return 1.0 - reached[-1]
        baseline = self.accuracies(BASELINE, None, self.choice(BASELINE, None, self.numbers(BASELINE)), seed)
        assert baseline is not None
        return worst_cost(baseline, reached)

    def numbers(self, method: str, epsilon: float | None = None) -> list[int]:
        """The numbers of the settings that were tried at an epsilon, on the first tuning seed."""
        key = method, epsilon, TUNING_SEEDS[0]
        return sorted(row.number for row in self.tried if (row.method, row.epsilon, row.seed) == key)

    def _place(self, method: str, epsilon: float | None, number: int, seeds: int) -> tuple[float, float]:
        chosen = TUNING_SEEDS[:seeds]
        scores = [self.score(method, epsilon, number, seed) for seed in chosen]
        reached = [self.accuracies(method, epsilon, number, seed) for seed in chosen]
        overall = [each[-1] for each in reached if each is not None]
        return round(float(np.mean(scores)), 4), -float(np.mean(overall))


def worst_cost(baseline: Accuracies, reached: Accuracies) -> float:
    """The largest loss of accuracy of a group; what all together lost is left out.

    >>> round(worst_cost((0.8, 0.9, 0.85), (0.79, 0.87, 0.83)), 2)
    0.03
    """
    return max(before - after for before, after in zip(baseline[:-1], reached[:-1], strict=True))


def expected_best(scores: Sequence[float], draws: int) -> float:
    """The lowest score that so many of these settings, drawn without replacement, have on average.

    >>> expected_best([0.1, 0.2, 0.3], 1), expected_best([0.1, 0.2, 0.3], 3)
    (0.2, 0.1)
    """
    ordered, n = sorted(scores), len(scores)
    value, none_lower = 0.0, 1.0  # chance that none of the lower ones was drawn
    for place, score in enumerate(ordered):
        left = n - place
        value += none_lower * draws / left * score if draws <= left else 0.0
        none_lower *= 1 - draws / left if draws < left else 0.0
        if not none_lower:
            break
    return round(value, 12)


def _key(row: Tried) -> tuple[str, float | None, int, int]:
    return row.method, row.epsilon, row.number, row.seed


def _json_lines(name: str, rows: Iterator[Mapping[str, Any]] | Iterator[list[Any]]) -> str:
    return f' "{name}": [\n' + ",\n".join("  " + json.dumps(row) for row in rows) + "]"
