"""Plan: what one run is, before data is seen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from equidp._validate import check_whole, unknown_name
from equidp.accounting.calibration import PROTECTIONS
from equidp.accounting.groups import BUDGETS, GroupSettings
from equidp.accounting.planned import checked_schedule, default_delta
from equidp.accounting.risk import RiskTarget
from equidp.errors import SettingError
from equidp.kernel.epsilon import (
    ACCOUNTANTS,
    checked_delta,
)
from equidp.kernel.event import Event
from equidp.policies.table import METHODS
from equidp.training.option import check_options, number_in, one_of, option, whole_from
from equidp.training.release import Charge, Release
from equidp.training.resolved import ResolvedPlan, with_public_bounds

# Parts that need torch are imported where they are used: accounting needs none of them.
if TYPE_CHECKING:
    from equidp.data.dataset import DataSource
    from equidp.data.views import Views
    from equidp.kernel.engine import LossFunction
    from equidp.kernel.policy import Policy
    from equidp.policies.methods import MethodLike

ModelFactory = Callable[[tuple[int, ...], int], Any]
"""(shape of one input, number of classes) -> a model with fresh weights from torch's global generator."""
USUAL_EPOCHS = 20
"""Number of passes over the data if neither epochs nor steps are given."""
USUAL_NOISE = 1.0
"""Noise multiplier of a command or a published plan that nothing else decides the noise of."""
ALTERNATIVES = (("epsilon", "risk", "noise_multiplier"), ("epochs", "steps"))
"""Options of which a plan has one at most. A change of one takes the place of the others."""


def _always(plan: Plan) -> bool:
    """True: each card lists the option."""
    return True


def _elsewhere(plan: Plan) -> bool:
    """False: the card has the option as a fact or a release of the run, also of one without a plan."""
    return False


def _check_method(name: str, value: Any) -> None:
    if not (isinstance(value, str) and value in METHODS):
        from equidp.policies.methods import method_named

        method_named(value)


def _check_model(name: str, value: Any) -> None:
    if isinstance(value, str):
        from equidp.models import model_named

        model_named(value)
    elif hasattr(value, "parameters") and not isinstance(value, type):
        raise SettingError(
            "model is a module; expected a name, or a function that makes a fresh one for each training: "
            "lambda shape, classes: nn.Linear(shape[0], classes).",
            field="model",
        )


def _check_loss(name: str, value: Any) -> None:
    from equidp.losses import LOSSES

    if isinstance(value, str) and value not in LOSSES:
        raise SettingError(
            f"loss={value!r}; expected a function of (outputs, targets) that gives a loss for each example.",
            field=name,
        )


def _check_risk(name: str, value: Any) -> None:
    if not isinstance(value, RiskTarget):
        raise SettingError(f"risk={value!r}; expected equidp.RiskTarget(0.05), say.")


def _check_releases(name: str, value: Any) -> None:
    if isinstance(value, str) or not all(isinstance(each, Release) for each in value):
        raise SettingError(f"releases={value!r}; expected releases, such as equidp's class counts.")


def _names_in(module: str, table: str) -> Callable[[], Iterable[str]]:
    """Return a function that loads the names in a table of a module."""
    return lambda: getattr(import_module(module), table)


_MODELS = _names_in("equidp.models", "MODELS")
_OPTIMIZERS = _names_in("equidp.training.optimizers", "OPTIMIZERS")
_SCHEDULES = _names_in("equidp.training.optimizers", "SCHEDULES")
_AVERAGES = _names_in("equidp.training.averages", "AVERAGES")
_AUGMENTATIONS = _names_in("equidp.data.views", "AUGMENTATIONS")


class _NamedOptions:
    """Base of `Plan`: an unknown option is a SettingError that names the right one."""

    def __new__(cls, **options: Any) -> Self:
        check_option_names(options, {each.name for each in fields(cls)})  # type: ignore[arg-type]
        return super().__new__(cls)


