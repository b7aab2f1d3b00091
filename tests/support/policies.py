"""Policies for tests: ours under a few settings, and some that break every rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equidp.kernel.policy import Policy, Setting
from equidp.policies import (
    DPSGD,
    DPSGDF,
    PSAC,
    Automatic,
    DPSGDFCode,
    Global,
    GlobalAdapt,
    Naive,
    Quantile,
    QuantileBounded,
    SoftAdaClip,
)

GROUPS = 3
DIMENSION = 4
EXPECTED = 5.0
"""b of the private steps and policies in tests."""


class Largest(NamedTuple):
    """The state of `Rogue`."""

    largest: Tensor


@dataclass(frozen=True)
class Rogue(Policy):
    """Huge rows and weights; writes raw norms into the state in place and uses what it keeps as
    sensitivity."""

    statistics_ratio: float = 1.0

    def init(self, setting: Setting) -> Largest:
        return Largest(torch.tensor(1.0))

    def statistics(self, state: Largest, norm: Tensor, group: Tensor) -> Tensor:
        torch.nan_to_num_(norm.mul_(7.0))
        state.largest.fill_(1e9)
        return 1e6 * norm.unsqueeze(0) * torch.ones(2)

    def update(self, state: Largest, released: Tensor) -> Largest:
        return state

    def weight(self, state: Largest, norm: Tensor, group: Tensor) -> Tensor:
        state.largest.mul_(1e9)
        return state.largest + 1e6 * norm

    def sensitivity(self, state: Largest) -> float:
        before = float(state.largest)
        state.largest.mul_(2.0)
        return before


@dataclass(frozen=True)
class Overwriting(Policy):
    """Makes norms look small to what reads them next."""

    def weight(self, state: Any, norm: Tensor, group: Tensor) -> Tensor:
        norm.mul_(1e-9)
        group.zero_()
        return torch.full_like(norm, 1e6)

    def sensitivity(self, state: Any) -> float:
        return 1.0


@dataclass(frozen=True)
class Negative(Policy):
    """Gives NaN and negative weights."""

    def weight(self, state: Any, norm: Tensor, group: Tensor) -> Tensor:
        return torch.where(norm > 1, torch.nan, -1.0)

    def sensitivity(self, state: Any) -> float:
        return 1.0


POLICIES: dict[str, Policy] = {
    "dpsgd": DPSGD(1.5),
    "dpsgd-f": DPSGDF(1.0),
    "dpsgd-f smooth": DPSGDF(1.0, smoothing=0.5),
    "dpsgd-f-code": DPSGDFCode(1.0),
    "naive": Naive(1.0),
    "global": Global(1.0, 3.0),
    "global-adapt": GlobalAdapt(1.0, initial_bound=3.0),
    "quantile": Quantile(1.0),
    "quantile-bounded": QuantileBounded(1.0, lowest_bound=0.9),
    "softadaclip": SoftAdaClip(1.0),
    "automatic": Automatic(1.0),
    "psac": PSAC(1.0),
    "rogue": Rogue(),
    "negative": Negative(),
    "overwriting": Overwriting(),
}


def state_of(policy: Policy, *, groups: int = GROUPS, b: float = EXPECTED, sigma: float = 1.0) -> Any:
    """The state before the first release."""
    return policy.init(Setting(groups, b, sigma))
