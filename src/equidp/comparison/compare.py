"""Comparison of methods over seeds: its cells, checked before any is trained, and their results as one."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from equidp._extras import require_extra
from equidp._provenance import versions
from equidp.accounting.rows import epsilon
from equidp.advice.chosen_plan import ASKED, RULE, ChosenRun, SettingRow, setting_rows, source_to_read
from equidp.comparison.cells import (
    TREES,
    Cell,
    CellResult,
    Curves,
    Training,
    Trees,
    forget_splits,
    part_digests,
    renew_processes,
    run_cells,
    split,
    split_facts,
)
from equidp.comparison.plan import (
    Choice,
    ComparisonPlan,
    Kind,
    Variant,
    choose_plans,
    exact_source,
    private_variants,
    reference_variants,
)
from equidp.comparison.result import Comparison, Setup
from equidp.comparison.tune import Tuning, tune
from equidp.data.dataset import ALL, DataSource, DataSplit, GroupedDataset
from equidp.data.features import WithFeatures, check_not_varied
from equidp.data.table import binning_of, with_binning
from equidp.errors import (
    ApproximationWarning,
    CacheWarning,
    DataWarning,
    PrivacyWarning,
    SettingError,
)
from equidp.evaluation.costs import EPSILON_OF_GROUP
from equidp.evaluation.groups import by_group
from equidp.evaluation.intervals import LEVEL
from equidp.evaluation.metrics import (
    METRICS,
    Metric,
    measure_metric,
    metric_for,
    metric_named,
    tells_something,
)
from equidp.evaluation.predictions import Decision, Predictions, check_base_rate
from equidp.evaluation.small_cells import few_people_groups
from equidp.policies.table import AUTO, BASELINE
from equidp.store import Store
from equidp.tables.intervals import STANDARD
from equidp.training.device import chosen_device

with require_extra("tables"):
    import pandas as pd

log = logging.getLogger(__name__)
"""Gets a line for each run that was trained."""


@final
@dataclass(frozen=True)
class PreparedComparison:
    """Cells of a comparison. One of each kind was built.

    Attributes:
        asked: comparison plan.
        source: source of the data.
        data: split of the first seed.
        choice: plans that the runs train by.
        sizes: seed -> number of training examples.
        group_names: group names of the data.
        references, private: variants.
        folder: folder of finished cells.
        device: device to train on.
    """

    asked: ComparisonPlan
    source: DataSource
    data: DataSplit
    choice: Choice
    sizes: Mapping[int, int]
    group_names: tuple[str, ...]
    references: tuple[Variant, ...]
    private: tuple[Variant, ...]
    folder: Path
    device: str

    def cells(self, variant: Variant, seeds: Sequence[int], rate: float = 1.0) -> list[Cell]:
        """Return a run of a variant for each seed, at a multiple of its learning rate."""
        asked = self.asked
        watches: tuple[Any, ...] = (Curves(), *asked.callbacks)
        cells = []
        for seed in seeds:
            resolved = variant.resolve(self.sizes[seed], self.group_names)
            if isinstance(variant.source, WithFeatures):
                check_not_varied(variant.source.label, resolved.plan.image_views)
            if rate != 1:
                used = rate * resolved.learning_rate
                plan = replace(resolved.plan, learning_rate=used)
                resolved = replace(resolved, plan=plan, learning_rate=used)
            private = resolved.policy.private
            names: dict[str, Any] = {"method": variant.name, "setting": variant.setting}
            names |= {"baseline": variant.reference}
            target = variant.epsilon if self.choice.epsilons else None
            names |= {"target_epsilon": math.nan if target is None else target}
            names |= {**dict.fromkeys(self.swept), **variant.swept}
            if variant.name == BASELINE:
                names["rate"] = resolved.learning_rate
            cells.append(
                Cell(
                    variant.source,
                    resolved,
                    seed,
                    asked.engine,
                    self.device,
                    tuple(each for each in watches if private or not each.private_only),
                    variant.counts_noise,
                    variant.balanced,
                    names,
                )
            )
        return cells

    @property
    def seeds(self) -> list[int]:
        """Each seed."""
        return list(self.sizes)

    @property
    def swept(self) -> dict[str, tuple[Any, ...]]:
        """Settings of which several values are compared -> those values."""
        found: dict[str, tuple[Any, ...]] = {}
        for each in self.private:
            for name, value in each.swept.items():
                found[name] = tuple(dict.fromkeys((*found.get(name, ()), value)))
        return found

    @property
    def searched(self) -> bool:
        """True if non-private models are tried; False if the reference trains only by the plan."""
        return self.asked.tune is not None or any(len(each.rates) > 1 for each in self.references)

    @property
    def trees(self) -> list[Trees]:
        """Boosted trees for each seed, or none if the data is not a table, or nothing is searched."""
        source = None
        if self.searched:
            source = source_of_trees(self.choice.shared.source(self.source), self.seeds[0])
        weights = self.choice.shared.plan.class_weights, self.asked.balanced
        return [] if source is None else [Trees(source, seed, *weights) for seed in self.seeds]

    def first_cells(self) -> list[Training]:
        """Return all cells, except those of references on further seeds, whose rate is chosen before."""
        references = [
            cell
            for each in self.references
            for rate in each.rates
            for cell in self.cells(each, self.seeds if len(each.rates) == 1 else self.seeds[:1], rate)
        ]
        return [*references, *self.trees, *(c for each in self.private for c in self.cells(each, self.seeds))]

    def check(self) -> list[tuple[str, int, float, float, float]]:
        """Build each kind of run once, to raise its errors before any is trained.

        Returns:
            Label, steps, noise multiplier, epsilon (infinite without privacy) and delta of each.
        """
        planned = []
        with warnings.catch_warnings():
            for category in (PrivacyWarning, ApproximationWarning):
                warnings.simplefilter("once", category)
            for variant in (*self.references, *self.private):
                (cell,) = self.cells(variant, self.seeds[:1])
                data = split(exact_source(cell.source), cell.seed)
                callbacks = [each.callback(data) for each in cell.callbacks]
                trainer = cell.trainer(data, callbacks)
                for each in callbacks:
                    each.check(trainer)
                entries = (*((event, 1) for event in cell.released), (trainer.event, trainer.steps))
                noise = trainer.noise_multiplier
                spent = epsilon(entries, trainer.delta) if noise else math.inf
                planned.append((variant.kind.label, cell.plan.steps, noise, spent, trainer.delta))
        return planned


def prepare(
    source: DataSource, asked: ComparisonPlan, *, directory: Any = "equidp-runs", device: str = "cpu"
) -> PreparedComparison:
    """Return the cells of a comparison, none of which is built yet.

    Raises:
        SettingError, DataError, PolicyError: a plan by which no run can be trained on the data.
    """
    chosen_device(device)
    # Absolute, since worker processes outlive a comparison and stay where the first one was.
    folder = Path(directory).absolute()
    forget_splits()
    read = source
    if isinstance(asked.plan, str):
        read = source_to_read(source, asked.options, asked.plan, swept=tuple(asked.changed))
    facts = {seed: split_facts(read, seed) for seed in asked.seed_numbers}
    sizes = {seed: each.num_train for seed, each in facts.items()}
    smallest = min(sizes, key=sizes.__getitem__)  # whose batch no other seed's training part is too small for
    train = split(read, smallest).train
    choice = choose_plans(asked, source, train, smallest, max(sizes.values()))
    private = private_variants(asked, choice, source, max(sizes.values()))
    if asked.against and len({each.name for each in private}) < 2:
        raise SettingError(
            f"against={asked.against!r}; expected another private method to compare with it: {AUTO} takes "
            f"{choice.shared.method}.",
            field="against",
        )
    references, private = reference_variants(asked, choice, source, private)
    shared = choice.shared.source(source)
    if asked.base_rate_threshold:
        check_base_rate(train.class_names)
    _warn_of_missing_groups(train.group_names, {seed: each.test_sizes for seed, each in facts.items()})
    data = split(shared, next(iter(sizes)))
    check_metric(metric_named(asked.metric), asked.decision, data.test)
    if asked.preprocessing_share is not None:
        data = replace(data, notes=_private_notes(private[0].source, next(iter(sizes))))
    names = tuple(train.group_names)
    return PreparedComparison(
        asked, source, data, choice, sizes, names, tuple(references), tuple(private), folder, device
    )


def run_comparison(
    source: DataSource,
    asked: ComparisonPlan,
    *,
    directory: Any = "equidp-runs",
    jobs: int | None = None,
    device: str = "cpu",
    command: str = "",
) -> Comparison:
    """Train the cells of a comparison that are not kept yet, and compare all; arguments as in `compare`."""
    prepared = prepare(source, asked, directory=directory, device=device)
    Store(prepared.folder).check()
    prepared.check()
    _warn_of_unknown_code(prepared)
    if len(prepared.seeds) == 1:
        log.info("One seed: there will be no intervals, no verdict and no recommendation.")
    if jobs != 1:
        renew_processes()
    metric = metric_named(asked.metric)

    def train(cells: Sequence[Training]) -> list[CellResult]:
        return run_cells(cells, prepared.folder, jobs, lambda cell, result: _say_row(cell, result, prepared))

    tuning = None
    if asked.tune is not None:
        tuned = [each for each in (*prepared.references, *prepared.private) if each.name != AUTO]
        tuning = tune(asked, tuned, train)
        chosen = tuning.settings
        prepared = replace(
            prepared,
            references=tuple(each.with_changes(chosen[each.kind]) for each in prepared.references),
            private=tuple(each.with_changes(chosen.get(each.kind, {})) for each in prepared.private),
        )
    cells = prepared.first_cells()
    pairs = list(zip(cells, train(cells), strict=True))
    tried = [each for each in prepared.references if len(each.rates) > 1]
    factors = {each.reference: _best_rate(each, prepared, pairs) for each in tried}
    further = [
        cell for each in tried for cell in prepared.cells(each, prepared.seeds[1:], factors[each.reference])
    ]
    pairs += zip(further, train(further), strict=True)
    rates = dict[str, float]()
    for each in prepared.references:
        (cell,) = prepared.cells(each, prepared.seeds[:1], factors.get(each.reference, 1.0))
        rates[each.reference] = cell.names["rate"]
    return _join(prepared, pairs, rates, tuning, metric, command)


def _best_rate(
    variant: Variant, prepared: PreparedComparison, pairs: Sequence[tuple[Training, CellResult]]
) -> float:
    """Return the multiple of the learning rate at which a reference is best over all test examples of the
    first seed. Multiples with a loss above a constant prediction's loss come last."""
    places = []
    asked, metric = prepared.asked, metric_named(prepared.asked.metric)
    for rate in variant.rates:
        (cell,) = prepared.cells(variant, prepared.seeds[:1], rate)
        result = next(r for c, r in pairs if c.names == cell.names and c.seed == cell.seed)
        test = split(cell.source, cell.seed).test
        score = metric.sign * measure_metric(metric, result.predictions(test, asked.decision_of(cell)))[0]
        loss = result.results.set_index("group").at[ALL, "loss"]
        shares = np.bincount(test.targets.numpy()) / len(test)
        constant = -(shares * np.log(np.maximum(shares, 1e-300))).sum()
        place = (bool(loss <= constant), score) if np.isfinite([loss, score]).all() else (False, -math.inf)
        places.append((place, rate))
    return max(places, key=lambda each: each[0])[1]


