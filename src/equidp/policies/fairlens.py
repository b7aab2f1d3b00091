"""FairLens: penalties on what makes groups lose differently (Tran, Dinh, Fioretto, NeurIPS 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from equidp.errors import SettingError
from equidp.kernel.engine import Penalty
from equidp.kernel.policy import Setting
from equidp.policies.setting import STATISTICS_RATIO, Bounded, setting

_ROW = math.sqrt(3)
_LARGEST = 1e9
"""Of what a penalty's factor may be; losses are in single precision, and have factor 1."""


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
class FairLens(Bounded):
    """DP-SGD on losses with penalties for groups that differ from the average, in slope and in closeness.

    Minimises L + g1 sum_a |s_a - s| + g2 sum_a |h_a - h|: s averages <g_i, u> for the last private update's
    direction u, h averages 1 - sum_c p_ic^2, closeness to the decision boundary; a is a group. At fixed signs
    and sizes, its gradient is a sum over examples: of the loss l_i + b (g1 d_a <g_i, u> + g2 c_a h_i), with
    c_a = sign(h_a - h) / n_a - sum_k sign(h_k - h) / n, and d_a likewise. Signs and sizes are those of the
    statistics of earlier steps; each gradient is clipped to C. What the authors ran has no such sum, and so
    no bound on what one example moves.

    Statistics: (1, s_i / C within [-1, 1], h_i) / sqrt(3) in the cells of the example's group. Sensitivity:
    C.

    Example:
        >>> import equidp
        >>> equidp.FairLens(clipping_bound=0.5).boundary_penalty
        1.0
    """

    statistics_ratio: float = setting(10.0, STATISTICS_RATIO)
    smoothing: float = setting(
        0.9,
        "Weight in [0, 1) of earlier statistics in a moving average of released ones; 0: the last alone.",
        "[0, 1)",
        ", 0 for none",
    )
    slope_penalty: float = setting(
        1.0, "Weight g1 of the penalty on how unlike the groups' slopes along updates are.", "[0, inf)"
    )
    boundary_penalty: float = setting(
        1.0, "Weight g2 of the penalty on how unlike the groups are in closeness to the boundary.", "[0, inf)"
    )
    min_count: float = setting(1.0, "Least released count of a group; it limits the penalties' factors.")
    needs_groups: ClassVar[bool] = True
    penalises: ClassVar[bool] = True

    def init(self, setting: Setting) -> GroupTerms:
        if setting.num_groups != 2:
            raise SettingError(
                f"FairLens is for two groups, and the data has {setting.num_groups}; choose another method, "
                "such as dpsgd-f, or a column with two groups."
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

    def penalty(self, state: GroupTerms) -> Penalty:
        counts, slopes, closeness = state.sums.nan_to_num(nan=0.0)
        sizes, b = counts.clamp_min(self.min_count), float(state.expected_batch_size)
        of_slopes, of_closeness = (_factors(each, sizes, b) for each in (slopes, closeness))
        factors = [self.slope_penalty * of_slopes, self.boundary_penalty * of_closeness]
        return Penalty(torch.stack(factors, dim=1), state.direction)

    def statistics(
        self,
        state: GroupTerms,
        norm: Tensor,
        group: Tensor,
        slope: Tensor | float = 0.0,
        closeness: Tensor | float = 0.0,
    ) -> Tensor:
        share = (torch.as_tensor(slope).to(norm) / self.clipping_bound).clamp(-1.0, 1.0)
        row = torch.stack([torch.ones_like(norm), share, torch.as_tensor(closeness).to(norm)]) / _ROW
        return (row.unsqueeze(1) * one_hot(group, state.sums.shape[1])).flatten()

    def update(self, state: GroupTerms, released: Tensor) -> GroupTerms:
        sums = _ROW * released.reshape(3, -1)
        earlier = torch.where(state.sums.isnan(), sums, state.sums)
        return state._replace(sums=self.smoothing * earlier + (1 - self.smoothing) * sums)

    def after_gradient(self, state: GroupTerms, gradient: Tensor) -> GroupTerms:
        length = torch.linalg.vector_norm(gradient).clamp_min(torch.finfo(gradient.dtype).tiny)
        return state._replace(direction=gradient / length)

    def weight(self, state: GroupTerms, norm: Tensor, group: Tensor) -> Tensor:
        return (self.clipping_bound / norm).clamp(max=1.0)

    def released(self, state: GroupTerms) -> dict[str, Tensor]:
        factors = self.penalty(state).factors
        bound = torch.tensor(self.clipping_bound, dtype=torch.float64)
        return {"clipping_bound": bound, "boundary_factor": factors[:, 1], "slope_factor": factors[:, 0]}


def _factors(sums: Tensor, sizes: Tensor, expected_batch_size: float) -> Tensor:
    """b times the factor of an example's term in the gradient of sum_a |t_a - t|, by group, [K]."""
    signs = torch.sign(sums / sizes - sums.sum() / sizes.sum())
    return expected_batch_size * (signs / sizes - signs.sum() / sizes.sum())
