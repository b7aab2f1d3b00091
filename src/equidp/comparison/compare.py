"""Comparison of methods over seeds: its runs, all checked before any is trained, and their results as one."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from equidp._extras import require_extra
from equidp._provenance import versions
from equidp._validate import check_whole
from equidp.accounting.planned import release_event, share_noise
from equidp.accounting.rows import epsilon
from equidp.advice.advise import AUTO
from equidp.advice.chosen_plan import (
    ASKED,
    DEFAULT,
    ChosenRun,
    SettingRow,
    setting_rows,
    source_to_read,
)
from equidp.comparison.baselines import (
    BOOSTING,
    RATES,
    BaselinePlan,
    BaselineSearch,
    BoostedTrees,
    Candidate,
    choose_baselines,
    keep_chosen,
    source_of_trees,
)
from equidp.comparison.cells import (
    Cell,
    CellResult,
    Progress,
    Training,
    is_kept,
    part_digests,
    split,
    split_facts,
    train_all,
)
from equidp.comparison.choice import ComparisonChoice, choose_plans
from equidp.comparison.plan import ComparisonPlan
from equidp.comparison.result import Comparison, DataFacts, Setup, TrainingFacts
from equidp.comparison.sweep import Kind, Variant
from equidp.comparison.tune import PLAIN, SettingSearch, Tuning, tuning_seeds
from equidp.comparison.workers import Workers, spread
from equidp.data import open_source
from equidp.data.class_counts import check_balanced
from equidp.data.dataset import DataSource, DataSplit, GroupedDataset
from equidp.data.features import WithFeatures, check_not_varied
from equidp.data.table import COUNTS_SHARE, binning_of, releases_of, with_private_noise
from equidp.diagnostics import Diagnosis
from equidp.errors import ApproximationWarning, CacheWarning, DataError, PrivacyWarning, SettingError
from equidp.evaluation.costs import EPSILON_OF_GROUP
from equidp.evaluation.groups import by_group
from equidp.evaluation.metrics import (
    METRICS,
    Metric,
    measure_metric,
    metric_for,
    tells_something,
)
from equidp.evaluation.predictions import Decision, Predictions, check_base_rate
from equidp.evaluation.small_cells import few_people_groups
from equidp.kernel.event import EventCounts
from equidp.policies.table import BASELINE
from equidp.store import Store
from equidp.training.device import chosen_device
from equidp.training.plan import Plan

with require_extra("tables"):
    import pandas as pd


def run_comparison(
    data: str | DataSource,
    asked: ComparisonPlan,
    *,
    directory: str | os.PathLike[str] = "equidp-runs",
    jobs: int | None = None,
    device: str = "cpu",
    on_progress: Progress | None = None,
    command: str = "",
    fresh: bool = False,
) -> Comparison:
    """Train the runs of a comparison that are not kept yet, and compare all; arguments as in `compare`."""
    if jobs is not None:
        check_whole(1, jobs=jobs)
    prepared = prepare(data, asked, directory=directory, device=device)

    def train(sent: Sequence[Training]) -> list[CellResult]:
        place = partial(spread, workers=Workers.of(jobs, len(sent)))
        return train_all(sent, prepared.folder, place, on_progress, fresh=fresh)

    if prepared.search is not None and (fresh or prepared.tuning is None):
        tuning = prepared.search.run(train)
        # Again, since noise, steps and the baselines to try follow from the settings that were chosen.
        prepared = prepare(data, asked, directory=directory, device=device, tuning=tuning)
    runs = prepared.baselines.run(train, [*prepared.private, *prepared.trees])
    return _join_results(prepared, runs, command)


def _join_results(
    prepared: PreparedComparison, runs: Sequence[tuple[Training, CellResult]], command: str
) -> Comparison:
    """Return the comparison of all runs, in order of their seeds."""
    asked, seeds = prepared.choice.asked, list(prepared.sizes)
    runs = sorted(runs, key=lambda each: seeds.index(each[0].seed))
    trained = [(cell, run) for cell, run in runs if isinstance(cell, Cell)]
    whole = _measure_runs(prepared, runs)
    baselines = choose_baselines(
        whole[whole["method"].isin([BASELINE, BOOSTING])],
        prepared.metric,
        prepared.baselines.find_uninformed(runs),
    )

    def join_runs(table: str) -> pd.DataFrame:
        nothing = pd.DataFrame()
        tables = [
            (cell, run.tables[table] if table in run.tables else getattr(run, table, nothing))
            for cell, run in trained
        ]
        rows = ((cell, row) for cell, found in tables for row in found.to_dict("records"))
        return keep_chosen(pd.DataFrame([{**cell.names, **row} for cell, row in rows]), baselines)

    return Comparison(
        _setup(prepared, command),
        keep_chosen(whole, baselines),
        join_runs("epochs"),
        baselines=pd.DataFrame() if asked.baseline == "plan" else baselines,
        individual=join_runs("individual"),
        metric=prepared.metric,
        sensitive_diagnosis=None if asked.diagnosis is None else _join_diagnoses(trained),
        seconds=sum(run.seconds for _, run in runs),
        tuning=prepared.tuning,
        tables={each.name: join_runs(each.name) for each in asked.callbacks},
    )


def _measure_runs(prepared: PreparedComparison, runs: Sequence[tuple[Training, CellResult]]) -> pd.DataFrame:
    """Return the results of all runs, a row for each run and group, with every metric of the task."""
    asked, results = prepared.choice.asked, list[dict[str, Any]]()
    for training, run in runs:
        test = split(prepared.source, training.seed).test
        decision = asked.decision_rule.decision_of(training)
        threshold = {"threshold": decision.threshold} if asked.base_rate_threshold else {}
        rows = [{**training.names, **row, **threshold} for row in run.results.to_dict("records")]
        results += with_metrics(rows, run.predictions(test, decision), test, prepared.metric, asked.level)
    whole = pd.DataFrame(results)
    if EPSILON_OF_GROUP in whole:  # that of the run, where groups are equal
        whole[EPSILON_OF_GROUP] = whole[EPSILON_OF_GROUP].fillna(whole["epsilon"])
    return whole


def _setup(prepared: PreparedComparison, command: str) -> Setup:
    """Return what a comparison says of its data, training, methods, seeds and metric."""
    asked, class_names = prepared.choice.asked, prepared.data.test.class_names
    positive = asked.decision.index(class_names)
    return Setup(
        data=_data_facts(prepared.source, prepared.data),
        training=_training_facts(prepared),
        methods=tuple(dict.fromkeys(each.method for each in prepared.first)),
        seeds=tuple(prepared.sizes),
        num_train_by_seed=tuple(prepared.sizes.values()),
        versions=versions(),
        baseline=BASELINE,
        gap_tolerance=asked.gap_tolerance,
        level=asked.level,
        command=command,
        swept=prepared.swept,
        metric=prepared.metric.name,
        positive="" if positive is None else class_names[positive],
        threshold=asked.decision.threshold,
        base_rate_threshold=asked.base_rate_threshold,
        against=prepared.choice.against,
        search=asked.baseline,
        other_classes=prepared.other_classes,
    )


class PlannedKind(NamedTuple):
    """Kind of run that a comparison would train; epsilon is infinite without privacy."""

    label: str
    steps: int
    noise_multiplier: float
    entries: EventCounts
    delta: float

    @property
    def epsilon(self) -> float:
        return epsilon(self.entries, self.delta) if self.noise_multiplier else math.inf


class Counts(NamedTuple):
    """Numbers of runs, boosted trees among them, and of trials of a search for settings; the missing ones are
    not kept."""

    runs: int
    missing: int
    trials: int = 0
    missing_trials: int = 0


@dataclass(frozen=True)
class PreparedComparison:
    """Runs of a comparison; each kind was built once.

    Attributes:
        source: of the data.
        data: the split of the first seed.
        choice: plans that the runs train by.
        private: all private runs, in order of seeds.
        baselines: search for the non-private baselines, with their runs.
        sizes: seed -> number of training examples.
        folder: where finished runs are kept.
        swept: settings of which several values are compared -> those values.
        metric: the metric of costs.
        kinds: what each kind of run would spend; of candidates that differ in their learning rate one.
        trees: boosted trees, one for each seed; none where the data is no table.
        other_classes: see `Setup`.
        search: for the settings of each method; None: all train by the plan.
        tuning: what the search found; None where trials are missing: the runs then have the plan's own
            settings.
        kept_trials: number of trials of the search that are kept.
    """

    source: DataSource
    data: DataSplit
    choice: ComparisonChoice
    private: tuple[Cell, ...]
    baselines: BaselineSearch
    sizes: Mapping[int, int]
    folder: Path
    swept: Mapping[str, tuple[Any, ...]]
    metric: Metric
    kinds: tuple[PlannedKind, ...] = ()
    trees: tuple[BoostedTrees, ...] = ()
    other_classes: Mapping[str, str] = field(default_factory=dict)
    search: SettingSearch | None = None
    tuning: Tuning | None = None
    kept_trials: int = 0

    @property
    def cells(self) -> list[Cell]:
        """Runs of networks, as far as they are known before any is trained."""
        return [*self.baselines.expected_cells(None), *self.private]

    @property
    def first(self) -> list[Cell]:
        """The runs of the first seed."""
        seed = next(iter(self.sizes))
        return [*self.baselines.first, *(cell for cell in self.private if cell.seed == seed)]

    def setting_rows(self) -> tuple[SettingRow, ...]:
        """Return every setting of the runs with its value and its origin."""
        choice, asked = self.choice, self.choice.asked
        tuned = {} if self.tuning is None else self.tuning.settings
        of_baseline = tuned.get(PLAIN, {})
        plan = choice.shared.plan.with_changes(of_baseline)
        baseline = plan.for_method(BASELINE).resolve(next(iter(self.sizes.values())))
        runs = [ChosenRun(choice.shared, baseline, False, tuple(of_baseline))]
        runs += [
            ChosenRun(
                choice.of(cell.method),
                cell.plan,
                bool(choice.epsilons) or cell.method == AUTO,
                tuple(tuned.get(Kind(cell.method, cell.setting), {})),
            )
            for cell in self.first
            if cell.method != BASELINE
        ]
        origin = ASKED if asked.epsilons else DEFAULT
        rows = setting_rows(runs, epsilons=choice.epsilons, epsilons_from=origin, swept=self.swept)
        if asked.balanced:
            balanced = SettingRow("class_weight", "balanced", ASKED)
            rows = tuple(balanced if row.name == balanced.name else row for row in rows)
        threshold = "base-rate" if asked.base_rate_threshold else asked.decision.threshold
        return rows if threshold is None else (*rows, SettingRow("threshold", threshold, ASKED))

    def count_runs(self, *, fresh: bool = False) -> Counts:
        """Count the runs, and those that are still to be trained: all of them if `fresh`."""
        chosen_later = self.search is not None and (fresh or self.tuning is None)
        folder = None if fresh or chosen_later else self.folder
        runs: list[Training] = [*self.baselines.expected_cells(folder), *self.private, *self.trees]
        missing = [each for each in runs if folder is None or not is_kept(each, folder)]
        trials = 0 if self.search is None else self.search.num_trials
        return Counts(len(runs), len(missing), trials, trials if fresh else trials - self.kept_trials)


def prepare(
    data: str | DataSource,
    asked: ComparisonPlan,
    *,
    directory: str | os.PathLike[str] = "equidp-runs",
    device: str = "cpu",
    tuning: Tuning | None = None,
) -> PreparedComparison:
    """Return the runs of a comparison, each kind built once; arguments as in `equidp.compare`.

    Where settings are tuned, the runs have those of `tuning`; without it, those that kept trials choose, or
    the plan's own while trials are missing.

    Raises:
        SettingError, DataError, ModelError, PolicyError: a plan by which no run can be trained on the data.
    """
    source = open_source(data) if isinstance(data, str) else data
    if not callable(getattr(source, "split", None)):
        raise DataError(
            f"data is a {type(data).__name__}; expected the name of a source, the path of a table, or a "
            "source of your own, with name, highlighted_groups and split(seed).",
            field="data",
        )
    chosen_device(device)
    metric, share = asked.cost_metric, asked.preprocessing_share
    read = source
    if asked.plan is None:
        read = source_to_read(source, asked.changes, asked.settings, swept=tuple(asked.sweep))
    sizes = {seed: split_facts(read, seed).num_train for seed in asked.seed_numbers}
    smallest = min(sizes, key=sizes.__getitem__)  # whose batch no other seed's training part is too small for
    train = split(read, smallest).train
    choice = choose_plans(asked, source, train, smallest, max(sizes.values()))
    source, plan = choice.shared.source(source), choice.shared.plan
    data_split = split(source, next(iter(sizes)))
    if asked.base_rate_threshold:
        check_base_rate(train.class_names)
    check_metric(metric, asked.decision, data_split.test)
    variants = [_count_classes(variant, asked, plan) for variant in choice.variants()]
    # Absolute, since worker processes outlive a comparison and stay where the first one was.
    folder = Path(directory).absolute()
    Store(folder).check()
    if asked.release_epsilon is not None:  # refuse one that no noise can meet
        assert plan.delta is not None
        release_event(asked.release_epsilon, plan.delta)
    search, kept_trials = _setting_search(asked, source, plan, variants), 0
    if search is not None and tuning is None:
        tuning, kept_trials = search.read_kept(folder)
    if tuning is not None:
        variants = [tuning.apply(variant) for variant in variants]
    private = [
        (variant, choice.of(variant.name).source(source)) for variant in variants if variant.name != BASELINE
    ]
    of_baseline = next(variant.plan for variant in variants if variant.name == BASELINE)
    baselines = BaselinePlan(of_baseline, source, private, searched=asked.baseline == "best")
    candidates = baselines.candidates(next(iter(sizes.values())))
    search_of_baselines = _baseline_search(candidates, choice, sizes, device)
    cells = _private_cells(private, baselines, choice, sizes, train.group_names, device)
    if share is not None:
        data_split = replace(data_split, notes=_private_notes(cells))
    _warn_of_unknown_code([*search_of_baselines.first, *cells])
    trees: tuple[BoostedTrees, ...] = ()
    if baselines.searched and (scaled := source_of_trees(source, next(iter(sizes)))) is not None:
        weights = plan.class_weights, asked.balanced
        trees = tuple(BoostedTrees(scaled, seed, *weights) for seed in sizes)
    first = zip(candidates, search_of_baselines.first, strict=True)
    to_build = [cell for candidate, cell in first if candidate.factor == RATES[0]]
    to_build += [cell for cell in cells if cell.seed == cells[0].seed]
    return PreparedComparison(
        source,
        data_split,
        choice,
        tuple(cells),
        search_of_baselines,
        sizes,
        folder,
        choice.swept,
        metric,
        kinds=_build_each(to_build, data_split),
        trees=trees,
        other_classes=baselines.other_classes,
        search=search,
        tuning=tuning,
        kept_trials=kept_trials,
    )


def _setting_search(
    asked: ComparisonPlan, source: DataSource, plan: Plan, variants: Sequence[Variant]
) -> SettingSearch | None:
    """Return the search for the settings of each method but "auto"; None where settings are not tuned."""
    if asked.tuning is None:
        return None
    tuned = tuple(variant for variant in variants if variant.name != AUTO)
    return SettingSearch(
        asked.tuning,
        tuned,
        tuple(_preprocess_source(source, variant, plan, asked.preprocessing_share) for variant in tuned),
        tuning_seeds(asked.seed_numbers),
        asked.cost_metric,
        asked.decision_rule,
        asked.engine,
    )


def _baseline_search(
    candidates: Sequence[Candidate], choice: ComparisonChoice, sizes: Mapping[int, int], device: str
) -> BaselineSearch:
    """Return the search among candidates for the baselines, each with a run for each seed."""
    asked, swept = choice.asked, dict.fromkeys(choice.swept)
    runs = tuple(
        tuple(
            Cell(
                *(each.source, each.resolve(size), each.label, math.nan, seed, asked.engine, device),
                swept=swept,
                baseline=each.name,
                counts_noise=0.0 if asked.balanced else None,
                balanced=asked.balanced,
                callbacks=tuple(watch for watch in asked.callbacks if not watch.private_only),
            )
            for seed, size in sizes.items()
        )
        for each in candidates
    )
    return BaselineSearch(runs, asked.cost_metric, asked.decision_rule)


def _private_cells(
    private: Sequence[tuple[Variant, DataSource]],
    baselines: BaselinePlan,
    choice: ComparisonChoice,
    sizes: Mapping[int, int],
    group_names: Sequence[str],
    device: str,
) -> list[Cell]:
    """Return the run of each private variant for each seed, in order of seeds.

    Args:
        private: variants, and the source that each reads before private preprocessing.
        baselines: that the runs are measured against.
        choice: plans of the comparison.
        sizes: seed -> number of training examples.
        group_names: of the data.
        device: to train on.
    """
    asked, plan = choice.asked, choice.shared.plan
    cells = []
    for seed, size in sizes.items():
        for variant, source in private:
            own = _preprocess_source(source, variant, plan, asked.preprocessing_share)
            released = asked.release_epsilon if variant.plan.groups.budgets else None
            assert variant.plan.delta is not None
            beside = () if released is None else (release_event(released, variant.plan.delta),)
            resolved = variant.resolve(size, (*releases_of(own), *beside), group_names)
            if isinstance(own, WithFeatures):
                check_not_varied(own.label, resolved.plan.image_views)
            is_private = resolved.policy.private
            target = variant.epsilon if choice.epsilons else None
            cells.append(
                Cell(
                    own,
                    resolved,
                    variant.setting,
                    math.nan if target is None else target,
                    seed,
                    asked.engine,
                    device,
                    asked.release_epsilon if is_private else None,
                    asked.diagnosis if is_private else None,
                    swept={**dict.fromkeys(choice.swept), **variant.swept},
                    baseline=baselines.name_of(variant, source),
                    counts_noise=variant.counts_noise,
                    balanced=variant.balanced,
                    callbacks=tuple(each for each in asked.callbacks if is_private or not each.private_only),
                )
            )
    return cells


def with_metrics(
    rows: Sequence[dict[str, Any]], found: Predictions, test: GroupedDataset, metric: Metric, level: float
) -> list[dict[str, Any]]:
    """Return the result rows of one run with every metric of the task and two flags: `informative`, and
    `few_people` for a group of too few people to base a cost or gap on.

    Args:
        rows: one per group and one for "all", with the key "group".
        found: the run's predictions.
        test: the run's test set.
        metric: the metric of `informative` (`tells_something`); it may be user-defined.
        level: of the interval that decides `informative`.
    """
    metrics = list(dict.fromkeys([*(each for each in METRICS.values() if found.task in each.tasks), metric]))
    parts = dict(by_group(test.groups.numpy(), test.group_names))
    informative, tiny = tells_something(metric, found, level), few_people_groups(test)
    filled = []
    for row in rows:
        part = found.take(parts[row["group"]])
        values = {each.name: measure_metric(each, part)[0] for each in metrics}
        shares = {}
        if len(part) and part.positive is not None:
            shares = {"mean_predicted": float(part.risks.mean()), "observed": float(part.hits.mean())}
        few = {"few_people": row["group"] in tiny}
        filled.append({**row, **values, **shares, "informative": informative, **few})
    return filled


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
            f"{reason}), so no gap can be taken; choose another metric, such as accuracy, or other groups."
        )


def _warn_of_unknown_code(cells: Sequence[Cell]) -> None:
    """Say once, before training, that results of code without source are not kept."""
    unknown = {
        f"{name} of {cell.method}": None
        for cell in cells
        for name, digest in part_digests(cell.plan).items()
        if digest is None
    }
    if unknown:
        message = (
            f"runs are not kept where the source of their code is not known ({', '.join(unknown)}): it was "
            "typed into an interpreter, made by exec, or its file changed since it was imported. Put it into "
            "a module, or import it again."
        )
        warnings.warn(message, CacheWarning, stacklevel=4)


def _count_classes(variant: Variant, asked: ComparisonPlan, plan: Plan) -> Variant:
    """Return the variant with the counts of classes that are asked for; the baseline's are exact."""
    check_balanced(asked.balanced, variant.plan.for_method(variant.method).class_weight)
    share = asked.counts_share
    if share is None and (asked.balanced or asked.base_rate_threshold):
        share = COUNTS_SHARE
    if share is None:
        return variant
    if variant.name == BASELINE:
        return replace(variant, counts_noise=0.0, balanced=asked.balanced)
    assert plan.delta is not None
    noise = share_noise("counts_share", share, variant.epsilon, plan.delta)
    return replace(variant, counts_noise=noise, balanced=asked.balanced)