def _join(
    prepared: PreparedComparison,
    pairs: Sequence[tuple[Training, CellResult]],
    rates: Mapping[str, float],
    tuning: Tuning | None,
    metric: Metric,
    command: str,
) -> Comparison:
    """Return the comparison of all cells, in order of their seeds; rates: reference -> its learning rate."""
    seeds = prepared.seeds
    pairs = sorted(pairs, key=lambda each: (seeds.index(each[0].seed), each[0].names["method"] != BASELINE))
    whole = _measure(prepared, pairs, metric)
    is_sgd, is_trees = whole["method"].eq(BASELINE), whole["method"].eq(TREES)
    is_reference = is_sgd & whole["rate"].eq(whole["baseline"].map(rates))
    top = _best_model(whole[is_reference | is_trees], metric)
    is_top = pd.MultiIndex.from_frame(whole[["method", "baseline"]]).isin([top])
    plain = whole.assign(chosen=is_reference, best=is_top & (is_reference | is_trees))[is_sgd | is_trees]
    tables = {}
    for name in ("epochs", *(each.name for each in prepared.asked.callbacks)):
        rows = [
            {**cell.names, "seed": cell.seed, **row}
            for cell, result in pairs
            if name in result.tables and cell.names.get("rate") in (None, rates.get(cell.names["baseline"]))
            for row in result.tables[name].to_dict("records")
        ]
        tables[name] = pd.DataFrame(rows).drop(columns="rate", errors="ignore")
    return Comparison(
        _setup(prepared, rates, {} if tuning is None else tuning.settings, command),
        whole[is_reference | ~(is_sgd | is_trees)].drop(columns="rate").reset_index(drop=True),
        tables,
        references=plain.reset_index(drop=True) if prepared.searched else pd.DataFrame(),
        metric=metric,
        seconds=sum(result.seconds for _, result in pairs),
        tuning=tuning,
    )


