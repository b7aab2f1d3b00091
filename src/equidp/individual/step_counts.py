"""Counts what each step of a run took of each example's privacy."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from equidp.data.dataset import GroupedDataset
from equidp.individual.histories import Histories
from equidp.individual.norm_classes import ByNorm, Classes, EachAlone
from equidp.kernel.bounding import step_weights
from equidp.kernel.policy import Policy

Floats = npt.NDArray[np.float64]

_TOGETHER = 32  # steps counted at a time: one after another, they take half as long as each of them between two training steps


class _Step(NamedTuple):
    """What a step leaves to be counted: a copy of the policy as it was in it, and whose norms it saw."""

    policy: Policy
    drawn: list[tuple[Tensor, Tensor]]


class StepCounts:
    """In how many steps each example used which share of the sensitivity, and each group at most.

    Args:
        data: the training data.
        policy: as it is before the first step to be counted.
        device: where the policy works.
        grid, rounding, memory_limit: of the examples' histories.
        exact: norms are taken before every step, and held as they are; otherwise they are rounded up to 9 significant bits.

    Attributes:
        histories: of the examples; complete after `settle`.
        group_histories: what a member of each group could have used at most, where the policy releases a bound for each group.
        group_shares: the sum over the steps of that, [K].
    """

    def __init__(
        self,
        data: GroupedDataset,
        policy: Policy,
        device: torch.device,
        *,
        grid: float,
        rounding: str,
        memory_limit: int,
        exact: bool,
    ) -> None:
        self.histories = Histories(len(data), grid, rounding=rounding, memory_limit=memory_limit)
        self.group_histories = Histories(data.num_groups, grid)
        self.group_shares = np.zeros(data.num_groups)
        groups = data.groups.cpu().numpy()
        self._classes: Classes = (
            EachAlone(self.histories, groups) if exact else ByNorm(self.histories, groups, data.num_groups)
        )
        self._policy, self._device = copy.deepcopy(policy), device  # that the cells are of
        self._cells = np.empty(0, dtype=np.int64)  # of each class's share of the sensitivity, ...
        self._known = 0  # ... up to date for so many of them
        self._drawn: list[tuple[Tensor, Tensor]] = []  # in the step under way
        self._waiting: list[_Step] = []

    def take(self, norms: Tensor) -> None:
        """From the next step on, the examples have these norms, [n]."""
        self._catch_up()
        self._classes.take(_numbers(norms))
        self._known = 0

    def draw(self, indices: Tensor, norms: Tensor) -> None:
        """From the step under way on, these examples have these norms."""
        self._drawn.append((indices, norms))

    def step(self, policy: Policy) -> None:
        """A step was taken, under this policy."""
        self._waiting.append(_Step(copy.deepcopy(policy), self._drawn))
        self._drawn = []
        if len(self._waiting) == _TOGETHER:
            self._catch_up()

    def missed(self, steps: int) -> None:
        """Counts steps in which everyone may have used all of the sensitivity."""
        for histories in (self.histories, self.group_histories):
            histories.add(np.full(len(histories.counts), len(histories.shares) - 1), steps)
        self.group_shares += steps

    def shares(self, policy: Policy, indices: Tensor) -> Tensor:
        """What the step under way will count for these examples, [batch]."""
        self._catch_up()
        self._refresh(copy.deepcopy(policy))
        cells = self._cells[self._classes.rows[indices.cpu().numpy()]]
        return torch.from_numpy(self.histories.shares[cells])

    def settle(self) -> None:
        """Completes the histories."""
        self._catch_up()
        self._classes.settle()

    def _catch_up(self) -> None:
        """Counts the steps that wait."""
        for policy, drawn in self._waiting:
            for indices, norms in drawn:
                self._classes.take(_numbers(norms), indices.cpu().numpy())
            self._refresh(policy)
            self._classes.count(self._cells)
            shares = _group_shares(policy, len(self.group_shares))
            self.group_histories.add(self.group_histories.cells(shares))
            self.group_shares += shares
        self._waiting.clear()

    def _refresh(self, policy: Policy) -> None:
        """Brings the cells up to the step that this policy, which nobody changes any more, is taken in."""
        if not _alike(policy, self._policy):
            self._known = 0
        self._policy = policy
        norms, groups = self._classes.norms[self._known :], self._classes.groups[self._known :]
        if len(norms):
            shares = current_shares(policy, norms, groups, self._device)
            self._cells = np.append(self._cells[: self._known], self.histories.cells(shares))
            self._known = len(self._cells)


def _alike(one: Policy, other: Policy) -> bool:
    """Whether nothing about two copies of a policy differs; what cannot be compared does."""

    def same(first: Any, second: Any) -> bool:
        try:
            return torch.equal(first, second) if isinstance(first, Tensor) else bool(first == second)
        except Exception:
            return False

    if any(vars(kind).get("__slots__") for kind in type(one).__mro__):  # which vars leaves out
        return False
    mine, others = vars(one), vars(other)
    return mine.keys() == others.keys() and all(same(mine[name], others[name]) for name in mine)


def current_shares(
    policy: Policy, norms: Floats, groups: npt.NDArray[np.int64], device: torch.device | str = "cpu"
) -> Floats:
    """z_i = weight * norm / sensitivity, as the policy now has it, [n]; nan where the norm is. The policy works on `device`."""
    single = torch.from_numpy(norms.astype(np.float32)).to(device)
    weights = step_weights(policy, single, torch.from_numpy(groups).to(device))
    return _numbers(weights.double() * single / policy.sensitivity)


def _group_shares(policy: Policy, num_groups: int) -> Floats:
    """The largest share of the sensitivity that the policy's released bounds leave to a member of each group, [K]."""
    bounds = policy.released_state().get("clipping_bound")
    if not isinstance(bounds, Tensor) or bounds.shape != (num_groups,):
        return np.ones(num_groups)
    return _numbers((bounds.double() / policy.sensitivity).clamp(0.0, 1.0))


def _numbers(values: Tensor) -> Floats:
    numbers: Floats = values.double().cpu().numpy()
    return numbers
