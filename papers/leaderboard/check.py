"""Check of rows of the leaderboard: the printed command is run again, and its figures are compared."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from equidp.data.dataset import ALL
from papers.leaderboard.page import KEPT
from papers.leaderboard.results import CHOSEN, Reported, Results
from papers.leaderboard.space import CONTESTS, Contest

STANDARD_ERRORS = 2.0
"""Largest difference of a mean over seeds, in standard errors, that counts as none."""


class Row(NamedTuple):
    """Row of the leaderboard; epsilon: None without privacy."""

    contest: str
    method: str
    epsilon: float | None


class Difference(NamedTuple):
    """Accuracy of a group in the leaderboard and by the printed command, on average over seeds."""

    group: str
    kept: float
    found: float
    standard_error: float

    @property
    def agrees(self) -> bool:
        """True where the means differ by no more than two standard errors."""
        return abs(self.found - self.kept) <= STANDARD_ERRORS * self.standard_error + 1e-9


def draw_rows(only: Collection[str], folder: Path, number: int, seed: int) -> list[Row]:
    """Draw rows of contests that are reported on all seeds, without replacement."""
    rows = []
    for name in only:
        results = Results.load(folder / KEPT / f"{name}.json", name)
        kinds = dict.fromkeys((run.method, run.epsilon) for run in results.reported if run.kind == CHOSEN)
        full = len(CONTESTS[name].reported)
        rows += [Row(name, *kind) for kind in kinds if len(results.runs(*kind)) == full]
    drawn = np.random.default_rng(seed).permutation(len(rows))[:number]
    return [rows[each] for each in drawn]


def check_row(row: Row, folder: Path, runs: Path) -> list[Difference]:
    """Run the command of a row, and return its differences by group and over all test examples."""
    contest = CONTESTS[row.contest]
    results = Results.load(folder / KEPT / f"{row.contest}.json", row.contest)
    kept = results.runs(row.method, row.epsilon)
    with tempfile.TemporaryDirectory() as place:
        written = Path(place) / "found.json"
        command = [*_command(contest, results, row), "--directory", str(runs), "--json", str(written)]
        subprocess.run([sys.executable, "-m", *command], check=True, stdout=subprocess.DEVNULL)
        found = pd.DataFrame(json.loads(written.read_text())["results"])
    return list(differences(kept, found[found["method"] == row.method], (*results.groups, ALL)))


def differences(
    kept: dict[int, Reported], found: pd.DataFrame, groups: Collection[str]
) -> Iterator[Difference]:
    """Differences of mean accuracies over seeds.

    Args:
        kept: runs of the leaderboard by seed.
        found: rows of a comparison: seed, group and accuracy.
        groups: in the order of `Reported.accuracies`.
    """
    by_group = found.pivot(index="seed", columns="group", values="accuracy")
    for number, group in enumerate(groups):
        before = np.array([run.accuracies[number] for run in kept.values()])
        after = by_group[group].to_numpy()
        error = math.sqrt(before.var(ddof=1) / len(before) + after.var(ddof=1) / len(after))
        yield Difference(group, float(before.mean()), float(after.mean()), error)


def print_checks(rows: Collection[Row], folder: Path, runs: Path) -> bool:
    """Check rows, print what each command gave, and return True where all agree.

    Args:
        rows: from `draw_rows`.
        folder: of the page.
        runs: folder where finished runs are kept.
    """
    agree = True
    for row in rows:
        named = row.method if row.epsilon is None else f"{row.method} at epsilon {row.epsilon:g}"
        for each in check_row(row, folder, runs):
            word = "agrees" if each.agrees else "DIFFERS"
            kept, found, error = (100 * value for value in each[1:])
            said = f"{kept:.2f} reported, {found:.2f} found, standard error {error:.2f}: {word}"
            print(f"{row.contest}, {named}, {each.group}: {said}", flush=True)
            agree = agree and each.agrees
    return agree


def _command(contest: Contest, results: Results, row: Row) -> list[str]:
    number = results.choice(row.method, row.epsilon, results.numbers(row.method, row.epsilon))
    own = results.settings[row.method][str(number)]
    return contest.command(row.method, row.epsilon, own).split()
