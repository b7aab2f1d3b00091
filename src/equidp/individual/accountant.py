"""Accounting of each example's share of the sensitivity, and individual clipping (Yu et al. 2023)."""

from __future__ import annotations

import os
import zlib
from abc import abstractmethod
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from equidp._validate import check_number, check_whole
from equidp.accounting.risk import EPSILONS
from equidp.data.dataset import GroupedDataset
from equidp.engines import dataset_norms
from equidp.engines.model import device_of
from equidp.errors import CheckpointError, DataError, SettingError
from equidp.individual.epsilons import individual_epsilons, individual_profiles
from equidp.individual.histories import Floats, Histories, Integers
from equidp.individual.history_files import HistoryFiles
from equidp.individual.report import IndividualReport
from equidp.individual.step_counts import StepCounts
from equidp.kernel.bounding import example_context
from equidp.kernel.epsilon import entries_of_group, epsilon
from equidp.kernel.generators import restore_generators
from equidp.kernel.inputs import Inputs, taken, tensors
from equidp.kernel.ledger import GroupedStepEvent, StepEvent
from equidp.training.assemble import IMAGES_AT_A_TIME, are_images
from equidp.training.checkpoint import KeptCallback
from equidp.training.trainer import Trainer

_CHUNK = 2**18  # examples that are read at a time


def training_data(trainer: Trainer, purpose: str) -> GroupedDataset:
    """Return the training data; SettingError, beginning with `purpose`: it is not in memory, or in views."""
    if not isinstance(trainer.train, GroupedDataset):
        raise SettingError(
            f"{purpose} the training data in memory, as a GroupedDataset; got "
            f"{type(trainer.train).__name__}.",
            field="train",
        )
    trainer.views.refuse(purpose)
    return trainer.train


def chunk_size_for(inputs: Inputs, device: torch.device) -> int:
    """Number of examples whose norms are taken at a time: more where they are rows of a table."""
    if isinstance(inputs, Tensor) and inputs.dim() == 2 and inputs.is_floating_point():
        return 4096
    return IMAGES_AT_A_TIME if are_images(inputs) and device.type == "cpu" else 256


def compute_fingerprint(data: GroupedDataset) -> int:
    """Return a number that changes with the examples and their order."""
    code = len(data)
    for column in tensors((data.inputs, data.trained_targets, data.groups)):
        for part in column.split(_CHUNK):
            code = zlib.crc32(part.cpu().contiguous().view(torch.uint8).numpy(), code)
    return code


def take_norms(trainer: Trainer, data: GroupedDataset, chunk_size: int | None) -> Tensor:
    """Return the gradient norm of each example of the training data, [n]; 0 where it is not finite, since
    the private step leaves such examples out.

    Args:
        chunk_size: examples whose norms are taken at a time; None: by the kind of data.
    """
    device, processes = device_of(trainer.model), trainer.processes
    columns = data.inputs, data.trained_targets, data.groups
    inputs, targets, groups = taken(columns, processes.shard(len(data)))
    context = example_context(trainer.policy, trainer.policy_state, groups.to(device))
    chunk = chunk_size or chunk_size_for(inputs, device)
    # So that dropout in this pass neither changes the run nor ties one example's norm to others' places.
    with restore_generators(device), trainer.randomness.for_model(device):
        norms = dataset_norms(trainer.engine, inputs, targets, chunk, device, context)
    norms = processes.gather_shards(norms, len(data))
    return torch.where(torch.isfinite(norms), norms, 0.0)


_PURPOSE = "individual accounting needs"


