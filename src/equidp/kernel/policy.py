"""Contract of methods: what a method may learn, and how far each example's gradient may move a sum."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
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
        >>> equidp.DPSGD(clipping_bound=2.0).bound(equidp.NoState(), group=0)
        2.0
    """


class Policy(ABC):  # noqa: B024 -- a policy gives bound, or weight and sensitivity
    """A method of private training, as far as methods differ. Subclasses are frozen dataclasses.

    Most methods give a `bound` alone: each gradient is shortened to it. The fields of the dataclass are the
    method's settings: numbers, texts, None, or a mapping from names of groups to numbers ("*": all others).
    They are public and never change. What a policy learns is in its state, a NamedTuple of tensors that the
    kernel keeps.

    In each step the kernel asks `statistics` (only where `statistics_ratio` is set), `update` with the noisy
    sum of those rows, `bound` of every group, whose largest is the sensitivity S, and `weight`. Rules see one
    example, a norm and a group as 0-dimensional tensors, under `torch.vmap`: use torch operations, and
    `torch.where` in place of `if`. They get a copy of the state, and the kernel enforces S and the length of
    rows, so a mistake here costs accuracy, not privacy.

    A policy may also change losses, by `loss_terms` terms that it adds to the loss of each example: the
    engine measures `objective` with the `context` of the example's group, `statistics` gets the terms last,
    and `after_gradient` sees the private gradient.

    Attributes:
        statistics_ratio: sigma_s / sigma, how much noisier statistics are than gradients; None: reads none.
        private: False for plain SGD alone, which takes no noise.
        needs_groups: whether the method treats groups differently, and so needs them.
        loss_terms: number of terms that the method adds to losses; 0: it leaves losses as they are.

    Example:
        >>> import torch, equidp
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Halved(equidp.Policy):
        ...     clipping_bound: float = 1.0
        ...     def bound(self, state, group):
        ...         return torch.where(group == 0, 0.5, 1.0) * self.clipping_bound
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
        """The row of one example, [cells], of L2 norm <= 1."""
        raise NotImplementedError(f"{type(self).__name__} reads no statistics.")

    def update(self, state: Any, released: Tensor) -> NamedTuple:
        """The state after a release, the noisy sum of the rows, [cells], on the CPU as the state is."""
        raise NotImplementedError(f"{type(self).__name__} reads no statistics.")

    def bound(self, state: Any, group: Tensor) -> float | Tensor:
        """The largest weight * norm that an example of this group could have; the same for all by default."""
        return self.sensitivity(state)

    def weight(self, state: Any, norm: Tensor, group: Tensor) -> Tensor:
        """The weight of one example, a number >= 0 with weight * norm <= bound: min(1, bound / norm)."""
        bound = self.bound(state, group)
        bound = bound.to(norm.dtype) if isinstance(bound, Tensor) else bound
        return (bound / norm).clamp(max=1.0)

    def sensitivity(self, state: Any) -> float:
        """The bound of all groups, of a policy that gives `weight` and no `bound`."""
        name = type(self).__name__
        raise PolicyError(f"{name} has no bound; write bound(self, state, group).", field="bound")

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
        """The state after the private gradient of a step, flat, [parameters]."""
        return state  # type: ignore[no-any-return]

    def released(self, state: Any) -> dict[str, Tensor]:
        """Values to plot beside the bounds, by name: a number or one number per group, [K]."""
        return {}


def statistics_noise(policy: Policy, noise_multiplier: float) -> float | None:
    """sigma_s, the noise multiplier of the policy's statistics, of sensitivity 1; None: it has none."""
    ratio = policy.statistics_ratio
    return None if ratio is None else float(ratio * noise_multiplier)


def checked_state(policy: Policy, state: Any) -> Any:
    """The state, which must be a NamedTuple of tensors; else a PolicyError."""
    if hasattr(state, "_fields") and all(isinstance(each, Tensor) for each in state):
        return state
    name = type(policy).__name__
    message = f"{name} gives the state {state!r}; expected a NamedTuple whose fields are tensors."
    raise PolicyError(message, field="state")


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


def copy_state(state: Any, device: torch.device | str = "cpu") -> Any:
    """Copy a state without its graph to a device; in float32 where that has no float64."""
    single = state and exact_place(torch.device(device)) != torch.device(device)
    values = [value.float() if single and value.is_floating_point() else value for value in state]
    return type(state)._make([value.detach().to(device, copy=True) for value in values])
