"""What a Trainer's processes agree on before any budget is spent."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import nn

from equidp._provenance import versions
from equidp.data.dataset import GroupedDataset
from equidp.errors import SettingError
from equidp.kernel.inputs import tensors
from equidp.kernel.ledger import Ledger, MemoryLedger
from equidp.kernel.processes import Processes

_ROWS = 2**16  # of a dataset that are read at a time


def agree(
    processes: Processes,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    train: object,
    settings: dict[str, object],
) -> None:
    """Makes sure that all processes train the same model on the same data, from the first one's weights.

    Raises:
        SettingError: settings, data or the model's parameters differ; in every process.
    """
    if processes.count == 1:
        return
    shapes = {name: tuple(each.shape) for name, each in model.state_dict().items()}
    processes.shard(len(train))  # type: ignore[arg-type]
    facts = {**settings, "data": _digest(train), "model": shapes, "versions": versions()}
    facts["optimizer"] = (type(optimizer).__name__, repr(optimizer.defaults))
    processes.alike(facts)
    with torch.no_grad():
        for each in (*model.parameters(), *model.buffers()):
            values = each.detach().contiguous()
            processes.share([values])
            each.copy_(values)


def led(
    processes: Processes, opened: Callable[[], tuple[Ledger, int]], given: tuple[object, ...]
) -> tuple[Ledger, int]:
    """The first process' ledger and number of steps; in the others a ledger that follows it.

    Args:
        processes: that train together.
        opened: opens the ledger, in the first process alone.
        given: ledger and budget as the caller gave them.

    Raises:
        SettingError: another process than the first brings a ledger or a budget.
    """
    held: list[tuple[Ledger, int]] = []

    def of_the_first() -> tuple[object, int]:
        held.append(opened())
        return held[0][0].entries, held[0][1]

    entries, steps = processes.told(of_the_first)
    if processes.first:
        return held[0]
    if any(each is not None for each in given):
        raise SettingError(
            f"process {processes.rank} was given a ledger or a budget, and the first process alone holds "
            "them. Give them where torch.distributed.get_rank() == 0, and None elsewhere."
        )
    return MemoryLedger(entries), steps


def _digest(train: object) -> object:
    """What tells two datasets apart: of one in memory all it holds, of another how many examples."""
    if not isinstance(train, GroupedDataset):
        return len(train)  # type: ignore[arg-type]
    digest = hashlib.sha256()
    for each in tensors((train.inputs, train.trained_targets, train.groups)):
        for start in range(0, len(each), _ROWS):
            digest.update(each[start : start + _ROWS].contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
