"""Plan: settings of training for any method; ResolvedPlan: the same, worked out for one method and n."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields, replace
from typing import Any

from torch import nn

from equidp._validate import check_number, check_whole, unknown_name
from equidp.accounting.calibration import PROTECTIONS
from equidp.accounting.groups import GroupSettings
from equidp.accounting.planned import (
    checked_schedule,
    default_delta,
)
from equidp.accounting.target import Target
from equidp.data.dataset import DataSource
from equidp.data.published import published_settings
from equidp.data.targets import parse_class_weights
from equidp.data.views import AUGMENTATIONS, Views
from equidp.errors import SettingError
from equidp.kernel.engine import LossFunction
from equidp.kernel.epsilon import checked_delta
from equidp.kernel.ledger import StepEvent
from equidp.kernel.policy import Policy
from equidp.losses import LOSSES
from equidp.models import MODELS, model_named
from equidp.policies.methods import MethodLike, all_settings, fixed_options, make_policy, name_of
from equidp.training.averages import AVERAGES, WeightAverage
from equidp.training.optimizers import ADAM_RATE, OPTIMIZERS, SCHEDULES, check_optimizer_name

GROUP_OPTIONS = ("rates", "bound_shares", "epsilon_by_group", "protect_by")
"""Options of a plan by which groups differ; keys of results that were kept before them leave them out."""
ModelFactory = Callable[[tuple[int, ...], int], nn.Module]
"""(shape of one input, number of classes) -> a model with fresh weights from torch's global generator."""
Check = Callable[[str, Any], None]
"""Raises SettingError unless an option, by name, can have a value."""
OnCard = Callable[["Plan"], bool]
"""True for plans of which a model card lists an option."""


def option(
    default: Any,
    meaning: str,
    check: Check | None = None,
    names: Iterable[str] = (),
    *,
    label: str = "",
    on_card: OnCard | None = None,
    flag: bool = True,
) -> Any:
    """Return a field of `Plan`, from which the command line, the check, the run's files and the card follow.

    Other parts of a run have such fields too, which are options of commands.

    Args:
        default: its value where none is given; MISSING: it must be given. A value of None is not checked.
        meaning: its help, in a sentence.
        check: of one value.
        names: values that the command line completes to; others may be accepted too.
        label: on the card; "": the option's name.
        on_card: plans whose card lists the option; None: plans in which it differs from its default.
        flag: True: commands have an option of this name; False: they take it by --set.
    """
    metadata = {
        "help": meaning,
        "check": check,
        "names": tuple(names),
        "label": label,
        "on_card": on_card,
        "flag": flag,
    }
    return field(default=default, metadata=metadata)


def check_options(part: Any) -> None:
    """Raise a SettingError unless each field of a part made by `option` has a value that its check takes."""
    for each in fields(part):
        value, check = getattr(part, each.name), each.metadata.get("check")
        if check is not None and value is not None:
            check(each.name, value)


def one_of(known: Iterable[str]) -> Check:
    """Return the check of a name among known ones."""

    def check(name: str, value: Any) -> None:
        if value not in known:
            raise unknown_name(name, value, known)

    return check


def _always(plan: Plan) -> bool:
    """True: each card lists the option."""
    return True


def _in_facts(plan: Plan) -> bool:
    """False: the card has the option as a fact or a release of the run, also of one without a plan."""
    return False


def _number(interval: str, hint: str = "") -> Check:
    return lambda name, value: check_number(interval, hint, **{name: value})


def _check_model(name: str, value: Any) -> None:
    if isinstance(value, nn.Module):
        raise SettingError(
            "model is a module; expected a name, or a function that makes a fresh one for each training: "
            "lambda shape, classes: nn.Linear(shape[0], classes).",
            field="model",
        )
    if isinstance(value, str):
        model_named(value)


def _check_loss(name: str, value: Any) -> None:
    if isinstance(value, str) and value not in LOSSES:
        raise SettingError(
            f"loss={value!r}; expected a function of (outputs, targets) that gives a loss for each example.",
            field=name,
        )


