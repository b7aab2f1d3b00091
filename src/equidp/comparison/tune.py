"""Tuning of the methods of a comparison with equal effort: drawn settings, chosen on a part held out.

Every method is tried with the plan's own settings and with the same random multiples of the settings that
methods share; what a method alone has is drawn beside them. Test sets are not read.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from equidp._extras import require_extra
from equidp._validate import check_whole
from equidp.comparison.cells import (
    Cell,
    CellResult,
    DecisionRule,
    Train,
    Training,
    kept_results,
    split,
    split_facts,
)
from equidp.comparison.sweep import Kind, Variant, label_of
from equidp.data.dataset import ALL, DataSource
from equidp.data.table import releases_of
from equidp.data.validation import validation_part
from equidp.errors import SettingError
from equidp.evaluation.groups import by_group
from equidp.evaluation.metrics import Metric, measure_metric
from equidp.evaluation.small_cells import few_people_groups
from equidp.kernel.policy import Policy
from equidp.policies.methods import fixed_options, found_policy, method_named
from equidp.policies.ranges import Log, OneOf, Range, declared_ranges, round_digits
from equidp.policies.table import BASELINE
from equidp.training.plan import Plan

with require_extra("tables"):
    import pandas as pd

DRAWS_SEED = 20260
"""Seed that all random settings follow from."""
NUM_SEEDS = 3
"""Number of seeds that finalists are tried on."""
FINALISTS = 3
"""Settings of a method that are tried on every tuning seed; others are tried on the first alone."""
_FIRST_SEED = 100

SHARED: Mapping[str, Range] = {
    "learning_rate": Log(0.1, 10),
    "clipping_bound": Log(0.2, 5),
    "batch_size": OneOf((0.5, 1, 2)),
    "epochs": OneOf((0.5, 1, 2)),
    "schedule": OneOf(("constant", "linear", "cosine")),
    "average": OneOf(("none", "tail", "ema")),
}
"""Settings that methods share -> range of the multiple of the plan's value, or of the value.

