"""ChosenPlan: settings that runs train by, each with its origin; one choice for training and comparisons."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, final

from equidp._validate import unknown_name
from equidp.advice.advise import DEFAULT_EPSILON, Advice, advise, images_of, normalised_features
from equidp.data.dataset import DataSource, GroupedDataset
from equidp.data.features import WithFeatures, add_features
from equidp.data.published import published_settings
from equidp.data.table import ColumnSource, add_binning
from equidp.errors import SettingError
from equidp.policies.methods import MethodLike, fixed_options
from equidp.policies.table import AUTO, STANDARD
from equidp.tables.intervals import CUT, STANDARD as STANDARD_BINNING
from equidp.training.plan import Plan, default_plan
from equidp.training.resolved import ResolvedPlan

RECOMMENDED, PUBLISHED = "recommended", "published"
SETTINGS = {
    RECOMMENDED: "those that did best on data of this kind",
    PUBLISHED: "those that the dataset was published with",
}
"""Settings to start from -> which they are; options that are given are over them."""

ASKED, RULE, DEFAULT = "given", "rule", "default"
"""Origins of a setting: the user, a rule (of the data, the method, a target or a search), or its default."""


@final
@dataclass(frozen=True)
class ChosenPlan:
    """Training settings for any method, each with its origin.

    Attributes:
        plan: training settings.
        method: method that "auto" stands for.
        features: features that are trained on. None: inputs as they are.
        binning: binning of the columns of a table, such as "cut:4,16". None: the data has no columns.
        origins: setting -> its origin.
        otherwise: origin of all other settings.
        advice: advice with these settings and the reasons that hold for them. None: other settings than
            recommended.
    """

    plan: Plan
    method: str = STANDARD
    features: str | None = None
    binning: str | None = None
    origins: Mapping[str, str] = field(default_factory=dict)
    otherwise: str = DEFAULT
    advice: Advice | None = None

    def source(self, given: DataSource) -> DataSource:
        """Source with the features as inputs, or with the binning of columns; what `given` has stays."""
        return add_binning(add_features(given, self.features), self.binning)

    def origin(self, name: str, method: str = "") -> str:
        """Origin of a setting, as a method has it."""
        if method and name in {**fixed_options(method), **self.plan.by_method.get(method, {})}:
            return RULE if self.otherwise == DEFAULT else self.otherwise
        return self.origins.get(name, self.otherwise)


def choose_plan(
    source: DataSource,
    train: GroupedDataset,
    seed: int,
    given: Mapping[str, Any],
    settings: str = RECOMMENDED,
    *,
    method: MethodLike = AUTO,
    swept: Collection[str] = (),
    level: Mapping[str, Any] = {"epsilon": DEFAULT_EPSILON},
) -> ChosenPlan:
    """Choose the settings of runs on data: recommended or published ones, with the user's over them.

    It reads only shapes and the number of examples. Columns are cut unless another binning or a model is
    given.

    Args:
        source: source of the data, as the user gives it.
        train: training part of the split of `source_to_read`.
        seed: seed of the split.
        given: settings of the plan and of methods that the user gives, by name.
        settings: name from `SETTINGS`.
        method: method to train by; "auto": the recommended one.
        swept: names of settings that the user compares values of.
        level: epsilon or risk of the runs, by name; the strictest of several.

    Raises:
        SettingError: the data has no published settings, or there are too few examples for the target.

    Example:
        >>> from equidp.data import open_source
        >>> source = open_source("digits")
        >>> chosen = choose_plan(source, source.split(seed=0).train, 0, {"epochs": 5})
        >>> chosen.method, chosen.features, chosen.plan.batch_size, chosen.plan.epochs
        ('dpsgd', 'scattering', 512, 5)
        >>> [chosen.origin(name) for name in ("epochs", "batch_size", "delta", "weight_decay")]
        ['given', 'rule', 'rule', 'default']
    """
    published = published_settings(source)
    if settings == PUBLISHED:
        check_published(source)
        plan = default_plan(source).with_changes(given)
        return ChosenPlan(plan, origins=_origins(plan, given, published))
    if settings != RECOMMENDED:
        raise unknown_name("settings", settings, SETTINGS)
    # before rules compute with what was given
    _ = Plan().with_changes(given).for_method(STANDARD if method == AUTO else method).policy
    own_model = "model" in {*given, *swept}
    binning = _binning(source, own_model=own_model)
    of_method = {} if method == AUTO else fixed_options(method)
    known = {**{name: published[name] for name in ("delta",) if name in published}, **given, **of_method}
    advice = advise(images_of(source, seed) or train, level, known, binning, normalised_features(source))
    features = None if own_model else advice.features
    if isinstance(source, WithFeatures):
        features = source.label
    start, of_dataset = default_plan(source), published
    if advice.settings:
        plain = source.source if isinstance(source, WithFeatures) else source
        of_dataset = {name: value for name, value in published_settings(plain).items() if name == "delta"}
        start = advice.plan(Plan(**of_dataset))
    plan = start.with_changes(given)
    origins = _origins(plan, given, advice.settings, of_dataset)
    origins |= {"features": ASKED if isinstance(source, WithFeatures) else RULE if features else DEFAULT}
    if isinstance(source, ColumnSource):
        by_default = DEFAULT if advice.binning is None else RULE
        origins["binning"] = by_default if source.binning is None else ASKED
    taken = advice.with_settings(given, features, advice.method if method == AUTO else method)
    return ChosenPlan(plan, advice.method, features, binning, origins, advice=taken)


def source_to_read(
    source: DataSource,
    given: Mapping[str, Any],
    settings: str = RECOMMENDED,
    *,
    swept: Collection[str] = (),
) -> DataSource:
    """Return the source with the binning that `choose_plan` takes, so that rows are read and encoded once.

    The binning follows only from the source, and from the names of the settings that the user gives.
    Arguments as in `choose_plan`.

    >>> from equidp.data import open_source
    >>> adult = open_source("adult")
    >>> source_to_read(adult, {}).binning, source_to_read(adult, {"model": "mlp"}).binning
    ('cut', None)
    """
    if settings != RECOMMENDED:
        return source
    return add_binning(source, _binning(source, own_model="model" in {*given, *swept}))


def _binning(source: DataSource, *, own_model: bool) -> str | None:
    """Return the binning of a source's columns: its own, or cut for the recommended model."""
    if not isinstance(source, ColumnSource):
        return None
    return source.binning or (STANDARD_BINNING if own_model else CUT)


