"""What a policy is: norms and groups in, weights and a sensitivity out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from equidp.errors import SettingError


class Policy(ABC):
    """A method of private training, as far as methods differ.

    In each step the mechanism asks, in this order: `statistics` (only where `statistics_ratio` is set), `observe` with the noisy
    sum of those rows, `sensitivity`, `weights`. Everything is computed from releases and from one example's norm and group; the
    mechanism enforces that and the bounds, so that a mistake here costs accuracy, never privacy. Settings are public.

    `statistics` and `weights` run example by example under `torch.vmap`: use torch operations, and `torch.where` instead of `if`.

    Attributes:
        num_groups: K, of a policy that is made for so many groups; None: it takes any.
        statistics_ratio: sigma_s / sigma, how much noisier statistics are than gradients; None: the policy reads no statistics.
        statistics_noise: sigma_s, noise multiplier of the statistics (their sensitivity is 1); set by `prepare`.
        expected_batch_size: b; set by `prepare`.
    """

    num_groups: int | None = None
    statistics_ratio: float | None = None
    statistics_noise: float | None = None
    expected_batch_size: float | None = None
    state_names: tuple[str, ...] = ()
    """Names of the attributes that change with releases: tensors or numbers, saved and loaded with a run."""

    def prepare(self, *, noise_multiplier: float, expected_batch_size: float) -> None:
        """Told once before training: sigma and b, both public."""
        self.expected_batch_size = expected_batch_size
        if self.statistics_ratio is not None:
            self.statistics_noise = self.statistics_ratio * noise_multiplier

    def statistics(self, norms: Tensor, groups: Tensor) -> Tensor:
        """One row per example, [batch, cells], each of L2 norm <= 1; norms and groups are [batch]."""
        raise NotImplementedError(f"{type(self).__name__} reads no statistics.")

    def observe(self, released: Tensor) -> None:  # noqa: B027 -- most policies read no statistics
        """Learns the noisy sum of the rows, [cells]: the only way that state changes."""

    @abstractmethod
    def weights(self, norms: Tensor, groups: Tensor) -> Tensor:
        """One weight >= 0 per example, [batch], with weight * norm <= sensitivity."""

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """The largest weight * norm that any example of any group could have, present or not."""

    def released_state(self) -> dict[str, Tensor | float]:
        """State worth plotting, by name: a number, or one number per group, [K]. Follows from releases, so it is not private."""
        return {"clipping_bound": self.sensitivity}

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs so that an equal policy goes on as this one would."""
        values = ((name, getattr(self, name)) for name in self.state_names)
        return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if set(state) != set(self.state_names):
            raise SettingError(
                f"the saved state has {sorted(state)}; {type(self).__name__} expects {sorted(self.state_names)}. "
                "Load it into the policy it was saved from."
            )
        for name, value in state.items():
            setattr(self, name, value.clone() if isinstance(value, torch.Tensor) else value)
