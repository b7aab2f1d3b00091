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
        num_groups: number of groups K.
        expected_batch_size: expected batch size b = q n.
        noise_multiplier: noise multiplier sigma.
        num_parameters: number of trained parameters of the model.

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
    """A method of private training: the rules in which methods differ. Subclasses are frozen dataclasses.

    Most methods define only `bound`, to which each gradient is clipped. The fields of the dataclass are the
    method's settings: numbers, texts, None, or a mapping from group names to numbers ("*": all others). They
    are public and never change. What a policy learns is in its state, a NamedTuple of tensors that the kernel
    keeps.

    In each step the kernel calls `statistics` (only if `statistics_ratio` is set), `update` with the noisy
    sum of those rows, `bound` for every group, and `weight`. The largest bound is the sensitivity S. Rules
    see one example at a time, with its norm and group as 0-dimensional tensors, under `torch.vmap`. Use torch
    operations, and `torch.where` instead of `if`. Rules receive a copy of the state, and the kernel enforces
    S and the norm of rows. A mistake in a rule therefore costs accuracy, not privacy.

    A policy may also change losses, by `loss_terms` terms that it adds to the loss of each example. The
    engine then measures `objective` with the `context` of the example's group, `statistics` receives the
    terms as its last argument, and `after_gradient` sees the private gradient.

    Attributes:
        statistics_ratio: sigma_s / sigma, how much noisier statistics are than gradients. None: no
            statistics.
        private: False only for plain SGD, which has no noise.
        needs_groups: whether the method needs groups, because it treats them differently.
        loss_terms: number of terms that the method adds to each loss. 0: losses stay as they are.

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
        """The largest weight * norm of an example of this group; by default the same for all groups."""
        return self.sensitivity(state)

    def weight(self, state: Any, norm: Tensor, group: Tensor) -> Tensor:
        """The weight of one example, a number >= 0 with weight * norm <= bound: min(1, bound / norm)."""
        bound = self.bound(state, group)
        bound = bound.to(norm.dtype) if isinstance(bound, Tensor) else bound
        return (bound / norm).clamp(max=1.0)

    def sensitivity(self, state: Any) -> float:
        """The bound of all groups, for a policy that defines `weight` and not `bound`."""
        name = type(self).__name__
        raise PolicyError(f"{name} has no bound; write bound(self, state, group).", field="bound")

    def context(self, state: Any, group: Tensor) -> Context:
        """Public numbers, of any shapes, for the loss of one example of this group."""
        raise NotImplementedError(f"{type(self).__name__} adds nothing to losses.")

    def objective(
        self, loss: LossOfExample, parameters: dict[str, Tensor], context: Context
    ) -> tuple[Tensor, Tensor]:
        """Loss of one example with the policy's terms added, a number, and the terms, [loss_terms].

        Both are functions of the trained parameters by name. The engine differentiates the loss under
        `torch.vmap`."""
        raise NotImplementedError(f"{type(self).__name__} adds nothing to losses.")

    def after_gradient(self, state: Any, gradient: Tensor) -> NamedTuple:
        """The state after the private gradient of a step, flat, [parameters]."""
        return state  # type: ignore[no-any-return]

    def released(self, state: Any) -> dict[str, Tensor]:
        """Values to plot with the bounds, by name: a number or one number per group, [K]."""
        return {}


def statistics_noise(policy: Policy, noise_multiplier: float) -> float | None:
    """Noise multiplier sigma_s of the policy's statistics, of sensitivity 1. None: no statistics."""
    ratio = policy.statistics_ratio
    return None if ratio is None else float(ratio * noise_multiplier)


def checked_state(policy: Policy, state: Any) -> Any:
    """Return the state, or raise a PolicyError unless it is a NamedTuple of tensors."""
    if hasattr(state, "_fields") and all(isinstance(each, Tensor) for each in state):
        return state
    name = type(policy).__name__
    message = f"{name} gives the state {state!r}; expected a NamedTuple whose fields are tensors."
    raise PolicyError(message, field="state")


def restored_state(policy: Policy, state: Any, values: Mapping[str, Tensor]) -> Any:
    """Return the saved values, by name, as a state to replace this one.

    Raises:
        SettingError: the values belong to another policy or another number of groups.
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
    """Copy a state without its graph to a device; in float32 if the device has no float64."""
    single = state and exact_place(torch.device(device)) != torch.device(device)
    values = [value.float() if single and value.is_floating_point() else value for value in state]
    return type(state)._make([value.detach().to(device, copy=True) for value in values])