def _preprocess_source(source: DataSource, variant: Variant, plan: Plan, share: float | None) -> DataSource:
    """Return the source that a run reads; private runs preprocess privately, for a share of their epsilon."""
    if share is not None and releases_of(source):
        raise SettingError(
            "the source preprocesses privately already; leave out preprocessing_share.",
            field="preprocessing_share",
        )
    if share is None or variant.name == BASELINE:
        return source
    assert plan.delta is not None
    return with_private_noise(source, share_noise("preprocessing_share", share, variant.epsilon, plan.delta))


def _private_notes(cells: Sequence[Cell]) -> tuple[str, ...]:
    """Notes on the data where preprocessing is private, in all runs but the baseline's."""
    private = next(cell for cell in cells if releases_of(cell.source))
    return (
        *split(private.source, private.seed).notes,
        "That holds for the private runs; plain SGD, the baseline, was preprocessed exactly.",
    )


def _exact_split(cell: Cell, data: DataSplit) -> DataSplit:
    """Split that a cell trains on, preprocessed exactly: its own inputs if it has some; otherwise `data`."""
    if binning_of(cell.source) is not None:
        return split(replace(cell.source, private_noise=None), cell.seed)  # type: ignore[type-var]
    return split(cell.source, cell.seed) if isinstance(cell.source, WithFeatures) else data


