"""Search for the best settings of every method; each result is kept when it comes.

Reads raw data without noise, and chooses settings without charging for it: for research on public data.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from equidp import (
    METRICS,
    DataSource,
    Decision,
    Plan,
    default_plan,
)
from equidp.comparison.cells import Cell, CellResult, split, split_facts, train_all
from equidp.comparison.compare import with_metrics
from equidp.comparison.workers import Workers, spread
from equidp.data.dataset import ALL
from equidp.data.validation import validation_part
from equidp.errors import ApproximationWarning, DataWarning, PrivacyWarning
from equidp.extend import versions
from equidp.policies.table import BASELINE
from equidp.training.progress import duration
from papers.leaderboard.page import KEPT, STANDARD
from papers.leaderboard.results import (
    CHOSEN,
    FINALISTS,
    PUBLISHED,
    TUNING_SEEDS,
    Reported,
    Results,
    Tried,
)
from papers.leaderboard.space import CONTESTS, Contest
from papers.reproduction.result import commit

FOLDER = Path(__file__).parents[1]
"""Folder of the page, with the results in it."""
RELEASE_EPSILON = 0.1  # of a release that the accountant makes; only its raw figures are read
CHUNK = 6  # runs of each process between two times that results are kept
PUBLISHED_METHODS = (BASELINE, STANDARD)


@dataclass(frozen=True)
class PendingRun:
    """Run of a contest without a result yet; `kind` is None where it tries the settings of a number."""

    method: str
    epsilon: float | None
    seed: int
    plan: Plan
    number: int = -1
    kind: str | None = None
    account: bool = False

    def cell(self, source: DataSource) -> Cell:
        """The comparison's own cell of this run."""
        source = validation_part(source) if self.kind is None else source
        size = split_facts(source, self.seed).num_train
        plan = self.plan.for_method(self.method).with_changes(epsilon=self.epsilon)
        resolved = plan.with_usual_noise().resolve(size)
        target = math.nan if self.epsilon is None else self.epsilon
        release = RELEASE_EPSILON if self.account else None
        return Cell(source, resolved, "", target, self.seed, "ghost", release_epsilon=release, curves=False)


class Stopped(Exception):
    """The time that was given is spent."""


