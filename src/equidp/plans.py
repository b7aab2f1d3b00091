"""Plans: how a model is trained in a comparison, the published settings, and the table of methods."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch import nn

from equidp.errors import SettingError
from equidp.models import MODELS
from equidp.policies import (
    DPSGD,
    DPSGDF,
    PSAC,
    SGD,
    Automatic,
    DPSGDFCode,
    Global,
    GlobalAdapt,
    Naive,
    Policy,
    Quantile,
)
from equidp.settings import check_number, check_whole, unknown_name

ModelFactory = Callable[[tuple[int, ...], int], nn.Module]
"""(shape of one input, number of classes) -> a model with fresh weights from torch's global generator."""


@dataclass(frozen=True)
class Plan:
    """How to train, the same for every method but for `by_method`.

    Attributes:
        model: a name from `equidp.models.MODELS`, or a factory.
        learning_rate: of SGD; None: 1 / sqrt(steps), as Xu et al. set it.
        batch_size: b, expected.
        epochs: passes over the training data.
        noise_multiplier: sigma.
        clipping_bound: C, or C_0 of the methods with several bounds.
        delta: None: a tenth of 1 / n, rounded down to a power of ten.
        momentum, weight_decay: of the optimizer; they act on private gradients, so they cost no privacy.
        statistics_ratio: sigma_s / sigma.
        smoothing: DPSGD-F's moving average of released counts.
        strict_bound: Z of Global. initial_bound, bound_learning_rate, tolerance: Z_0, eta_Z and tau of Global-Adapt.
        by_method: method name -> fields that differ for it.
    """

    model: str | ModelFactory = "logistic"
    learning_rate: float | None = 0.1
    batch_size: int = 256
    epochs: float = 20
    noise_multiplier: float = 1.0
    clipping_bound: float = 1.0
    delta: float | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    statistics_ratio: float = 10.0
    smoothing: float = 0.0
    strict_bound: float = 50.0
    initial_bound: float = 50.0
    bound_learning_rate: float = 0.1
    tolerance: float = 1.0
    by_method: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.model, nn.Module):
            raise SettingError(
                "model is a module; expected a name, or a function that makes a fresh one for each training: "
                "lambda shape, classes: nn.Linear(shape[0], classes)."
            )
        if isinstance(self.model, str) and self.model not in MODELS:
            raise unknown_name("model", self.model, MODELS)
        for name in ("learning_rate", "clipping_bound", "epochs", "statistics_ratio"):
            value = getattr(self, name)
            if (name, value) != ("learning_rate", None):
                check_number("(0, inf)", **{name: value})
        for name in ("noise_multiplier", "weight_decay"):
            check_number("[0, inf)", **{name: getattr(self, name)})
        check_number("[0, 1)", ": steps would grow without end", momentum=self.momentum)
        check_whole(1, batch_size=self.batch_size)
        known = {each.name for each in fields(self)} - {"by_method"}
        for method, changes in self.by_method.items():
            for name in changes:
                if name not in known:
                    raise unknown_name(f"setting of {method}", name, known)

    def for_method(self, method: str) -> Plan:
        """This plan with what `by_method` says of one method."""
        return replace(self, **self.by_method.get(method, {}), by_method={})

    def with_changes(self, changes: Mapping[str, Any]) -> Plan:
        """This plan with other settings, which then hold for every method."""
        kept = {
            method: {name: value for name, value in settings.items() if name not in changes}
            for method, settings in self.by_method.items()
        }
        return replace(self, **changes, by_method=kept)


@dataclass(frozen=True)
class Method:
    """A policy's name to the world.

    Attributes:
        make: (plan for this method, number of groups) -> policy.
        summary: what it does and when to use it, in a line.
    """

    make: Callable[[Plan, int], Policy]
    summary: str


def _dpsgd_f(variant: Callable[..., Policy]) -> Callable[[Plan, int], Policy]:
    return lambda plan, groups: variant(
        plan.clipping_bound, groups, statistics_ratio=plan.statistics_ratio, smoothing=plan.smoothing
    )