def _build_each(cells: Sequence[Cell], data: DataSplit) -> tuple[PlannedKind, ...]:
    """Build each kind of run once, to raise its errors before any run is trained."""
    planned = []
    with warnings.catch_warnings():
        for category in (PrivacyWarning, ApproximationWarning):
            warnings.simplefilter("once", category)
        for cell in cells:
            own = _exact_split(cell, data)
            watching = [each.callback(own) for each in cell.callbacks]
            individual = next((each.individual for each in watching if each.individual), None)
            trainer = cell.trainer(own, individual=individual)
            for each in watching:
                each.check(trainer)
            entries = (*trainer.entries, (trainer.event, trainer.steps))
            label, noise = Kind(cell.method, cell.setting).label, trainer.noise_multiplier
            planned.append(PlannedKind(label, cell.plan.steps, noise, entries, trainer.delta))
            if cell.diagnosis is not None:
                cell.diagnosis.check(trainer)
    return tuple(planned)


def _join_diagnoses(trained: Sequence[tuple[Cell, CellResult]]) -> Diagnosis:
    """Join the tables of all diagnosed runs, with the columns method, setting and seed before the others."""
    tables: dict[str, list[dict[str, Any]]] = {"groups": [], "pairs": []}
    for cell, run in trained:
        names = {name: value for name, value in cell.names.items() if name != "target_epsilon"}
        for name, table in run.diagnosis.items():
            tables[name] += [{**names, **row} for row in table.to_dict("records")]
    return Diagnosis(pd.DataFrame(tables["groups"]), pd.DataFrame(tables["pairs"]))


