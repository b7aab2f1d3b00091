"""Learning-rate schedules by name. They follow from public figures alone, so they cost no privacy."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from equidp._validate import unknown_name
from equidp.errors import SettingError
from equidp.training.checks import check_scheduler

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1 - done,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
}
"""Name -> function from the share of steps that were taken to the share of the learning rate that is left."""


def chosen_scheduler(
    asked: Any, optimizer: torch.optim.Optimizer, steps: int, done: int
) -> LRScheduler | None:
    """The scheduler that a Trainer steps after each of its steps.

    Args:
        asked: a torch scheduler, a name from `SCHEDULES`, or None for a constant learning rate.
        optimizer: whose learning rates are those of the first step.
        steps: of the run, as many as its budget holds: the schedule ends with the last one.
        done: how many of them the ledger holds already.

    Raises:
        SettingError: an unknown name, or a scheduler that does not fit.

    >>> optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.8)
    >>> scheduler = chosen_scheduler("linear", optimizer, steps=4, done=1)
    >>> scheduler.get_last_lr()
    [0.6000000000000001]
    """
    if not isinstance(asked, str):
        check_scheduler(asked, optimizer, steps - done)
        return asked  # type: ignore[no-any-return]
    if asked not in SCHEDULES:
        raise unknown_name("schedule", asked, SCHEDULES)
    if asked == "constant":
        return None
    for group in optimizer.param_groups:
        group["initial_lr"] = float(group["lr"])
    left = SCHEDULES[asked]
    return LambdaLR(optimizer, lambda step: left(min(step / max(1, steps), 1.0)), last_epoch=done - 1)


def restore_scheduler(scheduler: LRScheduler | None, state: dict[str, Any] | None, lost: int) -> None:
    """Sets a scheduler to its saved state, and moves it past steps that were lost since.

    Raises:
        SettingError: there was none, or there is none now.
    """
    had, has = state is not None, scheduler is not None
    if had != has:
        raise SettingError(
            f"the checkpoint was saved with {'a' if had else 'no'} scheduler, and this trainer has "
            f"{'one' if has else 'none'}; make the trainer with the settings of that run."
        )
    if scheduler is None or state is None:
        return
    scheduler.load_state_dict(state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns when a scheduler steps without its optimizer
        for _ in range(lost):
            scheduler.step()