def _measure(
    prepared: PreparedComparison, pairs: Sequence[tuple[Training, CellResult]], metric: Metric
) -> pd.DataFrame:
    """Return a row for each cell and group with every metric of the task, and two flags: `informative`, and
    `few_people` for a group with too few people for a cost or gap."""
    asked, rows = prepared.asked, list[dict[str, Any]]()
    for cell, result in pairs:
        test = split(cell.source, cell.seed).test
        decision = asked.decision_of(cell)
        found = result.predictions(test, decision)
        metrics = {each.name: each for each in METRICS.values() if found.task in each.tasks}
        metrics[metric.name] = metric
        parts, tiny = dict(by_group(test.groups.numpy(), test.group_names)), few_people_groups(test)
        informative = tells_something(metric, found, LEVEL)
        for row in result.results.to_dict("records"):
            part = found.take(parts[row["group"]])
            row = {"rate": math.nan, **cell.names, "seed": cell.seed, **row}
            if asked.base_rate_threshold:
                row["threshold"] = decision.threshold
            row |= {name: measure_metric(each, part)[0] for name, each in metrics.items()}
            if len(part) and part.positive is not None:
                row |= {"mean_predicted": float(part.risks.mean()), "observed": float(part.hits.mean())}
            rows.append({**row, "informative": informative, "few_people": row["group"] in tiny})
    whole = pd.DataFrame(rows)
    if EPSILON_OF_GROUP in whole:  # that of the run, where groups are equal
        whole[EPSILON_OF_GROUP] = whole[EPSILON_OF_GROUP].fillna(whole["epsilon"])
    return whole


