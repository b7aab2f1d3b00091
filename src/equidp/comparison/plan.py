"""ComparisonPlan: what a comparison compares; its variants, which are trained for each seed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple, final

from equidp._validate import check_number, check_whole, unknown_name
from equidp.accounting.planned import default_delta, share_noise
from equidp.advice.advise import DEFAULT_EPSILON, SHARED
from equidp.advice.chosen_plan import ASKED, RECOMMENDED, SETTINGS, ChosenPlan, choose_plan
from equidp.comparison.cells import Cell, Training, count_by_seed, counts_events, split
from equidp.data.class_counts import check_balanced
from equidp.data.dataset import DataSource, GroupedDataset
from equidp.data.features import WithFeatures
from equidp.data.table import COUNTS_SHARE, binning_of, releases_of, with_private_noise
from equidp.errors import SettingError
from equidp.evaluation.costs import check_gap_tolerance
from equidp.evaluation.metrics import Metric, metric_named
from equidp.evaluation.predictions import Decision, base_rate_decision
from equidp.kernel.policy import Policy
from equidp.policies.methods import (
    MethodLike,
    all_settings,
    found_policy,
    method_named,
    name_of,
)
from equidp.policies.table import AUTO, BASELINE, STANDARD
from equidp.training.plan import Plan, checked_seeds
from equidp.training.record import Watch
from equidp.training.release import Charge
from equidp.training.resolved import ResolvedPlan

DEFAULT_METHODS = ("sgd", "dpsgd", "dpsgd-f", "global-adapt", AUTO)
RATES = (1.0, 0.1, 0.3, 3.0, 10.0)
"""Multiples of a plan's learning rate that plain SGD, the reference, is tried at on the first seed."""
PROTECTION, EQUAL, BY_GROUP = "protection", "equal", "by group"
"""Name and values of the setting that distinguishes runs with equal groups from runs by group."""
_NOT_SWEPT = {
    **dict.fromkeys(("epsilon", "risk"), "give several to epsilon (--epsilon 1,3)"),
    **dict.fromkeys(("seed", "method"), "give several to seeds and methods"),
    **dict.fromkeys(("accountant", "delta"), "epsilons are compared by one accountant and delta"),
    **dict.fromkeys(("workers", "physical_batch_size"), "results do not depend on it"),
    **dict.fromkeys(("class_weight", "rates", "bound_shares", "epsilon_by_group"), "it is a table"),
    **dict.fromkeys(("method_settings", "by_method"), "name the setting itself, such as clipping_bound"),
    "sample_rate": "change batch_size",
    "releases": "they are objects",
    "loss": "compare one loss at a time: the values of two are on two scales",
}
_PLAN = tuple(each.name for each in fields(Plan) if each.name not in _NOT_SWEPT)


class Kind(NamedTuple):
    """Kind of run: runs of one kind differ only in their seed."""

    method: str
    setting: str

    @property
    def label(self) -> str:
        """Name in tables."""
        return f"{self.method} ({self.setting})" if self.setting else self.method


