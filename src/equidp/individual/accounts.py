"""Counts the share of the sensitivity that each example uses in each step of a run (Yu et al. 2023)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from equidp.data.dataset import GroupedDataset
from equidp.engines import dataset_norms
from equidp.errors import SettingError
from equidp.individual.settings import Individual
from equidp.kernel.bounding import example_context, group_bounds
from equidp.kernel.generators import restore_generators
from equidp.kernel.inputs import taken
from equidp.kernel.policy import Policy
from equidp.kernel.step import PrivateStep
from equidp.policies.weights import sensitivity_of, step_weights

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_DROPPED_BITS = 15  # of a float32's 23-bit fraction; rounding up to the other 8 raises a norm by 0.4% at most
_CHUNK = 2**13  # examples whose counts are summed at a time: they fit in a cache
_FACTS = ("steps", "in_full", "_taken_at", "_repeats")
_ARRAYS = ("counts", "group_counts", "_norms", "_groups_of_norms", "_rows")
"""Attributes that are saved: plain values, and arrays."""


def shares_on_grid(grid: float) -> Floats:
    """Return the multiples of the grid's width from 0 to 1, [cells]."""
    cells = math.ceil(1 / grid - 1e-9)
    return np.asarray(np.minimum(np.arange(cells + 1) * grid, 1.0))


def cells_of(shares: Floats, grid: Floats) -> Integers:
    """Return the place of each share, rounded up, among the grid's; same shape.

    Formal guarantee: z <= grid[place] < z + width for every z in [0, 1]. A share that is not a number, or
    above 1, counts as 1, the worst case.

    >>> cells_of(np.array([0.0, 0.2, 0.25, 1.1, np.nan]), shares_on_grid(0.25))
    array([0, 1, 1, 4, 4])
    """
    return np.searchsorted(grid, np.fmin(shares, 1.0)).astype(np.int64)


