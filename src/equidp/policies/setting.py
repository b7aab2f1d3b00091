"""Declaration of a policy's settings, with their texts on the command line and in `equidp methods`."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Self, get_type_hints

from torch import Tensor

from equidp._validate import check_number, unknown_name
from equidp.kernel.policy import Policy
from equidp.policies.by_group import values_in
from equidp.policies.ranges import Range

STATISTICS_RATIO = "Ratio of the noise multipliers of statistics and gradients, sigma_s / sigma."
BOUND_LEARNING_RATE = "Learning rate eta of the adaptive bound."


def setting(
    default: Any, meaning: str, within: str = "(0, inf)", hint: str = "", tune: Range | None = None
) -> Any:
    """A field of a policy with its default, its meaning in a sentence, the numbers that a `Checked` takes,
    and the range that tuning draws from."""
    return field(default=default, metadata={"help": meaning, "range": (within, hint), "tune": tune})


@dataclass(frozen=True)
class Checked(Policy):
    """A method whose settings declare their ranges.

    Raises:
        SettingError: an unknown setting, or one outside its range.

    >>> from equidp.policies import DPSGD
    >>> DPSGD(max_grad_norm=1.0)
    Traceback (most recent call last):
    equidp.errors.SettingError: unknown setting of DPSGD 'max_grad_norm'. Known: clipping_bound.
    """

    def __new__(cls, *_: Any, **settings: Any) -> Self:
        known = [each.name for each in fields(cls)]
        for name in settings.keys() - {*known}:
            raise unknown_name(f"setting of {cls.__name__}", name, known)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for each in fields(self):
            if "range" not in each.metadata:
                continue
            for number in values_in(getattr(self, each.name)):
                check_number(*each.metadata["range"], **{each.name: number})


@dataclass(frozen=True)
class Bounded(Checked):
    """A method with a clipping bound C, the same for all groups unless it says otherwise."""

    clipping_bound: float = setting(1.0, "Clipping bound C (C_0 if each group has its own bound).")

    def bound(self, state: Any, group: Tensor) -> float | Tensor:
        return self.clipping_bound


@dataclass(frozen=True)
class MethodSetting:
    """One setting of a method.

    Attributes:
        name: name of the policy's field.
        type: type of its values.
        default: default value, or None if there is none.
        help: its meaning, in a sentence.
        names: values that the command line completes to.
    """

    name: str
    type: Any
    default: Any
    help: str
    names: tuple[str, ...] = ()


def settings_of(policy: type) -> list[MethodSetting]:
    """Return the settings of a policy, or of another frozen dataclass, in the order of its fields.

    Example:
        >>> from equidp.policies import DPSGD
        >>> settings_of(DPSGD)[0].name
        'clipping_bound'
    """
    types = get_type_hints(policy)
    return [
        MethodSetting(
            each.name,
            types[each.name],
            None if each.default is MISSING else each.default,
            each.metadata.get("help", ""),
        )
        for each in fields(policy)
    ]
