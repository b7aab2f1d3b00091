"""Plans: how a model is trained in a comparison, the published settings, and the table of methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch import nn

from equidp._validate import check_number, check_whole, unknown_name
from equidp.data.dataset import DataSource
from equidp.data.published import PUBLISHED
from equidp.errors import SettingError
from equidp.models import MODELS

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


def default_plan(data: str | DataSource) -> Plan:
    """The published settings of a named dataset, or a plain plan for any other data."""
    name = data if isinstance(data, str) else data.name
    return Plan(**PUBLISHED.get(name, {}))
