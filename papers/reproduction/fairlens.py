"""FairLens: penalties on what makes groups lose differently (Tran, Dinh, Fioretto, NeurIPS 2021).

An example of a user-defined method that changes losses (docs/own-method.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.func import grad_and_value
from torch.nn.functional import one_hot

from equidp import ModelError, Policy, Setting, SettingError
from equidp.extend import check_number

_ROW = math.sqrt(3)
_LARGEST = 1e9
"""Largest factor of a penalty; losses are in single precision, and have factor 1."""


class GroupTerms(NamedTuple):
    """State of FairLens.

    Attributes:
        sums: averages of released counts, of slopes over C and of closeness, by group, [3, K]; NaN before a
            release.
        direction: u, the last private gradient at length 1, [parameters]; zero before it.
        expected_batch_size: b.
    """

    sums: Tensor
    direction: Tensor
    expected_batch_size: Tensor


@dataclass(frozen=True)
class FairLens(Policy):
    """DP-SGD on losses with penalties for groups that differ from the average, in slope and in closeness.

    Minimises L + g1 sum_a |s_a - s| + g2 sum_a |h_a - h|: s averages <g_i, u> for the last private update's
    direction u, h averages 1 - sum_c p_ic^2, closeness to the decision boundary; a is a group. At fixed signs
    and sizes, its gradient is a sum over examples: of the loss l_i + b (g1 d_a <g_i, u> + g2 c_a h_i), with
    c_a = sign(h_a - h) / n_a - sum_k sign(h_k - h) / n, and d_a likewise. Signs and sizes are those of the
    statistics of earlier steps; each gradient is clipped to C. What the authors ran has no such sum, and so
    no bound on what one example moves.

    Statistics: (1, s_i / C within [-1, 1], h_i) / sqrt(3) in the cells of the example's group. Sensitivity:
    C.

    Attributes:
        clipping_bound: C.
        statistics_ratio: noise multiplier of the statistics over that of the gradients.
        smoothing: weight in [0, 1) of earlier statistics in a moving average of released ones.
        slope_penalty: weight g1 of the penalty on how unlike the groups' slopes along updates are.
        boundary_penalty: weight g2 of the penalty on how unlike the groups are in closeness to the boundary.
        min_count: least released count of a group; it limits the penalties' factors.

    Raises:
        SettingError: a setting outside its range.

    Example:
        >>> FairLens(clipping_bound=0.5).boundary_penalty
        1.0
    """

    clipping_bound: float = 1.0
    statistics_ratio: float = 10.0
    smoothing: float = 0.9
    slope_penalty: float = 1.0
    boundary_penalty: float = 1.0
    min_count: float = 1.0
    needs_groups: ClassVar[bool] = True
    loss_terms: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check_number(
            "(0, inf)",
            clipping_bound=self.clipping_bound,
            statistics_ratio=self.statistics_ratio,
            min_count=self.min_count,
        )
        check_number("[0, 1)", smoothing=self.smoothing)
        check_number("[0, inf)", slope_penalty=self.slope_penalty, boundary_penalty=self.boundary_penalty)

    def bound(self, state: Any, group: Tensor) -> float:
        return self.clipping_bound

    def init(self, setting: Setting) -> GroupTerms:
        if setting.num_groups != 2:
            raise SettingError(
                f"FairLens is for two groups, and the data has {setting.num_groups}; choose another method, "
                "such as dpsgd-f, or a column with two groups.",
                field="num_groups",
            )
        largest = 2 * setting.expected_batch_size * max(self.slope_penalty, self.boundary_penalty)
        if largest > _LARGEST * self.min_count:
            raise SettingError(
                f"slope_penalty={self.slope_penalty} and boundary_penalty={self.boundary_penalty} over "
                f"min_count={self.min_count} give factors of losses up to {largest / self.min_count:.3g}: "
                "gradients would be those of penalties alone. Keep 2 b penalty / min_count below "
                f"{_LARGEST:g}."
            )
        return GroupTerms(
            torch.full((3, setting.num_groups), torch.nan),
            torch.zeros(setting.num_parameters),
            torch.tensor(setting.expected_batch_size, dtype=torch.float64),
        )

    def context(self, state: GroupTerms, group: Tensor) -> tuple[Tensor, Tensor]:
        return self._factors(state)[group], state.direction

    def objective(
        self,
        loss: Callable[[dict[str, Tensor]], tuple[Tensor, Any]],
        parameters: dict[str, Tensor],
        context: tuple[Tensor, ...],
    ) -> tuple[Tensor, Tensor]:
        factors, direction = context
        # Two backward passes: torch differentiates tangents of LayerNorm wrongly.
        gradient, (own, outputs) = grad_and_value(loss, has_aux=True)(parameters)
        if not isinstance(outputs, Tensor) or outputs.dim() != 2 or outputs.shape[1] < 2:
            given = list(outputs.shape[1:]) if isinstance(outputs, Tensor) else "several tensors"
            raise ModelError(
                f"the model gives {given} for an example; FairLens needs a classifier with "
                "one output per class, [batch, classes >= 2]. Choose another method.",
                field="model",
            )
        parts = direction.split([each.numel() for each in gradient.values()])
        along = zip(gradient.values(), parts, strict=True)
        slope = sum((each * part.reshape(each.shape).to(each)).sum() for each, part in along)
        terms = torch.stack([slope, closeness(outputs).squeeze(0).to(slope.dtype)])
        return own + (factors.to(terms) * terms).sum(), terms

    def statistics(self, state: GroupTerms, norm: Tensor, group: Tensor, *terms: Tensor) -> Tensor:
        slope, near = (each.to(norm) for each in terms)
        share = (slope / self.clipping_bound).clamp(-1.0, 1.0)
        row = torch.stack([torch.ones_like(norm), share, near], dim=-1) / _ROW
        return (row.unsqueeze(-1) * one_hot(group, state.sums.shape[1]).unsqueeze(-2)).flatten(-2)

    def update(self, state: GroupTerms, released: Tensor) -> GroupTerms:
        sums = _ROW * released.reshape(3, -1)
        earlier = torch.where(state.sums.isnan(), sums, state.sums)
        return state._replace(sums=self.smoothing * earlier + (1 - self.smoothing) * sums)

    def after_gradient(self, state: GroupTerms, gradient: Tensor) -> GroupTerms:
        length = torch.linalg.vector_norm(gradient).clamp_min(torch.finfo(gradient.dtype).tiny)
        return state._replace(direction=gradient / length)

    def released(self, state: GroupTerms) -> dict[str, Tensor]:
        factors = self._factors(state)
        return {"boundary_factor": factors[:, 1], "slope_factor": factors[:, 0]}

    def _factors(self, state: GroupTerms) -> Tensor:
        """Factors of both terms in the loss of an example of each group, [K, 2]."""
        counts, slopes, near = state.sums.nan_to_num(nan=0.0)
        sizes, b = counts.clamp_min(self.min_count), state.expected_batch_size.to(counts)
        return torch.stack(
            [
                self.slope_penalty * _factors(slopes, sizes, b),
                self.boundary_penalty * _factors(near, sizes, b),
            ],
            dim=1,
        )


def closeness(outputs: Tensor) -> Tensor:
    """Closeness of examples to the decision boundary, 1 - sum_c p_c^2, [batch], of outputs [batch, classes].

    It stands for the trace of the loss's Hessian.

    >>> closeness(torch.tensor([[0.0, 0.0], [3.0, 0.0]]))
    tensor([0.5000, 0.0904])
    """
    return 1 - outputs.softmax(dim=1).square().sum(dim=1)


def _factors(sums: Tensor, sizes: Tensor, expected_batch_size: Tensor) -> Tensor:
    """b times the factor of an example's term in the gradient of sum_a |t_a - t|, by group, [K]."""
    signs = torch.sign(sums / sizes - sums.sum() / sizes.sum())
    return expected_batch_size * (signs / sizes - signs.sum() / sizes.sum())
