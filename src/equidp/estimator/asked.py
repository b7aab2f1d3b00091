"""The plan that an estimator's arguments ask for."""

from __future__ import annotations

import warnings
from typing import Any

from equidp.errors import PrivacyWarning, SettingError
from equidp.kernel.policy import Policy
from equidp.training.optimizers import ADAM_RATE
from equidp.training.plan import ModelFactory, Plan

_LARGEST_BATCH = 256
_SGD_RATE = 0.5
_OF_PLAN = (
    *("epochs", "momentum", "weight_decay", "loss"),
    *("optimizer", "schedule", "average", "average_share"),
)


def asked_plan(estimator: Any, model: str | ModelFactory, num_examples: int, delta: float) -> Plan:
    """The arguments of a `PrivateEstimator` as a plan, for n examples."""
    size, settings = estimator.batch_size, estimator.method_settings or {}
    usual = ADAM_RATE if estimator.optimizer == "adam" else _SGD_RATE
    return Plan(
        model,
        batch_size=min(_LARGEST_BATCH, num_examples) if size is None else size,
        delta=delta,
        learning_rate=usual if estimator.learning_rate is None else estimator.learning_rate,
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


def check_private(estimator: Any, policy: Policy) -> None:
    """Refuses an epsilon that the method cannot have, and warns where nobody is protected."""
    private = policy.private
    if private == (estimator.epsilon is None):
        wanted = "a number > 0" if private else "None, for it gives no privacy"
        raise SettingError(
            f"epsilon={estimator.epsilon} with method={estimator.method!r}; expected {wanted}."
        )
    if not private:
        message = (
            "method='sgd' trains without privacy: the model is not private, whatever the class is called."
        )
        warnings.warn(message, PrivacyWarning, stacklevel=5)
    elif estimator.random_state is not None:
        warnings.warn(
            f"random_state={estimator.random_state}: samples and noise follow from a seed. Anyone who knows "
            "or guesses it can undo the noise. That is for research; leave random_state out for a model "
            "that is released.",
            PrivacyWarning,
            stacklevel=5,
        )