class ExampleAccount(KeptCallback):
    """Accounts for each training example of a run; subclasses only watch, or also limit gradients.

    A pass takes the gradient norms of all examples. They say, with the policy's state, what share of the
    sensitivity each example could use in a step, and hold until the next pass.

    `Checkpoints` keeps what was counted: a resumed run counts on, and steps that were lost since the
    checkpoint count as if every example had used all of the sensitivity. Several processes take norms of a
    shard each; the first one keeps the histories of all.

    Args: as those of `IndividualAccountant`.
    """

    def __init__(
        self,
        interval: int | Literal["sampled"] | None = None,
        *,
        per_epoch: float | None = None,
        grid: float = 0.01,
        rounding: str = "up",
        chunk_size: int | None = None,
        memory_limit: int = 2**30,
        missed_at_worst: bool = False,
    ) -> None:
        if (interval is None) == (per_epoch is None) and (interval != "sampled" or per_epoch is None):
            raise SettingError(
                f"interval={interval} and per_epoch={per_epoch}; expected exactly one of the two, or "
                '"sampled" with passes per epoch.'
            )
        if interval not in (None, "sampled"):
            check_whole(1, ' between passes, or "sampled"', interval=interval)
        if chunk_size is not None:
            check_whole(1, ", or None", chunk_size=chunk_size)
        if per_epoch is not None:
            check_number("(0, inf)", per_epoch=per_epoch)
        self._make_histories = partial(Histories, grid=grid, rounding=rounding, memory_limit=memory_limit)
        self._make_histories(1)  # raises SettingError on a bad grid or rounding
        self._interval, self._per_epoch, self._rounding, self._grid = interval, per_epoch, rounding, grid
        self._chunk_size, self._missed_at_worst = chunk_size, missed_at_worst
        self._counts: StepCounts | None = None
        self._fingerprint: int | None = None
        self._run: tuple[str, StepEvent] | None = None
        self._steps = 0
        self._every = 0  # steps between passes that take norms; 0: no pass
        self._guaranteed = False
        self._norms_hold = False  # those restored are of the model as it is
        self._files: dict[tuple[Path, int], HistoryFiles] = {}

    @abstractmethod
    def _begin(self, trainer: Trainer) -> bool:
        """Prepare for a run's steps; return whether the counted shares bound the used ones."""

    @abstractmethod
    def _check_step(self, trainer: Trainer) -> None:
        """Refuse a step that was not taken as `_begin` prepared it."""

    def before_training(self, trainer: Trainer) -> None:
        data = training_data(trainer, _PURPOSE)
        if trainer.noise_multiplier == 0:
            raise SettingError(
                "individual accounting of a run without noise: every epsilon is infinite. Choose a private "
                "policy.",
                field="noise_multiplier",
            )
        if self._interval == "sampled" and trainer.processes.count > 1:
            raise SettingError(
                f'interval="sampled" in {trainer.processes.count} processes, each of which sees the norms of '
                "its own shard alone; give steps or per_epoch, whose passes they share."
            )
        self._check_run(trainer)
        self._check_data(data)
        if self._counts is None:
            self._counts = self._new_counts(trainer)
        self._count_missed(trainer.steps_done - self._steps, trainer)
        self._guaranteed = self._begin(trainer)
        self._every = self._steps_between_passes(trainer)
        if self._every and not self._norms_hold:
            self._take_norms(trainer)
        self._norms_hold = False

    def before_sample(self, trainer: Trainer) -> None:
        """Refuse a step that would not be accounted for, before it is spent."""
        self._check_run(trainer)
        self._check_step(trainer)
        self._count_missed(trainer.steps_done - self._steps, trainer)

    def after_step(self, trainer: Trainer) -> None:
        self._check_step(trainer)
        counts = self._started_counts
        self._count_missed(trainer.steps_done - 1 - self._steps, trainer)
        counts.step(trainer.weights_state)
        self._steps += 1
        if self._every and self._steps % self._every == 0 and self._steps < trainer.steps:
            self._take_norms(trainer)

    def after_training(self, trainer: Trainer) -> None:
        trainer.limit_shares(None)

    def save(self, trainer: Trainer, folder: Path, number: int, checkpoint: str) -> None:
        if self._counts is not None:
            facts = {"settings": self._settings, "fingerprint": self._fingerprint, "steps": self._steps}
            files = self._files.setdefault((folder, number), HistoryFiles(folder, number))
            files.save(checkpoint, facts, self._counts)

    def restore(self, trainer: Trainer, folder: Path, number: int, checkpoint: str) -> None:
        files, broadcast = HistoryFiles(folder, number), trainer.processes.broadcast_from_first
        found = broadcast(lambda: files.load(checkpoint))
        if found is None:
            if self._missed_at_worst or not trainer.steps_done:
                return
            raise CheckpointError(
                f"{os.fspath(folder)!r} holds no histories of single examples (sensitive-histories-*) of the "
                "step of the checkpoint. Restore them, or pass missed_at_worst=True: the steps so far then "
                "count as if everyone had used all of the sensitivity.",
                field="folder",
            )
        facts, arrays = found
        if facts["settings"] != self._settings:
            raise SettingError(
                f"the histories in {os.fspath(folder)!r} are of {_settings_text(facts['settings'])}; this is "
                f"{_settings_text(self._settings)}. Make it, and the trainer's callbacks, as the run began.",
                field="folder",
            )
        if facts["fingerprint"] != (fingerprint := compute_fingerprint(training_data(trainer, _PURPOSE))):
            raise DataError(
                f"the histories in {os.fspath(folder)!r} are of other training data, or of another order of "
                "it; give the data that the run began with.",
                field="train",
            )
        self._check_run(trainer)
        counts = self._new_counts(trainer)
        broadcast(lambda: files.load_parts(facts["parts"], counts.histories))
        counts.restore(*arrays)
        lost = trainer.steps_done - facts["steps"]
        counts.add_worst_steps(lost)
        self._counts, self._files[folder, number] = counts, files
        self._steps, self._fingerprint = trainer.steps_done, fingerprint
        self._norms_hold = not lost

    def drop(self, folder: Path, number: int, checkpoints: Collection[str]) -> None:
        self._files.setdefault((folder, number), HistoryFiles(folder, number)).drop(checkpoints)

    @property
    def _settings(self) -> dict[str, Any]:
        """Settings that must be equal for histories to be joined."""
        return {
            "": type(self).__name__,  # the class, which is no setting
            "interval": self._interval,
            "per_epoch": self._per_epoch,
            "grid": self._grid,
            "rounding": self._rounding,
        }

    def _steps_between_passes(self, trainer: Trainer) -> int:
        """0: no pass at all."""
        if self._per_epoch is not None:
            return max(1, round(1 / (trainer.sample_rate * self._per_epoch)))
        return 0 if self._interval == "sampled" else int(self._interval or 0)

    def _new_counts(self, trainer: Trainer) -> StepCounts:
        data = training_data(trainer, _PURPOSE)
        histories, device = self._make_histories(len(data)), device_of(trainer.model)
        return StepCounts(data, trainer.policy, device, histories, exact=self._interval == 1)

    def report(
        self, trainer: Trainer, delta: float | None = None, accountant: str = "pld"
    ) -> IndividualReport:
        """Return the epsilon of each example and each group over the steps so far.

        All else that the ledger holds by now, such as private preprocessing, counts in full for everyone.

        Args:
            trainer: of the run that this watched.
            delta: of the epsilons; default: the run's.
            accountant: "pld", privacy loss distributions, tight; "rdp": Renyi, as in the papers, faster and
                looser.

        Raises:
            SettingError: no step was watched, or the trainer is of another run; or this is not the first of
                several processes.
            DataError: the training data or its groups changed since the run began.
        """
        if not trainer.processes.first:
            raise SettingError(
                f"report in process {trainer.processes.rank}; expected process 0, which alone keeps all "
                "histories. Call it where torch.distributed.get_rank() == 0.",
                field="report",
            )
        if not self._steps:
            raise SettingError(
                "no step was watched; give the accountant to the Trainer as a callback.", field="callbacks"
            )
        self._check_run(trainer)
        data = training_data(trainer, _PURPOSE)
        self._check_data(data)
        counts = self._started_counts
        counts.settle()
        delta = trainer.delta if delta is None else delta
        event, steps = trainer.event, ((trainer.event, self._steps),)
        others = tuple(entry for entry in trainer.ledger.entries if entry[0] != event)
        groups = data.groups.cpu().numpy()
        largest = epsilon((*steps, *others), delta, accountant)
        own_steps = [entries_of_group(steps, name) for name in data.group_names]
        most, by_steps = (  # others may have had another grouping, also under the same names
            np.array([min(largest, epsilon((*own, *beside), delta, accountant)) for own in own_steps])
            for beside in (others, ())
        )

        def epsilons_of(histories: Histories, labels: Integers) -> Floats:
            found = individual_epsilons(histories, event, delta, accountant, others, labels)
            return np.asarray(np.minimum(found, most[labels]))

        own = np.arange(data.num_groups)  # a group's members are of the group's own rate and bound
        shares = _shares_of_own(event, counts.group_shares / self._steps)
        return IndividualReport(
            sensitive_epsilons=epsilons_of(counts.histories, groups),
            group_epsilons=epsilons_of(counts.group_histories, own),
            linear_group_epsilons=most - by_steps * (1 - shares),
            groups=groups,
            group_names=data.group_names,
            largest=largest,
            delta=delta,
            guaranteed=self._guaranteed,
            ledger=trainer.ledger,
            randomness=trainer.randomness,
            group_profiles=individual_profiles(counts.group_histories, event, EPSILONS, others, own),
            spent=(*steps, *others),
        )

    @property
    def _started_counts(self) -> StepCounts:
        """Counts of the run's steps; SettingError: accounting has not started."""
        if self._counts is None:
            raise SettingError(
                "individual accounting has not started: Trainer.fit starts it; put a loop of your own into "
                "`with trainer.open_loop():`.",
                field="callbacks",
            )
        return self._counts

    def _check_run(self, trainer: Trainer) -> None:
        """Refuse a trainer of another run than the first: shares of its steps would count as this one's."""
        run = trainer.ledger.run_id, trainer.event
        self._run = run if self._run is None else self._run
        if run != self._run:
            raise SettingError(
                f"the trainer is of run {run[0]}, with {run[1]}, and this watched run {self._run[0]}, with "
                f"{self._run[1]}; give each run an accountant of its own.",
                field="trainer",
            )

    def _check_data(self, data: GroupedDataset) -> None:
        fingerprint = compute_fingerprint(data)
        if self._fingerprint is not None and fingerprint != self._fingerprint:
            raise DataError(
                "the training data or its groups changed since the run began; histories are lost.",
                field="train",
            )
        self._fingerprint = fingerprint

    def _count_missed(self, missed: int, trainer: Trainer) -> None:
        if missed and not self._missed_at_worst:
            raise SettingError(
                f"{trainer.steps_done} steps were taken, and this accountant saw "
                f"{trainer.steps_done - missed}; it cannot account for others. Give it to the Trainer from "
                "the start, or pass missed_at_worst=True for an upper bound.",
                field="callbacks",
            )
        self._started_counts.add_worst_steps(missed)
        self._steps += missed

    def _take_norms(self, trainer: Trainer) -> None:
        data, processes = training_data(trainer, _PURPOSE), trainer.processes
        self._check_data(data)
        self._started_counts.take(take_norms(trainer, data, self._chunk_size))
        if not processes.first:  # which alone reports: the others need no more than the norms that hold
            self._started_counts.histories.periods.clear()


