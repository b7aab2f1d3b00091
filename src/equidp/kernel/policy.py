"""Interface of methods: norms and groups in, weights and a sensitivity out."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from equidp.errors import PolicyError, SettingError
from equidp.kernel.engine import Context, LossOfExample
from equidp.kernel.noise import exact_place


class Setting(NamedTuple):
    """Public numbers that a policy starts from.

    Attributes:
        num_groups: K.
        expected_batch_size: b = q n.
        noise_multiplier: sigma.
        num_parameters: of the model, those that are trained.

    Example:
        >>> import equidp
        >>> setting = equidp.Setting(num_groups=3, expected_batch_size=256.0, noise_multiplier=1.0)
        >>> equidp.DPSGDF(clipping_bound=0.5).init(setting).bounds
        tensor([1., 1., 1.])
    """

    num_groups: int
    expected_batch_size: float
    noise_multiplier: float
    num_parameters: int = 0


class NoState(NamedTuple):
    """The state of a policy that learns nothing.

    Example:
        >>> import equidp
        >>> equidp.DPSGD(clipping_bound=2.0).sensitivity(equidp.NoState())
        2.0
    """


class Policy(ABC):
    """A method of private training, as far as methods differ. Subclasses are frozen dataclasses.

    The fields of the dataclass are the method's settings: numbers, texts, truth values or None. They are
    public and never change. What a policy learns is in its state, a NamedTuple of tensors that the kernel
    keeps.

    In each step the kernel asks, in this order: `statistics` (only where `statistics_ratio` is set), `update`
    with the noisy sum of those rows, `sensitivity`, `weight`. `statistics` and `weight` see one example, a
    norm and a group as 0-dimensional tensors, under `torch.vmap`: use torch operations, and `torch.where` in
    place of `if`. The kernel gives them a copy of the state and enforces the bounds, so a mistake here costs
    accuracy, not privacy.

    A policy may also change losses, by `loss_terms` terms that it adds to the loss of each example. Its
    `context` then sees each example's group before the batch is measured, with a state from the releases of
    earlier steps; the engine measures `objective` of the example and that context; `statistics` gets the
    terms of the example too, last; and after the step the policy sees the private gradient
    (`after_gradient`).

    Attributes:
        statistics_ratio: sigma_s / sigma, how much noisier statistics are than gradients; None: reads no
            statistics.
        private: False for plain SGD alone, which takes no noise.
        needs_groups: whether the method treats groups differently, and so needs them.
        loss_terms: number of terms that the method adds to losses; 0: it leaves losses as they are. Others
            take an engine that measures them (`kernel.engine.measure`).

    Example:
        >>> import torch, equidp
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Halved(equidp.Policy):
        ...     clipping_bound: float = 1.0
        ...     def weight(self, state, norm, group):
        ...         return 0.5 * (self.clipping_bound / norm).clamp(max=1.0)
        ...     def sensitivity(self, state):
        ...         return 0.5 * self.clipping_bound
        >>> equidp.check_policy(Halved())
    """

    statistics_ratio: float | None = None
    private: ClassVar[bool] = True
    needs_groups: ClassVar[bool] = False
    loss_terms: ClassVar[int] = 0

    def init(self, setting: Setting) -> NamedTuple:
        """The state before the first release."""
        return NoState()

    def statistics(self, state: Any, norm: Tensor, group: Tensor) -> Tensor:
        """The row of one example, [cells], of L2 norm <= 1.

        A policy that changes losses also gets the terms of the example's loss, `loss_terms` further numbers:
        `statistics(self, state, norm, group, *terms)`.
        """
        raise NotImplementedError(f"{type(self).__name__} reads no statistics.")

    def update(self, state: Any, released: Tensor) -> NamedTuple:
        """The state after a release, the noisy sum of the rows, [cells]: the only way that state changes.

        The state and the release are on the CPU, wherever the model is.
        """
        raise NotImplementedError(f"{type(self).__name__} reads no statistics.")

    def context(self, state: Any, group: Tensor) -> Context:
        """Public numbers, of any shapes, beside the loss of one example of this group."""
        raise NotImplementedError(f"{type(self).__name__} adds nothing to losses.")

    def objective(
        self, loss: LossOfExample, parameters: dict[str, Tensor], context: Context
    ) -> tuple[Tensor, Tensor]:
        """Loss of one example with what the policy adds, a number, and its terms, [loss_terms], of trained
        parameters by name. The engine differentiates it under `torch.vmap`."""
        raise NotImplementedError(f"{type(self).__name__} adds nothing to losses.")

    def after_gradient(self, state: Any, gradient: Tensor) -> NamedTuple:
        """The state after the private gradient of a step, flat, [parameters], which is a release."""
        return state  # type: ignore[no-any-return]

    @abstractmethod
    def weight(self, state: Any, norm: Tensor, group: Tensor) -> Tensor:
        """The weight of one example, a number >= 0 with weight * norm <= sensitivity."""

    @abstractmethod
    def sensitivity(self, state: Any) -> float:
        """The largest weight * norm that any example of any group could have, present or not."""

    def released(self, state: Any) -> dict[str, Tensor]:
        """Values to plot, by name: a number or one number per group, [K]. They follow from releases
        alone."""
        return {"clipping_bound": torch.tensor(self.sensitivity(state), dtype=torch.float64)}


def check_settings(policy: object) -> None:
    """Refuse what is not a frozen dataclass of plain values: state is explicit or absent.

    | policy | result |
    | --- | --- |
    | not a Policy, also the class in place of an object | PolicyError |
    | no dataclass, or not frozen | PolicyError |
    | a field that could hold state, such as a list or a tensor | PolicyError |

    Raises:
        PolicyError: names the attribute.
    """
    name = type(policy).__name__
    if not isinstance(policy, Policy):
        raise PolicyError(f"policy={policy!r}; expected a policy, such as equidp.DPSGD(clipping_bound=1.0).")
    if not (is_dataclass(policy) and type(policy).__dataclass_params__.frozen):
        raise PolicyError(
            f"{name} is not a frozen dataclass; write @dataclass(frozen=True) above the class.",
            field="policy",
        )
    for field in (each.name for each in fields(policy)):
        value = getattr(policy, field)
        if not isinstance(value, int | float | str | None):
            raise PolicyError(
                f"{name}.{field} is a {type(value).__name__}; expected a number, a text or None. Keep "
                "tensors in the state.",
                field=field,
            )


def statistics_noise(policy: Policy, noise_multiplier: float) -> float | None:
    """sigma_s, the noise multiplier of the policy's statistics (their sensitivity is 1); None where it reads
    none."""
    ratio = policy.statistics_ratio
    return None if ratio is None else float(ratio * noise_multiplier)


def checked_state(policy: Policy, state: Any) -> Any:
    """The state, which must be a NamedTuple of tensors.

    Raises:
        PolicyError: names what was given.
    """
    if not (
        isinstance(state, tuple) and hasattr(state, "_fields") and all(isinstance(x, Tensor) for x in state)
    ):
        raise PolicyError(
            f"{type(policy).__name__} gives the state {state!r}; expected a NamedTuple whose fields are "
            "tensors.",
            field="state",
        )
    return state


def restored_state(policy: Policy, state: Any, values: Mapping[str, Tensor]) -> Any:
    """The saved values, by name, as a state in place of this one.

    Raises:
        SettingError: they are of another policy, or for another number of groups.
    """
    there = {name: getattr(value, "shape", None) for name, value in values.items()}
    expected = {name: value.shape for name, value in state._asdict().items()}
    if there != expected:
        raise SettingError(
            f"the saved state has {there}; {type(policy).__name__} expects {expected}. "
            "Restore it with the policy and the groups it was saved from.",
            field="state",
        )
    return copy_state(type(state)(**values))


SMALLEST_SENSITIVITY, LARGEST_SENSITIVITY = 1e-30, 1e30
"""Sensitivities that a weight can be capped by in float32: nearer to the ends of its range, a cap is rounded
by far more than `bounding.ROUNDING` allows, or is infinite."""


def checked_sensitivity(policy: Policy, state: Any, noise_multiplier: float) -> float:
    """The sensitivity under this state; infinite where there is no noise to scale to it.

    One below `SMALLEST_SENSITIVITY`, as bounds that adapt to gradients of 0 may reach, counts as that:
    weights are capped by it and noise is scaled to it.

    Raises:
        PolicyError: noise cannot be scaled to it.
    """
    sensitivity = float(policy.sensitivity(copy_state(state)))
    if math.isinf(sensitivity) and sensitivity > 0 and noise_multiplier == 0:
        return sensitivity
    if not 0 < sensitivity <= LARGEST_SENSITIVITY:
        raise PolicyError(
            f"{type(policy).__name__} has sensitivity {sensitivity}; expected a number in "
            f"(0, {LARGEST_SENSITIVITY:g}] for noise multiplier {noise_multiplier}.",
            field="sensitivity",
        )
    return max(sensitivity, SMALLEST_SENSITIVITY)


def copy_state(state: Any) -> Any:
    """Copy a state, without its graph; a state without tensors is returned as it is."""
    if not state:
        return state
    return type(state)._make([value.detach().clone() for value in state])


def on_device(state: Any, device: torch.device) -> Any:
    """The state, on `device`; in float32 where it holds float64 and the device has none."""
    if not state:
        return state
    single = exact_place(device) != device
    return type(state)._make(
        [(value.float() if single and value.is_floating_point() else value).to(device) for value in state]
    )