@dataclass(frozen=True)
class Plan:
    """Settings of training, whatever the method. A new one is a field made by `option`, and nothing else.

    Attributes:
        model: a name from `equidp.models.MODELS`, an import path such as "my_module:make_model", or a
            factory.
        learning_rate: of the optimizer; None: 1 / sqrt(steps), as Xu et al. set it.
        batch_size: b, expected; 0: all examples.
        epochs: passes over the training data.
        noise_multiplier: sigma.
        delta: None: a tenth of 1 / n, rounded down to a power of ten.
        loss: what is trained on: a function of (outputs, targets) that gives one loss for each example;
            None: cross entropy.
        momentum, weight_decay: of the optimizer; they act on private gradients, so they cost no privacy.
        schedule: of the learning rate, over all steps: "constant", "linear" or "cosine"; the last two end at
            zero. A run that a budget cuts short has its schedule over the steps that the budget holds.
        optimizer: "sgd", or "adam", which is `PrivateAdam`; it has momentum of its own.
        average, average_share: the `WeightAverage` that the run releases: "none", "tail" or "ema", and over
            which share of the steps.
        views, augmentation: the `Views` of images that are trained on.
        class_weight: class -> public number that multiplies the losses of its examples before their gradients
            are clipped, also as a text such as "no=1,yes=8"; other classes have 1. Only ratios count: all are
            divided by the largest. None: all are 1.
        rates, bound_shares: group -> public multiple of the sample rate, and share of the bound, also as a
            text such as "rare=2,*=1"; see `Trainer`. A method without privacy ignores both, and budgets.
        epsilon_by_group: group -> epsilon, which also covers what is released beside the steps; see
            `Trainer`.
        protect_by: whether rates or bounds of groups follow from these epsilons; see `Trainer`.
        method_settings: settings of methods by name, such as clipping_bound; each method takes those it has.
        by_method: method -> fields of the plan and settings of the method that differ for it.

    Raises:
        SettingError: a value outside its range, an unknown name.

    Example:
        >>> import equidp
        >>> plan = equidp.Plan("mlp", epochs=2, method_settings={"clipping_bound": 0.5})
        >>> plan.resolve("dpsgd", num_examples=1024).steps
        8
    """

    model: str | ModelFactory = option(
        "logistic",
        "Model, or my_module:make_model; default: of the dataset, or logistic.",
        _check_model,
        MODELS,
        on_card=_always,
    )
    learning_rate: float | None = option(0.1, "Learning rate.", _number("(0, inf)"), on_card=_in_facts)
    batch_size: int = option(
        256,
        "Expected size of a Poisson sample; 0: all examples.",
        lambda name, value: check_whole(0, **{name: value}),
        on_card=_in_facts,
    )
    epochs: float = option(20, "Passes over the training data.", _number("(0, inf)"), on_card=_always)
    noise_multiplier: float = option(
        1.0,
        "Noise as a multiple of the sensitivity, instead of --epsilon.",
        _number("[0, inf)"),
        on_card=_in_facts,
    )
    delta: float | None = option(
        None,
        "Delta of the whole run; default: a tenth of 1 / n, rounded down to a power of ten.",
        _number("(0, 1)", ", a probability well below 1 / n"),
        on_card=_in_facts,
    )
    momentum: float = option(
        0.0,
        "Momentum of SGD.",
        _number("[0, 1)", ": steps would grow without end"),
        on_card=_always,
        flag=False,
    )
    weight_decay: float = option(
        0.0, "Weight decay of the optimizer.", _number("[0, inf)"), on_card=_always, flag=False
    )
    optimizer: str = option(
        "sgd",
        "sgd, or adam without the noise's variance in its second moments. Free.",
        one_of(OPTIMIZERS),
        OPTIMIZERS,
        on_card=_in_facts,
        flag=False,
    )
    schedule: str = option(
        "constant",
        "Learning rate over the run; linear and cosine end at zero. Free.",
        one_of(SCHEDULES),
        SCHEDULES,
        label="schedule of the learning rate",
        flag=False,
    )
    average: str = option(
        "none",
        "Weights to release: of the last step, or averaged over the last ones (tail) or exponentially (ema). "
        "Free.",
        names=AVERAGES,
        label="average of the weights",
        flag=False,
    )
    average_share: float = option(
        WeightAverage.share,
        "Share of the steps that a tail has, or the horizon of ema.",
        label="share of the steps in that average",
        on_card=lambda plan: plan.average != "none",
        flag=False,
    )
    views: int = option(
        1,
        "Augmented views of each sampled image, whose losses are averaged. Free, but K times the work.",
        on_card=_in_facts,
        flag=False,
    )
    augmentation: str = option(
        "none",
        "How images are varied in training: flip, shift, flip-shift. Free.",
        names=AUGMENTATIONS,
        on_card=_in_facts,
        flag=False,
    )
    class_weight: Mapping[str, float] | str | None = option(
        None,
        "Public weights of the classes' losses, for rare classes: no=1,yes=8; default: 1 each. "
        "balanced: by counts with noise, in equidp train and compare.",
        label="weights of classes (public)",
    )
    loss: str | LossFunction | None = option(
        None,
        "User-defined loss of each example; default: cross entropy.",
        _check_loss,
    )
    epsilon_by_group: Mapping[str, float] | str | None = option(
        None,
        "Epsilon of each group, at most that of the run: rare=1,*=3; *: all other groups.",
        label="epsilon that each group was to have at most",
    )
    protect_by: str = option(
        PROTECTIONS[0],
        "Rates follow from --epsilon-by-group (sampling), or shares of bounds from it or --rates (scaling).",
        one_of(PROTECTIONS),
        PROTECTIONS,
        flag=False,
    )
    rates: Mapping[str, float] | str | None = option(
        None,
        "Public multiples of the sample rate by group, each with an epsilon of its own: rare=2,*=1.",
        label="rates of groups (public)",
    )
    bound_shares: Mapping[str, float] | str | None = option(
        None,
        "Public shares of the clipping bound by group, from 1/16 to 1: rare=0.5,*=1.",
        label="shares of the bound by group (public)",
    )
    method_settings: Mapping[str, Any] = field(default_factory=dict)
    by_method: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_options(self)
        check_optimizer_name(self.optimizer, self.momentum)
        # refuse what does not go together
        _ = self.weight_average, self.image_views, self.class_weights, self.groups
        known, own = all_settings(), self.names()
        for name in self.method_settings:
            if name not in known:
                raise unknown_name("method setting", name, known)
        for method, changes in self.by_method.items():
            for name in changes:
                if name not in known and name not in own:
                    raise unknown_name(f"setting of {method}", name, [*known, *own])

    @classmethod
    def options(cls) -> list[Field[Any]]:
        """Return the fields made by `option`: all but the settings of methods."""
        return [each for each in fields(cls) if "help" in each.metadata]

    @classmethod
    def names(cls) -> set[str]:
        """Names of the options."""
        return {each.name for each in cls.options()}

    def to_plain(self) -> dict[str, Any]:
        """Return all fields as plain values; a model or a loss that is no name is its own name."""
        content = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**content, "model": self.model_name, "loss": self.loss_name or None}

    @property
    def changed_options(self) -> dict[str, Any]:
        """Options that differ from their defaults, by name, as plain values."""
        plain = self.to_plain()
        return {
            each.name: plain[each.name] for each in self.options() if getattr(self, each.name) != each.default
        }

    @property
    def factory(self) -> ModelFactory:
        """Function that makes the model."""
        return model_named(self.model) if isinstance(self.model, str) else self.model

    @property
    def loss_function(self) -> LossFunction | None:
        """The loss; None for cross entropy."""
        return LOSSES[self.loss] if isinstance(self.loss, str) else self.loss

    @property
    def loss_name(self) -> str:
        """The loss's name, for a reader; "" for cross entropy."""
        return "" if self.loss is None else _name(self.loss)

    @property
    def weight_average(self) -> WeightAverage:
        """Average of the weights that a run releases."""
        return WeightAverage(self.average, self.average_share)

    @property
    def image_views(self) -> Views:
        """Views of images that are trained on."""
        return Views(self.views, self.augmentation)

    @property
    def class_weights(self) -> Mapping[str, float] | None:
        """Weights by class name; None: all are 1."""
        weights = self.class_weight
        return parse_class_weights(weights) if isinstance(weights, str) else weights

    @property
    def groups(self) -> GroupSettings:
        """Rates, bounds and budgets by group."""
        given = self.rates, self.bound_shares, self.epsilon_by_group
        return GroupSettings.of(*given, self.protect_by)

    @property
    def model_name(self) -> str:
        """The model's name, for a reader."""
        return _name(self.model)

    def with_changes(self, changes: Mapping[str, Any]) -> Plan:
        """This plan with other fields, or settings of methods, which then hold for every method.

        Another optimizer has the learning rate and the momentum that go with it, unless they are given.
        """
        optimizer = changes.get("optimizer", self.optimizer)
        if optimizer != self.optimizer:
            rate = ADAM_RATE if optimizer == "adam" else Plan.learning_rate
            changes = {"learning_rate": rate, "momentum": Plan.momentum, **changes}
        kept = {
            method: {name: value for name, value in settings.items() if name not in changes}
            for method, settings in self.by_method.items()
        }
        return replace(self._with_values(changes), by_method=kept)

    def for_method(self, method: MethodLike) -> Plan:
        """This plan with the settings that `by_method` holds for one method, and the options it fixes."""
        own = {**self.by_method.get(name_of(method), {}), **fixed_options(method)}
        return replace(self._with_values(own), by_method={})

    def policy(self, method: MethodLike) -> Policy:
        """The method's policy under this plan. A policy that was made keeps its own settings."""
        return make_policy(method, self.for_method(method).method_settings)

    def resolve(
        self,
        method: MethodLike,
        num_examples: int,
        target: Target = Target(),
        *,
        also_spent: tuple[tuple[StepEvent, int], ...] = (),
        group_names: Sequence[str] = (),
    ) -> ResolvedPlan:
        """Work out this plan for one method and n training examples.

        Args:
            method: a name from `METHODS`, an import path, or a policy or its class.
            num_examples: n, public.
            target: epsilon or risk that the noise is calibrated to; without both, the noise is the plan's.
            also_spent: (event, count) pairs that the same target must cover, such as a release.
            group_names: of the data; empty: not known, and rates of all other groups than those named count.

        Raises:
            SettingError: a plan of no steps, a target for a method without privacy, one that cannot be
                met, or an unknown group.
        """
        own, policy = self.for_method(method), self.policy(method)
        own = replace(own, batch_size=own.batch_size or num_examples)
        if not policy.private:
            own = own.without_groups()
        groups = own.groups
        target = _with_budgets(target, groups, group_names)
        delta = checked_delta(default_delta(num_examples) if own.delta is None else own.delta)
        rate, steps = checked_schedule(num_examples, own.batch_size, epochs=own.epochs)
        if not policy.private:
            if not target.is_open:
                raise SettingError(
                    f"{name_of(method)} takes no noise and has no epsilon; choose a private method, such as "
                    "dpsgd.",
                    field="method",
                )
            noise: float | None = 0.0
        else:
            unit = groups.step_event(rate, 1.0, policy.statistics_ratio, group_names)
            noise = target.noise_multiplier(delta, unit, steps, also_spent)
        noise = own.noise_multiplier if noise is None else noise
        if groups.is_open:
            groups = groups.meet_budgets(
                groups.step_event(rate, noise, policy.statistics_ratio, group_names),
                steps,
                delta,
                target.epsilon,
                accountant=target.accountant,
                spent=also_spent,
                group_names=group_names,
            )
        return ResolvedPlan(
            plan=own,
            method=name_of(method),
            policy=policy,
            learning_rate=steps**-0.5 if own.learning_rate is None else own.learning_rate,
            sample_rate=rate,
            steps=steps,
            noise_multiplier=noise,
            delta=delta,
            rates=groups.rates or None,
            bound_shares=groups.bound_shares or None,
        )

    def without_groups(self) -> Plan:
        """Return the plan with no rates, bounds and budgets by group."""
        return replace(
            self,
            rates=None,
            bound_shares=None,
            epsilon_by_group=None,
            protect_by=PROTECTIONS[0],
        )

    def _with_values(self, changes: Mapping[str, Any]) -> Plan:
        own = {name: value for name, value in changes.items() if name in self.names()}
        of_methods = {name: value for name, value in changes.items() if name not in self.names()}
        return replace(self, **own, method_settings={**self.method_settings, **of_methods})