METHODS: dict[str, Method] = {
    "sgd": Method(lambda plan, groups: SGD(), "no privacy: the reference that costs are measured against"),
    "dpsgd": Method(
        lambda plan, groups: DPSGD(plan.clipping_bound),
        "one clipping bound for everyone: the standard (Abadi 2016)",
    ),
    "dpsgd-f": Method(
        _dpsgd_f(DPSGDF),
        "a higher bound for groups that are clipped more often; needs groups (Xu 2021, as printed)",
    ),
    "dpsgd-f-code": Method(
        _dpsgd_f(DPSGDFCode), "DPSGD-F as its authors ran it: ratios to the mean over groups"
    ),
    "naive": Method(
        lambda plan, groups: Naive(plan.clipping_bound, groups, statistics_ratio=plan.statistics_ratio),
        "reweights groups by size; a baseline (Xu 2021)",
    ),
    "global": Method(
        lambda plan, groups: Global(plan.clipping_bound, plan.strict_bound),
        "scales all gradients alike and drops the longest; needs no groups (Bu 2021)",
    ),
    "global-adapt": Method(
        lambda plan, groups: GlobalAdapt(
            plan.clipping_bound,
            initial_bound=plan.initial_bound,
            learning_rate=plan.bound_learning_rate,
            tolerance=plan.tolerance,
            statistics_ratio=plan.statistics_ratio,
        ),
        "scales all gradients alike, learns the scale privately; needs no groups (Esipova 2023)",
    ),
    "quantile": Method(
        lambda plan, groups: Quantile(plan.clipping_bound, statistics_ratio=plan.statistics_ratio),
        "DP-SGD whose bound follows the median norm (Andrew 2021)",
    ),
    "automatic": Method(
        lambda plan, groups: Automatic(plan.clipping_bound),
        "normalises every gradient: no bound to tune (Bu 2022)",
    ),
    "psac": Method(
        lambda plan, groups: PSAC(plan.clipping_bound),
        "normalises, without blowing up small gradients (Xia 2022)",
    ),
}


def _xu_census() -> Plan:
    return Plan("logistic", learning_rate=None, epochs=20, clipping_bound=0.5, delta=1e-6, weight_decay=0.01)


def _esipova(plan: Plan, *, adapt: Mapping[str, Any], fixed: Mapping[str, Any]) -> Plan:
    """Esipova et al.'s global methods: sigma_s is 10, not 10 sigma, and each has its own learning rate."""
    ratio = {"statistics_ratio": 10.0 / plan.noise_multiplier}
    return replace(plan, by_method={"global-adapt": {**adapt, **ratio}, "global": fixed})


def _mnist_xu() -> Plan:
    plan = Plan("lenet", learning_rate=0.01, epochs=60, noise_multiplier=0.8, delta=1e-6)
    # Xu et al. have no global method: Esipova et al.'s settings for MNIST stand in.
    return _esipova(
        plan,
        adapt={"learning_rate": 0.1, "tolerance": 0.7},
        fixed={"clipping_bound": 20.0, "strict_bound": 100.0},
    )


PLANS: dict[str, Plan] = {
    # Large samples and averaged counts: with 13 eights in training, a smaller sample's counts would be noise alone.
    "digits": Plan(
        "small-cnn",
        learning_rate=0.5,
        epochs=60,
        noise_multiplier=2.0,
        delta=1e-4,
        smoothing=0.9,
        by_method={"global-adapt": {"learning_rate": 2.0, "initial_bound": 10.0}},
    ),
    "mnist": _mnist_xu(),
    "mnist-unit": _mnist_xu(),
    "mnist-esipova": _esipova(
        Plan("tanh-cnn", learning_rate=0.01, epochs=60, noise_multiplier=0.8, delta=1e-6),
        adapt={"learning_rate": 0.1, "tolerance": 0.7},
        fixed={"clipping_bound": 20.0, "strict_bound": 100.0},
    ),
    "adult": _xu_census(),
    "dutch": _xu_census(),
    "adult-esipova": _esipova(
        Plan("mlp", learning_rate=0.01, epochs=20, clipping_bound=0.5, delta=1e-6),
        adapt={"learning_rate": 0.2},
        fixed={"learning_rate": 0.2},
    ),
    "dutch-esipova": _esipova(
        Plan("logistic", learning_rate=0.5, epochs=20, clipping_bound=0.5, delta=1e-6),
        adapt={"learning_rate": 0.5},
        fixed={"learning_rate": 0.5},
    ),
}
"""The plan of each named dataset: the published settings where there are some. Any other data starts from `Plan()`."""


def default_delta(num_examples: int) -> float:
    """A tenth of 1 / n, rounded down to a power of ten."""
    return 10.0 ** math.floor(math.log10(0.1 / num_examples))
