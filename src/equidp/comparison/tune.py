"""Tuning of the methods of a comparison with equal effort: drawn settings, chosen on a part held out.

Every method, including plain SGD, is tried with the plan's own settings and with the same random multiples of
the shared settings. Settings of only one method are drawn in addition. Test sets are not read.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, final

import numpy as np

from equidp._extras import require_extra
from equidp.comparison.cells import Cell, CellResult, Training, split, split_facts
from equidp.comparison.plan import ComparisonPlan, Kind, Variant, label_of
from equidp.data.dataset import ALL
from equidp.data.validation import validation_part
from equidp.errors import SettingError
from equidp.evaluation.groups import by_group
from equidp.evaluation.metrics import measure_metric, metric_named
from equidp.evaluation.small_cells import few_people_groups
from equidp.kernel.policy import Policy
from equidp.policies.methods import MethodLike, fixed_options, found_policy, method_named
from equidp.policies.ranges import Log, OneOf, Range, declared_ranges, round_digits
from equidp.policies.table import BASELINE
from equidp.training.plan import Plan

with require_extra("tables"):
    import pandas as pd

DRAWS_SEED = 20265
"""Seed that all random settings follow from."""
NUM_SEEDS = 3
"""Number of seeds that finalists are tried on."""
FINALISTS = 3
"""Number of settings per method that are tried on every tuning seed. Others are tried only on the first."""
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

If a method has a clipping bound and the optimizer is SGD, the first is the multiple of the length of a step,
learning rate x clipping bound. A smaller bound then does not mean shorter steps."""
CHOICES = ("schedule", "average")
"""Settings of which the value itself is drawn, not a multiple."""

Train = Callable[[Sequence[Training]], Sequence[CellResult]]
"""Trains all that it is given, in any order, and returns their results in the order given."""
Values = Mapping[str, float]
"""Metric of a trial by group and for all, with larger values better; -inf for a run that diverged."""


def tuning_seeds(taken: Sequence[int]) -> tuple[int, ...]:
    """Return the seeds for tuning, which differ from the seeds of the final runs.

    >>> tuning_seeds([0, 1, 101])
    (100, 102, 103)
    """
    free = (seed for seed in itertools.count(_FIRST_SEED) if seed not in taken)
    return tuple(itertools.islice(free, NUM_SEEDS))


def tuned_settings(method: MethodLike, fixed: Sequence[str]) -> dict[str, Range]:
    """Return the settings of a method that are drawn, with their ranges: shared ones, then its own.

    A policy that was made keeps its settings.

    Raises:
        PolicyError: an invalid range among the fields of the method.
    """
    made, policy = isinstance(found_policy(method), Policy), method_named(method).policy
    own = {} if made else declared_ranges(policy)
    fixed = (*fixed, *fixed_options(method))
    has_bound = not made and policy.private and "clipping_bound" in (each.name for each in fields(policy))  # type: ignore[arg-type]
    shared = {name: each for name, each in SHARED.items() if name != "clipping_bound" or has_bound}
    return {name: each for name, each in {**shared, **own}.items() if name not in fixed}


def drawn_settings(
    method: MethodLike, plan: Plan, draws: int, *, fixed: Sequence[str] = (), num_train: int
) -> list[dict[str, Any]]:
    """Return settings to try as changes of a plan, each once. The first are the plan's own.

    All methods have the same multiples of the settings that they share.

    Args:
        method: method whose settings are drawn.
        plan: plan of this method, whose values are multiplied.
        draws: number of settings.
        fixed: names of settings that keep their values.
        num_train: number of examples to train on, the largest batch.
    """
    with require_extra("tables"):  # takes a second, for tuning alone
        from sklearn.model_selection import ParameterSampler

    own = plan.for_method(method).for_examples(num_train)
    ranges = tuned_settings(method, fixed)
    beside = {name: each for name, each in ranges.items() if name not in SHARED}
    shared_draws = ParameterSampler(SHARED, draws - 1, random_state=DRAWS_SEED)
    own_draws: Any = ParameterSampler(beside, draws - 1, random_state=DRAWS_SEED) if beside else [{}] * draws
    found: list[dict[str, Any]] = [{} if own.batch_size <= num_train else {"batch_size": num_train}]
    for shared, values in zip(shared_draws, own_draws, strict=False):
        changes = _changes(own, ranges, shared, num_train)
        for name, value in values.items():
            within = ranges[name]
            if isinstance(within, Log) and within.times:
                value = round_digits(value * changes.get(within.times, getattr(own.policy, within.times)), 4)
            changes[name] = value
        if changes not in found:
            found.append(changes)
    return found


