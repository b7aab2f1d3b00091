"""SoftAdaClip: smooth clipping by tanh, whose bound follows a quantile (Soleymani et al., 2510.01447)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from equidp.kernel.policy import Setting
from equidp.policies.global_adapt import AdaptiveBound
from equidp.policies.quantile import QuantileBound


@dataclass(frozen=True)
class SoftAdaClip(QuantileBound):
    """Weight C tanh(norm / C) / norm: gradients well below C stay as they are, long ones approach C.

    Of two long gradients, the longer one stays longer, whereas clipping makes them equal. C follows a
    quantile of the norms, as in `Quantile`, and is the sensitivity.

    Example:
        >>> import torch, equidp
        >>> policy = equidp.SoftAdaClip(clipping_bound=2.0)
        >>> state = policy.init(equidp.policies.Setting(2, 64.0, 1.0))
        >>> policy.weight(state, torch.tensor(4.0), torch.tensor(0))  # tanh(2) / 2
        tensor(0.4820)
    """

    def init(self, setting: Setting) -> AdaptiveBound:
        return AdaptiveBound.start(self.clipping_bound, setting)

    def update(self, state: AdaptiveBound, released: Tensor) -> AdaptiveBound:
        return state.with_bound(self.next_bound(state, released))

    def weight(self, state: AdaptiveBound, norm: Tensor, group: Tensor) -> Tensor:
        bound = state.bound.to(norm.dtype)
        length = bound * (norm / bound).tanh()
        # The limit at 0, also where a norm is too small for its reciprocal, is 1.
        return (length * norm.reciprocal()).nan_to_num(nan=1.0).clamp(max=1.0)
