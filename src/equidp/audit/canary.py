"""Canaries: made-up examples with chosen gradients, which reveal whether the canaries took part."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from equidp.data.dataset import GroupedDataset
from equidp.engines.measurement import MeasuredBatch
from equidp.engines.model import flat_sums
from equidp.kernel.engine import Engine, Measured, Sums
from equidp.kernel.inputs import Inputs, taken
from equidp.kernel.noise import to_double
from equidp.kernel.policy import Policy
from equidp.policies.weights import step_weights

_NORMS = torch.logspace(-3, 6, 2001, dtype=torch.float32)
_TIE = 1e-4


@final
class Directions:
    """Unit vectors in the space of all trainable parameters, [m, parameters], stored as sparse entries.

    Args:
        places: parameters at which each vector has entries, [m, k].
        values: those entries, [m, k]; each row of norm 1.

    >>> two = Directions(torch.tensor([[0], [3]]), torch.tensor([[1.0], [-1.0]]))
    >>> two.along(torch.tensor([5.0, 0.0, 0.0, 2.0]))
    tensor([ 5., -2.], dtype=torch.float64)
    """

    def __init__(self, places: Tensor, values: Tensor) -> None:
        self.places, self.values = places, values.double()

    def __len__(self) -> int:
        return len(self.places)

    @classmethod
    def dense(cls, vector: Tensor) -> Directions:
        """Return one direction with an entry for every parameter."""
        return cls(torch.arange(len(vector)).unsqueeze(0), (vector / vector.norm()).unsqueeze(0))

    def along(self, vector: Tensor) -> Tensor:
        """Inner products of a vector [parameters] with each direction, [m], float64."""
        return (vector[self.places.to(vector.device)].cpu().double() * self.values).sum(dim=1)

    def add(self, vector: Tensor, which: Tensor, factors: Tensor) -> None:
        """Add factors[i] times direction which[i] to a vector [parameters], for each i."""
        added = factors.cpu().double().unsqueeze(1) * self.values[which.cpu()]
        places = self.places[which.cpu()].flatten().to(vector.device)
        vector.index_add_(0, places, added.flatten().to(vector))


@final
class CanaryEngine:
    """Engine that gives canaries a chosen gradient; an inner engine measures the other examples.

    A canary is an example whose first target is `first` + j: it has the gradient of canary j, and a loss
    beyond every bound.

    Args:
        engine: measures the other examples.
        parameters: trainable parameters, in the model's order.
        directions: of the canaries' gradients, [m, parameters].
        norms: of the canaries' gradients, [m].
        first: the number of classes.

    Attributes:
        background: sum of the other examples since `take_sums`, along each direction, [m], float64: an
            adversary who knows all other examples can compute it.
        total: sum of all examples since then, before noise, canaries included, [parameters]; None: no sum.
    """

    def __init__(
        self,
        engine: Engine,
        parameters: list[nn.Parameter],
        directions: Directions,
        norms: Tensor,
        first: int,
    ) -> None:
        self.engine, self.parameters, self.first = engine, parameters, first
        self.directions, self.norms = directions, norms
        self.background = torch.zeros(len(directions), dtype=torch.float64)
        self.total: Tensor | None = None

    def take_sums(self) -> tuple[Tensor, Tensor | None]:
        """Return `background` and `total` of a step over all of its parts, and reset both."""
        taken = self.background, self.total
        self.background, self.total = torch.zeros_like(self.background), None
        return taken

    def __call__(self, inputs: Inputs, targets: Inputs) -> MeasuredBatch:
        """See `kernel.engine.Engine`."""
        assert isinstance(targets, Tensor)
        first_targets = targets.reshape(len(targets), -1)[:, 0].long()  # of several rows and weights
        canary = first_targets >= self.first
        which = first_targets[canary] - self.first
        others = None if bool(canary.all()) else self.engine(*taken((inputs, targets), ~canary))
        own = self.norms.to(targets.device)[which]
        norms = own if others is None else others.norms.new_zeros(len(targets))
        if others is not None:
            norms[~canary] = others.norms.detach()
            norms[canary] = own.to(norms)
        return MeasuredBatch(norms, partial(self._sums, others, canary, which))

    def _sums(self, others: Measured | None, canary: Tensor, which: Tensor, weights: Tensor) -> Sums:
        sums = {} if others is None else others.sum_gradients(weights[~canary])
        total = flat_sums(sums, self.parameters)
        self.background += self.directions.along(total)
        if len(which):
            self.directions.add(total, which, weights[canary] * self.norms.to(weights.device)[which])
        self.total = total.clone() if self.total is None else self.total + total
        if not len(which):
            return sums
        parts = to_double(total).split([parameter.numel() for parameter in self.parameters])
        return {
            parameter: part.reshape(parameter.shape)
            for parameter, part in zip(self.parameters, parts, strict=True)
        }


def with_canaries(train: GroupedDataset, groups: Tensor) -> GroupedDataset:
    """Return the data with one canary for each of `groups`, [m], after it; canary j's target: classes + j."""
    count = len(groups)
    like = train.subset(torch.zeros(count, dtype=torch.int64))
    targets = _by_row(train.num_classes + torch.arange(count), train)
    names = (*train.class_names, *(f"canary {number}" for number in range(count)))
    return _after(train, replace(like, targets=targets, groups=groups, class_names=names))


def _by_row(numbers: Tensor, train: GroupedDataset) -> Tensor:
    """Return a number for each example, [m], in the shape of the data's targets: [m], or [m, rows]."""
    return numbers if train.rows is None else numbers.unsqueeze(1).expand(-1, train.rows)


def _after(train: GroupedDataset, canaries: GroupedDataset) -> GroupedDataset:
    """Return the data with the canaries after it, with the class names of the canaries.

    A canary is a row of its own, also where it was made from a row that others were made from.
    """
    both = train, canaries
    weights = [each.weights for each in both if each.weights is not None]
    row_groups = None
    if train.row_groups is not None:
        of_canaries = canaries.groups.unsqueeze(1).expand(-1, train.row_groups.shape[1])
        row_groups = torch.cat([train.row_groups, of_canaries])
    return replace(
        canaries,
        inputs=torch.cat([each.one_tensor for each in both]),
        targets=torch.cat([each.targets for each in both]),
        groups=torch.cat([each.groups for each in both]),
        weights=torch.cat(weights) if weights else None,
        row_groups=row_groups,
        repeats_rows=train.repeats_rows,
    )


def best_norms(policy: Policy, state: Any, num_groups: int) -> Tensor:
    """Norm for each group, [K], whose weighted gradient is longest under the policy.

    The largest norm where several tie: beyond every bound, where the policy drops nothing.
    """
    best = []
    for group in range(num_groups):
        groups = torch.full(_NORMS.shape, group, dtype=torch.int64)
        lengths = step_weights(policy, state, _NORMS, groups) * _NORMS
        best.append(_NORMS[lengths >= (1 - _TIE) * lengths.max()][-1])
    return torch.stack(best)


def log_likelihood_ratio(
    seen: npt.NDArray[np.float64],
    share: npt.NDArray[np.float64],
    sigma: float,
    rate: float | npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
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
    if np.all(rate == 1):
        return np.asarray(exponent)
    with np.errstate(divide="ignore"):  # a canary that is always drawn, or never, among others
        return np.asarray(np.logaddexp(np.log1p(-np.asarray(rate)), np.log(rate) + exponent))