def _changes(
    own: Plan, ranges: Mapping[str, Range], multiples: Mapping[str, Any], num_train: int
) -> dict[str, Any]:
    """Return the values of shared settings by drawn multiples of a plan's."""
    changes = {name: multiples[name] for name in CHOICES if name in ranges}
    batch = own.batch_size
    epochs = (own.steps or 0) * batch / num_train if own.epochs is None else own.epochs
    if "batch_size" in ranges:
        batch = changes["batch_size"] = max(1, min(num_train, round(multiples["batch_size"] * batch)))
    if "epochs" in ranges:
        changes["epochs"] = max(multiples["epochs"] * epochs, batch / num_train)
    bound = 1.0
    if "clipping_bound" in ranges:
        bound = multiples["clipping_bound"]
        changes["clipping_bound"] = round_digits(bound * own.policy.clipping_bound)  # type: ignore[attr-defined]
    if "learning_rate" in ranges:
        rate = own.learning_rate or (epochs * num_train / own.batch_size) ** -0.5
        factor = multiples["learning_rate"] / (bound if own.optimizer == "sgd" else 1.0)
        changes["learning_rate"] = round_digits(factor * rate)
    return changes


class Trial(NamedTuple):
    """Trial of the settings of a number by a kind, on the validation part of a seed."""

    kind: Kind
    number: int
    seed: int


@final
@dataclass(frozen=True)
class Tuning:
    """Result of a search: what was tried, and which settings were chosen.

    Attributes:
        draws: settings of each method.
        seeds: seeds that were tuned on.
        settings: kind of run -> chosen settings by name, or {} for the plan's own.
        trials: one row per kind and number: method, setting, number, seeds (how many it was tried on),
            overall (mean of the metric over all held-out examples), worst_cost, chosen, and settings as text.
            worst_cost is the mean of the largest loss of a group against the chosen reference; for a
            reference, it is against nothing.
        ranges: method -> setting -> its range, as a text.
    """

    draws: int
    seeds: tuple[int, ...]
    settings: Mapping[Kind, Mapping[str, Any]]
    trials: pd.DataFrame
    ranges: Mapping[str, Mapping[str, str]]


def tune(asked: ComparisonPlan, variants: Sequence[Variant], train: Train) -> Tuning:
    """Try settings of each variant by `train`, and choose.

    First all settings are tried on one seed. Then the finalists of the references are tried on the others,
    because losses of the methods are against the chosen reference. Then the finalists of the methods are
    tried.

    Args:
        asked: comparison plan.
        variants: variants to tune, the references first.
        train: trains cells.

    Raises:
        SettingError: no method has a setting to draw.
        PolicyError: an invalid range among the fields of a method.
    """
    search = _Search(asked, variants)
    seeds = tuning_seeds(asked.seed_numbers)
    first, *others = seeds
    values: dict[Trial, Values] = {}

    def run(trials: Sequence[Trial]) -> None:
        cells = [search.cell(trial) for trial in trials]
        for trial, cell, result in zip(trials, cells, train(cells), strict=True):
            values[trial] = search.values(cell, result)

    def overall(kind: Kind, number: int, seeds: Sequence[int]) -> float:
        return float(np.mean([values[Trial(kind, number, seed)][ALL] for seed in seeds]))

    def worst_cost(kind: Kind, number: int, seeds: Sequence[int]) -> float:
        if kind.method == BASELINE:
            return math.nan
        against = Kind(BASELINE, search.variants[kind].reference)
        lost = [
            worst_loss(values[Trial(against, chosen[against], seed)], values[Trial(kind, number, seed)])
            for seed in seeds
        ]
        return round(float(np.mean(lost)), 4)

    def ranked(kind: Kind, numbers: Sequence[int], seeds: Sequence[int]) -> list[int]:
        def place(number: int) -> tuple[float, float]:
            lost = np.nan_to_num(worst_cost(kind, number, seeds), posinf=np.inf)
            return float(lost), -overall(kind, number, seeds)

        return sorted(numbers, key=place)

    run([Trial(kind, number, first) for kind, drawn in search.drawn.items() for number in range(len(drawn))])
    best, chosen = dict[Kind, list[int]](), dict[Kind, int]()
    references = [kind for kind in search.drawn if kind.method == BASELINE]
    for kinds in (references, [kind for kind in search.drawn if kind.method != BASELINE]):
        best |= {kind: ranked(kind, range(len(search.drawn[kind])), [first])[:FINALISTS] for kind in kinds}
        run([Trial(kind, number, seed) for seed in others for kind in kinds for number in best[kind]])
        chosen |= {kind: ranked(kind, best[kind], seeds)[0] for kind in kinds}
    sign, rows = metric_named(asked.metric).sign, []
    for kind, drawn in search.drawn.items():
        for number, settings in enumerate(drawn):
            tried = seeds if number in best[kind] else seeds[:1]
            measured = {
                "overall": sign * overall(kind, number, tried),
                "worst_cost": worst_cost(kind, number, tried),
            }
            named = {**kind._asdict(), "number": number, "seeds": len(tried)}
            made = {"chosen": chosen[kind] == number, "settings": label_of(settings)}
            rows.append({**named, **measured, **made})
    ranges = {
        kind.method: {name: str(each) for name, each in search.ranges[kind].items()} for kind in search.drawn
    }
    found = {kind: search.drawn[kind][number] for kind, number in chosen.items()}
    return Tuning(asked.tune or 0, seeds, found, pd.DataFrame(rows), ranges)


