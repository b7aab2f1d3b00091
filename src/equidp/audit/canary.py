"""Canaries: made-up examples with a chosen gradient, which reveal whether they took part."""

from __future__ import annotations

from functools import partial
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from equidp.accounting.risk import Floats
from equidp.kernel.engine import Engine, Measured, Sums
from equidp.kernel.inputs import Inputs, taken
from equidp.kernel.policy import Policy
from equidp.policies.weights import step_weights

_NORMS = torch.logspace(-3, 6, 2001, dtype=torch.float32)
_TIE = 1e-4


@final
class CanaryEngine:
    """Engine whose inputs are numbers of examples, [batch, 1], so that an audit knows who was drawn.

    An inner engine measures the examples. A number beyond them is a canary, with a chosen gradient.

    Args:
        engine: measures the examples.
        inputs, targets: inputs and targets of the examples, [n, ...], on the engine's device.
        parameters: trained parameters, in the model's order.
        direction: direction of the canary's gradient over all of them, of norm 1, [parameters], float64.
        norm: norm of that gradient.

    Attributes:
        drawn: numbers of the examples that were measured last.
        made_up: True: gradients of canaries are not the model's.
    """

    made_up = True

    def __init__(
        self,
        engine: Engine,
        inputs: Tensor,
        targets: Tensor,
        parameters: list[nn.Parameter],
        direction: Tensor,
        norm: float,
    ) -> None:
        self._engine, self._examples, self._norm = engine, (inputs, targets), norm
        sizes = [each.numel() for each in parameters]
        parts = zip(parameters, direction.split(sizes), strict=True)
        self._canary = {each: norm * part.view_as(each) for each, part in parts}
        self.drawn = torch.empty(0, dtype=torch.int64)

    def __call__(self, inputs: Inputs, targets: Inputs, *context: Tensor) -> Measured:
        """See `kernel.engine.Engine`."""
        assert isinstance(inputs, Tensor)
        self.drawn = inputs[:, 0]
        real = self.drawn < len(self._examples[0])
        found = self._engine(*taken(self._examples, self.drawn[real])) if real.any() else None
        norms = torch.full(real.shape, self._norm, device=real.device)
        if found is not None:
            norms[real] = found.norms.detach().to(norms)
        return Measured(norms, None, partial(self._sums, found, real))

    def _sums(self, found: Measured | None, real: Tensor, weights: Tensor) -> Sums:
        sums = {} if found is None else found.sums(weights[real])
        if not real.all():
            weight = weights[~real].double().sum()
            for parameter, gradient in self._canary.items():
                own = weight * gradient
                sums[parameter] = sums[parameter] + own if parameter in sums else own
        return sums


def best_norms(policy: Policy, state: Any, num_groups: int) -> Tensor:
    """Norm for each group, [K], with the longest weighted gradient under the policy.

    The largest norm if several tie: beyond every bound, if the policy drops nothing.
    """
    best = []
    for group in range(num_groups):
        groups = torch.full(_NORMS.shape, group, dtype=torch.int64)
        lengths = step_weights(policy, state, _NORMS, groups, num_groups) * _NORMS
        best.append(_NORMS[lengths >= (1 - _TIE) * lengths.max()][-1])
    return torch.stack(best)


def log_likelihood_ratio(seen: Floats | float, share: Floats, sigma: float, rate: float | Floats) -> Floats:
    """Logarithm of the likelihood ratio of a release with the canary to a release without it.

    Args:
        seen: released gradients along the canary's, in units of the sensitivity, without the background.
        share: norm of the canary's weighted gradient as a share of the sensitivity, same shape.
        sigma: noise multiplier of the gradient.
        rate: q, probability that the canary is drawn; or of each, same shape.

    >>> float(log_likelihood_ratio(np.array(1.0), np.array(1.0), sigma=1.0, rate=1.0))
    0.5
    """
    exponent = (share * seen - share**2 / 2) / sigma**2
    with np.errstate(divide="ignore"):  # a canary that is always drawn, or never
        return np.asarray(np.logaddexp(np.log1p(-np.asarray(rate)), np.log(rate) + exponent))