def _shares_of_own(event: StepEvent, shares: Floats) -> Floats:
    """Shares of the sensitivity, [K], as shares of what an example of each group may use of it."""
    if not isinstance(event, GroupedStepEvent):
        return shares
    most = np.array([each.bound_share for each in event.by_group])
    own: Floats = np.minimum(np.divide(shares, most, out=np.ones_like(shares), where=most > 0), 1.0)
    return own


def _settings_text(settings: dict[str, Any]) -> str:
    given = (f"{name}={value!r}" for name, value in settings.items() if name and value is not None)
    return f"{settings['']}({', '.join(given)})"


class IndividualAccountant(ExampleAccount):
    """Counts, in every step, the share of the sensitivity that each training example's gradient could use.

    Works for every policy and leaves training as it is. A norm holds until it is taken again; weights follow
    the policy's state in every step. An example whose norm was never taken counts as using all of the
    sensitivity.

    Args:
        interval: steps between passes that take the norms of all examples. 1 is exact, unless the model draws
            random numbers (dropout); more give estimates. "sampled": each example's norm is that of its last
            draw, an estimate that needs no pass over the data. Give this or `per_epoch`.
        per_epoch: passes in an epoch. With "sampled", norms are those of the last draw or pass, so that few
            passes do: 0.1 is one before the first step and one every ten epochs.
        grid: width of the grid that shares are rounded to.
        rounding: "up", or "nearest" as in Yu et al., which can understate.
        chunk_size: examples whose norms are taken at a time; bounds memory. None: 4096 rows of a table,
            128 images on a CPU, or 256 other examples.
        memory_limit: bytes; a larger table of histories is kept in a temporary file.
        missed_at_worst: count steps taken before this accountant watched as if every example had used all of
            the sensitivity, an upper bound; otherwise such a run is refused.

    Raises:
        SettingError: settings out of range. At the start of training, before anything is spent: a run without
            noise, or training data that is not in memory.

    Example:
        >>> import torch, equidp
        >>> groups = torch.tensor([0, 0, 1, 1])
        >>> data = equidp.GroupedDataset(torch.eye(4), groups, groups, ("a", "b"), ("no", "yes"))
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> accountant = equidp.IndividualAccountant(interval=1)
        >>> trainer = equidp.Trainer(model, optimizer, data, policy=equidp.DPSGD(), batch_size=2, steps=3,
        ...                          noise_multiplier=2.0, delta=0.01, callbacks=[accountant])
        >>> run = trainer.fit()
        >>> bool(accountant.report(trainer).sensitive_epsilons.max() <= run.epsilon())
        True
    """

    def _begin(self, trainer: Trainer) -> bool:
        if self._interval == "sampled":
            trainer.limit_shares(self._started_counts.draw)
        return self._interval == 1 and self._rounding == "up" and _repeats(trainer)

    def _check_step(self, trainer: Trainer) -> None:
        """Accept every step, since it only watches."""


