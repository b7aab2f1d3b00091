"""Watches a run, and accounts for what each example gave in each step (Yu et al.)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from equidp.accounting import Histories, epsilon, individual_epsilons
from equidp.callbacks import Callback, step_weights
from equidp.data.base import GroupedDataset
from equidp.engines import dataset_norms
from equidp.errors import DataError, SettingError
from equidp.individual.report import IndividualReport

if TYPE_CHECKING:
    from equidp.training import Trainer


_NOBODY = np.empty(0, dtype=np.int64)


class IndividualAccountant(Callback):
    """Accounts for each training example: with every step, what share of the sensitivity its gradient could use.

    Works for every policy. An example's norm holds until it is taken again; weights follow the policy's state in every step. An
    example whose norm was never taken counts as if it used all of the sensitivity.

    Args:
        interval: steps between two times that norms of all examples are taken. 1 is exact, unless the model draws random numbers
            (dropout); more give estimates. "sampled": an example's norm is the one it had when it was last drawn, an estimate that
            costs no pass over the data. Give this or `per_epoch`.
        per_epoch: how often an epoch norms of all examples are taken.
        grid: width of the grid that shares are rounded to.
        rounding: "up", or "nearest" as Yu et al. do it, which can understate.
        chunk_size: examples whose norms are taken at a time.
        memory_limit: bytes; the table of histories is kept in a temporary file beyond.
        missed_at_worst: account for steps that were taken before this accountant watched as if every example had used all of the
            sensitivity, an upper bound; otherwise such a run is refused.

    Raises:
        SettingError: at the start of training, before anything is spent: an interval of 0, a grid coarser than the sensitivity, a
            policy without one; a dataset that is not in memory.
    """

    def __init__(
        self,
        interval: int | Literal["sampled"] | None = None,
        *,
        per_epoch: float | None = None,
        grid: float = 0.01,
        rounding: str = "up",
        chunk_size: int = 256,
        memory_limit: int = 2**30,
        missed_at_worst: bool = False,
    ) -> None:
        if (interval is None) == (per_epoch is None):
            raise SettingError(
                f"interval={interval} and per_epoch={per_epoch}; expected exactly one of the two."
            )
        if interval not in (None, "sampled") and not (
            isinstance(interval, int | float) and interval >= 1 and interval == int(interval)
        ):
            raise SettingError(
                f'interval={interval!r}; expected a whole number of steps >= 1, 1 for exact norms, or "sampled".'
            )
        if per_epoch is not None and not (per_epoch > 0 and math.isfinite(per_epoch)):
            raise SettingError(f"per_epoch={per_epoch}; expected a number > 0.")
        Histories(1, grid, rounding=rounding)  # refuses what makes no grid
        self._interval, self._per_epoch, self._chunk_size = interval, per_epoch, chunk_size
        self._grid, self._rounding, self._memory_limit = grid, rounding, memory_limit
        self._missed_at_worst = missed_at_worst
        self._histories: Histories | None = None
        self._fingerprint: tuple[int, float, float] | None = None
        self._steps = 0
        self._guaranteed = False

    def before_training(self, trainer: Trainer) -> None:
        data = trainer.train
        if not isinstance(data, GroupedDataset):
            raise SettingError(
                f"individual accounting needs the training data in memory, as a GroupedDataset; got {type(data).__name__}."
            )
        if trainer.noise_multiplier == 0:
            raise SettingError(
                "individual accounting of a run without noise: every epsilon is infinite. Choose a private policy."
            )
        self._check_data(data)
        self._check_missed(trainer.steps_done - self._steps, trainer)
        if self._histories is None:
            self._start(data, next(trainer.model.parameters()).device)
        self._count_missed(trainer.steps_done - self._steps)
        self._guaranteed = self._bounds_contributions(trainer)
        if self._interval == "sampled":
            trainer.limit_shares(self._remember)
            return
        rate = trainer.sample_rate * float(self._per_epoch or 1)
        self._every = self._interval or max(1, round(1 / rate))
        self._take_norms(trainer)

    def after_training(self, trainer: Trainer) -> None:
        trainer.limit_shares(None)

    def _start(self, data: GroupedDataset, device: torch.device) -> None:
        count = len(data)
        self._histories = Histories(
            count, self._grid, rounding=self._rounding, memory_limit=self._memory_limit
        )
        self._groups = data.groups.to(device)
        self._norms = torch.full((count,), torch.nan, device=device)  # nan: never taken
        self._cells = np.zeros(count, dtype=np.int64)  # of each example's share, which it has had ...
        self._since = np.zeros(count, dtype=np.int64)  # ... since this step
        self._stale: npt.NDArray[np.int64] | None = (
            None  # whose share has to be worked out again; None: everyone's
        )
        # What a member of each group could have used at most, where the policy releases a bound for each group.
        self._group_histories = Histories(data.num_groups, self._grid)
        self._group_shares = np.zeros(data.num_groups)

    def _check_data(self, data: GroupedDataset) -> None:
        fingerprint = _fingerprint(data)
        if self._fingerprint is not None and fingerprint != self._fingerprint:
            raise DataError("the training data changed between two passes; each example's history is lost.")
        self._fingerprint = fingerprint

    def _check_missed(self, missed: int, trainer: Trainer) -> None:
        if missed and not self._missed_at_worst:
            raise SettingError(
                f"{trainer.steps_done} steps were taken, and this accountant saw {trainer.steps_done - missed}; it cannot account "
                "for others. Give it to the Trainer from the start, or say missed_at_worst=True for an upper bound."
            )

    def _count_missed(self, missed: int) -> None:
        if missed:
            self._write()
            for histories in (self._counted, self._group_histories):
                worst = np.full(len(histories.counts), len(histories.shares) - 1)
                histories.add(worst, missed)
            self._group_shares += missed
            self._steps += missed
            self._since[:] = self._steps

    @property
    def _counted(self) -> Histories:
        if self._histories is None:
            raise SettingError(
                "individual accounting has not begun: Trainer.fit begins it; in a loop of your own, call "
                "accountant.before_training(trainer) before the first step."
            )
        return self._histories

    def _bounds_contributions(self, trainer: Trainer) -> bool:
        """Whether what is accounted for bounds what is used; otherwise it estimates it."""
        return self._interval == 1 and self._rounding == "up" and _repeats(trainer)

    def after_step(self, trainer: Trainer) -> None:
        self._counted  # noqa: B018 -- refuses a run that it was not begun for
        missed = trainer.steps_done - 1 - self._steps
        self._check_missed(missed, trainer)
        self._count_missed(missed)
        self._refresh(trainer)
        shares = _group_shares(trainer, len(self._group_shares))
        self._group_histories.add(self._group_histories.cells(shares))
        self._group_shares += shares
        self._steps += 1
        if trainer.policy.state_names:  # the next step's weights are others
            self._stale = None
        if self._interval != "sampled" and self._steps % self._every == 0 and self._steps < trainer.steps:
            self._take_norms(trainer)

    def _take_norms(self, trainer: Trainer) -> None:
        data = trainer.train
        assert isinstance(data, GroupedDataset)
        self._check_data(data)
        device = self._norms.device
        with torch.random.fork_rng():  # dropout's, so that watching does not change the run
            norms = dataset_norms(
                trainer.engine, data.inputs.to(device), data.targets.to(device), self._chunk_size
            )
        self._norms = torch.where(torch.isfinite(norms), norms, 0.0)  # the others contribute nothing
        self._stale = None

    def _remember(self, indices: Tensor, norms: Tensor) -> None:
        """Holds the norms of a batch that is being weighted."""
        self._norms[indices] = norms
        if self._stale is not None:
            self._stale = np.union1d(self._stale, indices.cpu().numpy())

    def _refresh(self, trainer: Trainer) -> None:
        """Brings the shares that changed up to the step that is being taken, under the policy as it is in it."""
        stale = self._stale
        self._write(stale)
        if stale is None:
            self._cells = self._counted.cells(current_shares(trainer, self._norms, self._groups))
        elif len(stale):
            chosen = torch.from_numpy(stale).to(self._norms.device)
            shares = current_shares(trainer, self._norms[chosen], self._groups[chosen])
            self._cells[stale] = self._counted.cells(shares)
        self._stale = _NOBODY

    def _write(self, examples: npt.NDArray[np.int64] | None = None) -> None:
        """Puts the steps that these examples' shares have held for into their histories; default: everyone's."""
        if examples is None:
            self._counted.add(self._cells, self._steps - self._since)
            self._since[:] = self._steps
        else:
            self._counted.add(self._cells[examples], self._steps - self._since[examples], examples)
            self._since[examples] = self._steps

    def report(
        self, trainer: Trainer, delta: float | None = None, accountant: str = "pld"
    ) -> IndividualReport:
        """What each example and each group got of the steps so far.

        Args:
            trainer: whose run this watched.
            delta: at which epsilons are; default: the run's.
            accountant: "pld", privacy loss distributions, tight; "rdp": Renyi, as in the papers, faster and looser.
        """
        if not self._steps:
            raise SettingError("no step was watched; give the accountant to the Trainer as a callback.")
        data = trainer.train
        assert isinstance(data, GroupedDataset)
        self._write()
        delta = trainer.delta if delta is None else delta
        largest = epsilon([(trainer.event, self._steps)], delta, accountant)
        epsilons, of_groups = (
            np.minimum(individual_epsilons(histories, trainer.event, delta, accountant), largest)
            for histories in (self._counted, self._group_histories)
        )
        return IndividualReport(
            sensitive_epsilons=epsilons,
            group_epsilons=of_groups,
            linear_group_epsilons=largest * self._group_shares / self._steps,
            groups=data.groups.cpu().numpy(),
            group_names=data.group_names,
            largest=largest,
            delta=delta,
            guaranteed=self._guaranteed,
            ledger=trainer.ledger,
            randomness=trainer.randomness,
        )


def current_shares(trainer: Trainer, norms: Tensor, groups: Tensor) -> npt.NDArray[np.float64]:
    """z_i = weight * norm / sensitivity, as the policy now has it, [n]; nan where the norm is."""
    weights, sensitivity = step_weights(trainer.policy, norms, groups), trainer.policy.sensitivity
    shares: npt.NDArray[np.float64] = (weights.double() * norms.double() / sensitivity).cpu().numpy()
    return shares


def _group_shares(trainer: Trainer, num_groups: int) -> npt.NDArray[np.float64]:
    """The largest share of the sensitivity that the policy's released bounds leave to a member of each group, [K]."""
    bounds = trainer.policy.released_state().get("clipping_bound")
    if not isinstance(bounds, Tensor) or bounds.shape != (num_groups,):
        return np.ones(num_groups)
    return (bounds.double() / trainer.policy.sensitivity).clamp(0.0, 1.0).cpu().numpy()


def _fingerprint(data: GroupedDataset) -> tuple[int, float, float]:
    """Changes with the examples and, through the weights, with their order."""
    rows = data.inputs.flatten(1).double().sum(dim=1)
    places = torch.linspace(1.0, 2.0, len(rows), dtype=rows.dtype, device=rows.device)
    return len(data), float(rows @ places), float(data.groups.double() @ places)


def _repeats(trainer: Trainer) -> bool:
    """Whether a pass gives the norms of another one: not where the model draws random numbers."""
    data = trainer.train
    assert isinstance(data, GroupedDataset)
    device = next(trainer.model.parameters()).device
    few = data.inputs[:16].to(device), data.targets[:16].to(device)
    with torch.random.fork_rng():
        first, second = (trainer.engine.norms(*few) for _ in range(2))
    return torch.equal(first, second)
