"""ResolvedPlan: how one method trains on one dataset, with nothing left open."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from torch import nn

from equidp._parts import is_import_path, own_part
from equidp.errors import SettingError
from equidp.kernel.engine import LossFunction
from equidp.kernel.ledger import StepEvent
from equidp.kernel.policy import Policy
from equidp.models import model_named
from equidp.policies.methods import make_policy
from equidp.training.averages import WeightAverage

ModelFactory = Callable[[tuple[int, ...], int], nn.Module]
"""(shape of one input, number of classes) -> a model with fresh weights from torch's global generator."""


@dataclass(frozen=True)
class ResolvedPlan:
    """How one method trains on one dataset; made by `Plan.resolve`. Other fields are those of `Plan`.

    Attributes:
        method: its name in `METHODS`, its import path, or the name of a policy's class.
        policy: made from the settings that the method has.
        model: its name; `factory` makes it.
        sample_rate: q = b / n.
        steps: T.
        noise_multiplier: sigma; 0 for a method without privacy.
        recalibration: noise multiplier of `equidp.recalibrate` after training, 0 without privacy; None: none.
        loss: its name; "" for cross entropy. `loss_function` is the loss; None for cross entropy.
    """

    method: str
    policy: Policy
    model: str
    factory: ModelFactory
    learning_rate: float
    batch_size: int
    epochs: float
    sample_rate: float
    steps: int
    noise_multiplier: float
    delta: float
    momentum: float
    weight_decay: float
    class_weight: Mapping[str, float] | None = None
    loss: str = ""
    loss_function: LossFunction | None = None
    optimizer: str = "sgd"
    schedule: str = "constant"
    average: str = "none"
    average_share: float = WeightAverage.share
    views: int = 1
    augmentation: str = "none"
    recalibration: float | None = None

    @property
    def releases(self) -> tuple[StepEvent, ...]:
        """What the plan itself costs beside its steps."""
        return (StepEvent(1.0, self.recalibration),) if self.recalibration else ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values that `from_dict` reads."""
        left_out = ("factory", "loss_function")
        content = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in left_out}
        return {**content, "policy": asdict(self.policy)}  # type: ignore[call-overload]

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> ResolvedPlan:
        """What `to_dict` gave; method, model and loss must have a name or an import path."""
        made = {
            "policy": make_policy(content["method"], content["policy"]),
            "factory": model_named(content["model"]),
            "loss_function": loss_named(content["loss"]) if content["loss"] else None,
        }
        return cls(**{**content, **made})


def loss_named(path: str) -> LossFunction:
    """The loss of an import path: a function, or a class that is made without arguments.

    Raises:
        SettingError: the path leads nowhere, or to something else.
    """
    expected = "a function of (outputs, targets) that gives one loss for each example"
    if not is_import_path(path):
        raise SettingError(f"loss {path!r}; expected an import path, such as my_module:my_loss: {expected}.")
    found = own_part(path, "loss", callable, expected)
    try:
        loss: LossFunction = found() if isinstance(found, type) else found
    except TypeError as error:
        message = f"loss {path!r} is a class that needs arguments ({error}); name an object."
        raise SettingError(message) from error
    return loss
