"""The private step that a diagnosis describes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from equidp.kernel.policy import Policy


@dataclass(frozen=True, eq=False)
class Step:
    """A private step by plain gradient descent.

    Attributes:
        policy, state: what weights and the sensitivity come from.
        learning_rate: eta.
        noise_multiplier: sigma.
        batch_size: b, expected.
    """

    policy: Policy
    state: Any
    learning_rate: float
    noise_multiplier: float
    batch_size: float

    @property
    def sensitivity(self) -> float:
        """S, under the state."""
        return float(self.policy.sensitivity(self.state))

    @property
    def laplace_epsilon(self) -> float:
        """The epsilon at which Xu et al.'s Laplace noise is as large as this step's Gaussian noise."""
        return math.inf if self.noise_multiplier == 0 else 1 / self.noise_multiplier
