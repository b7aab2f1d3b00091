"""From sampled indices to tensors: from memory in one go, or through the workers of a DataLoader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from equidp.data.dataset import GroupedDataset
from equidp.errors import DataError
from equidp.kernel.loop import Batch


def batches(dataset: GroupedDataset, samples: Iterable[Tensor]) -> Iterator[Batch]:
    """Yields the sampled examples of a dataset in memory, with one index_select per tensor and batch."""
    device, targets = dataset.inputs.device, dataset.trained_targets
    for sample in samples:
        indices = sample.to(device)
        yield Batch(
            dataset.inputs.index_select(0, indices),
            targets.index_select(0, indices),
            dataset.groups.index_select(0, indices),
            indices,
        )


def loaded_batches(
    dataset: Dataset[Any], samples: Iterable[Tensor], *, num_groups: int | None = None, workers: int = 0
) -> Iterator[Batch]:
    """Yields the sampled examples of a map-style dataset that does not fit in memory.

    Args:
        dataset: returns (input, target, group) for an index: tensors, arrays or numbers.
        samples: indices of each batch, [batch].
        num_groups: number of groups; None: not checked.
        workers: processes that load ahead.

    Raises:
        DataError: examples of another form, or groups outside 0 to num_groups - 1.
    """
    if len(dataset) == 0:  # type: ignore[arg-type]
        raise DataError("the dataset is empty; expected at least one example.")
    first = dataset[0]
    if not (isinstance(first, tuple | list) and len(first) == 3):
        raise DataError(
            f"the dataset gives {_described(first)} for an example; expected a tuple (input, target, group)."
        )
    example = default_collate([first])
    if not all(isinstance(part, Tensor) for part in example):
        raise DataError(
            f"the dataset gives {tuple(type(part).__name__ for part in first)} for an example; expected "
            "(input, target, group): a tensor, and two whole numbers (or tensors of them) that count classes "
            "and groups from 0."
        )
    pending: list[Tensor] = []  # samples whose examples have not come out of the loader yet

    def sampled() -> Iterator[list[int]]:
        for sample in samples:
            pending.append(sample)
            yield sample.tolist()

    loader = DataLoader(
        dataset,
        batch_sampler=sampled(),
        num_workers=workers,
        collate_fn=partial(_collated, [column[:0] for column in example]),
        pin_memory=torch.cuda.is_available(),
    )
    for inputs, targets, groups in loader:
        _check_groups(groups, num_groups)
        yield Batch(inputs, targets, groups.long(), pending.pop(0))


def _described(example: object) -> str:
    return f"{type(example).__name__}{f' of {len(example)}' if isinstance(example, tuple | list) else ''}"


def _check_groups(groups: Tensor, num_groups: int | None) -> None:
    expected = "whole numbers from 0" + ("" if num_groups is None else f" to {num_groups - 1}")
    if groups.dim() != 1 or groups.is_floating_point() or groups.dtype == torch.bool:
        raise DataError(
            f"the dataset gives groups of shape {list(groups.shape[1:])} and type {groups.dtype} for an "
            f"example; expected {expected}."
        )
    if len(groups) and not (groups.min() >= 0 and (num_groups is None or groups.max() < num_groups)):
        raise DataError(f"the dataset gives a group that is not among the {expected}.")


def _collated(empty: list[Tensor], rows: list[Any]) -> list[Tensor]:
    return default_collate(rows) if rows else list(empty)