def _data_facts(source: DataSource, data: DataSplit) -> DataFacts:
    counts = torch.bincount(data.test.targets, minlength=data.test.num_classes)
    largest = data.test.class_names[int(counts.argmax())], float(counts.max()) / len(data.test)
    return DataFacts(
        name=source.name,
        num_train=len(data.train),
        group_names=tuple(data.train.group_names),
        class_names=tuple(data.train.class_names),
        train_group_sizes=tuple(data.train.group_sizes().tolist()),
        test_group_sizes=tuple(data.test.group_sizes().tolist()),
        most_frequent_class=largest,
        notes=tuple(data.notes),
        highlighted_groups=source.highlighted_groups,
    )


def _training_facts(prepared: PreparedComparison) -> TrainingFacts:
    """Facts that the cells of one seed share, and facts that differ, by method."""
    choice, cells = prepared.choice, prepared.first
    automatic: dict[str, dict[str, Any]] = {}
    if (own := choice.automatic) is not None and own.advice is not None:
        automatic = {AUTO: {"policy": own.method, "features": own.features, **own.advice.settings}}
    chosen = {} if prepared.tuning is None else prepared.tuning.settings
    tuned = {" ".join(kind).strip(): found for kind, found in chosen.items() if found}
    return TrainingFacts(
        plan=replace(choice.shared.plan, by_method={})
        .for_method(BASELINE)
        .resolve(next(iter(prepared.sizes.values()))),
        noise_multipliers={
            f"{cell.method} {cell.setting}".strip(): cell.plan.noise_multiplier
            for cell in cells
            if cell.plan.policy.private
        },
        method_settings={
            cell.method: {
                name: value
                for name, value in asdict(cell.plan.policy).items()  # type: ignore[call-overload]
                if name not in cell.swept
            }
            for cell in cells
        },
        by_method={**choice.shared.plan.by_method, **automatic, **tuned},
        auto_takes=choice.auto_takes,
        rows=prepared.setting_rows(),
    )
