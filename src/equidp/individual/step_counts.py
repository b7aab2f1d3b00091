"""Counts the share of the sensitivity that each example used in each step of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from equidp.data.dataset import GroupedDataset
from equidp.individual.histories import Counts, Floats, Histories
from equidp.individual.norm_classes import ByNorm, EachAlone, NormClasses
from equidp.kernel.policy import Policy
from equidp.policies.weights import step_weights

_BATCH = 32  # steps counted together, which takes half the time of counting each between two training steps


class StepCounts:
    """Counts, for each example and each group, the steps in which it used each share of the sensitivity.

    Args:
        data: the training data.
        policy: of the run.
        device: where weights are computed.
        histories: of the examples, empty.
        exact: norms are taken before every step and kept exact; otherwise they are rounded up to 9
            significant bits.

    Attributes:
        histories: of the examples; complete after `settle`.
        group_histories: of the largest share a member of each group could have used, by the bounds the policy
            released.
        group_shares: the sum of those shares over the steps, [K].
    """

    def __init__(
        self, data: GroupedDataset, policy: Policy, device: torch.device, histories: Histories, *, exact: bool
    ) -> None:
        self.histories, self.group_histories = histories, Histories(data.num_groups, histories.grid)
        self.group_shares = np.zeros(data.num_groups)
        groups = data.groups.cpu().numpy()
        self._classes: NormClasses = (
            EachAlone(self.histories, groups) if exact else ByNorm(self.histories, groups, data.num_groups)
        )
        self._policy, self._device = policy, device
        self._cells = np.empty(0, dtype=np.int64)  # of each class's share of the sensitivity
        self._num_current = 0  # number of cells, from the first on, that are up to date
        self._state: Any = None  # state that the cells were computed with
        self._measured: list[tuple[Tensor, Tensor]] = []  # indices and norms seen in the step in progress
        self._waiting: list[tuple[Any, list[tuple[Tensor, Tensor]]]] = []  # states and what steps measured

    def take(self, norms: Tensor) -> None:
        """Set the norms of all examples from the next step on, [n]."""
        self._catch_up()
        self._classes.take(_numbers(norms))
        self._num_current = 0

    def draw(self, indices: Tensor, norms: Tensor) -> None:
        """Set the norms of these examples from the step in progress on, [batch] each."""
        self._measured.append((indices, norms))

    def step(self, state: Any) -> None:
        """Count a step whose weights were computed with this state."""
        self._waiting.append((state, self._measured))
        self._measured = []
        if len(self._waiting) == _BATCH:
            self._catch_up()

    def add_worst_steps(self, steps: int) -> None:
        """Count steps in which every example may have used all of the sensitivity."""
        for histories in (self.histories, self.group_histories):
            histories.add_worst(steps)
        self.group_shares += steps

    def shares(self, state: Any, indices: Tensor) -> Tensor:
        """Return the shares that a step with this state counts for these examples, [batch]."""
        self._catch_up()
        self._refresh(state)
        cells = self._cells[self._classes.rows[indices.cpu().numpy()]]
        return torch.from_numpy(self.histories.shares[cells])

    def settle(self) -> None:
        """Complete the histories."""
        self._catch_up()
        self._classes.settle()

    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """Return what, with parts of the histories, `restore` continues from."""
        self._catch_up()
        shared = self.histories.everyone, self.group_histories.counts, self.group_shares
        return *shared, *self._classes.arrays()

    def restore(
        self, everyone: Counts, groups: Counts, group_shares: Floats, *classes: npt.NDArray[Any]
    ) -> None:
        """Put back what `arrays` returned; the parts of the histories are put back by their owner."""
        self.histories.everyone, self.group_shares = everyone, group_shares
        self.group_histories.restore_table([groups], 1)
        self._classes.restore(*classes)
        self._num_current = 0

    def _catch_up(self) -> None:
        for state, measured in self._waiting:
            for indices, norms in measured:
                self._classes.take(_numbers(norms), indices.cpu().numpy())
            self._refresh(state)
            self._classes.count(self._cells)
            shares = self._group_shares(state)
            self.group_histories.add(self.group_histories.cells(shares))
            self.group_shares += shares
        self._waiting.clear()

    def _refresh(self, state: Any) -> None:
        """Compute the cells that are not up to date with this state."""
        if self._state is None or not all(map(torch.equal, state, self._state)):
            self._num_current = 0
        self._state = state
        norms = self._classes.norms[self._num_current :]
        groups = self._classes.groups[self._num_current :]
        if len(norms):
            shares = current_shares(self._policy, state, norms, groups, self._device)
            self._cells = np.append(self._cells[: self._num_current], self.histories.cells(shares))
            self._num_current = len(self._cells)

    def _group_shares(self, state: Any) -> Floats:
        """Return the largest share that the released bounds leave to a member of each group, [K]."""
        bounds = self._policy.released(state).get("clipping_bound")
        if bounds is None or bounds.shape != self.group_shares.shape:
            return np.ones_like(self.group_shares)
        return _numbers((bounds.cpu().double() / self._policy.sensitivity(state)).clamp(0.0, 1.0))


def current_shares(
    policy: Policy,
    state: Any,
    norms: Floats,
    groups: npt.NDArray[np.int64],
    device: torch.device | str = "cpu",
) -> Floats:
    """Return each example's share of the sensitivity, weight * norm / S, [n]; NaN where its norm is.

    Args:
        policy, state: that weights and sensitivity come from.
        norms, groups: of the examples, [n], n >= 1.
        device: where weights are computed.
    """
    single = torch.from_numpy(norms.astype(np.float32)).to(device)
    weights = step_weights(policy, state, single, torch.from_numpy(groups).to(device))
    return _numbers(weights.cpu().double() * single.cpu() / policy.sensitivity(state))


def _numbers(values: Tensor) -> Floats:
    return values.cpu().double().numpy()