@dataclass(frozen=True, kw_only=True)
class Plan(_NamedOptions):
    """Settings of one run, chosen before data is seen. To add an option, add a field made by `option`.

    Attributes:
        method: name from `METHODS`, import path such as "my_module:MyPolicy", policy, or policy class.
        epsilon, risk, noise_multiplier: epsilon of the whole run, a `RiskTarget`, or the noise multiplier
            sigma (0: no privacy). A private method needs one of the three, or budgets by group.
        delta: delta of the whole run. None: a tenth of 1 / n, rounded down to a power of ten.
        accountant: name from `equidp.accounting.ACCOUNTANTS`, used to calibrate the noise and to report
            epsilon.
        batch_size: expected batch size b. 0: all examples.
        epochs, steps: number of passes over the data, or number T of private steps. Pass at most one.
            Neither: 20 epochs.
        sample_rate: sampling rate q, if n is not public. None: b / n.
        model: name from `equidp.models.MODELS`, import path such as "my_module:make_model", or factory. A
            Trainer receives the model itself.
        learning_rate: learning rate of the optimizer. None: 1 / sqrt(steps), as in Xu et al.
        momentum, weight_decay: settings of the optimizer. They act on private gradients, so they cost no
            privacy.
        optimizer: "sgd", or "adam", which is `PrivateAdam` with its own momentum.
        schedule: learning rate over all steps of the plan: "constant", "linear" or "cosine". The last two end
            at zero.
        average, average_share: average of the weights that the run releases instead of the last weights:
            "none", "tail" (mean over this share of the last steps) or "ema" (exponential, with a horizon of
            this share).
        views, augmentation: number of augmented views of each sampled image, over which the loss is averaged,
            and the augmentation: "none", "flip", "shift" or "flip-shift".
        class_weight: class -> public number that multiplies the losses of its examples before clipping. A
            text such as "no=1,yes=8" will do. Other classes have weight 1. Only ratios matter, because all
            weights are divided by the largest. None: all weights are 1.
        loss: function of (outputs, targets) that returns one loss per example. None: cross entropy.
        rates: group name -> public multiple of the sampling rate, also as a text such as "rare=2,*=1". "*"
            means all other groups. The default is 1. Sums are still divided by b, because group sizes are
            private.
        bound_shares: group name -> public share of the bound, in [1/16, 1], in the same form. An example of
            the group adds at most this share of the sensitivity to a gradient, and of the norm to statistics.
            With rates or shares, each group has its own epsilon, and the run has the largest.
        epsilon_by_group: group name -> budget, in the same form, including the run's releases. Other groups
            have `epsilon`. If that is not given, it is the largest budget. Rates or shares of at most 1
            follow from the budgets.
        protect_by: "sampling": rates follow from the budgets. "scaling": shares of the bound follow from the
            given rates and the budgets; without budgets, from one epsilon for all groups.
        workers, physical_batch_size: number of processes that load a dataset that is not in memory, and the
            most examples in the engine at a time, which bounds memory. Results do not depend on them. None:
            128 for large batches of images on a CPU, unless the method releases statistics; else the whole
            batch.
        releases: releases in addition to the steps, which epsilon also covers.
        method_settings: settings of methods by name, such as clipping_bound. Each method uses the ones it
            has.
        by_method: method -> fields of the plan and method settings that differ for this method.

    Raises:
        SettingError: a value outside its range, an unknown name, or two values that exclude each other.

    Example:
        >>> import equidp
        >>> plan = equidp.Plan(epsilon=3.0, batch_size=100, epochs=2, delta=1e-4)
        >>> resolved = plan.resolve(num_examples=1000)
        >>> resolved.steps, round(resolved.noise_multiplier, 2)
        (20, 0.98)
    """

    method: str | Any = option(
        "dpsgd", "Method of private training.", _check_method, METHODS, on_card=_elsewhere, listed=False
    )
    model: str | ModelFactory = option(
        "logistic",
        "Model, or my_module:make_model; default: of the dataset, or logistic.",
        _check_model,
        _MODELS,
        on_card=_always,
    )
    learning_rate: float | None = option(0.1, "Learning rate.", number_in("(0, inf)"), on_card=_elsewhere)
    batch_size: int = option(
        256, "Expected size of a Poisson sample; 0: all examples.", whole_from(0), on_card=_elsewhere
    )
    epochs: float | None = option(
        None,
        "Passes over the training data; default: 20.",
        number_in("(0, inf)"),
        on_card=lambda plan: plan.steps is None,
    )
    steps: int | None = option(
        None,
        "Number of private steps, in place of --epochs.",
        whole_from(1),
        on_card=_elsewhere,
        listed=False,
    )
    noise_multiplier: float | None = option(
        None,
        "Noise as a multiple of the sensitivity, instead of --epsilon.",
        number_in("[0, inf)"),
        on_card=_elsewhere,
    )
    epsilon: float | None = option(
        None,
        "Target epsilon, which the noise is calibrated to.",
        number_in("(0, inf)"),
        on_card=_elsewhere,
        listed=False,
    )
    risk: RiskTarget | None = option(
        None,
        "Target risk, which the noise is calibrated to, instead of --epsilon.",
        _check_risk,
        on_card=_elsewhere,
        listed=False,
    )
    accountant: str = option(
        "pld",
        "Accountant that epsilon is meant for.",
        one_of(ACCOUNTANTS),
        ACCOUNTANTS,
        on_card=_elsewhere,
        listed=False,
    )
    delta: float | None = option(
        None,
        "Delta of the whole run; default: a tenth of 1 / n, rounded down to a power of ten.",
        number_in("(0, 1)", ", a probability well below 1 / n"),
        on_card=_elsewhere,
    )
    sample_rate: float | None = option(
        None,
        "Sampling rate of examples, if their number is not public; default: b / n.",
        number_in("(0, 1]", ", a probability"),
        on_card=_elsewhere,
        listed=False,
    )
    momentum: float = option(
        0.0,
        "Momentum of SGD.",
        number_in("[0, 1)", ": steps would grow without end"),
        on_card=_always,
    )
    weight_decay: float = option(
        0.0, "Weight decay of the optimizer.", number_in("[0, inf)"), on_card=_always
    )
    optimizer: str = option(
        "sgd",
        "sgd, or adam without the noise's variance in its second moments. Free.",
        one_of(_OPTIMIZERS),
        _OPTIMIZERS,
        on_card=_elsewhere,
    )
    schedule: str = option(
        "constant",
        "Learning rate over the run; linear and cosine end at zero. Free.",
        one_of(_SCHEDULES),
        _SCHEDULES,
        label="schedule of the learning rate",
    )
    average: str = option(
        "none",
        "Weights to release: of the last step, or averaged over the last ones (tail) or exponentially (ema). "
        "Free.",
        one_of(_AVERAGES),
        _AVERAGES,
        label="average of the weights",
    )
    average_share: float = option(
        0.25,
        "Share of the steps that a tail has, or the horizon of ema.",
        number_in("(0, 1]"),
        label="share of the steps in that average",
        on_card=lambda plan: plan.average != "none",
    )
    views: int = option(
        1,
        "Augmented views of each sampled image, whose losses are averaged. Free, but K times the work.",
        whole_from(1),
    )
    augmentation: str = option(
        "none",
        "How images are varied in training: flip, shift, flip-shift. Free.",
        one_of(_AUGMENTATIONS),
        _AUGMENTATIONS,
    )
    class_weight: Mapping[str, float] | str | None = option(
        None,
        "Public weights of the classes' losses, for rare classes: no=1,yes=8; default: 1 each. Only ratios "
        "count, and less if gradients are clipped or normalised. "
        "balanced: from noisy counts, in equidp train and compare.",
        label="weights of classes (public)",
    )
    loss: str | Callable[..., Any] | None = option(
        None, "User-defined loss of each example; default: cross entropy.", _check_loss
    )
    epsilon_by_group: Mapping[str, float] | str | None = option(
        None,
        "Largest epsilon of each group, at most the run's: rare=1,*=3; *: all other groups.",
        label="epsilon that each group was to have at most",
        keyed=False,  # rates, bounds and noise follow, and say all
    )
    protect_by: str = option(
        PROTECTIONS[0],
        "Rates follow from epsilon_by_group (sampling), or shares of bounds from it or rates (scaling).",
        one_of(PROTECTIONS),
        PROTECTIONS,
        keyed=False,
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
    workers: int = option(
        0,
        "Processes that load a dataset that is not in memory.",
        whole_from(0),
        on_card=_elsewhere,
        listed=False,
        keyed=False,
    )
    physical_batch_size: int | None = option(
        None,
        "Most examples in the engine at a time, which bounds memory.",
        whole_from(1, ", or None for all at once"),
        on_card=_elsewhere,
        listed=False,
        keyed=False,
    )
    releases: tuple[Release, ...] = field(default=())
    method_settings: Mapping[str, Any] = field(default_factory=dict)
    by_method: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_options(self)
        for names in ALTERNATIVES:
            given = {name: value for name in names if (value := getattr(self, name)) is not None}
            if len(given) > 1:
                listed = ", ".join(f"{name}={value}" for name, value in given.items())
                raise SettingError(f"{listed}; expected exactly one of {', '.join(names)}.", field=names[0])
        if self.optimizer != "sgd":
            from equidp.training.optimizers import check_optimizer_name

            check_optimizer_name(self.optimizer, self.momentum)
        if self.views != 1:
            _ = self.image_views  # refuse several that are the same
        _ = self.class_weights, self.groups
        if self.releases:
            _check_releases("releases", self.releases)
        if self.method_settings or self.by_method:
            self._check_settings()

    def _check_settings(self) -> None:
        """Reject settings that neither a plan nor a method has."""
        from equidp.policies.methods import all_settings

        known, own = all_settings(), self.names()
        for name in self.method_settings:
            if name not in known:
                raise unknown_name("method setting", name, known, "equidp methods METHOD")
        for method, changes in self.by_method.items():
            for name in changes:
                if name not in known and name not in own:
                    raise unknown_name(f"setting of {method}", name, [*known, *own])

    @classmethod
    def options(cls) -> list[Field[Any]]:
        """Return the fields made by `option`: all except releases and the settings of methods."""
        return [each for each in fields(cls) if "help" in each.metadata]

    @classmethod
    def names(cls) -> set[str]:
        """Names of the options."""
        return {each.name for each in cls.options()}

    def to_plain(self) -> dict[str, Any]:
        """Return plain values for `from_plain`. A model or loss given as an object is replaced by its name.

        Releases that are drawn elsewhere are left out. A resolved plan contains their costs.
        """
        content = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "releases"}
        if not isinstance(self.method, str):
            policy = self.policy
            content["method"] = self.method_name
            content["method_settings"] = {**self.method_settings, **asdict(policy)}  # type: ignore[call-overload]
        risk = None if self.risk is None else asdict(self.risk)
        drawn = [each.to_plain() for each in self.releases if not isinstance(each, Charge)]
        named = {"model": self.model_name, "loss": self.loss_name or None}
        return {**content, **named, "risk": risk, "releases": drawn}

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> Plan:
        """Read the result of `to_plain`. Method and model must have a name or an import path."""
        from equidp._plain import read_part

        _check_method("method", content["method"])  # one of the user's own brings its settings
        return read_part(cls, content)

    @property
    def changed_options(self) -> dict[str, Any]:
        """Options that differ from their defaults, by name, as plain values."""
        plain = self.to_plain()
        return {
            each.name: plain[each.name] for each in self.options() if getattr(self, each.name) != each.default
        }

    @property
    def method_name(self) -> str:
        """Name of the method in `METHODS`, its import path, or the name of its class."""
        if isinstance(self.method, str):
            return self.method
        from equidp.policies.methods import name_of

        return name_of(self.method)

    @property
    def private(self) -> bool:
        """True for a method with privacy."""
        row = self._row
        return self.policy.private if row is None else row.private

    @property
    def policy(self) -> Policy:
        """The method's policy under this plan. A policy given as an object keeps its own settings."""
        from equidp.policies.methods import make_policy

        own = self.with_own_options()
        return make_policy(own.method, own.method_settings)

    @property
    def statistics_ratio(self) -> float | None:
        """sigma_s / sigma of a method with statistics, or None for other methods."""
        row = self._row
        if row is None or self.method_settings or self.by_method:
            return self.policy.statistics_ratio
        ratio: float | None = row.statistics_ratio
        return ratio

    @property
    def _row(self) -> Any:
        """The method's row, if it has what accounting needs, so that no policy is loaded."""
        row = METHODS.get(self.method) if isinstance(self.method, str) else None
        return row if row is not None and isinstance(row.source, str) else None

    @property
    def factory(self) -> ModelFactory:
        """Factory of the model."""
        from equidp.models import model_named

        return model_named(self.model) if isinstance(self.model, str) else self.model

    @property
    def loss_function(self) -> LossFunction | None:
        """The loss, or None for cross entropy."""
        if not isinstance(self.loss, str):
            return self.loss
        from equidp.losses import LOSSES

        return LOSSES[self.loss]

    @property
    def loss_name(self) -> str:
        """Display name of the loss, or "" for cross entropy."""
        return "" if self.loss is None else _name(self.loss)

    @property
    def image_views(self) -> Views:
        """Augmented views of images for training."""
        from equidp.data.views import Views

        return Views(self.views, self.augmentation)

    @property
    def class_weights(self) -> Mapping[str, float] | None:
        """Weights by class name. None: all are 1."""
        if not isinstance(self.class_weight, str):
            return self.class_weight
        from equidp.data.targets import parse_class_weights

        return parse_class_weights(self.class_weight)

    @property
    def groups(self) -> GroupSettings:
        """Rates, bounds and budgets by group."""
        return GroupSettings.of(self.rates, self.bound_shares, self.epsilon_by_group, self.protect_by)

    @property
    def run_epsilon(self) -> float | None:
        """Epsilon of the whole run, or the largest budget by group. None: neither is given."""
        return self.groups.run_epsilon(self.epsilon)

    @property
    def decides_noise(self) -> bool:
        """True if epsilon, a risk, budgets by group or the noise multiplier is given."""
        given = self.epsilon, self.risk, self.noise_multiplier
        return any(each is not None for each in given) or bool(self.groups.budgets)

    @property
    def model_name(self) -> str:
        """Display name of the model."""
        return _name(self.model)

    def with_changes(self, changes: Mapping[str, Any] = {}, **options: Any) -> Plan:
        """This plan with other fields or method settings, which then apply to every method.

        A new value that decides the noise replaces the old one, and epochs replace steps. Another optimizer
        brings its own defaults of learning rate and momentum, unless you give them.
        """
        changes = {**changes, **options}
        optimizer = changes.get("optimizer", self.optimizer)
        if optimizer != self.optimizer:
            from equidp.training.optimizers import ADAM_RATE

            rate = ADAM_RATE if optimizer == "adam" else Plan.learning_rate
            changes = {"learning_rate": rate, "momentum": Plan.momentum, **changes}
        changes = _without_alternatives(changes)
        kept = {
            method: {name: value for name, value in settings.items() if name not in changes}
            for method, settings in self.by_method.items()
        }
        return replace(self._with_values(changes), by_method=kept)

    def for_method(self, method: MethodLike) -> Plan:
        """This plan for another method, with its values in `by_method` and the options that it fixes.

        A method without privacy has no noise, and treats groups equally.
        """
        plan = replace(self, method=method)
        plan = plan._with_options_of_method(_fixed_options(plan.method_name))
        return plan if plan.private else plan.without_privacy()

    def with_own_options(self) -> Plan:
        """Return this plan with its method's values in `by_method`, and the options that a named method
        fixes."""
        return self._with_options_of_method(
            _fixed_options(self.method) if isinstance(self.method, str) else {}
        )

    def without_groups(self) -> Plan:
        """Return the plan without rates, bounds and budgets by group. The largest budget is its epsilon."""
        return replace(
            self,
            epsilon=self.run_epsilon,
            rates=None,
            bound_shares=None,
            epsilon_by_group=None,
            protect_by=PROTECTIONS[0],
        )

    def without_privacy(self) -> Plan:
        """Return the plan without noise, and without rates, bounds and budgets by group."""
        return replace(self.without_groups(), epsilon=None, risk=None, noise_multiplier=None)

    def with_usual_noise(self) -> Plan:
        """Return the plan, with a noise multiplier of 1 if a private method needs one and none is given."""
        if self.decides_noise or not self.private:
            return self
        return replace(self, noise_multiplier=USUAL_NOISE)

    def for_examples(self, num_examples: int) -> Plan:
        """Return this plan with the options of its method, a batch size and either epochs or steps."""
        own = self.with_own_options()
        epochs = USUAL_EPOCHS if own.epochs is None and own.steps is None else own.epochs
        return replace(own, batch_size=own.batch_size or num_examples, epochs=epochs)

    def resolve(self, num_examples: int, group_names: Sequence[str] = ()) -> ResolvedPlan:
        """Compute steps, noise, and the cost of each step and release for n training examples.

        Args:
            num_examples: n, public.
            group_names: names of the data's groups. Empty: not known, and the rates of all groups that are
                not named count too.

        Raises:
            SettingError: the plan has no steps, nothing or too much decides the noise, a method without
                privacy has a budget, epsilon cannot be met, or a group is unknown.
        """
        check_whole(1, num_examples=num_examples)
        plan = self.for_examples(num_examples)
        groups = plan.groups
        plan._check_level(groups)
        delta = checked_delta(default_delta(num_examples) if plan.delta is None else plan.delta)
        schedule = checked_schedule(
            num_examples,
            plan.batch_size,
            epochs=plan.epochs,
            steps=plan.steps,
            sample_rate=plan.sample_rate,
        )
        if group_names and plan.private:
            groups = with_public_bounds(groups, plan.policy, group_names)
        resolved = ResolvedPlan(
            plan=plan,
            method=plan.method_name,
            num_examples=num_examples,
            group_names=tuple(group_names),
            learning_rate=schedule.steps**-0.5 if plan.learning_rate is None else plan.learning_rate,
            sample_rate=schedule.sample_rate,
            steps=schedule.steps,
            noise_multiplier=0.0,
            delta=delta,
            event=Event(schedule.sample_rate, 0.0),
        )
        for release in plan.releases:
            release.check(plan)
        spent = tuple(charge for release in plan.releases for charge in release.charges(resolved))
        groups, event = groups.resolve(
            schedule,
            delta,
            plan.statistics_ratio,
            epsilon=plan.epsilon,
            risk=plan.risk,
            accountant=plan.accountant,
            noise_multiplier=float(plan.noise_multiplier or 0.0),
            spent=spent,
            group_names=group_names,
        )
        return replace(
            resolved,
            noise_multiplier=event.noise,
            event=event,
            rates=groups.rates or None,
            bound_shares=groups.bound_shares or None,
            releases=spent,
        )

    def _check_level(self, groups: GroupSettings) -> None:
        """Reject a private method if nothing decides its noise, and privacy for a method without it."""
        if not self.private:
            if self.epsilon is not None or self.risk is not None or self.noise_multiplier:
                raise SettingError(
                    f"{self.method_name} takes no noise and has no epsilon; choose a private method, such as "
                    "dpsgd, or leave epsilon, risk and noise_multiplier out.",
                    field="method",
                )
            if groups.budgets:
                raise SettingError(
                    f"{self.method_name} takes no noise and has no epsilon; leave out {BUDGETS}, or choose a "
                    "private method.",
                    field=BUDGETS,
                )
            return
        if groups.budgets and self.noise_multiplier is not None:
            raise SettingError(
                f"{BUDGETS} and noise_multiplier={self.noise_multiplier}; expected budgets, with or without "
                "an epsilon: the noise follows from the largest.",
                field=BUDGETS,
            )
        if not self.decides_noise:
            raise SettingError(
                "epsilon=None, risk=None, noise_multiplier=None; expected exactly one of the three."
            )

    def _with_options_of_method(self, fixed: Mapping[str, Any]) -> Plan:
        own = {**self.by_method.get(self.method_name, {}), **fixed}
        return replace(self._with_values(own), by_method={}) if own or self.by_method else self

    def _with_values(self, changes: Mapping[str, Any]) -> Plan:
        changes, known = _without_alternatives(changes), {*self.names(), "releases"}
        own = {name: value for name, value in changes.items() if name in known}
        of_methods = {name: value for name, value in changes.items() if name not in known}
        return replace(self, **own, method_settings={**self.method_settings, **of_methods})