@final
@dataclass(frozen=True)
class ComparisonPlan:
    """Plan of a comparison, for any data and any place of training.

    Attributes:
        methods, seeds, plan, changes, gap_tolerance, against, tune, callbacks: see `equidp.compare`.
        epsilons: target epsilons. None: the plan's epsilon.
        options: settings of the plan and of methods, which override `plan`.
        metric: metric of costs, gaps and tests.
        decision: decision for two classes. With `base_rate_threshold`, each run has the base rate that it
            counts.
        engine: name of the gradient engine.
        preprocessing_share, counts_share: shares of epsilon for private preprocessing and counts of classes.
        balanced: weigh the losses of each class by one over its count.

    Raises:
        SettingError, PolicyError: a value that no comparison can have.
    """

    methods: Sequence[MethodLike] = DEFAULT_METHODS
    seeds: int | Sequence[int] = 5
    plan: Plan | str = RECOMMENDED
    epsilons: tuple[float, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    changes: Sequence[Mapping[str, Any]] = ()
    gap_tolerance: float = 0.05
    metric: str | Metric = "accuracy"
    decision: Decision = Decision()
    base_rate_threshold: bool = False
    engine: str = "auto"
    preprocessing_share: float | None = None
    counts_share: float | None = None
    balanced: bool = False
    against: str | None = None
    tune: int | None = None
    callbacks: tuple[Watch, ...] = ()

    def __post_init__(self) -> None:
        check_gap_tolerance(self.gap_tolerance)
        for name in ("preprocessing_share", "counts_share"):
            if getattr(self, name) is not None:
                check_number("(0, 1)", **{name: getattr(self, name)})
        if isinstance(self.plan, str) and self.plan not in SETTINGS:
            raise unknown_name("plan", self.plan, SETTINGS)
        _ = self.seed_numbers, self.target_epsilons, metric_named(self.metric)  # refuse what they cannot be
        policies = named_methods(self.methods)
        _check_changes(self.changes, [method for name, method in policies.items() if name != BASELINE])
        if self.tune is not None:
            check_whole(2, ": the plan's own settings and one other", tune=self.tune)
            if self.changes:
                raise SettingError(
                    f"tune={self.tune} and changes of {', '.join(self.changed)}: settings are either tuned "
                    "for each method or compared. Leave one of the two out.",
                    field="tune",
                )
        private = [*list(policies)[1:], *([AUTO] if AUTO in self.methods else [])]
        if self.against is not None and (self.against not in private or len(private) < 2):
            raise SettingError(
                f"against={self.against!r}; expected one of at least two private methods that are compared: "
                f"{', '.join(private)}. Differences from {BASELINE} are privacy costs.",
                field="against",
            )

    @property
    def seed_numbers(self) -> list[int]:
        """Each seed. One run of each kind is trained by it."""
        return checked_seeds(self.seeds)

    @property
    def target_epsilons(self) -> tuple[float, ...]:
        """Each target epsilon once, or the plan's epsilon. Empty: none was given."""
        for each in self.epsilons:
            check_number("(0, inf)", epsilon=each)
        if self.epsilons:
            return tuple(dict.fromkeys(self.epsilons))
        plan = self.plan if isinstance(self.plan, Plan) else Plan()
        epsilon = plan.with_changes(self.options).run_epsilon
        return () if epsilon is None else (epsilon,)

    def decision_of(self, training: Training) -> Decision:
        """Return the decision of a training. Its base rate is counted with noise, or exactly without
        privacy."""
        if not self.base_rate_threshold:
            return self.decision
        noise = (training.counts_noise or 0.0) if isinstance(training, Cell) else 0.0
        train = split(training.source, training.seed).train
        return base_rate_decision(self.decision.positive, count_by_seed(train, noise, training.seed))

    @property
    def changed(self) -> list[str]:
        """Names of the settings that changes give values of."""
        return list(dict.fromkeys(itertools.chain.from_iterable(self.changes)))


@dataclass(frozen=True)
class Variant:
    """A method with its settings and inputs, trained once for each seed.

    Attributes:
        name: name of the method, in tables.
        method: method to train with.
        plan: how to train.
        source: source of its inputs.
        setting: label of what differs from other runs of the method, or "" without a difference.
        epsilon: target. None: the plan's noise multiplier.
        swept: its changes, by name.
        reference: setting of the reference that it is measured against; for a reference, its own setting.
        rates: multiples of the learning rate to try, of a reference.
        counts_noise, balanced: see `Cell`.
    """

    name: str
    method: MethodLike
    plan: Plan
    source: DataSource
    setting: str = ""
    epsilon: float | None = None
    swept: Mapping[str, Any] = field(default_factory=dict)
    reference: str = ""
    rates: tuple[float, ...] = (1.0,)
    counts_noise: float | None = None
    balanced: bool = False

    @property
    def kind(self) -> Kind:
        """Kind of its runs."""
        return Kind(self.name, self.setting)

    def resolve(self, num_train: int, group_names: Sequence[str] = ()) -> ResolvedPlan:
        """Return the plan for `num_train` examples in these groups, by the name of the method; epsilon covers
        preprocessing and counts of classes too."""
        released = (*releases_of(self.source), *counts_events(self.counts_noise))
        plan = self.plan.for_method(self.method)
        # Other processes may not know the name of the method, nor those of its settings.
        plan = replace(plan, method=plan.policy, method_settings={}, releases=tuple(map(Charge, released)))
        if self.epsilon is not None:
            plan = plan.with_changes(epsilon=self.epsilon)
        return replace(plan.with_usual_noise().resolve(num_train, group_names), method=self.name)

    def with_changes(self, changes: Mapping[str, Any]) -> Variant:
        """Return the variant with other settings, also of a policy that was made."""
        policy, method = found_policy(self.method), self.method
        if isinstance(policy, Policy):
            own = {name: value for name, value in changes.items() if name in _settings(policy)}
            method = replace(policy, **own)  # type: ignore[type-var]
        return replace(self, method=method, plan=self.plan.with_changes(changes))


@final
@dataclass(frozen=True)
class Choice:
    """Plans that the runs of a comparison train by.

    Attributes:
        shared: plan of all methods, except "auto" if it has its own settings.
        automatic: plan of "auto" as a separate method. None: it is not compared, or has the shared settings.
        epsilons: targets. Empty: the noise multiplier of the plans.
        published: whether the reference trains only by the plan, as published.
    """

    shared: ChosenPlan
    automatic: ChosenPlan | None
    epsilons: tuple[float, ...]
    published: bool


def choose_plans(
    asked: ComparisonPlan, source: DataSource, train: GroupedDataset, seed: int, num_examples: int
) -> Choice:
    """Choose the plans of a comparison.

    With recommended settings, every method trains as "auto" does, except for settings of the method itself.
    "auto" is then compared under the name of the method that it recommends. With published settings, or a
    user's plan, "auto" has its own recommended settings. They fit the smallest of several epsilons.

    Args:
        asked: comparison plan.
        source: source of the data.
        train: training part of the smallest split, whose examples hold a batch of every seed.
        seed: seed of that split.
        num_examples: number of examples of the largest training part, from which a delta that is not given
            follows.

    Raises:
        SettingError: the data has no published settings.
    """
    options, automatic = dict(asked.options), None
    level: dict[str, Any] = {"epsilon": min(asked.target_epsilons, default=DEFAULT_EPSILON)}
    if not asked.target_epsilons and "noise_multiplier" in options:
        level = {}
    if isinstance(asked.plan, Plan):
        shared = ChosenPlan(asked.plan.with_changes(options), otherwise=ASKED)
    else:
        shared = choose_plan(source, train, seed, options, asked.plan, swept=asked.changed, level=level)
    recommended = asked.plan == RECOMMENDED
    if AUTO in asked.methods and not recommended:
        of_plan = {name: getattr(shared.plan, name) for name in SHARED}
        of_plan = {name: value for name, value in of_plan.items() if value != getattr(Plan, name)}
        automatic = choose_plan(source, train, seed, {**of_plan, **options}, level=level)
        automatic = _with_delta(automatic, num_examples)
    epsilons = asked.target_epsilons
    if recommended and not epsilons and "noise_multiplier" not in {*options, *asked.changed}:
        epsilons = (DEFAULT_EPSILON,)
    published = isinstance(asked.plan, str) and not recommended
    return Choice(_with_delta(shared, num_examples), automatic, epsilons, published)


def _with_delta(chosen: ChosenPlan, num_examples: int) -> ChosenPlan:
    if chosen.plan.delta is not None:
        return chosen
    return replace(chosen, plan=replace(chosen.plan, delta=default_delta(num_examples)))


def private_variants(
    asked: ComparisonPlan, choice: Choice, source: DataSource, num_examples: int
) -> list[Variant]:
    """Return every private method at every epsilon and change that it has, and "auto" at every epsilon.

    Args:
        asked: comparison plan.
        choice: plans.
        source: source of the data, without features or binning that advice chooses.
        num_examples: number of examples for which "auto" without a target uses the epsilon of DP-SGD.

    Raises:
        SettingError: an epsilon or a setting that no run can have.
    """
    plan, shared = choice.shared.plan, choice.shared.source(source)
    if with_delta := [method for method, changes in plan.by_method.items() if "delta" in changes]:
        raise SettingError(
            f"by_method {', '.join(with_delta)!r} has a delta; a comparison has one delta, set in the plan "
            "(--delta).",
            field="delta",
        )
    methods = [each for each in asked.methods if each != AUTO]
    if AUTO in asked.methods and choice.automatic is None and choice.shared.method not in methods:
        methods.insert(asked.methods.index(AUTO), choice.shared.method)
    variants: list[Variant] = []
    targets: Sequence[float | None] = choice.epsilons or (None,)
    shown = {epsilon: {"epsilon": epsilon} if len(targets) > 1 else {} for epsilon in targets}
    for name, method in named_methods(methods, alone=True).items():
        if name != BASELINE:
            for epsilon, changes in itertools.product(targets, _changes_of(method, asked.changes)):
                swept = {key: value if _plain(value) else value_text(value) for key, value in changes.items()}
                setting = label_of({**shown[epsilon], **swept})
                variant = Variant(name, method, plan, shared, setting, epsilon, swept)
                variants.append(variant.with_changes(changes))
    if (own := choice.automatic) is not None:
        settings = own.plan.for_method(own.method)
        if not choice.epsilons:  # what DP-SGD spends by the plan
            standard = plan.for_method(STANDARD).with_usual_noise().resolve(num_examples)
            targets, shown = [spent := standard.epsilon("pld")], {spent: {}}
        for epsilon in targets:
            setting = label_of(shown[epsilon])
            variants.append(Variant(AUTO, settings.policy, settings, own.source(source), setting, epsilon))
    return [_with_releases(each, asked) for each in with_equal_groups(variants)]


def with_equal_groups(variants: Sequence[Variant]) -> list[Variant]:
    """Return the variants, each with rates or bounds by group after one with equal groups."""
    found = []
    for each in variants:
        plan = each.plan.for_method(each.method)
        if not plan.groups:
            found.append(each)
            continue
        for value, of_value in ((EQUAL, plan.without_groups()), (BY_GROUP, each.plan)):
            label = label_of({PROTECTION: value})
            setting = f"{each.setting}, {label}" if each.setting else label
            swept = {**each.swept, PROTECTION: value}
            found.append(replace(each, plan=of_value, setting=setting, swept=swept))
    return found


def _with_releases(variant: Variant, asked: ComparisonPlan) -> Variant:
    """Return a private variant with the requested private preprocessing and class counts."""
    source, delta = variant.source, variant.plan.delta
    assert delta is not None
    check_balanced(asked.balanced, variant.plan.for_method(variant.method).class_weight)
    if (share := asked.preprocessing_share) is not None:
        if releases_of(source):
            raise SettingError(
                "the source preprocesses privately already; leave out preprocessing_share.",
                field="preprocessing_share",
            )
        noise = share_noise("preprocessing_share", share, variant.epsilon, delta)
        source = with_private_noise(source, noise)
    share, counts_noise = asked.counts_share, None
    if share is None and (asked.balanced or asked.base_rate_threshold):
        share = COUNTS_SHARE
    if share is not None:
        counts_noise = share_noise("counts_share", share, variant.epsilon, delta)
    return replace(variant, source=source, counts_noise=counts_noise, balanced=asked.balanced)


def reference_variants(
    asked: ComparisonPlan, choice: Choice, source: DataSource, private: Sequence[Variant]
) -> tuple[list[Variant], list[Variant]]:
    """Return plain SGD for each model and inputs that private variants have, and these with its names.

    The reference of the plan's own model has the setting "". The reference of another has what differs.

    Args:
        asked: comparison plan.
        choice: plans.
        source: source of the data, without features or binning that advice chooses.
        private: variants.
    """
    read = choice.shared.source(source)
    own = choice.shared.plan.for_method(BASELINE)
    plans: dict[tuple[Any, DataSource], tuple[Plan, bool]] = {(own.model, read): (own, choice.published)}
    classes = []
    for each in private:
        inputs = each.source if asked.preprocessing_share is None else exact_source(each.source)
        of_method = each.plan.for_method(each.method)
        classes.append((of_method.model, inputs))
        by_plan = choice.published and each.name != AUTO
        plans.setdefault(classes[-1], (replace(of_method, method_settings={}), by_plan))
    names: dict[tuple[Any, DataSource], str] = {}
    found: list[Variant] = []
    for model, inputs in [key for key in plans if key in classes]:
        plan, by_plan = plans[model, inputs]
        parts = {"model": model} if model != own.model else {}
        if inputs != read:
            parts |= {"features": inputs.label} if isinstance(inputs, WithFeatures) else {}
            parts |= {} if parts else {"binning": binning_of(inputs) or inputs.name}
        name = label_of(parts) if len({*classes}) > 1 else ""
        again = sum(each.partition(" #")[0] == name for each in names.values())
        names[model, inputs] = name = f"{name} #{again + 1}" if again else name
        counted = asked.balanced or asked.base_rate_threshold or asked.counts_share is not None
        found.append(
            Variant(
                BASELINE,
                BASELINE,
                replace(plan.for_method(BASELINE), method_settings={}),
                inputs,
                setting=name,
                reference=name,
                rates=(1.0,) if by_plan or asked.tune else RATES,
                counts_noise=0.0 if counted else None,
                balanced=asked.balanced,
            )
        )
    named = zip(private, classes, strict=True)
    return found, [replace(each, reference=names[of_class]) for each, of_class in named]


def exact_source(source: DataSource) -> DataSource:
    """Return the source with exact preprocessing."""
    return replace(source, private_noise=None) if releases_of(source) else source  # type: ignore[type-var]


def named_methods(methods: Sequence[MethodLike], *, alone: bool = False) -> dict[str, MethodLike]:
    """Return name -> method without "auto", the baseline first. Settings distinguish policies of one class.

    Args:
        methods: names, import paths, policies and classes.
        alone: whether the baseline may be the only method.

    Raises:
        SettingError, PolicyError: an unknown method, two of one name, or no method but the baseline.

    >>> from equidp.policies import DPSGD
    >>> list(named_methods(["dpsgd", DPSGD(1.0), DPSGD(2.0)]))
    ['sgd', 'dpsgd', 'dpsgd clipping_bound=1', 'dpsgd clipping_bound=2']
    """
    if isinstance(methods, str) or not isinstance(methods, Iterable):
        raise SettingError(
            f"methods={methods!r}; expected a list of names, such as ['sgd', 'dpsgd'].", field="methods"
        )
    chosen: list[MethodLike] = [BASELINE]
    for method in methods:
        if method == AUTO:
            continue
        method_named(method)
        if name_of(method) == BASELINE:
            continue
        if method in chosen:
            raise SettingError(f"methods has {name_of(method)!r} twice; leave one out.", field="methods")
        chosen.append(method)
    if len(chosen) == 1 and AUTO not in methods and not alone:
        raise SettingError(
            f"methods={list(methods)}; expected at least one private method besides {BASELINE!r}.",
            field="methods",
        )
    plain = [name_of(method) for method in chosen]
    named: dict[str, MethodLike] = {}
    for method, name in zip(chosen, plain, strict=True):
        label = name if plain.count(name) == 1 or isinstance(method, str) else _distinguish(method, chosen)
        if label in named:
            raise SettingError(
                f"two methods are called {label!r}; rename one of the classes.", field="methods"
            )
        named[label] = method
    return named


def _distinguish(method: MethodLike, others: Sequence[MethodLike]) -> str:
    """Return a policy's name with the settings that differ from others of its class, or with all settings."""
    if not isinstance(method, Policy):
        return name_of(method)
    settings = asdict(method)  # type: ignore[call-overload]
    alike = [asdict(each) for each in others if type(each) is type(method)]  # type: ignore[call-overload]
    differing = [name for name in settings if len({each[name] for each in alike}) > 1]
    return f"{name_of(method)} {label_of({name: settings[name] for name in differing or settings})}".strip()


def label_of(settings: Mapping[str, Any]) -> str:
    """Label of settings, such as "learning_rate=0.1, epochs=20"."""
    return ", ".join(f"{name}={value_text(value)}" for name, value in settings.items())


def value_text(value: Any) -> str:
    """Text of a setting's value in labels."""
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(getattr(value, "__name__", value))


def _plain(value: Any) -> bool:
    return isinstance(value, int | float | str | None)


def _settings(method: MethodLike) -> set[str]:
    return {each.name for each in fields(method_named(method).policy)}  # type: ignore[arg-type]


def _changes_of(method: MethodLike, changes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the different changes of settings that a method has."""
    has, found = {*_PLAN, *_settings(method)}, list[dict[str, Any]]()
    for each in changes or ({},):
        own = {name: value for name, value in each.items() if name in has}
        if own not in found:
            found.append(own)
    return found


def _check_changes(changes: Sequence[Mapping[str, Any]], methods: Sequence[MethodLike]) -> None:
    taken = {*_PLAN}.union(*map(_settings, methods))
    if isinstance(changes, str | Mapping) or not all(isinstance(each, Mapping) for each in changes):
        raise SettingError(
            f"changes={changes!r}; expected a list of settings by name, such as "
            "[{'clipping_bound': 0.5}, {'clipping_bound': 1.0}].",
            field="changes",
        )
    for name in itertools.chain.from_iterable(changes):
        if name in _NOT_SWEPT:
            raise SettingError(f"changes of {name!r}: {_NOT_SWEPT[name]}.", field=name)
        if name not in taken:
            owners = all_settings().get(name)
            if owners is None:
                raise unknown_name("setting to change", name, taken)
            raise SettingError(
                f"changes of {name!r}: it is a setting of {', '.join(owners)}, and none of them is compared; "
                f"add one, or change another: {', '.join(sorted(taken))}.",
                field=name,
            )
