"""The plan that an estimator's arguments ask for."""

from __future__ import annotations

from typing import Any

from equidp.errors import SettingError
from equidp.training.plan import Plan
from equidp.training.resolved import ModelFactory

_LARGEST_BATCH = 256
_OF_PLAN = (
    *("learning_rate", "epochs", "momentum", "weight_decay", "loss"),
    *("optimizer", "schedule", "average", "average_share"),
)


def asked_plan(estimator: Any, model: str | ModelFactory, num_examples: int, delta: float) -> Plan:
    """The arguments of a `PrivateEstimator` as a plan, for n examples."""
    size, settings = estimator.batch_size, estimator.method_settings or {}
    return Plan(
        model,
        batch_size=min(_LARGEST_BATCH, num_examples) if size is None else size,
        delta=delta,
        recalibration=getattr(estimator, "recalibration", 0.0),  # of classifiers alone
        method_settings={"clipping_bound": estimator.clipping_bound, **settings},
        **{name: getattr(estimator, name) for name in _OF_PLAN},
    )


def check_open_ended(estimator: Any) -> None:
    """Refuses, for `partial_fit`, settings that need to know the last step.

    Raises:
        SettingError: before any budget is spent.
    """
    usual = {"schedule": "constant", "average": "none"}
    for name, value in usual.items():
        if getattr(estimator, name) != value:
            raise SettingError(
                f"{name}={getattr(estimator, name)!r} runs over all steps, and partial_fit cannot know how "
                f"many calls will follow; use fit, or {name}={value!r}."
            )