class IndividualClipping(ExampleAccount):
    """Accounts for each example, and limits its gradient to the share accounted for (Yu et al., Algorithm 3).

    Caps an example's weight so that it uses no more of the sensitivity than the share computed from its norm
    when norms were last taken. Its epsilon is then a guarantee, however rarely norms are taken; in return,
    gradients that have grown since are shortened. Works with every policy, through `Trainer.limit_shares`.

    Args: as those of `IndividualAccountant`.

    Raises:
        SettingError: as `IndividualAccountant`; at the start of training also for "sampled", which has no
            norms from before a batch is drawn.

    Example:
        >>> import equidp
        >>> callbacks = [equidp.IndividualClipping(per_epoch=3)]  # of a Trainer, as in IndividualAccountant
    """

    def _begin(self, trainer: Trainer) -> bool:
        if self._interval == "sampled":
            raise SettingError(
                'interval="sampled"; individual clipping needs norms from before a batch is drawn: give '
                "steps, or per_epoch."
            )
        self._trainer = trainer
        trainer.limit_shares(self._limits)
        return True

    def _check_step(self, trainer: Trainer) -> None:
        if trainer.share_limits != self._limits:
            raise SettingError(
                "the limits of IndividualClipping are not set, since they end with fit(); put a loop of your "
                "own into `with trainer.open_loop():`.",
                field="callbacks",
            )

    def _limits(self, indices: Tensor, norms: Tensor) -> Tensor:
        return self._started_counts.shares(self._trainer.policy_state, indices).to(norms)


def _repeats(trainer: Trainer) -> bool:
    """Return whether two passes give the same norms, which they do unless the model draws random numbers."""
    public = getattr(trainer.engine, "public", None)
    if public is None:  # an engine that was given as an object, and tried on nothing
        return False
    with restore_generators(device_of(trainer.model)):
        first, second = (trainer.engine(*public).norms.nan_to_num() for _ in range(2))
    return torch.equal(first, second)
