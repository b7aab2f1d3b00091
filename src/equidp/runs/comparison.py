"""Comparison by the options of a run: `compare` is `equidp compare`, without its files and messages."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from equidp.advice.chosen_plan import RECOMMENDED
from equidp.comparison.cells import Progress
from equidp.comparison.compare import run_comparison
from equidp.comparison.plan import DEFAULT_METHODS, ComparisonPlan, Search
from equidp.comparison.result import Comparison
from equidp.comparison.sweep import Sweep
from equidp.comparison.tune import TuningPlan
from equidp.data import DataSource
from equidp.diagnostics import Diagnostics
from equidp.engines import NAMES
from equidp.errors import SettingError
from equidp.evaluation.metrics import Metric
from equidp.policies.methods import MethodLike
from equidp.runs.releases import take_releases
from equidp.runs.run_file import LISTED_IN, RunFile, fields_of, load_methods
from equidp.training.option import one_of
from equidp.training.plan import Plan, check_option_names
from equidp.training.record import Watch

_OF_ONE_RUN = {"method", "seed", "ledger", "ledger_epsilon", "ledger_delta", "checkpoint_seconds"}
"""Fields of run.toml that a comparison of many runs passes over."""


def compare(
    data: str | os.PathLike[str] | DataSource | None = None,
    *,
    methods: Sequence[MethodLike] = DEFAULT_METHODS,
    seeds: int | Sequence[int] = 5,
    epsilon: float | Sequence[float] = (),
    metric: str | Metric | None = None,
    plan: Plan | None = None,
    sweep: Sweep | None = None,
    against: str | None = None,
    baseline: Search = "best",
    tune: int | TuningPlan | None = None,
    gap_tolerance: float = 0.05,
    level: float = 0.95,
    diagnose: bool | Diagnostics = False,
    callbacks: Sequence[Watch] = (),
    config: str | os.PathLike[str] | None = None,
    columns: Mapping[str, Any] | None = None,
    directory: str | os.PathLike[str] = "equidp-runs",
    fresh: bool = False,
    jobs: int | None = None,
    device: str = "cpu",
    on_progress: Progress | None = None,
    **options: Any,
) -> Comparison:
    """Train one model several ways, private and not, and measure what privacy cost each group.

    Runs of one seed share the split, the initial weights and the sampled batches. Samples and noise come from
    seeds: this is for choosing a method, and the models are not for release.

    Args:
        data: a name from `equidp.data.SOURCES`, a path to a table, or your own source, also by import path;
            None: that of `config`, or "digits".
        methods: names from `equidp.METHODS`, import paths such as "my_module:MyPolicy", and your own
            policies; plain SGD is always among them, as the baseline. "auto" is the recommended method. Where
            `settings` or `plan` give the others other settings, "auto" is a method of its own by the
            recommended ones, at each epsilon; without any, at the epsilon that DP-SGD spends by the plan.
        seeds: how many seeds (0, 1, ...), or which.
        epsilon: targets, one or several; noise is calibrated to each of them; none: the plan's noise
            multiplier, or epsilon 3 where settings are recommended and no noise multiplier is given.
        metric: of cost, gap, tolerance and tests (`equidp.evaluation.metrics.metric_named`); None: accuracy.
            Every run keeps its predictions on the test set, so another metric or decision trains nothing
            again.
        plan: how to train, in place of `settings`.
        sweep: settings of the plan and of methods, by name -> values to compare; several settings: every
            combination. The baseline is trained by each combination of those that it has, too.
        against: name of a private method among `methods`, with which each other one is compared seed by seed
            (`Comparison.differences`); None: no such table.
        baseline: "best": plain SGD is tried at several multiples of the learning rate, by each combination
            of shared settings, and for each model and features that private runs have, on the first seed; a
            private run is measured against the best of its own model, which is trained on all seeds. Boosted
            trees read a table too, so that costs have two parts: of the model, and of privacy. "plan": the
            only baseline is plain SGD by the plan, as in published results.
        tune: how many settings of each method are tried: the plan's own, and random ones, of which methods
            share the same multiples. Each is chosen on a part held out of training, on other seeds than
            `seeds`, by the loss of the group that loses most (`equidp.comparison.tune`). None: all methods
            train by the plan.
        gap_tolerance: largest gap in privacy cost that counts as equal (Xu et al.: 0.05).
        level: of the confidence intervals.
        diagnose: find out where the disparity of the private runs comes from; a `Diagnostics` says when.
        callbacks: what each run records beside its results, as tables of the comparison.
        config: run.toml, the file of all options; those that are given here are over it.
        columns: what cells of a column mean, by name: fields of `Column`, such as {"kind": "text"}.
        directory: finished runs are kept here, and taken from here if data, settings and code are the same.
        fresh: train again the runs that are kept in `directory`.
        jobs: processes; None: one per core, or the number from `joblib.parallel_config`, whose backend may
            also be a cluster.
        device: where to train: "cpu", "cuda", "cuda:1", "mps"; or "auto", the first of cuda, mps and cpu that
            is there. Stored runs of another device are taken: results differ by rounding alone.
        on_progress: called with (steps done, steps in all) of the runs that train together, after each of
            them: of each stage of tuning, of the baselines' candidates, and of the rest.
        options: fields of run.toml: of [table], such as target and group; of [privacy], such as
            preprocessing and individual; of [training], such as settings, epochs, class_weight and threshold.

    Raises:
        SettingError, DataError, ModelError: before anything is trained.

    Example:
        >>> import equidp
        >>> plan, place = equidp.Plan(batch_size=128, epochs=1), getfixture("tmp_path")
        >>> comparison = equidp.compare(methods=["dpsgd"], seeds=1, plan=plan, directory=place, jobs=1)
        >>> sorted(comparison.costs()["method"].unique())
        ['dpsgd', 'sgd']
    """
    load_methods(methods)
    known = {name for section in ("table", "privacy", "training") for name in fields_of(section)}
    check_option_names(options, known - _OF_ONE_RUN, LISTED_IN)
    run = RunFile.of(config, {**options, **({} if columns is None else {"columns": columns})})
    asked = comparison_plan(
        run,
        epsilons=(epsilon,) if isinstance(epsilon, int | float) else tuple(epsilon),
        diagnosis=Diagnostics() if diagnose is True else diagnose or None,
        callbacks=tuple(callbacks),
        methods=methods,
        seeds=seeds,
        metric=metric,
        plan=plan,
        sweep=sweep or {},
        against=against,
        baseline=baseline,
        tune=tune,
        gap_tolerance=gap_tolerance,
        level=level,
    )
    return run_comparison(
        _source(run, data),
        asked,
        directory=directory,
        fresh=fresh,
        jobs=jobs,
        device=device,
        on_progress=on_progress,
    )


def comparison_plan(
    run: RunFile, *, epsilons: Sequence[float] = (), metric: str | Metric | None = None, **compared: Any
) -> ComparisonPlan:
    """Return the plan of a comparison.

    Args:
        run: options of its runs.
        epsilons: targets; none: that of the options.
        metric: of costs; None: that of the options.
        compared: other fields of the plan that options of runs do not give.

    Raises:
        SettingError: an option that no comparison can have.
    """
    given, decision = run.options, run.decision
    if (risk := given.pop("risk", None)) is not None:
        raise SettingError(f"risk={risk}: a comparison is at targets of epsilon; give these.", field="risk")
    target = given.pop("epsilon", None)
    releases = take_releases(given, base_rate_threshold=decision.at_counted_rate)
    engine = given.pop("engine", "auto")
    one_of(NAMES)("engine", engine)
    given.pop("checkpoint_seconds", None)  # of one run
    known = {each.name for each in fields(ComparisonPlan)}
    of_releases: dict[str, Any] = {}
    for release in releases:
        settings = asdict(release)  # type: ignore[call-overload]
        if not known.issuperset(settings):
            raise SettingError(
                f"a comparison does not release {release.name}; leave it out.", field="releases"
            )
        of_releases |= settings
    return ComparisonPlan(
        epsilons=epsilons or (() if target is None else (target,)),
        metric=metric or run.training.get("metric", "accuracy"),
        settings=run.training.get("settings", RECOMMENDED),
        changes=given,
        decision=decision.decision_to_train(),
        engine=engine,
        **of_releases,
        **compared,
    )


def _source(run: RunFile, data: str | os.PathLike[str] | DataSource | None) -> str | DataSource:
    """Return the source of the data: an object as it is, or what the options say of a name or a file."""
    if data is None or isinstance(data, str | os.PathLike):
        return run.run_data(data or run.table.get("data") or "digits").source()
    if given := [*(run.table.keys() - {"positive"}), *run.column]:
        raise SettingError(
            f"{given[0]} is for a file, and data is a {type(data).__name__}; leave it out.",
            field=given[0],
        )
    return data