def check_published(source: DataSource) -> None:
    """Raise a SettingError unless a source has published settings."""
    if not published_settings(source):
        raise SettingError(
            f"settings={PUBLISHED!r}, but {source.name!r} has no published settings for these inputs; leave "
            "it out, which takes the recommended settings, or give each setting as an option.",
            field="settings",
        )


def _origins(plan: Plan, given: Mapping[str, Any], *by_rule: Mapping[str, Any]) -> dict[str, str]:
    """Origin of each setting that was given or follows from a rule, as the plan has it."""
    values = {**plan.method_settings, **{name: getattr(plan, name) for name in Plan.names()}}
    origins: dict[str, str] = {}
    for settings, origin in (*((each, RULE) for each in by_rule), (given, ASKED)):
        taken = {name for name, value in settings.items() if values.get(name) == value}
        origins |= dict.fromkeys(taken - {"by_method"}, origin)
    return origins


class SettingRow(NamedTuple):
    """Setting of runs with its value and its origin; `methods`: that have it so, empty: all of them."""

    name: str
    value: Any
    origin: str
    methods: tuple[str, ...] = ()


class ChosenRun(NamedTuple):
    """A run's plan as it was chosen and as it was worked out.

    Attributes:
        chosen: plan and origins.
        resolved: the same, worked out.
        targeted: whether its noise meets a target.
        tuned: names of settings that were chosen by trials.
    """

    chosen: ChosenPlan
    resolved: ResolvedPlan
    targeted: bool
    tuned: Collection[str] = ()


def setting_rows(
    runs: Sequence[ChosenRun],
    *,
    epsilons: Sequence[float] = (),
    epsilons_from: str = ASKED,
    swept: Mapping[str, Sequence[Any]] | None = None,
) -> tuple[SettingRow, ...]:
    """Return every setting of runs with value and origin: targets, the plan, then settings of methods.

    Args:
        runs: each kind of run. Several runs of a method list their values.
        epsilons: targets of the private runs.
        epsilons_from: origin of the targets.
        swept: settings of which several values are compared -> those values.
    """
    methods = list(dict.fromkeys(run.resolved.method for run in runs))
    by_method: dict[tuple[str, str], tuple[list[Any], str]] = {}
    for run in runs:
        resolved = run.resolved
        settings, changed = resolved.settings, resolved.plan.changed_options.keys() - {"method", "epsilon"}
        listed = [each.name for each in Plan.options() if each.metadata["listed"] or each.name in changed]
        columns = {} if run.chosen.binning is None else {"binning": run.chosen.binning}
        values = {"features": run.chosen.features, **columns, **{name: settings[name] for name in listed}}
        values |= asdict(resolved.policy)  # type: ignore[call-overload]
        if not resolved.policy.private:
            del values["noise_multiplier"]
        for name, value in values.items():
            origin = run.chosen.origin(name, resolved.method)
            if name in run.tuned or (name == "noise_multiplier" and run.targeted):
                origin = RULE
            elif name in (swept or {}) and resolved.policy.private:
                origin = ASKED
            of_runs, _ = by_method.setdefault((name, resolved.method), ([], origin))
            if value not in of_runs:
                of_runs.append(value)
    alike: dict[str, tuple[SettingRow, list[str]]] = {}
    for (name, method), (values_of, origin) in by_method.items():
        row = SettingRow(name, _one_or_all(values_of), origin)
        alike.setdefault(repr(row), (row, []))[1].append(method)
    rows = [row._replace(methods=() if own == methods else tuple(own)) for row, own in alike.values()]
    names = list(dict.fromkeys(name for name, _ in by_method))
    rows.sort(key=lambda row: names.index(row.name))
    targets = [SettingRow("epsilon", _one_or_all(epsilons), epsilons_from)] if epsilons else []
    return (*targets, *rows)


def _one_or_all(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)