Where a method has a clipping bound and the optimizer is SGD, the first is the multiple of the length of a
step, learning rate x clipping bound, so that a smaller bound does not mean shorter steps."""
CHOICES = ("schedule", "average")
"""Settings of which the value itself is drawn, not a multiple."""


@final
@dataclass(frozen=True)
class TuningPlan:
    """Plan of a search for the settings of each method.

    Attributes:
        draws: settings of each method that are tried: the plan's own, and random ones.
        fixed: names of settings that keep their values.

    Raises:
        SettingError: fewer than two settings to choose from.
    """

    draws: int
    fixed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_whole(2, ": the plan's own settings and one other", tune=self.draws)


PLAIN = Kind(BASELINE, "")
"""Kind of run of the baseline, which has one epsilon."""


def tuning_seeds(taken: Sequence[int]) -> tuple[int, ...]:
    """Return the seeds to tune on, none of which is among those of the final runs.

    >>> tuning_seeds([0, 1, 101])
    (100, 102, 103)
    """
    free = (seed for seed in itertools.count(_FIRST_SEED) if seed not in taken)
    return tuple(itertools.islice(free, NUM_SEEDS))


def tuned_settings(method: Any, fixed: Sequence[str]) -> dict[str, Range]:
    """Return the settings of a method that are drawn, with their ranges: shared ones, then its own.

    A policy that was made keeps its settings.

    Raises:
        PolicyError: an invalid range among the fields of the method.
    """
    made, policy = isinstance(found_policy(method), Policy), method_named(method).policy
    own = {} if made else declared_ranges(policy)
    names = {each.name for each in fields(policy)}  # type: ignore[arg-type]
    fixed = (*fixed, *fixed_options(method))
    has_bound = "clipping_bound" in names and not made and policy.private
    shared = {name: each for name, each in SHARED.items() if name != "clipping_bound" or has_bound}
    return {name: each for name, each in {**shared, **own}.items() if name not in fixed}


def untuned_settings(method: Any, tuned: Mapping[str, Range]) -> dict[str, Any]:
    """Return the settings that a method alone has and that are not drawn, with their values by default."""
    policy = method_named(method).policy
    own = {each.name: each.default for each in fields(policy)}  # type: ignore[arg-type]
    made = found_policy(method)
    if isinstance(made, Policy):
        own = asdict(made)  # type: ignore[call-overload]
    return {name: value for name, value in own.items() if name not in tuned}


def drawn_settings(
    method: Any, plan: Plan, number: int, *, fixed: Sequence[str] = (), num_train: int
) -> dict[str, Any]:
    """Return the settings of a number, as changes of a plan; number 0 stands for the plan's own settings.

    Under one number, all methods have the same multiples of the settings that they share.

    Args:
        method: whose settings are drawn.
        plan: for this method; multiples are of its values.
        fixed: names of settings that keep their values.
        num_train: number of examples to train on, the largest batch.
    """
    own = plan.for_method(method).for_examples(num_train)
    if not number:
        return {} if own.batch_size <= num_train else {"batch_size": num_train}
    shared = np.random.default_rng([DRAWS_SEED, number])
    beside = np.random.default_rng([DRAWS_SEED, number, 1])
    values = {name: each.draw(shared) for name, each in SHARED.items()}
    ranges, policy = tuned_settings(method, fixed), own.policy
    changes: dict[str, Any] = {name: values[name] for name in CHOICES if name in ranges}
    batch = own.batch_size
    epochs = (own.steps or 0) * batch / num_train if own.epochs is None else own.epochs
    if "batch_size" in ranges:
        batch = changes["batch_size"] = max(1, min(num_train, round(values["batch_size"] * batch)))
    if "epochs" in ranges:
        changes["epochs"] = max(values["epochs"] * epochs, batch / num_train)
    bound = 1.0
    if "clipping_bound" in ranges:
        bound = values["clipping_bound"]
        changes["clipping_bound"] = round_digits(bound * policy.clipping_bound)  # type: ignore[attr-defined]
    if "learning_rate" in ranges:
        rate = own.learning_rate or (epochs * num_train / own.batch_size) ** -0.5
        factor = values["learning_rate"] / (bound if own.optimizer == "sgd" else 1.0)
        changes["learning_rate"] = round_digits(factor * rate)
    for name in [name for name in ranges if name not in SHARED]:
        value, within = ranges[name].draw(beside), ranges[name]
        if isinstance(within, Log) and within.times:
            value = round_digits(value * changes.get(within.times, getattr(policy, within.times)), 4)
        changes[name] = value
    return changes


class Trial(NamedTuple):
    """Trial of the settings of a number by a kind, on the validation part of a seed."""

    kind: Kind
    number: int
    seed: int


Values = Mapping[str, float]
"""Metric of a trial by group and for all, where a larger value is better; -inf of a run that diverged."""


@final
@dataclass(frozen=True)
class Tuning:
    """Result of a search: what was tried, and which settings were chosen.

    Attributes:
        draws: settings of each method.
        seeds: that were tuned on.
        fixed: names of settings that kept their values because they were given.
        settings: (method, setting) -> chosen settings by name; {} for the plan's own.
        trials: a row per kind and number: method, setting, number, seeds (how many it was tried on), overall
            (mean of the metric over all held-out examples), worst_cost (mean of the largest loss of a group
            against the chosen baseline; of the baseline, against none), chosen, and settings as a text.
        ranges: method -> setting -> text of the range that it was drawn from.
        untuned: method -> settings of its own that were not drawn -> their values.
    """

    draws: int
    seeds: tuple[int, ...]
    fixed: tuple[str, ...]
    settings: Mapping[Kind, Mapping[str, Any]]
    trials: pd.DataFrame
    ranges: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    untuned: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def apply(self, variant: Variant) -> Variant:
        """Return the variant with the settings that were chosen for it; others stay as they are."""
        return change_variant(variant, self.settings.get(variant.kind, {}))

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        chosen = [{**kind._asdict(), "settings": dict(found)} for kind, found in self.settings.items()]
        facts = {name: getattr(self, name) for name in ("draws", "seeds", "fixed", "ranges", "untuned")}
        return {**facts, "chosen": chosen, "trials": json.loads(self.trials.to_json(orient="records"))}


def change_variant(variant: Variant, settings: Mapping[str, Any]) -> Variant:
    """Return the variant by a plan with other settings."""
    return replace(variant, plan=variant.plan.with_changes(settings)) if settings else variant


@final
@dataclass(frozen=True)
class SettingSearch:
    """Search for the settings of each kind of run of a comparison.

    Attributes:
        plan: of the search.
        variants: kinds of run, the baseline among them, by the plan's own settings.
        sources: of each variant.
        seeds: to tune on.
        metric: that settings are chosen by.
        decision: of the metric.
        engine: of all runs.

    Raises:
        SettingError: no method has a setting to draw.
        PolicyError: an invalid range among the fields of a method.
    """

    plan: TuningPlan
    variants: tuple[Variant, ...]
    sources: tuple[DataSource, ...]
    seeds: tuple[int, ...]
    metric: Metric
    decision: DecisionRule
    engine: str

    def __post_init__(self) -> None:
        if not any(map(len, self._ranges.values())):
            raise SettingError(
                f"tune={self.plan.draws}: all settings that could be drawn are given "
                f"({', '.join(self.plan.fixed)}); leave out one of {', '.join(SHARED)}.",
                field="tune",
            )

    @cached_property
    def _ranges(self) -> dict[str, dict[str, Range]]:
        return {each.name: tuned_settings(each.method, self.plan.fixed) for each in self.variants}

    @cached_property
    def _by_kind(self) -> dict[Kind, tuple[Variant, DataSource]]:
        pairs = zip(self.variants, map(validation_part, self.sources), strict=True)
        return {each.kind: (each, source) for each, source in pairs}

    @cached_property
    def candidates(self) -> dict[Kind, dict[int, dict[str, Any]]]:
        """Settings of each kind by number; a number whose settings were there before is left out."""
        found: dict[Kind, dict[int, dict[str, Any]]] = {}
        for kind, (variant, source) in self._by_kind.items():
            size = min(split_facts(source, seed).num_train for seed in self.seeds)
            found[kind] = {}
            for number in range(self.plan.draws):
                settings = drawn_settings(
                    variant.method, variant.plan, number, fixed=self.plan.fixed, num_train=size
                )
                if settings not in found[kind].values():
                    found[kind][number] = settings
        return found

    def cell(self, trial: Trial) -> Cell:
        """Run of a trial."""
        variant, source = self._by_kind[trial.kind]
        changed = change_variant(variant, self.candidates[trial.kind][trial.number])
        facts = split_facts(source, trial.seed)
        resolved = changed.resolve(facts.num_train, releases_of(source), facts.names[0])
        target = math.nan if variant.epsilon is None else variant.epsilon
        cell = Cell(source, resolved, variant.setting, target, trial.seed, self.engine, curves=False)
        return replace(cell, counts_noise=variant.counts_noise, balanced=variant.balanced)

    @cached_property
    def first_trials(self) -> list[Trial]:
        """Trials of all settings of all kinds on the first seed."""
        return [
            Trial(kind, number, self.seeds[0]) for kind, drawn in self.candidates.items() for number in drawn
        ]

    @property
    def num_trials(self) -> int:
        """Number of all trials."""
        numbers = map(len, self.candidates.values())
        return sum(each + min(FINALISTS, each) * (len(self.seeds) - 1) for each in numbers)

    def run(self, train: Train) -> Tuning:
        """Train all trials by `train`, and return the choice."""
        stages = self._stages()
        trials = next(stages)
        while True:
            cells = [self.cell(trial) for trial in trials]
            results = train(cells)
            pairs = zip(trials, cells, results, strict=True)
            found = {trial: self._values(cell, result) for trial, cell, result in pairs}
            try:
                trials = stages.send(found)
            except StopIteration as end:
                tuning: Tuning = end.value
                return tuning

    def read_kept(self, folder: Path) -> tuple[Tuning | None, int]:
        """Return the choice if all trials are kept in a folder, and the number of trials that are kept."""
        count = 0

        def take(cells: Sequence[Training]) -> list[CellResult]:
            nonlocal count
            found = kept_results(cells, folder)
            count += len(found)
            if len(found) < len(cells):
                raise _NotKept
            return found

        try:
            return self.run(take), count
        except _NotKept:
            return None, count

    def _values(self, cell: Cell, result: CellResult) -> Values:
        """Metric of a run by group and for all, without groups of few people."""
        test = split(cell.source, cell.seed).test
        found, tiny = result.predictions(test, self.decision.decision_of(cell)), few_people_groups(test)
        values: dict[str, float] = {}
        for name, members in by_group(test.groups.numpy(), test.group_names):
            if name not in tiny:
                part = found.take(members)
                diverged = not np.isfinite(part.probabilities).all()
                values[name] = (
                    -math.inf if diverged else self.metric.sign * measure_metric(self.metric, part)[0]
                )
        return values

    def _stages(self) -> Generator[list[Trial], Mapping[Trial, Values], Tuning]:
        """Yield trials to be trained, take their values, and return the choice.

        First all settings on one seed; then the baseline's finalists on the others, since losses of the
        other methods are against the chosen baseline; then the finalists of these methods.
        """
        first, *others = self.seeds
        found = dict((yield self.first_trials))

        def overall(kind: Kind, number: int, seeds: Sequence[int]) -> float:
            return float(np.mean([found[Trial(kind, number, seed)][ALL] for seed in seeds]))

        def worst_cost(kind: Kind, number: int, seeds: Sequence[int]) -> float:
            if kind == PLAIN:
                return math.nan
            against = chosen[PLAIN]
            pairs = [(Trial(PLAIN, against, seed), Trial(kind, number, seed)) for seed in seeds]
            return round(float(np.mean([worst_loss(found[one], found[other]) for one, other in pairs])), 4)

        def rank_numbers(kind: Kind, numbers: Collection[int], seeds: Sequence[int]) -> list[int]:
            lost = {number: worst_cost(kind, number, seeds) for number in numbers}
            order = {n: (np.nan_to_num(lost[n], posinf=np.inf), -overall(kind, n, seeds)) for n in numbers}
            return sorted(numbers, key=order.__getitem__)

        best, chosen = dict[Kind, list[int]](), dict[Kind, int]()
        methods = [kind for kind in self.candidates if kind != PLAIN]
        for kinds in ([PLAIN], methods):
            best |= {kind: rank_numbers(kind, self.candidates[kind], [first])[:FINALISTS] for kind in kinds}
            found |= yield [Trial(kind, n, seed) for seed in others for kind in kinds for n in best[kind]]
            chosen |= {kind: rank_numbers(kind, best[kind], self.seeds)[0] for kind in kinds}
        rows = []
        for kind, drawn in self.candidates.items():
            for number, settings in drawn.items():
                seeds = self.seeds if number in best[kind] else self.seeds[:1]
                rows.append(
                    {
                        **kind._asdict(),
                        "number": number,
                        "seeds": len(seeds),
                        "overall": self.metric.sign * overall(kind, number, seeds),
                        "worst_cost": worst_cost(kind, number, seeds),
                        "chosen": chosen[kind] == number,
                        "settings": label_of(settings),
                    }
                )
        variants = {each.name: each for each in self.variants}
        return Tuning(
            self.plan.draws,
            self.seeds,
            self.plan.fixed,
            {kind: self.candidates[kind][number] for kind, number in chosen.items()},
            pd.DataFrame(rows),
            {name: {key: str(each) for key, each in own.items()} for name, own in self._ranges.items()},
            {name: untuned_settings(variants[name].method, own) for name, own in self._ranges.items()},
        )


class _NotKept(Exception):
    """A trial is not kept."""


def worst_loss(baseline: Values, reached: Values) -> float:
    """Return the largest loss of a group against a baseline, in a metric of which more is better.

    Groups in which the metric is not defined are left out; without others, it is the loss over all examples.

    >>> round(worst_loss({"a": 0.8, "b": 0.9, ALL: 0.85}, {"a": 0.79, "b": 0.87, ALL: 0.83}), 2)
    0.03
    """
    lost = {name: value - reached[name] for name, value in baseline.items() if math.isfinite(value)}
    groups = [loss for name, loss in lost.items() if name != ALL and not math.isnan(loss)]
    return max(groups, default=lost.get(ALL, math.inf))
