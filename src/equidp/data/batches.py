"""From sampled indices to tensors: from memory in one go, or through the workers of a DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset, default_collate

from equidp.data.collation import (
    Collation,
    as_tuples,
    check_groups,
    form_of,
    is_finite,
    names_in,
    or_error,
    raise_errors,
)
from equidp.data.dataset import GroupedDataset
from equidp.errors import DataError, error_text
from equidp.kernel.inputs import Inputs, count_in, map_tensors, taken, tensors
from equidp.kernel.loop import Batch

NOT_FINITE_TRIED = 8
"""Rows with numbers that are not finite of which the model is tried at most."""
_NUMBERS_AT_A_TIME, _ROWS_AT_A_TIME = 2**22, 256
_EXPECTED = "expected (input, target, group), or (input, target) for a method that needs no groups"


def batches(dataset: GroupedDataset, samples: Iterable[Tensor]) -> Iterator[Batch]:
    """Yield the sampled examples of a dataset in memory, with one index_select per tensor and batch."""
    columns = dataset.inputs, dataset.trained_targets, dataset.groups
    for sample in samples:
        indices = sample.to(dataset.targets.device)
        inputs, targets, groups = map_tensors(lambda column, at=indices: column.index_select(0, at), columns)
        yield Batch(inputs, targets, groups, indices)


def augmented_batches(loaded: Iterator[Batch], augment: Callable[[Inputs], Inputs]) -> Iterator[Batch]:
    """Yield batches with each example's inputs replaced by those that a function makes of them alone.

    Args:
        loaded: batches; may be empty.
        augment: inputs of one example, without a first dimension for the batch -> such inputs. It may draw
            random numbers.

    Raises:
        DataError: the function fails, or gives examples of different forms.
    """
    for batch in loaded:
        count = len(batch.indices)
        rows = batch.inputs
        if not count:  # zeros in place of an example show the form
            rows = map_tensors(lambda each: each.new_zeros(1, *each.shape[1:]), rows)
        try:
            made = [
                augment(map_tensors(lambda each, at=place: each[at], rows)) for place in range(max(1, count))
            ]
            inputs = map_tensors(lambda *each: torch.stack(each), *made)
        except Exception as error:
            raise DataError(
                f"augment fails on an example ({error_text(error)}); expected a function of the "
                "inputs of one example, without a dimension for the batch, that gives inputs of one shape.",
                field="augment",
            ) from error
        yield batch._replace(inputs=inputs if count else taken(inputs, slice(0)))


def loaded_batches(
    dataset: Dataset[Any],
    samples: Iterable[Tensor],
    *,
    collation: Collation | None = None,
    num_groups: int | None = None,
    workers: int = 0,
    pinned: bool = False,
    start_of_worker: Callable[[int], None] | None = None,
) -> Iterator[Batch]:
    """Yield the sampled examples of a map-style dataset that does not fit in memory.

    A dataset that draws random numbers gets them in order of place: take batches inside
    `Randomness.for_model`, and give workers that randomness' `start_of_worker`.

    Args:
        dataset: returns (input, target, group) for an index: tensors, arrays or numbers; input and target may
            be a tuple or a mapping of them. Without groups, (input, target), all examples are of group 0.
            With a `collation`, anything that its collator takes.
        samples: indices of each batch, [batch].
        collation: makes batches of rows; None: rows are tensors of the same shapes.
        num_groups: number of groups; None: not checked.
        workers: number of processes that load ahead.
        pinned: keep batches in page-locked memory, from which CUDA copies them while it computes.
        start_of_worker: called with its number in each of these processes; None: torch seeds them.

    Raises:
        DataError: examples of a different form, or that differ from the first in names, types or shapes, or
            groups outside 0 to num_groups - 1.
    """
    if len(dataset) == 0:  # type: ignore[arg-type]
        raise DataError("the dataset is empty; expected at least one example.", field="train")
    gather = _gathering(dataset) if collation is None else collation
    if len(gather([])) == 2 and num_groups is not None:
        raise DataError(
            "the dataset gives (input, target) for an example, and groups are asked for; let it give "
            "(input, target, group), or put it into an equidp.GroupedDataset.",
            field="train",
        )
    pending: list[Tensor] = []  # samples whose examples have not come out of the loader yet

    def take_samples() -> Iterator[list[int]]:
        for sample in samples:
            pending.append(sample)
            yield sample.tolist()

    loader = DataLoader(
        dataset,
        batch_sampler=take_samples(),
        num_workers=workers,
        collate_fn=partial(or_error, gather),
        pin_memory=pinned,
        worker_init_fn=start_of_worker,
    )
    for inputs, targets, *given in raise_errors(loader):
        groups = given[0] if given else torch.zeros(count_in(targets), dtype=torch.int64)
        check_groups(groups, num_groups)
        yield Batch(as_tuples(inputs), as_tuples(targets), groups.long(), pending.pop(0))


def places_to_try(dataset: GroupedDataset | Dataset[Any], count: int, shard: slice) -> Tensor:
    """Return places of rows to load before training, [m] int64, so that most errors are found by then.

    | dataset | places |
    | --- | --- |
    | a list or tuple, or a `Subset` or `ConcatDataset` of lists | the first row of each form (names, shapes,
      types), and the rows with the least and the largest number of each column of numbers |
    | a `TensorDataset`, whose rows are of one form | evenly spread rows, and rows with the least and the
      largest number of each column |
    | any of these, and a `Subset` or `ConcatDataset` of them | in addition, the first rows that hold NaN or
      infinite numbers, up to `NOT_FINITE_TRIED` |
    | any other, whose rows would have to be loaded | evenly spread rows, whatever they hold |

    Args:
        dataset: of a list or of tensors, all rows are looked at; of others, none.
        count: number of evenly spread places at most, >= 1.
        shard: places of this process' examples.

    >>> rows = [(torch.ones(2), 0), (torch.ones(2), 5), (torch.ones(3), 1), (torch.ones(2), 2)]
    >>> places_to_try(rows, 1, slice(0, 4)).tolist()
    [0, 1, 2]
    """
    odd = torch.arange(shard.start, shard.stop)[_not_finite(dataset, torch.arange(shard.start, shard.stop))]
    odd = odd[:NOT_FINITE_TRIED]
    if _is_listed(dataset):
        return _sorted_places([*_places_in_list(dataset, shard), *odd.tolist()])
    places = [odd, spread_places(count, shard)]
    for column in dataset.tensors if isinstance(dataset, TensorDataset) else ():
        if column.dim() == 1 and not column.is_complex():
            own = column[shard]
            places.append(torch.stack([own.argmin(), own.argmax()]).cpu() + shard.start)
    return _sorted_places(torch.cat(places).tolist())


def spread_places(count: int, shard: slice) -> Tensor:
    """Return at most `count` evenly spread places of a shard, [m] int64.

    >>> spread_places(3, slice(10, 20)).tolist()
    [10, 13, 16]
    """
    size = shard.stop - shard.start
    count = min(count, size)
    places: Tensor = shard.start + torch.arange(count) * size // count
    return places


def find_rows(dataset: Any, places: Tensor) -> list[tuple[Any, Tensor, Tensor]]:
    """Find rows in the datasets that a `Subset` or `ConcatDataset` takes them from.

    Args:
        dataset: any; one of another kind is itself where its rows are.
        places: of rows, [m] int64, from 0 on.

    Returns:
        For each such dataset: it, which of `places` are in it, [k], and their places in it, [k], from 0 on.

    >>> [(at.tolist(), own.tolist()) for _, at, own in find_rows(Subset("abc", [2, 0]), torch.tensor([1]))]
    [([0], [0])]
    """
    if isinstance(dataset, Subset):
        within = torch.as_tensor(dataset.indices, dtype=torch.int64)[places]
        from_zero = torch.where(within < 0, within + len(dataset.dataset), within)  # type: ignore[arg-type]
        return find_rows(dataset.dataset, from_zero)
    if not isinstance(dataset, ConcatDataset):
        return [(dataset, torch.arange(len(places)), places)]
    found, first = [], 0
    for part, end in zip(dataset.datasets, dataset.cumulative_sizes, strict=True):
        here = torch.nonzero((places >= first) & (places < end)).flatten()
        found += [(rows, here[at], own) for rows, at, own in find_rows(part, places[here] - first)]
        first = end
    return found


def _is_listed(dataset: Any) -> bool:
    """Return whether rows are objects in memory, which can be looked at without loading anything."""
    within = find_rows(dataset, torch.zeros(0, dtype=torch.int64))
    return all(isinstance(rows, list | tuple) for rows, _, _ in within)


def _not_finite(dataset: Any, places: Tensor) -> Tensor:
    """Return a mask of rows in memory that hold NaN or infinite numbers, [m]; False for others.

    Args:
        places: of rows, [m].
    """
    found = torch.zeros(len(places), dtype=torch.bool)
    for rows, at, own in find_rows(dataset, places):
        found[at] = _not_finite_in(rows, own)
    return found


def _not_finite_in(rows: Any, places: Tensor) -> Tensor:
    """Return the mask of `_not_finite` for a dataset that holds its rows itself."""
    found = torch.zeros(len(places), dtype=torch.bool)
    if isinstance(rows, TensorDataset):
        for column in rows.tensors:
            if column.is_floating_point() or column.is_complex():
                size = max(1, _NUMBERS_AT_A_TIME // max(1, column[:1].numel()))
                for mask, part in zip(found.split(size), places.split(size), strict=True):
                    numbers = (
                        column[part.to(column.device)].flatten(1) if column.dim() > 1 else column[part, None]
                    )
                    mask |= ~torch.isfinite(numbers).all(dim=1).cpu()
    elif isinstance(rows, list | tuple):
        for mask, part in zip(found.split(_ROWS_AT_A_TIME), places.split(_ROWS_AT_A_TIME), strict=True):
            some = [rows[place] for place in part.tolist()]
            if not is_finite(some):
                mask |= torch.tensor([not is_finite(row) for row in some])
    return found


def _places_in_list(dataset: Any, shard: slice) -> Tensor:
    """Places of rows of each form, and of the least and the largest number at each place in a row."""
    first: dict[Any, int] = {}
    least: dict[int, tuple[float, int]] = {}
    largest: dict[int, tuple[float, int]] = {}
    for place in range(shard.start, shard.stop):
        row = dataset[place]
        first.setdefault(form_of(row), place)
        for at, each in enumerate(row if isinstance(row, tuple | list) else ()):
            number = each.item() if isinstance(each, Tensor) and not each.dim() else each
            if isinstance(number, int | float):
                if at not in least or number < least[at][0]:
                    least[at] = number, place
                if at not in largest or number > largest[at][0]:
                    largest[at] = number, place
    ends = [place for found in (least, largest) for _, place in found.values()]
    return _sorted_places([*first.values(), *ends])


def _sorted_places(places: Iterable[int]) -> Tensor:
    return torch.tensor(sorted(set(places)), dtype=torch.int64)


def _gathering(dataset: Dataset[Any]) -> Callable[[list[Any]], Any]:
    """Return the function that puts rows of tensors into a batch, in the form of the first row.

    Raises:
        DataError: the first row is of another form.
    """
    first = dataset[0]
    if not (isinstance(first, tuple | list) and len(first) in (2, 3)):
        raise DataError(
            f"the dataset gives {_describe_example(first)} for an example; {_EXPECTED}. Rows of another form "
            "need a function that makes batches of them: Trainer(collate=...).",
            field="train",
        )
    lists = any(isinstance(part, list) for part in tensors(tuple(first)))
    example: Any = None if lists else _collate([first])
    if not all(isinstance(part, Tensor) for part in tensors(example)):
        raise DataError(
            f"the dataset gives {tuple(type(part).__name__ for part in first)} for an example; {_EXPECTED}: "
            "an input is a tensor, or a tuple or mapping of tensors (of lists, make tensors), and target "
            "and group are whole numbers, or tensors of them, that count classes and groups from 0.",
            field="inputs",
        )
    return partial(_collate_alike, taken(example, slice(0)))


def _describe_example(example: object) -> str:
    return f"{type(example).__name__}{f' of {len(example)}' if isinstance(example, tuple | list) else ''}"


def _collate(rows: list[Any]) -> Any:
    """Rows as tensors, in the form of one row; default_collate turns tuples into lists."""
    try:
        return as_tuples(default_collate([tuple(row) for row in rows]))
    except Exception as error:
        raise _unlike_rows(str(error).strip()) from error


def _collate_alike(empty: Any, rows: list[Any]) -> Any:
    """Rows as tensors, in the form of an empty batch, which follows from one example alone.

    default_collate reads the names that the first row of a batch has, and takes the type that holds all rows:
    how one example is read would change with the others.
    """
    if not rows:
        return empty
    names = names_in(empty)
    if any(names_in(row) != names for row in rows):
        raise _unlike_rows("a row has other names, or another number of tensors, than the first")
    if not _have_types(empty, rows):  # a batch would convert them, or fail, by what else is in it
        raise _unlike_rows("a row has tensors of another type than the first")
    batch = _collate(rows)
    if not all(tensors(map_tensors(_is_alike, empty, batch))):
        raise _unlike_rows("rows of a batch have another type or shape than the first of the dataset")
    return batch


def _have_types(like: Any, parts: Sequence[Any]) -> bool:
    """Return whether, of one part of each row, those that are tensors already are of the expected type."""
    if isinstance(like, Tensor):
        dtype = like.dtype
        return all(each.dtype == dtype for each in parts if isinstance(each, Tensor))
    if isinstance(like, tuple):
        return all(map(_have_types, like, zip(*parts, strict=True)))
    return all(_have_types(each, [part[name] for part in parts]) for name, each in like.items())


def _is_alike(expected: Tensor, given: Any) -> bool:
    """Return whether tensors of two batches are of one type and of one shape for each example."""
    alike = isinstance(given, Tensor) and given.dtype == expected.dtype
    return alike and given.shape[1:] == expected.shape[1:]


def _unlike_rows(reason: str) -> DataError:
    return DataError(
        f"rows of the dataset cannot be put into one batch ({reason}); expected tensors, arrays or numbers "
        "of the same names, types and shapes in every row. Turn images and texts into tensors, and pad "
        "shorter rows: in the dataset to one length, or by Trainer(collate=...) to the longest of a sample.",
        field="inputs",
    )
