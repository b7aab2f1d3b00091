"""Individual privacy filter: each example is drawn until its own account is full (Feldman and Zrnic 2021)."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from equidp._files import write_whole
from equidp._validate import check_number, check_whole
from equidp.engines.model import device_of
from equidp.errors import CheckpointError, DataError, SettingError
from equidp.individual.accountant import (
    compute_fingerprint,
    take_norms,
    training_data,
)
from equidp.individual.step_counts import current_shares
from equidp.kernel.filter import ExampleAccounts
from equidp.training.checkpoint import SENSITIVE, KeptCallback
from equidp.training.trainer import Trainer

_PURPOSE = "an individual filter needs"
_FORMAT = 1


class IndividualFilter(KeptCallback):
    """Takes the norms of all examples now and then, which say what share of the bound each may use.

    For `Trainer(full_steps=...)`: an example is charged, before each step, for its share as last taken, its
    gradient is cut to that share, and it is drawn no more once the next charge does not fit its account. So
    an example with small gradients lasts for more steps than `full_steps`, and one that is always clipped for
    just as many.

    The epsilon of the run is that of `full_steps` steps, by Renyi's bound at one order, however rarely norms
    are taken: `equidp.kernel.filter.ExampleAccounts` keeps the accounts, and the step cuts gradients.

    `Checkpoints` keeps accounts in `sensitive-accounts-*` files. A resumed run continues from them; steps
    that were lost since the checkpoint count as whole for everyone.

    Args:
        interval: steps between passes over the data that take norms. Give this or `per_epoch`.
        per_epoch: passes in an epoch.
        chunk_size: examples whose norms are taken at a time; bounds memory. None: by the kind of data.

    Raises:
        SettingError: settings out of range. At the start of training, before anything is spent: a Trainer
            without `full_steps`, or data in views.

    Example:
        >>> import torch, equidp
        >>> from equidp.individual.experimental import IndividualFilter
        >>> x, targets, groups = torch.randn(64, 3), torch.arange(64) // 32, torch.arange(64) % 2
        >>> data = equidp.GroupedDataset(x, targets, groups, ("a", "b"), ("no", "yes"))
        >>> model = torch.nn.Linear(3, 2)
        >>> trainer = equidp.Trainer(
        ...     model, torch.optim.SGD(model.parameters(), lr=0.1), data, policy=equidp.DPSGD(4.0),
        ...     batch_size=16, steps=20, full_steps=10, target_epsilon=3.0, delta=1e-3,
        ...     callbacks=[IndividualFilter(per_epoch=1)])
        >>> run = trainer.fit()
        >>> run.facts.steps, 2.9 < run.epsilon() <= 3.0
        (20, True)
    """

    def __init__(
        self, interval: int | None = None, *, per_epoch: float | None = None, chunk_size: int | None = None
    ) -> None:
        if (interval is None) == (per_epoch is None):
            raise SettingError(
                f"interval={interval} and per_epoch={per_epoch}; expected exactly one of them."
            )
        if interval is not None:
            check_whole(1, " between passes", interval=interval)
        if per_epoch is not None:
            check_number("(0, inf)", per_epoch=per_epoch)
        if chunk_size is not None:
            check_whole(1, ", or None", chunk_size=chunk_size)
        self._interval, self._per_epoch, self._chunk_size = interval, per_epoch, chunk_size
        self._fingerprint: int | None = None
        self._every = 1
        self._shares_hold = False  # those restored are of the model as it is

    def before_training(self, trainer: Trainer) -> None:
        self._accounts_of(trainer)
        data = training_data(trainer, _PURPOSE)
        fingerprint = compute_fingerprint(data)
        if self._fingerprint not in (None, fingerprint):
            raise DataError(
                "the training data changed since the accounts of its examples were kept; give the data that "
                "the run began with.",
                field="train",
            )
        self._fingerprint = fingerprint
        if self._per_epoch is not None:
            self._every = max(1, round(1 / (trainer.sample_rate * self._per_epoch)))
        else:
            assert self._interval is not None
            self._every = int(self._interval)
        if not self._shares_hold:
            self._set_shares(trainer)
        self._shares_hold = False

    def after_step(self, trainer: Trainer) -> None:
        if trainer.steps_done % self._every == 0 and trainer.steps_done < trainer.steps:
            self._set_shares(trainer)

    def save(self, trainer: Trainer, folder: Path, number: int, checkpoint: str) -> None:
        facts = {**self._settings, "format": _FORMAT, "fingerprint": self._fingerprint}
        buffer = io.BytesIO()
        state = self._accounts_of(trainer).state()
        torch.save({"facts": facts, "steps": trainer.steps_done, **state}, buffer)
        content = buffer.getvalue()
        name = f"{_prefix(number)}{_key(checkpoint)}-{hashlib.sha256(content).hexdigest()[:16]}.pt"
        write_whole(folder / name, content)

    def restore(self, trainer: Trainer, folder: Path, number: int, checkpoint: str) -> None:
        accounts = self._accounts_of(trainer)
        state = _load(folder, number, checkpoint)
        facts = {**self._settings, "format": _FORMAT}
        found = {name: state["facts"][name] for name in facts}
        if found != facts:
            raise SettingError(
                f"the accounts in {os.fspath(folder)!r} are of {found}, and this filter is {facts}; make it "
                "as the run began.",
                field="folder",
            )
        fingerprint = compute_fingerprint(training_data(trainer, _PURPOSE))
        if state["facts"]["fingerprint"] != fingerprint:
            raise DataError(
                f"the accounts in {os.fspath(folder)!r} are of other training data, or of another order of "
                "it; give the data that the run began with.",
                field="train",
            )
        lost = trainer.steps_done - state["steps"]
        accounts.restore(state["spent"], state["cells"], lost)
        self._fingerprint, self._shares_hold = fingerprint, not lost

    def drop(self, folder: Path, number: int, checkpoints: Collection[str]) -> None:
        kept = {_key(each) for each in checkpoints}
        for path in folder.glob(f"{_prefix(number)}*.pt"):
            if path.name.removeprefix(_prefix(number)).rsplit("-", 1)[0] not in kept:
                path.unlink(missing_ok=True)

    @property
    def _settings(self) -> dict[str, Any]:
        return {"interval": self._interval, "per_epoch": self._per_epoch}

    def _accounts_of(self, trainer: Trainer) -> ExampleAccounts:
        """Accounts of the trainer's examples; SettingError: they have none."""
        if trainer.accounts is None:
            raise SettingError(
                "the callback IndividualFilter, and examples have no accounts; give the Trainer full_steps, "
                "the number of steps at the whole bound that fill an account.",
                field="full_steps",
            )
        return trainer.accounts

    def _set_shares(self, trainer: Trainer) -> None:
        """Take the norms of all examples, and set the shares of the bound that follow."""
        data = training_data(trainer, _PURPOSE)
        norms = take_norms(trainer, data, self._chunk_size).cpu().double().numpy()
        groups = data.groups.cpu().numpy()
        shares = current_shares(trainer.policy, trainer.policy_state, norms, groups, device_of(trainer.model))
        self._accounts_of(trainer).set_shares(torch.from_numpy(shares))


def _prefix(number: int) -> str:
    return f"{SENSITIVE}accounts-{number}-"


def _key(checkpoint: str) -> str:
    """The steps and the checksum in the name of a checkpoint."""
    return checkpoint.removeprefix("checkpoint-")


def _load(folder: Path, number: int, checkpoint: str) -> dict[str, Any]:
    """Saved accounts of a checkpoint; CheckpointError: missing or damaged."""
    whole = []
    for path in folder.glob(f"{_prefix(number)}{_key(checkpoint)}-*.pt"):
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest()[:16] == path.stem.rsplit("-", 1)[1]:
            whole.append(content)
    if not whole:
        raise CheckpointError(
            f"{os.fspath(folder)!r} holds no whole accounts of single examples ({SENSITIVE}accounts-*) of "
            f"{checkpoint}; bring them back, or resume from the checkpoint before, with previous=True.",
            field="folder",
        )
    state: dict[str, Any] = torch.load(io.BytesIO(whole[0]), map_location="cpu", weights_only=True)
    return state