def _best_model(runs: pd.DataFrame, metric: Metric) -> tuple[str, str]:
    """Return method and reference of the best mean over seeds, of those that diverge least often."""
    overall = runs[runs["group"] == ALL]
    finite = np.isfinite(overall["loss"]) & np.isfinite(overall[metric.name])
    scores = overall.assign(score=(metric.sign * overall[metric.name]).where(finite), lost=~finite)
    means = scores.groupby(["method", "baseline"], sort=False).agg({"lost": "sum", "score": "mean"})
    means = means.sort_values(["lost", "score"], ascending=[True, False], kind="stable")
    best: tuple[str, str] = means.index[0]
    return best


def _say_row(cell: Training, result: CellResult, prepared: PreparedComparison) -> None:
    """Log a finished cell: what it is, its accuracy over all examples and in the worst group."""
    names, table = cell.names, result.results.set_index("group")["accuracy"]
    label = Kind(names["method"], names["setting"]).label
    tried = names.get("tried", f"learning rate {names['rate']:.4g}" if "rate" in names else "")
    groups = table.drop(ALL)
    log.info(
        "%s%s, seed %d: accuracy %.1f, worst group %s %.1f; %.1f s",
        label,
        f" ({tried})" if tried else "",
        cell.seed,
        100 * table[ALL],
        groups.idxmin() if groups.notna().any() else "-",
        100 * groups.min(),
        result.seconds,
    )


def _setup(
    prepared: PreparedComparison,
    rates: Mapping[str, float],
    chosen: Mapping[Kind, Mapping[str, Any]],
    command: str,
) -> Setup:
    """Return what a comparison says of its data, training, methods, seeds and metric."""
    asked, data, choice = prepared.asked, prepared.data, prepared.choice
    names = data.test.class_names
    counts = torch.bincount(data.test.targets, minlength=data.test.num_classes)
    positive = asked.decision.index(names)
    auto_takes = choice.shared.method if AUTO in asked.methods and choice.automatic is None else ""
    against = asked.against or ""
    return Setup(
        data=getattr(prepared.source, "name", type(prepared.source).__name__),
        group_names=tuple(data.train.group_names),
        class_names=tuple(data.train.class_names),
        num_train_by_seed=tuple(prepared.sizes.values()),
        train_group_sizes=tuple(data.train.group_sizes().tolist()),
        test_group_sizes=tuple(data.test.group_sizes().tolist()),
        most_frequent_class=(names[int(counts.argmax())], float(counts.max()) / len(data.test)),
        plan=prepared.references[0].resolve(prepared.sizes[prepared.seeds[0]]),
        methods=tuple(dict.fromkeys(each.name for each in (*prepared.references, *prepared.private))),
        seeds=tuple(prepared.seeds),
        versions=versions(),
        notes=tuple(data.notes),
        settings=settings_of_runs(prepared, rates, chosen),
        gap_tolerance=asked.gap_tolerance,
        command=command,
        swept=prepared.swept,
        positive="" if positive is None else names[positive],
        against=(auto_takes or against) if against == AUTO else against,
        auto_takes=auto_takes,
    )


