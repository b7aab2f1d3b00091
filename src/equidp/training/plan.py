"""Plan: how to train, as it was asked for; `resolved.ResolvedPlan` is what it means for one method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch import nn

from equidp._validate import check_number, check_whole, unknown_name
from equidp.accounting.calibration import calibrate_noise, calibrate_noise_to_risk
from equidp.accounting.releases import check_share, release_event
from equidp.accounting.risk import RiskTarget
from equidp.accounting.schedule import checked_schedule, default_delta
from equidp.data.dataset import DataSource
from equidp.data.published import published_settings
from equidp.data.views import Views
from equidp.data.weights import parse_class_weights
from equidp.errors import SettingError
from equidp.kernel.engine import LossFunction
from equidp.kernel.epsilon import checked_delta
from equidp.kernel.ledger import StepEvent
from equidp.kernel.policy import Policy
from equidp.models import model_named
from equidp.policies.methods import MethodLike, all_settings, make_policy, name_of
from equidp.training.averages import WeightAverage
from equidp.training.optimizers import ADAM_RATE, check_optimizer_name
from equidp.training.resolved import ModelFactory, ResolvedPlan, loss_named
from equidp.training.schedules import check_schedule


@dataclass(frozen=True)
class Plan:
    """How to train, whatever the method.

    Attributes:
        model: a name from `equidp.models.MODELS`, an import path such as "my_module:make_model", or a
            factory.
        learning_rate: of the optimizer; None: 1 / sqrt(steps), as Xu et al. set it.
        batch_size: b, expected.
        epochs: passes over the training data.
        noise_multiplier: sigma.
        delta: None: a tenth of 1 / n, rounded down to a power of ten.
        loss: what is trained on: an import path such as "my_module:my_loss", or a function of (outputs,
            targets) that gives one loss for each example; None: cross entropy.
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
        recalibration: share of epsilon for fitting scale and shifts of the logits after training, in [0, 1);
            0: none. Runs without privacy are recalibrated without noise.
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

    model: str | ModelFactory = "logistic"
    learning_rate: float | None = 0.1
    batch_size: int = 256
    epochs: float = 20
    noise_multiplier: float = 1.0
    delta: float | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    optimizer: str = "sgd"
    schedule: str = "constant"
    average: str = "none"
    average_share: float = WeightAverage.share
    views: int = 1
    augmentation: str = "none"
    class_weight: Mapping[str, float] | str | None = None
    loss: str | LossFunction | None = None
    recalibration: float = 0.0
    method_settings: Mapping[str, Any] = field(default_factory=dict)
    by_method: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.model, nn.Module):
            raise SettingError(
                "model is a module; expected a name, or a function that makes a fresh one for each training: "
                "lambda shape, classes: nn.Linear(shape[0], classes)."
            )
        if isinstance(self.model, str):
            model_named(self.model)
        if isinstance(self.loss, str):
            loss_named(self.loss)
        if self.learning_rate is not None:
            check_number("(0, inf)", learning_rate=self.learning_rate)
        check_number("(0, inf)", epochs=self.epochs)
        check_number("[0, inf)", noise_multiplier=self.noise_multiplier, weight_decay=self.weight_decay)
        check_number("[0, 1)", ": steps would grow without end", momentum=self.momentum)
        check_number("[0, 1)", ", a share of epsilon; 0: none", recalibration=self.recalibration)
        check_whole(1, batch_size=self.batch_size)
        check_optimizer_name(self.optimizer, self.momentum)
        check_schedule(self.schedule)
        WeightAverage(self.average, self.average_share)
        Views(self.views, self.augmentation)
        _by_class(self.class_weight)
        known = all_settings()
        for name in self.method_settings:
            if name not in known:
                raise unknown_name("method setting", name, known)
        for method, changes in self.by_method.items():
            for name in changes:
                if name not in known and name not in _FIELDS:
                    raise unknown_name(f"setting of {method}", name, [*known, *_FIELDS])

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
        return replace(self._changed(changes), by_method=kept)

    def for_method(self, method: MethodLike) -> Plan:
        """This plan with what `by_method` says of one method."""
        return replace(self._changed(self.by_method.get(name_of(method), {})), by_method={})

    def policy(self, method: MethodLike) -> Policy:
        """The method's policy under this plan. A policy that was made keeps its own settings."""
        return make_policy(method, self.for_method(method).method_settings)

    def resolve(
        self,
        method: MethodLike,
        num_examples: int,
        *,
        epsilon: float | None = None,
        risk: RiskTarget | None = None,
        accountant: str = "pld",
        also_spent: tuple[tuple[StepEvent, int], ...] = (),
    ) -> ResolvedPlan:
        """What this plan means for one method and n training examples.

        Args:
            method: a name from `METHODS`, an import path, or a policy or its class.
            num_examples: n, public.
            epsilon: target that the noise is calibrated to; None: the plan's noise multiplier.
            risk: target that the noise is calibrated to instead.
            accountant: whose epsilon that is.
            also_spent: (event, count) pairs that the same epsilon or risk pays for, such as a release.

        Raises:
            SettingError: a plan of no steps, an epsilon or a risk for a method without privacy, one that
                cannot be met, or both.
        """
        if None not in (epsilon, risk):
            raise SettingError(
                f"epsilon={epsilon} and risk={risk}: each decides the noise; give one of the two."
            )
        own, policy = self.for_method(method), self.policy(method)
        delta = checked_delta(default_delta(num_examples) if own.delta is None else own.delta)
        rate, steps = checked_schedule(num_examples, own.batch_size, epochs=own.epochs)
        noise, fit = own.noise_multiplier, own.recalibration_noise(epsilon, delta, policy.private, risk)
        also_spent = (*also_spent, *([(StepEvent(1.0, fit), 1)] if fit else []))
        if not policy.private:
            if (epsilon, risk) != (None, None):
                raise SettingError(
                    f"{name_of(method)} takes no noise and has no epsilon; choose a private method, such as "
                    "dpsgd."
                )
            noise = 0.0
        elif epsilon is not None:
            noise = calibrate_noise(
                epsilon, delta, rate, steps, policy.statistics_ratio, accountant, also_spent
            )
        elif risk is not None:
            noise = calibrate_noise_to_risk(risk, rate, steps, policy.statistics_ratio, also_spent)
        return ResolvedPlan(
            method=name_of(method),
            policy=policy,
            model=own.model_name,
            factory=model_named(own.model) if isinstance(own.model, str) else own.model,
            learning_rate=steps**-0.5 if own.learning_rate is None else own.learning_rate,
            batch_size=own.batch_size,
            epochs=own.epochs,
            sample_rate=rate,
            steps=steps,
            noise_multiplier=noise,
            delta=delta,
            momentum=own.momentum,
            weight_decay=own.weight_decay,
            optimizer=own.optimizer,
            schedule=own.schedule,
            average=own.average,
            average_share=own.average_share,
            views=own.views,
            augmentation=own.augmentation,
            class_weight=_by_class(own.class_weight),
            loss="" if own.loss is None else _name(own.loss),
            loss_function=loss_named(own.loss) if isinstance(own.loss, str) else own.loss,
            recalibration=fit,
        )

    def recalibration_noise(
        self, epsilon: float | None, delta: float, private: bool = True, risk: RiskTarget | None = None
    ) -> float | None:
        """Noise multiplier of the recalibration at a target epsilon; None: there is none."""
        if not self.recalibration:
            return None
        if not private or (epsilon is None and risk is None and self.noise_multiplier == 0):
            return 0.0
        check_share("recalibration", self.recalibration, epsilon)
        assert epsilon is not None
        return release_event(self.recalibration * epsilon, delta).noise_multiplier

    def _changed(self, changes: Mapping[str, Any]) -> Plan:
        own = {name: value for name, value in changes.items() if name in _FIELDS}
        of_methods = {name: value for name, value in changes.items() if name not in _FIELDS}
        return replace(self, **own, method_settings={**self.method_settings, **of_methods})


def _name(part: Any) -> str:
    """What a part is called: its import path, or its own name."""
    return part if isinstance(part, str) else getattr(part, "__name__", type(part).__name__)


_FIELDS = frozenset(each.name for each in fields(Plan)) - {"method_settings", "by_method"}


def _by_class(weights: Mapping[str, float] | str | None) -> Mapping[str, float] | None:
    """Class weights by class name; a SettingError for a text that is none."""
    return parse_class_weights(weights) if isinstance(weights, str) else weights


def default_plan(data: str | DataSource) -> Plan:
    """Published settings of a named dataset or of a source with `published`; a plain plan for other data.

    Example:
        >>> import equidp
        >>> equidp.default_plan("adult").method_settings["clipping_bound"]
        0.5
    """
    published = dict(published_settings(data))
    by_method = published.pop("by_method", {})
    return replace(Plan().with_changes(published), by_method=by_method)


def checked_seeds(seeds: int | Sequence[int]) -> list[int]:
    """How many seeds (0, 1, ...), or which: as a list of at least one."""
    listed = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not listed or not all(isinstance(seed, int) for seed in listed):
        raise SettingError(f"seeds={seeds!r}; expected a number of seeds >= 1, or a list of whole numbers.")
    return listed