@dataclass
class Runner:
    """Trains missing runs of a contest, and saves each result as it comes."""

    contest: Contest
    methods: Sequence[str]
    path: Path
    folder: Path
    jobs: int
    ends: float
    made_by: str

    def __post_init__(self) -> None:
        self.source = self.contest.data()
        self.results = Results.load(self.path, self.contest.name)
        self.results.groups = split(self.source, self.contest.reported[0]).train.group_names

    def run(self, place: int) -> None:
        """Train missing runs at one of the epsilons, and of the baseline; at the first, all others too."""
        epsilon = self.contest.epsilons[place]
        self._stages([BASELINE], None)
        self._stages(self.methods, epsilon)
        if not place:
            self._train(self._missing_published(epsilon))

    def in_words(self) -> str:
        """Sentence on the number of missing runs, and about how long they take."""
        contest, results = self.contest, self.results
        finalists = min(FINALISTS, contest.draws)
        each = contest.draws + finalists * (len(TUNING_SEEDS) - 1) + len(contest.reported)
        runs, epochs = 0, 0.0
        for method, epsilon in self._pairs():
            done = [row for row in results.tried if (row.method, row.epsilon) == (method, epsilon)]
            lacking = each - len(done) - len(results.runs(method, epsilon))
            drawn = [contest.settings(method, number)["epochs"] for number in range(contest.draws)]
            runs, epochs = runs + lacking, epochs + lacking * sum(drawn) / len(drawn)
        seconds = epochs * self._seconds_per_epoch() / self.jobs if runs else 0.0
        return f"{contest.name}: {runs} runs are missing, about {duration(seconds)}."

    def _pairs(self) -> Iterator[tuple[str, float | None]]:
        yield BASELINE, None
        for epsilon in self.contest.epsilons:
            yield from ((method, epsilon) for method in self.methods)

    def _seconds_per_epoch(self) -> float:
        settings = {**self.contest.settings("dpsgd", 0), "epochs": 2}
        plan = Plan(delta=self.contest.delta).with_changes(settings)
        data = split(validation_part(self.source), TUNING_SEEDS[0])
        trainer = PendingRun("dpsgd", None, TUNING_SEEDS[0], plan).cell(self.source).trainer(data)
        began = time.perf_counter()
        trainer.fit()
        return (time.perf_counter() - began) / 2

    def _stages(self, methods: Sequence[str], epsilon: float | None) -> None:
        """Try, try the best again, and report: seed by seed, since reading the data takes longest."""
        numbers, results = range(self.contest.draws), self.results
        for stage, seed in enumerate(TUNING_SEEDS):
            tried = {
                method: results.finalists(method, epsilon, numbers) if stage else numbers
                for method in methods
            }
            self._train(
                [
                    PendingRun(method, epsilon, seed, self._plan(method, number), number)
                    for method in methods
                    for number in tried[method]
                    if results.accuracies(method, epsilon, number, seed) is None
                ]
            )
        chosen = {method: results.choice(method, epsilon, numbers) for method in methods}
        first = self.contest.reported[0]
        self._train(
            [
                PendingRun(
                    method, epsilon, seed, self._plan(method, number), number, CHOSEN,
                    account=epsilon is not None and seed == first,
                )
                for seed in self.contest.reported
                for method, number in chosen.items()
                if seed not in results.runs(method, epsilon)
            ]
        )  # fmt: skip

    def _plan(self, method: str, number: int) -> Plan:
        """The plan of random settings, which must be those that results are kept of."""
        settings = self.contest.settings(method, number)
        kept = self.results.settings.setdefault(method, {}).setdefault(str(number), settings)
        if kept != settings:
            raise SystemExit(
                f"{self.path} keeps {method}'s settings {number} as {kept}, and the space now gives "
                f"{settings}; move the file away to wrap around."
            )
        return Plan(delta=self.contest.delta).with_changes(settings)

    def _missing_published(self, epsilon: float) -> list[PendingRun]:
        if not self.contest.published:
            return []
        plan = replace(default_plan(self.contest.source), delta=self.contest.delta)
        epsilons = {method: None if method == BASELINE else epsilon for method in PUBLISHED_METHODS}
        return self._missing_runs(epsilons, plan, PUBLISHED)

    def _missing_runs(self, epsilons: Mapping[str, float | None], plan: Plan, kind: str) -> list[PendingRun]:
        return [
            PendingRun(method, epsilon, seed, plan, kind=kind)
            for seed in self.contest.reported
            for method, epsilon in epsilons.items()
            if seed not in self.results.runs(method, epsilon, kind)
        ]

    def _train(self, missing: list[PendingRun]) -> None:
        """Train a few runs at a time, and save each result."""
        for start in range(0, len(missing), CHUNK * self.jobs):
            if time.monotonic() > self.ends:
                raise Stopped
            began, some = time.monotonic(), missing[start : start + CHUNK * self.jobs]
            cells = [each.cell(self.source) for each in some]
            place = partial(spread, workers=Workers.of(self.jobs, len(cells)))
            found = train_all(cells, self.folder, place, None)
            for each, cell, result in zip(some, cells, found, strict=True):
                self._keep(each, cell, result)
            self.results.seconds += (time.monotonic() - began) * self.jobs
            if self.made_by not in self.results.made:
                self.results.made.append(self.made_by)
            self.results.save(self.path)
            last = some[-1]
            print(
                f"{self.contest.name} {last.method} epsilon={last.epsilon} {last.kind or 'tuning'} "
                f"seed={last.seed}: {start + len(some)} of {len(missing)}, "
                f"{duration(time.monotonic() - began)}",
                flush=True,
            )

    def _keep(self, run: PendingRun, cell: Cell, result: CellResult) -> None:
        groups, rows = self.results.groups, result.results.to_dict("records")
        if run.kind is not None:  # predicted and observed rates too
            test = split(cell.source, cell.seed).test
            rows = with_metrics(rows, result.predictions(test, Decision()), test, METRICS["accuracy"], 0.95)
        by_group = {row["group"]: row for row in rows}

        def figures(name: str, digits: int = 5) -> tuple[float, ...]:
            values = [by_group[group].get(name) for group in (*groups, ALL)]
            return () if None in values else tuple(round(float(value), digits) for value in values)

        if run.kind is None:
            self.results.tried.append(
                Tried(run.method, run.epsilon, run.number, run.seed, figures("accuracy"))
            )
            return
        individual = result.individual.to_dict("records")
        privacy = {row["group"]: round(row["sensitive_mean"], 4) for row in individual}
        self.results.reported.append(
            Reported(
                run.method,
                run.epsilon,
                run.kind,
                run.seed,
                None if run.epsilon is None else figures("epsilon")[-1],
                figures("accuracy"),
                figures("mean_predicted"),
                figures("observed"),
                tuple(privacy[group] for group in groups) if privacy else (),
            )
        )


def search(
    only: Sequence[str],
    methods: Sequence[str],
    *,
    hours: float,
    jobs: int,
    runs: Path,
    folder: Path,
    command: str,
) -> None:
    """Train the runs that contests lack, until the time is spent.

    Args:
        only: names from `CONTESTS`.
        methods: names from `PRIVATE`.
        hours: time after which no further run begins.
        jobs: processes, of one thread each.
        runs: folder of finished runs.
        folder: of the page, with the results in it.
        command: kept with the results, beside commit and versions.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    for category in (PrivacyWarning, DataWarning, ApproximationWarning):
        warnings.simplefilter("ignore", category)
    runs.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + 3600 * hours
    made_by = f"{command} (commit {commit()}, torch {versions()['torch']})"
    try:
        runners = []
        for name in only:
            path = folder / KEPT / f"{name}.json"
            runner = Runner(CONTESTS[name], methods, path, runs.absolute(), jobs, ends, made_by)
            runners.append(runner)
            print(runner.in_words(), flush=True)
        for place in range(max(len(runner.contest.epsilons) for runner in runners)):
            for runner in runners:
                if place < len(runner.contest.epsilons):
                    runner.run(place)
    except Stopped:
        print(f"Stopped after {hours:g} hours; start the same again to go on.")
