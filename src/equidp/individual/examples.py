"""The training data of a run, as individual accounting reads it: in memory, and the same at each pass."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from equidp.data.dataset import GroupedDataset
from equidp.errors import SettingError
from equidp.kernel.inputs import Inputs, tensors
from equidp.training.assemble import PART, are_images
from equidp.training.trainer import Trainer

_CHUNK = 2**18  # examples that are read at a time


def in_memory(trainer: Trainer, purpose: str) -> GroupedDataset:
    """Returns the training data; raises SettingError, beginning with `purpose`, where it cannot."""
    if not isinstance(trainer.train, GroupedDataset):
        raise SettingError(
            f"{purpose} the training data in memory, as a GroupedDataset; got {type(trainer.train).__name__}."
        )
    trainer.views.refuse(purpose)
    return trainer.train


def chunk_of(inputs: Inputs, device: torch.device) -> int:
    """Returns how many examples to measure at a time: more where they are rows of a table."""
    if isinstance(inputs, Tensor) and inputs.dim() == 2 and inputs.is_floating_point():
        return 4096
    return PART if are_images(inputs) and device.type == "cpu" else 256


def fingerprint_of(data: GroupedDataset) -> int:
    """Returns a number that changes with the examples and their order."""
    code = len(data)
    for column in tensors((data.inputs, data.trained_targets, data.groups)):
        for part in column.split(_CHUNK):
            code = zlib.crc32(part.cpu().contiguous().view(torch.uint8).numpy(), code)
    return code