def _with_budgets(target: Target, groups: GroupSettings, group_names: Sequence[str]) -> Target:
    """Target with the largest budget of groups as its epsilon; the same without budgets."""
    groups.check_risk(target.risk)
    if not groups.budgets:
        return target
    return replace(target, epsilon=groups.run_epsilon(target.epsilon, group_names))


def _name(part: Any) -> str:
    """Name of a part: its import path, or its own name."""
    return part if isinstance(part, str) else getattr(part, "__name__", type(part).__name__)


@dataclass(frozen=True)
class ResolvedPlan:
    """A plan worked out for one method and n training examples; made by `Plan.resolve`.

    Attributes:
        plan: for this method, as it was given.
        method: its name in `METHODS`, its import path, or the name of a policy's class.
        policy: made from the settings that the method has.
        learning_rate: of the optimizer.
        sample_rate: q = b / n.
        steps: T.
        noise_multiplier: sigma; 0 for a method without privacy.
        delta: of the whole run.
        rates, bound_shares: of groups, as given or as they follow from budgets; None: all are 1.
    """

    plan: Plan
    method: str
    policy: Policy
    learning_rate: float
    sample_rate: float
    steps: int
    noise_multiplier: float
    delta: float
    rates: Mapping[str, float] | None = None
    bound_shares: Mapping[str, float] | None = None

    def step_event(self, group_names: Sequence[str] = ()) -> StepEvent:
        """Event of each step at the whole bound, for data with these groups; empty: not known."""
        groups = GroupSettings.of(self.rates, self.bound_shares, None)
        ratio = self.policy.statistics_ratio
        return groups.step_event(self.sample_rate, self.noise_multiplier, ratio, group_names)

    @property
    def card_options(self) -> dict[str, Any]:
        """Options that a model card lists beside the facts of a run, by label, as plain values."""
        values, changed = self.settings, self.plan.changed_options
        return {
            each.metadata["label"] or each.name.replace("_", " "): values[each.name]
            for each in self.plan.options()
            if (on_card(self.plan) if (on_card := each.metadata["on_card"]) else each.name in changed)
        }

    def with_class_weight(self, weights: Mapping[str, float] | None) -> ResolvedPlan:
        """Return this plan with other public weights of classes."""
        return replace(self, plan=replace(self.plan, class_weight=weights))

    @property
    def settings(self) -> dict[str, Any]:
        """Plain values of all that was given and worked out, by name: equal for plans that train alike.

        What was worked out replaces what was given under its name; the policy replaces settings of methods.
        """
        given = {name: value for name, value in self.plan.to_plain().items() if name in Plan.names()}
        return {
            **given,
            **self._worked_out(),
            "class_weight": self.plan.class_weights,
            "epsilon_by_group": self.plan.groups.budgets or None,
        }

    def to_plain(self) -> dict[str, Any]:
        """Return plain values that `from_plain` reads."""
        return {"plan": self.plan.to_plain(), **self._worked_out()}

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> ResolvedPlan:
        """Read what `to_plain` gave; method and model must have a name or an import path."""
        policy = make_policy(content["method"], content["policy"])  # before the plan, which has its settings
        return cls(**{**content, "policy": policy, "plan": Plan(**content["plan"])})

    def _worked_out(self) -> dict[str, Any]:
        content = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "plan"}
        return {**content, "policy": asdict(self.policy)}  # type: ignore[call-overload]


def default_plan(data: str | DataSource) -> Plan:
    """Return the published settings of a named dataset or of a source with `published`, else a plain plan.

    Raises:
        SettingError: a text that names no data.

    Example:
        >>> import equidp
        >>> equidp.default_plan("adult").method_settings["clipping_bound"]
        0.5
    """
    published = dict(published_settings(data))
    by_method = published.pop("by_method", {})
    return replace(Plan().with_changes(published), by_method=by_method)


def checked_seeds(seeds: int | Sequence[int]) -> list[int]:
    """Return a number of seeds (0, 1, ...), or a list of them, as a list of at least one seed."""
    numbers = range(seeds) if isinstance(seeds, int) else seeds
    listed = list(numbers) if isinstance(numbers, Iterable) else []
    if not listed:
        raise SettingError(f"seeds={seeds!r}; expected a number of seeds >= 1, or a list of whole numbers.")
    for seed in listed:
        check_whole(0, ", each seed", seeds=seed)
    return [int(seed) for seed in listed]
