"""Checks that a Trainer's processes train alike, before any budget is spent; and their common ledger."""

from __future__ import annotations

import hashlib
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from equidp._provenance import versions, weights_digest
from equidp.accounting.budget import PrivacyBudget
from equidp.data.dataset import GroupedDataset
from equidp.errors import PrivacyWarning, SettingError
from equidp.kernel.generators import restore_generators
from equidp.kernel.inputs import tensors
from equidp.kernel.ledger import Ledger, MemoryLedger
from equidp.kernel.processes import Processes

_ROWS = 2**16  # of a dataset in memory that are read at a time
_LOOKED_AT = 64  # examples of another dataset that are compared, evenly spread


class _Own(str):
    """Digest of training data; hidden in error messages, since it could confirm a guess."""

    def __repr__(self) -> str:
        return "its own"


def synchronize_run(
    processes: Processes,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    loss: object,
    train: object,
    settings: Mapping[str, object],
) -> None:
    """Check that all processes train the same model on the same data; give all the first one's weights.

    Args:
        processes: that train together.
        model, optimizer, scheduler, loss, train: of the Trainer, as it was given them.
        settings: other settings of the Trainer, by the names that errors give.

    Raises:
        SettingError: settings, data or the model's parameters differ; in every process.
    """
    if processes.count == 1:
        return
    processes.shard(len(train))  # type: ignore[arg-type]
    named: list[tuple[str, Tensor]] = [*model.named_parameters(), *model.named_buffers()]
    every = [(name, each, each.requires_grad) for name, each in named]
    facts = {
        **settings,
        "model": {name: (tuple(each.shape), str(each.dtype), trained) for name, each, trained in every},
        "optimizer": _settings_of(optimizer),
        "optimizer's state": _digest(map(repr, optimizer.state_dict()["state"].items())),
        "scheduler": _plain(scheduler.state_dict()) if hasattr(scheduler, "state_dict") else scheduler,
        "loss": repr(loss) if isinstance(loss, nn.Module) else name_of(loss),
        "device": {each.device.type for _, each, _ in every},
        "data": _digest(_content(train)),
        "versions": versions(),
    }
    processes.check_equal(facts)
    with torch.no_grad():
        flat = [_bytes(each) for _, each, _ in every]
        whole = torch.cat(flat)
        processes.copy_from_first([whole])
        for (_, each, _), values in zip(every, whole.split([len(part) for part in flat]), strict=True):
            if not processes.first:
                each.copy_(values.clone().view(each.dtype).view(each.shape))


def check_ledger_holder(processes: Processes, ledger: Ledger | None, budget: PrivacyBudget | None) -> None:
    """Raise if another process than the first has a ledger or a budget, where nothing would be recorded.

    Raises:
        SettingError: in every process.
    """
    holds = not processes.first and (ledger is not None or budget is not None)
    processes.check_equal({"a ledger or budget (the first process alone has one)": holds})


def share_ledger(processes: Processes, opened: Callable[[], tuple[Ledger, int]]) -> tuple[Ledger, int]:
    """Return the first process' ledger and number of steps; in other processes, a ledger that follows it.

    Args:
        processes: that train together.
        opened: opens the ledger; called in the first process alone.
    """
    held: list[tuple[Ledger, int]] = []

    def of_the_first() -> tuple[object, ...]:
        held.append(opened())
        return held[0][0].entries, held[0][0].run_id, held[0][1]

    entries, run, steps = processes.broadcast_from_first(of_the_first)
    return held[0] if processes.first else (MemoryLedger(entries, run), steps)


def check_models(processes: Processes, model: nn.Module, limits: object) -> None:
    """Raise if the processes' models differ by now, or only some processes limit shares.

    Raises:
        SettingError: in every process.
    """
    if processes.count > 1:
        owner = getattr(limits, "__self__", limits)
        processes.check_equal({"share limits": type(owner).__name__, "weights": _Own(weights_digest(model))})


def warn_of_models(processes: Processes, model: nn.Module) -> None:
    """Warn if the processes end with different models: the first one's is the run's, and is private."""
    try:
        check_models(processes, model, None)
    except SettingError:
        warnings.warn(
            "the processes' models differ at the end, as on unlike machines, or where one was changed: the "
            "model of the first is as private as stated, but some of its gradients were taken elsewhere.",
            PrivacyWarning,
            stacklevel=3,
        )


def _settings_of(optimizer: torch.optim.Optimizer) -> object:
    groups = [{name: each[name] for name in each if name != "params"} for each in optimizer.param_groups]
    return type(optimizer).__name__, repr(groups)


def _plain(content: Any) -> dict[str, Any]:
    return {name: value for name, value in content.items() if isinstance(value, int | float | str | list)}


def _content(train: object) -> Iterator[Any]:
    """Content by which datasets are compared: all of one in memory; of others, evenly spread examples."""
    if isinstance(train, GroupedDataset):
        for each in tensors((train.inputs, train.trained_targets, train.groups)):
            yield from (each[start : start + _ROWS] for start in range(0, len(each), _ROWS))
        return
    yield repr(list(getattr(train, "indices", ())))  # of a Subset
    places = torch.linspace(0, len(train) - 1, _LOOKED_AT).long().unique()  # type: ignore[arg-type]
    with restore_generators(), torch.random.fork_rng():
        torch.manual_seed(0)  # so that augmentation is the same in all
        np.random.seed(0)  # noqa: NPY002
        random.seed(0)
        for place in places.tolist():
            row: Any = train[place]  # type: ignore[index]
            yield from tensors(tuple(row) if isinstance(row, list) else row)


def _digest(parts: Iterator[Any]) -> _Own:
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            digest.update(_bytes(part).numpy().tobytes())
        else:
            digest.update(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return _Own(digest.hexdigest())


def _bytes(values: Tensor) -> Tensor:
    """Values as bytes: numpy has no bfloat16, and not every backend sends all types."""
    return values.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def name_of(thing: object) -> str:
    """Return the name of a function or class, or of an object's class, by which processes compare it."""
    return getattr(thing, "__qualname__", type(thing).__name__)
