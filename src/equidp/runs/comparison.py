"""Comparison by the options of a run: `compare` is `equidp compare`, without its files and messages."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from equidp._validate import check_whole
from equidp.comparison.cells import ExampleEpsilons
from equidp.comparison.compare import run_comparison
from equidp.comparison.plan import DEFAULT_METHODS, ComparisonPlan
from equidp.comparison.result import Comparison
from equidp.data import DataSource
from equidp.engines import NAMES
from equidp.errors import DataError, SettingError
from equidp.policies.methods import MethodLike
from equidp.runs.releases import IndividualRelease, take_releases
from equidp.runs.run_file import LISTED_IN, RunFile, fields_of, load_methods
from equidp.training.option import one_of
from equidp.training.plan import Plan, check_option_names
from equidp.training.record import Watch

_OF_ONE_RUN = {"method", "seed", "ledger", "ledger_epsilon", "ledger_delta", "checkpoint_seconds"}
"""Fields of run.toml that a comparison of many runs passes over."""


def compare(
    data: str | os.PathLike[str] | DataSource | None = None,
    methods: Sequence[MethodLike] = DEFAULT_METHODS,
    *,
    epsilon: float | Sequence[float] | None = None,
    seeds: int | Sequence[int] = 5,
    tune: int | None = None,
    plan: Plan | str | None = None,
    changes: Sequence[Mapping[str, Any]] = (),
    against: str | None = None,
    gap_tolerance: float = 0.05,
    callbacks: Sequence[Watch] = (),
    directory: str | os.PathLike[str] = "equidp-runs",
    jobs: int | None = None,
    device: str = "cpu",
    **options: Any,
) -> Comparison:
    """Train one model by several methods, private and not, and measure each group's privacy cost.

    Runs with the same seed share the split, the initial weights and the sampled batches. Samples and noise
    come from seeds: use this to choose a method, and do not release the models. Each finished run is logged
    to "equidp.comparison" and stored, so that the same call continues a stopped comparison.

    Costs are relative to a reference, plain SGD with the same model and inputs. It is tuned if the methods
    are tuned, and trained by the plan if settings are published. Otherwise it is trained at several multiples
    of the plan's learning rate on the first seed, and at the best one on all seeds. For tables, boosted trees
    are trained too, so that costs have two parts: one of the model, and one of privacy.

    Args:
        data: name from `equidp.data.SOURCES`, path to a table, or your own source, also by import path. None:
            the data of `config`, or "digits".
        methods: names from `equidp.METHODS`, import paths such as "my_module:MyPolicy", and your own
            policies. "auto" is the recommended method. If `plan` has other settings than the recommended
            ones, "auto" is a separate method with the recommended settings.
        epsilon: one or several target epsilons, to which noise is calibrated. None: the plan's noise
            multiplier, or epsilon 3 if settings are recommended and no noise multiplier is given.
        seeds: number of seeds (0, 1, ...), or a list of seeds.
        tune: number of settings to try for each method: the plan's own, and random ones, with the same
            multiples for all methods. Each is chosen on a part held out of training, on other seeds than
            `seeds`, by the loss of the group that loses most (`equidp.comparison.tune`). None: all methods
            train by the plan.
        plan: training settings: a `Plan`, "recommended" or "published". None: [training] of `config`, or
            recommended.
        changes: settings of plan and methods to compare, such as [{"clipping_bound": 0.5}, {"clipping_bound":
            1.0}]. Each change is trained by all methods that have these settings.
        against: name of a private method among `methods`, with which the others are compared seed by seed
            (`Comparison.differences`). None: no such table.
        gap_tolerance: largest gap in privacy cost that counts as equal (Xu et al.: 0.05).
        callbacks: callbacks that record `Comparison.tables` in each run. `Diagnostics()` finds the causes of
            disparity.
        directory: folder of finished runs, which are used again if data, settings and code are the same.
        jobs: number of processes. None: one per core, or the number from `joblib.parallel_config`, whose
            backend may also be a cluster.
        device: device for training: "cpu", "cuda", "cuda:1", "mps", or "auto", the first of cuda, mps and cpu
            that is available. Stored runs of another device are used, because results differ only by
            rounding.
        options: config, the path of a run.toml, and its fields, which override the file. Examples are target,
            group and columns of [table], preprocessing of [privacy], and metric (a name or a `Metric`),
            epochs, class_weight and threshold of [training].

    Raises:
        SettingError, DataError, ModelError: raised before anything is trained.

    Example:
        >>> import equidp
        >>> plan, place = equidp.Plan(batch_size=128, epochs=1), getfixture("tmp_path")
        >>> comparison = equidp.compare(methods=["dpsgd"], seeds=1, plan=plan, directory=place, jobs=1)
        >>> sorted(comparison.costs()["method"].unique())
        ['dpsgd', 'sgd']
    """
    if jobs is not None:
        check_whole(1, jobs=jobs)
    if not isinstance(methods, str):
        load_methods(methods)
    known = {name for section in ("table", "privacy", "training") for name in fields_of(section)}
    check_option_names(options, {*known, "config", "columns"} - _OF_ONE_RUN, LISTED_IN)
    config = options.pop("config", None)
    asked, source = comparison_of(
        RunFile.of(config, options),
        data,
        epsilons=tuple(epsilon) if isinstance(epsilon, Iterable) else () if epsilon is None else (epsilon,),
        methods=methods,
        seeds=seeds,
        tune=tune,
        plan=plan,
        changes=changes,
        against=against,
        gap_tolerance=gap_tolerance,
        callbacks=tuple(callbacks),
    )
    return run_comparison(source, asked, directory=directory, jobs=jobs, device=device)


def comparison_of(
    run: RunFile,
    data: str | os.PathLike[str] | DataSource | None,
    *,
    epsilons: tuple[float, ...] = (),
    plan: Plan | str | None = None,
    **compared: Any,
) -> tuple[ComparisonPlan, DataSource]:
    """Return the plan of a comparison and the source of its data.

    Args:
        run: options of its runs.
        data: as in `compare`.
        epsilons: target epsilons. None: the epsilon of the options.
        plan: as in `compare`.
        compared: other fields of the plan that options of runs do not give.

    Raises:
        SettingError: an option that no comparison can have.
    """
    options, decision = run.options, run.decision
    settings = run.training.get("settings")
    if isinstance(plan, Plan) and settings is not None:
        raise SettingError(f"got settings={settings!r} and a plan; give one of the two.", field="settings")
    if (risk := options.pop("risk", None)) is not None:
        raise SettingError(f"risk={risk}: a comparison is at targets of epsilon; give these.", field="risk")
    if (cost := options.get("release_epsilon")) is not None:
        raise SettingError(
            f"release_epsilon={cost}: a comparison releases nothing of single examples; leave it out.",
            field="release_epsilon",
        )
    target = options.pop("epsilon", None)
    of_releases: dict[str, Any] = {}
    for release in take_releases(options, base_rate_threshold=decision.at_counted_rate):
        if isinstance(release, IndividualRelease):  # recorded and not released, as models are not either
            compared["callbacks"] = (*compared.get("callbacks", ()), ExampleEpsilons())
            continue
        values = asdict(release)  # type: ignore[call-overload]
        if not values.keys() <= {each.name for each in fields(ComparisonPlan)}:
            raise SettingError(
                f"a comparison does not release {release.name}; leave it out.", field="releases"
            )
        of_releases |= values
    engine = options.pop("engine", "auto")
    one_of(NAMES)("engine", engine)
    options.pop("checkpoint_seconds", None)  # of one run
    compared["changes"] = tuple(compared.get("changes", ()))
    asked = ComparisonPlan(
        epsilons=epsilons or (() if target is None else (target,)),
        plan=plan or settings or ComparisonPlan.plan,
        metric=run.training.get("metric", ComparisonPlan.metric),
        options=options,
        decision=decision.decision_to_train(),
        engine=engine,
        **of_releases,
        **compared,
    )
    return asked, _source(run, data)


def _source(run: RunFile, data: str | os.PathLike[str] | DataSource | None) -> DataSource:
    """Return the source of the data: an object as it is, or what the options say of a name or a file."""
    if data is None or isinstance(data, str | os.PathLike):
        return run.run_data(data or run.table.get("data") or "digits").source()
    if given := [*(run.table.keys() - {"positive"}), *run.column]:
        raise SettingError(
            f"{given[0]} is for a file, and data is a {type(data).__name__}; leave it out.",
            field=given[0],
        )
    if not callable(getattr(data, "split", None)):
        raise DataError(
            f"data is a {type(data).__name__}; expected the name of a source, the path of a table, or a "
            "source of your own, with name, highlighted_groups and split(seed).",
            field="data",
        )
    return data