class Accounts:
    """Counts, for each example and each group, the steps in which it used each share of the sensitivity.

    The `Trainer` makes it, reports each step to it, and gets limits from it. Examples of one group and nearly
    equal norm (9 significant bits, rounded up) are counted together until norms are computed again. A step
    then costs the same with ten examples as with ten million. With `interval=1`, each example counts by
    itself, exactly.

    A step that was not reported counts as if every example had used all of the sensitivity. Such a step was
    lost since the checkpoint, taken before this began, or charged and failed. With several processes, the
    first computes norms, which all know, and counts.

    Args:
        settings: settings of the accounting.
        step: step of the run.
        data: training data.
        steps: T.
        sample_rate: q.
        augmented: whether examples are changed at random when they are drawn, so that no norm is exact.

    Attributes:
        counts: steps of each example in each cell of the grid, [n, cells]; complete after `settle`.
        group_counts: the same of the largest share a member of each group could have used, [K, cells].
        grid: shares of the grid, [cells].
        steps: steps that were counted.
        in_full: number of those that count in full for everyone.

    Raises:
        SettingError: the data is not in memory, or the run has no noise.
    """

    def __init__(
        self,
        settings: Individual,
        step: PrivateStep,
        data: object,
        *,
        steps: int,
        sample_rate: float,
        augmented: bool = False,
    ) -> None:
        if not isinstance(data, GroupedDataset):
            raise SettingError(
                "individual accounting needs the training data in memory, as a GroupedDataset; got "
                f"{type(data).__name__}.",
                field="train",
            )
        if step.event.noise == 0:
            raise SettingError(
                "individual accounting of a run without noise: every epsilon is infinite. Choose a private "
                "policy.",
                field="noise_multiplier",
            )
        self.settings, self.step, self.data = settings, step, data
        self._groups = data.groups.cpu().numpy()
        self._every = settings.steps_between_passes(sample_rate)
        self._augmented = augmented
        self.grid = shares_on_grid(settings.grid)
        kept = len(data) if step.processes.first else 0
        self.counts = np.zeros((kept, len(self.grid)), dtype=np.min_scalar_type(steps))
        self.group_counts = np.zeros((data.num_groups, len(self.grid)), dtype=np.int64)
        self.steps = self.in_full = 0
        self._taken_at = -1  # number of steps at the last pass; -1: norms are not known
        self._exact = settings.interval == 1
        self._repeats = False  # two passes give the same norms
        # Classes of examples with one group and one norm: the class of each example, [n], norm and group of
        # each class, and its counts since the pass, [classes, cells].
        self._rows, self._norms, self._groups_of_norms = np.empty(0, int), np.empty(0), np.empty(0, int)
        self._table = np.empty((0, len(self.grid)), dtype=self.counts.dtype)
        self._state: Any = None  # of the policy, whose steps are being counted
        self._times = 0  # steps under this state that the table has not
        self._cells = self._group_cells = np.empty(0, dtype=np.int64)
        if settings.clipping:
            step.limits = self._limits

    def before_step(self, done: int) -> None:
        """Compute norms if they are due, and count missed steps, given the number of spent steps."""
        self.count_in_full(done - self.steps)
        if self._taken_at < 0 or (self.steps % self._every == 0 and self.steps != self._taken_at):
            self._take_norms()

    def after_step(self) -> None:
        """Count the step that was taken, under the state that its weights followed from."""
        self._refresh(self.step.weights_state)
        self._times += 1
        self.steps += 1

    def count_in_full(self, steps: int) -> None:
        """Count steps in which every example may have used all of the sensitivity."""
        if not steps:
            return
        self.counts[:, -1] += steps
        self.group_counts[:, -1] += steps
        self.steps += steps
        self.in_full += steps

    def settle(self) -> None:
        """Complete `counts` and `group_counts`."""
        self._count_state()
        for chunk in chunks(len(self.counts) if len(self._rows) else 0, _CHUNK):
            self.counts[chunk] += self._table[self._rows[chunk]]
        self._table[:] = 0

    @property
    def guaranteed(self) -> bool:
        """True if no share is understated: norms are exact, or gradients limited to the counted shares."""
        return self.settings.clipping or (self._exact and self._repeats and not self._augmented)

    def sensitive_state_dict(self) -> dict[str, npt.NDArray[Any]]:
        """Return arrays that `load_state_dict` reads: private training data."""
        self.settle()
        facts = {"settings": asdict(self.settings), **{name: getattr(self, name) for name in _FACTS}}
        return {"facts": np.array(json.dumps(facts)), **{name: getattr(self, name) for name in _ARRAYS}}

    def load_state_dict(self, state: Mapping[str, npt.NDArray[Any]], lost: int) -> None:
        """Continue from what was saved with a checkpoint.

        Args:
            state: what `sensitive_state_dict` returned.
            lost: number of steps that were taken since, which count in full.

        Raises:
            SettingError: it was saved with other settings.
        """
        facts = json.loads(str(state["facts"]))
        if (given := facts.pop("settings")) != asdict(self.settings):
            raise SettingError(
                f"the run counted with {Individual(**given)}; got {self.settings}. Give the Trainer the "
                "settings of the run.",
                field="individual",
            )
        for name, value in {**facts, **{name: state[name] for name in _ARRAYS}}.items():
            setattr(self, name, value)
        if not self.step.processes.first:
            self.counts = self.counts[:0]
        self._table = np.zeros((len(self._norms), len(self.grid)), dtype=self.counts.dtype)
        self._state, self._times = None, 0
        if lost:
            self._taken_at = -1

    def _take_norms(self) -> None:
        """Compute the norms of all examples, which apply from the next step on, and restart the counts."""
        self.settle()
        device = self.step.parameters[0].device
        if self._taken_at < 0 and self.step.processes.first:
            with restore_generators(device):
                self._repeats = torch.equal(*(self._measure(slice(8)).nan_to_num() for _ in range(2)))

        def of_all() -> Floats:
            # Dropout in this pass neither changes the run nor ties an example's norm to others' places.
            with restore_generators(device), self.step.randomness.for_model(device):
                return _numbers(self._measure(slice(None)))

        norms = self.step.processes.from_first(of_all)
        norms = np.where(np.isfinite(norms), norms, 0.0)  # the private step leaves such examples out
        dropped, many = 0 if self._exact else _DROPPED_BITS, self.data.num_groups
        ranks = -(-norms.astype(np.float32).view(np.int32).astype(np.int64) >> dropped)  # rounded up
        classes, rows = np.unique(ranks * many + self._groups, return_inverse=True)
        self._norms = (classes // many << dropped).astype(np.int32).view(np.float32).astype(np.float64)
        self._groups_of_norms = classes % many
        self._rows = rows.astype(np.min_scalar_type(len(classes)))
        self._table = np.zeros((len(self._norms), len(self.grid)), dtype=self.counts.dtype)
        self._taken_at, self._state = self.steps, None

    def _measure(self, which: slice | Tensor) -> Tensor:
        """Norms of some examples' gradients at the present weights."""
        step, data = self.step, self.data
        inputs, targets, groups = taken((data.inputs, data.trained_targets, data.groups), which)
        device = step.parameters[0].device
        context = example_context(step.policy, step.state, groups.to(device))
        rows_of_table = isinstance(inputs, Tensor) and inputs.dim() == 2 and inputs.is_floating_point()
        chunk = step.physical_batch_size or (4096 if rows_of_table else 128)
        return dataset_norms(step.engine, inputs, targets, chunk, device, context)

    def _limits(self, indices: Tensor, norms: Tensor) -> Tensor:
        """Shares that the step in progress counts for these examples, [batch]."""
        self._refresh(self.step.weights_state)
        cells = self._cells[self._rows[indices.cpu().numpy()]]
        return torch.from_numpy(self.grid[cells]).to(norms)

    def _refresh(self, state: Any) -> None:
        """Compute the cells of the norms under a state, unless it is the one before."""
        if self._state is not None and all(map(torch.equal, state, self._state)):
            return
        self._count_state()
        self._state, policy, many = state, self.step.policy, self.data.num_groups
        device = self.step.parameters[0].device
        shares = current_shares(policy, state, self._norms, self._groups_of_norms, many, device)
        self._cells = cells_of(shares, self.grid)
        self._group_cells = cells_of(group_shares(policy, state, many), self.grid)

    def _count_state(self) -> None:
        if self._times:
            self._table[np.arange(len(self._cells)), self._cells] += self._times
            self.group_counts[np.arange(len(self._group_cells)), self._group_cells] += self._times
            self._times = 0


def group_shares(policy: Policy, state: Any, num_groups: int) -> Floats:
    """Return the largest share of the sensitivity that the bounds leave to a member of each group, [K]."""
    bounds = group_bounds(policy, state, num_groups)
    return _numbers((bounds / bounds.max()).clamp(0.0, 1.0))


def current_shares(
    policy: Policy,
    state: Any,
    norms: Floats,
    groups: Integers,
    num_groups: int,
    device: torch.device | str = "cpu",
) -> Floats:
    """Return each example's share of the sensitivity, weight * norm / S, of norms and groups, [n], n >= 1."""
    single = torch.from_numpy(norms.astype(np.float32)).to(device)
    weights = step_weights(policy, state, single, torch.from_numpy(groups).to(device), num_groups)
    return _numbers(weights.cpu().double() * single.cpu() / sensitivity_of(policy, state, num_groups))


def chunks(count: int, size: int) -> Iterator[slice]:
    """Yield slices of at most `size`, one after the other."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def _numbers(values: Tensor) -> Floats:
    return values.cpu().double().numpy()