def settings_of_runs(
    prepared: PreparedComparison,
    used: Mapping[str, float] | None = None,
    chosen: Mapping[Kind, Mapping[str, Any]] | None = None,
) -> tuple[SettingRow, ...]:
    """Return every requested setting of the runs with its value and its origin.

    Args:
        prepared: cells.
        used: reference -> the best learning rate, which has its own row.
        chosen: kind of run -> settings that tuning chose.
    """
    asked, choice, runs = prepared.asked, prepared.choice, []
    further = []
    for variant in (*prepared.references, *prepared.private):
        (cell,) = prepared.cells(variant, prepared.seeds[:1])
        plan = choice.automatic if variant.name == AUTO and choice.automatic is not None else choice.shared
        targeted = variant.epsilon is not None
        runs.append(ChosenRun(plan, cell.plan, targeted, (chosen or {}).get(variant.kind, {})))
        rate = (used or {}).get(variant.setting, cell.plan.learning_rate)
        if variant.name == BASELINE and rate != cell.plan.learning_rate:
            further.append(SettingRow("learning_rate used", rate, RULE, (variant.kind.label,)))
    origin = ASKED if asked.target_epsilons else RULE
    rows = setting_rows(runs, epsilons=choice.epsilons, epsilons_from=origin, swept=prepared.swept)
    if asked.balanced:
        balanced = SettingRow("class_weight", "balanced", ASKED)
        rows = tuple(balanced if row.name == balanced.name else row for row in rows)
    threshold = "base-rate" if asked.base_rate_threshold else asked.decision.threshold
    if threshold is not None:
        further.append(SettingRow("threshold", threshold, ASKED))
    return (*rows, *further)


def check_metric(metric: Metric, decision: Decision, test: GroupedDataset) -> None:
    """Check before anything is trained that a metric can compare the groups of a test set.

    Raises:
        SettingError: the task has no such metric or positive class, the metric fails, or it is not defined in
            two groups.
    """
    metric_for(metric, test.class_names)
    decision.index(test.class_names)
    shares = np.random.default_rng(0).dirichlet(np.ones(test.num_classes), len(test))
    outputs = torch.from_numpy(np.log(shares))  # of a made-up model
    found = Predictions.of(outputs, test.targets, test.class_names, Decision(decision.positive))
    groups = by_group(test.groups.numpy(), test.group_names)[:-1]
    reasons = {name: measure_metric(metric, found.take(members))[1] for name, members in groups}
    if sum(not reason for reason in reasons.values()) < 2:
        name, reason = next((name, reason) for name, reason in reasons.items() if reason)
        raise SettingError(
            f"metric {metric.name!r} is defined in fewer than two groups of the test set (group {name}: "
            f"{reason}), so no gap can be taken; choose other groups, or another metric.",
            field="metric",
        )


def source_of_trees(source: DataSource, seed: int) -> DataSource | None:
    """Return the source that boosted trees read, of inputs before fixed features and scaled as for networks.

    None unless classes are predicted from rows of a table: one vector of numbers each.
    """
    source = source.source if isinstance(source, WithFeatures) else source
    train = split(source, seed).train
    one = isinstance(train.inputs, Tensor) and train.inputs.is_floating_point()
    if not one or len(train.input_shape) != 1:
        return None
    return source if binning_of(source) is None else with_binning(source, STANDARD)


def _private_notes(source: DataSource, seed: int) -> tuple[str, ...]:
    """Notes on the data if preprocessing is private, in all runs except the reference's."""
    said = "That holds for the private runs; plain SGD, the reference, was preprocessed exactly."
    return (*split(source, seed).notes, said)


def _warn_of_missing_groups(names: Sequence[str], sizes: Mapping[int, Sequence[int]]) -> None:
    """Say that a split has no test examples of a group, whose costs then rest on the other seeds."""
    missing = {
        name: [str(seed) for seed, counts in sizes.items() if not counts[place]]
        for place, name in enumerate(names)
    }
    listed = [f"{name} (seed {', '.join(seeds)})" for name, seeds in missing.items() if seeds]
    if listed:
        warnings.warn(
            f"no test examples of {'; '.join(listed)}: no cost of these groups is measured there. Give "
            "larger groups, or a larger test_share.",
            DataWarning,
            stacklevel=4,
        )


def _warn_of_unknown_code(prepared: PreparedComparison) -> None:
    """Say once, before training, that results of code without source are not kept."""
    unknown = {
        f"{part} of {variant.name}": None
        for variant in (*prepared.references, *prepared.private)
        for part, digest in part_digests(prepared.cells(variant, prepared.seeds[:1])[0].plan).items()
        if digest is None
    }
    if unknown:
        message = (
            f"the results of these runs are not cached, because the source of {', '.join(unknown)} is "
            "unknown: it was typed into an interpreter, made by exec, or its file changed after the import. "
            "Put it into a module, or import it again."
        )
        warnings.warn(message, CacheWarning, stacklevel=4)