def _without_alternatives(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes of a plan, with None for the options whose place they take."""
    replaced: list[str] = []
    for names in ALTERNATIVES:
        if any(changes.get(name) is not None for name in names):
            replaced += names
    if changes.get(BUDGETS) is not None:
        replaced += ALTERNATIVES[0]
    return {**dict.fromkeys(replaced), **changes}


def _fixed_options(method: str) -> Mapping[str, Any]:
    """Options that a method of this name fixes."""
    return METHODS[method].options if method in METHODS else {}


def _name(part: Any) -> str:
    """Name of a part: its import path, or its own name."""
    return part if isinstance(part, str) else getattr(part, "__name__", type(part).__name__)


def account(num_examples: int, **options: Any) -> ResolvedPlan:
    """Resolve a plan from public numbers: epsilon from noise, or noise from epsilon or a risk.

    Args:
        num_examples: n.
        options: fields of `Plan`.

    Raises:
        SettingError: a number is outside its range, a name is unknown, or the method has no privacy.

    Example:
        >>> plan = account(60_000, batch_size=256, epochs=30, noise_multiplier=1.0)
        >>> f"{plan.steps} steps, epsilon {plan.epsilon('rdp'):.2f} at delta {plan.delta}"
        '7031 steps, epsilon 2.42 at delta 1e-06'
        >>> plan = account(60_000, epochs=30, epsilon_by_group="rare=1,*=3", accountant="rdp")
        >>> {name: round(each, 2) for name, each in plan.epsilon_by_group().items()}
        {'rare': 1.0, '*': 3.0}
    """
    plan = Plan(**options)
    if not plan.private:
        raise SettingError("sgd takes no noise and has no epsilon; name a private method.", field="method")
    return plan.resolve(num_examples)


def check_option_names(
    options: Iterable[str], known: Collection[str], listed_in: str = "help(equidp.Plan)"
) -> None:
    """Raise a SettingError that suggests the right name if an option is unknown.

    >>> Plan(max_grad_norm=1.0)
    Traceback (most recent call last):
    equidp.errors.SettingError: unknown option 'max_grad_norm'; write method=equidp.DPSGD(clipping_bound=...).
    """
    for name in options:
        if name not in known and name in _OTHER_NAMES:
            raise SettingError(f"unknown option {name!r}; write {_OTHER_NAMES[name]}.", field=name)
        if name not in known:
            raise unknown_name("option", name, known, listed_in)


_OTHER_NAMES = {
    "max_grad_norm": "method=equidp.DPSGD(clipping_bound=...)",
    "clipping_bound": "method=equidp.DPSGD(clipping_bound=...)",
    "target_delta": "delta=...",
    "target_epsilon": "epsilon=...",
    "epsilons": "epsilon=...",
    "policy": "method=equidp.DPSGD()",
    "criterion": "loss=...",
    "lr_scheduler": "scheduler=..., an argument of Trainer",
    "secure": "seed=None, which draws from the operating system, or a number for research",
    "secure_mode": "seed=None, which draws from the operating system",
    "randomness": "seed=SeededRandomness(0)",
    "num_groups": "group_names, an attribute of the dataset",
    "poisson_sampling": "nothing: samples are always Poisson",
    "max_physical_batch_size": "physical_batch_size=...",
    "num_workers": "workers=...",
}
"""Names that other libraries, and those who know them, write first -> what to write."""


def default_plan(data: str | DataSource) -> Plan:
    """Return the published settings of a named dataset or a source with `published`, or a default plan.

    Raises:
        SettingError: the text is not the name of a dataset.

    Example:
        >>> import equidp
        >>> equidp.default_plan("adult").method_settings["clipping_bound"]
        0.5
    """
    from equidp.data.published import published_settings

    published = dict(published_settings(data))
    by_method = published.pop("by_method", {})
    return replace(Plan().with_changes(published), by_method=by_method).with_usual_noise()


def checked_seeds(seeds: int | Sequence[int]) -> list[int]:
    """Return a number of seeds (0, 1, ...), or a list of them, as a list of at least one seed."""
    numbers = range(seeds) if isinstance(seeds, int) else seeds
    listed = list(numbers) if isinstance(numbers, Iterable) else []
    if not listed:
        raise SettingError(f"seeds={seeds!r}; expected a number of seeds >= 1, or a list of whole numbers.")
    for seed in listed:
        check_whole(0, ", each seed", seeds=seed)
    return [int(seed) for seed in listed]