class _Search:
    """Settings to try of each kind of run, and their cells."""

    def __init__(self, asked: ComparisonPlan, variants: Sequence[Variant]) -> None:
        fixed, draws = tuple(asked.options), asked.tune or 0
        self.asked = asked
        self.variants = {each.kind: replace(each, source=validation_part(each.source)) for each in variants}
        self.ranges = {each.kind: tuned_settings(each.method, fixed) for each in variants}
        if not any(self.ranges.values()):
            raise SettingError(
                f"tune={draws}: all settings that could be drawn are given ({', '.join(fixed)}); leave out "
                f"one of {', '.join(SHARED)}.",
                field="tune",
            )
        self.drawn: dict[Kind, list[dict[str, Any]]] = {}
        for kind, each in self.variants.items():
            sizes = (split_facts(each.source, seed).num_train for seed in tuning_seeds(asked.seed_numbers))
            given: dict[str, Any] = {"fixed": fixed, "num_train": min(sizes)}
            self.drawn[kind] = drawn_settings(each.method, each.plan, draws, **given)

    def cell(self, trial: Trial) -> Cell:
        """Run of a trial."""
        variant = self.variants[trial.kind].with_changes(self.drawn[trial.kind][trial.number])
        facts = split_facts(variant.source, trial.seed)
        return Cell(
            variant.source,
            variant.resolve(facts.num_train, facts.names[0]),
            trial.seed,
            self.asked.engine,
            counts_noise=variant.counts_noise,
            balanced=variant.balanced,
            names={**trial.kind._asdict(), "tried": label_of(self.drawn[trial.kind][trial.number])},
        )

    def values(self, cell: Training, result: CellResult) -> Values:
        """Metric of a run by group and for all, without groups of few people."""
        test, metric = split(cell.source, cell.seed).test, metric_named(self.asked.metric)
        predictions = result.predictions(test, self.asked.decision_of(cell))
        tiny, values = few_people_groups(test), dict[str, float]()
        for name, members in by_group(test.groups.numpy(), test.group_names):
            if name not in tiny:
                part = predictions.take(members)
                finite = np.isfinite(part.probabilities).all()
                values[name] = metric.sign * measure_metric(metric, part)[0] if finite else -math.inf
        return values


def worst_loss(reference: Values, reached: Values) -> float:
    """Return the largest loss of a group against a reference, in a metric of which more is better.

    Groups in which the metric is not defined are left out; without others, it is the loss over all examples.

    >>> round(worst_loss({"a": 0.8, "b": 0.9, ALL: 0.85}, {"a": 0.79, "b": 0.87, ALL: 0.83}), 2)
    0.03
    """
    lost = {name: value - reached[name] for name, value in reference.items() if math.isfinite(value)}
    groups = [loss for name, loss in lost.items() if name != ALL and not math.isnan(loss)]
    return max(groups, default=lost.get(ALL, math.inf))
