"""From the places of a sample to its batch: rows are read or collated, then augmented or viewed.

A few rows are tried before anything is spent. If a row fails later, the run ends with that error, and the
step stays charged. Which sample fails depends on the data, so drawing another sample would be a choice based
on the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from equidp.data.dataset import GroupedDataset, NamedTensors
from equidp.data.views import Views
from equidp.errors import DataError, SettingError, error_text
from equidp.kernel.inputs import Inputs, count_in, map_tensors, taken, tensors
from equidp.kernel.noise import Randomness
from equidp.kernel.run import Batch
from equidp.training.collation import Collate, Collation, as_tuples

Augment = Callable[[Inputs], Inputs]
"""Inputs of one example, without a first dimension for the batch -> such inputs."""
Load = Callable[[Iterable[Tensor]], Iterator[Batch]]
"""Places of samples, [batch] each -> their batches, lazily and in the same order."""
_FIRST, _TRIED = 8, 32
"""Number of first rows, and of evenly spread rows (which may all have one size), loaded before training."""
_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@final
@dataclass(frozen=True)
class Loading:
    """Loads samples of a dataset; rows were tried.

    Attributes:
        load: function that loads samples.
        tried: rows as one batch. Shapes and types of a row are read, but not its values.
        draws: whether user code runs, which may draw random numbers.
        collation: collation of rows of a torch Dataset, or None for a `GroupedDataset`.
    """

    load: Load
    tried: Batch
    draws: bool
    collation: Collation | None = None

    @classmethod
    def of(
        cls,
        train: GroupedDataset | Dataset[Any],
        model: nn.Module,
        randomness: Randomness,
        *,
        views: Views,
        augment: Augment | None = None,
        collate: Collate | None = None,
        num_groups: int | None = None,
        workers: int = 0,
    ) -> Loading:
        """Try `collate` and `augment` on a few rows, and check numbers and groups once.

        Args:
            train: a `GroupedDataset`, or a map-style dataset of rows.
            model: model for which rows are loaded.
            randomness: source of randomness for augmentation.
            views, augment, collate, num_groups, workers: as in `Trainer`.

        Raises:
            SettingError, DataError: the arguments are incompatible, or fail for a row.
        """
        _check_functions(train, collate, augment)
        views.check(train)
        count = len(train)  # type: ignore[arg-type]
        if not count:
            raise DataError("the dataset is empty; expected at least one example.", field="data")
        devices = [parameter.device for parameter in model.parameters()]
        spread = torch.arange(min(_TRIED, count)) * count // min(_TRIED, count)
        places = torch.cat([torch.arange(min(_FIRST, count)), spread]).unique()
        collation: Collation | None = None
        take = None if collate else taker_of(train)
        with randomness.for_model(*devices):
            if isinstance(train, GroupedDataset):
                assert take is not None
                tried = next(take_batches(take, [places if augment else places[:1]]))
            else:
                collation = Collation.of([train[place] for place in places.tolist()], collate)
                tried = _make_batch(collation.example, num_groups, places)
                check_numbers(train, tried)
                if (groups := column(train, 2)) is not None:
                    check_groups(groups, num_groups)
            if take is not None:
                read: Load = partial(take_batches, take)
            else:
                assert not isinstance(train, GroupedDataset)
                assert collation is not None
                pinned = any(device.type == "cuda" for device in devices)
                start = randomness.start_of_worker
                read = partial(load_batches, train, collation, num_groups, workers, pinned, start)

            def change(batches: Iterable[Batch]) -> Iterator[Batch]:
                for batch in batches:
                    batch = views.of(batch, randomness)
                    yield batch if augment is None else augment_batch(batch, augment)

            draws = augment is not None or take is None
            return cls(lambda samples: change(read(samples)), next(change([tried])), draws, collation)


Take = Callable[[Tensor], Any]
"""Places, [batch] -> (inputs, targets) or (inputs, targets, groups) there."""


def taker_of(train: object) -> Take | None:
    """Return a function that takes rows in memory, one index_select a tensor. None: rows are loaded singly.

    >>> taker_of(Subset(TensorDataset(torch.zeros(4, 1), torch.arange(4)), [3, 1]))(torch.tensor([1]))
    (tensor([[0.]]), tensor([1]))
    """
    if type(train) is Subset and (take := taker_of(train.dataset)) is not None:
        kept = _places(train)
        return lambda places: take(kept[places])
    columns = _columns(train)
    if columns is None or (isinstance(train, TensorDataset) and type(train) is not TensorDataset):
        return None  # a class of the user's may change its rows
    return lambda places: map_tensors(lambda each: each.index_select(0, places.to(each.device)), columns)


def _columns(train: object) -> tuple[Any, ...] | None:
    """Return inputs, targets and perhaps groups of all rows, if they are tensors in memory; else None."""
    if isinstance(train, GroupedDataset):
        return train.inputs, train.trained_targets, train.groups
    if isinstance(train, NamedTensors):
        return train.inputs, train.labels
    return train.tensors if isinstance(train, TensorDataset) else None


def _places(train: Subset[Any]) -> Tensor:
    """Return the positions of a part's rows in the whole, [n]; negative numbers count from the end."""
    places = torch.tensor([int(place) for place in train.indices], dtype=torch.int64)
    return torch.where(places < 0, places + len(train.dataset), places)  # type: ignore[arg-type]


def take_batches(take: Take, samples: Iterable[Tensor]) -> Iterator[Batch]:
    """Yield the sampled rows of a dataset in memory."""
    for sample in samples:
        inputs, targets, *given = take(sample)
        groups = given[0].long() if given else torch.zeros(len(sample), dtype=torch.int64)
        yield Batch(inputs, targets, groups, sample)


def load_batches(
    train: Dataset[Any],
    collation: Collation,
    num_groups: int | None,
    workers: int,
    pinned: bool,
    start_of_worker: Callable[[int], None] | None,
    samples: Iterable[Tensor],
) -> Iterator[Batch]:
    """Yield the sampled rows of a map-style dataset, which `workers` processes load ahead.

    A dataset that draws random numbers gets them in order of place: take batches inside
    `Randomness.for_model`, and give workers that randomness' `start_of_worker`.

    Args:
        pinned: keep batches in page-locked memory, from which CUDA copies them while it computes.
    """
    pending: list[Tensor] = []  # samples whose rows have not come out of the loader yet

    def take_samples() -> Iterator[list[int]]:
        for sample in samples:
            pending.append(sample)
            yield sample.tolist()

    loader = DataLoader(
        train,
        batch_sampler=take_samples(),
        num_workers=workers,
        collate_fn=collation,
        pin_memory=pinned,
        worker_init_fn=start_of_worker,
    )
    for batch in loader:
        yield _make_batch(as_tuples(batch), num_groups, pending.pop(0))


def augment_batch(batch: Batch, augment: Augment) -> Batch:
    """Return a batch with a function applied to each example's inputs, one example at a time.

    Raises:
        DataError: the function fails, or gives examples of different forms.
    """
    rows = batch.inputs
    if not len(batch.indices):  # zeros in place of an example show the form
        rows = map_tensors(lambda each: each.new_zeros(1, *each.shape[1:]), rows)
    try:
        made = [augment(taken(rows, place)) for place in range(count_in(rows))]  # type: ignore[arg-type]
        inputs = map_tensors(lambda *each: torch.stack(each), *made)
    except Exception as error:
        raise DataError(
            f"augment fails on an example ({error_text(error)}); expected a function of the inputs of one "
            "example, without a dimension for the batch, that gives inputs of one shape.",
            field="augment",
        ) from error
    return batch._replace(inputs=taken(inputs, slice(len(batch.indices))))


def column(train: Any, place: int) -> Any:
    """Return the inputs (0), targets (1) or groups (2) of all rows if they are in memory; else None.

    >>> column(Subset(TensorDataset(torch.zeros(4), torch.arange(4)), [3, 1]), 1)
    tensor([3, 1])
    """
    if isinstance(train, Subset):
        whole = column(train.dataset, place)
        return None if whole is None else taken(whole, _places(train))
    if (columns := _columns(train)) is not None:
        return columns[place] if place < len(columns) else None
    if isinstance(train, list | tuple) and place:
        try:
            return torch.as_tensor([row[place] for row in train])
        except Exception:  # no number in each row
            return None
    return None


def check_numbers(train: Any, tried: Batch) -> None:
    """Reject NaN and infinite numbers, of which a row would have no gradient, in memory or in rows tried.

    Raises:
        DataError: the message says whether inputs or targets have them.
    """
    for place, name in enumerate(("inputs", "targets")):
        whole = column(train, place)
        for each in tensors(tried[place] if whole is None else whole):
            if each.is_floating_point() and each.numel() and not all(map(torch.isfinite, each.aminmax())):
                raise DataError(
                    f"the {name} hold NaN or infinite numbers, and such a row would add nothing in training. "
                    "Leave these rows out, or fill or encode what is missing.",
                    field=name,
                )


def check_groups(groups: Any, num_groups: int | None) -> None:
    """Reject groups of a batch that are not one of `num_groups` for each example. None: not known.

    Raises:
        DataError: the message says what was expected.
    """
    whole = isinstance(groups, Tensor) and groups.dim() == 1 and groups.dtype in _WHOLE
    if not (whole and (groups >= 0).all() and (num_groups is None or (groups < num_groups).all())):
        last = "" if num_groups is None else f" to {num_groups - 1}"
        kind = f"{groups.dtype} {[*groups.shape[1:]]}" if isinstance(groups, Tensor) else type(groups)
        raise DataError(
            f"an example has a group ({kind}) that is none; expected a whole number from 0{last}.",
            field="groups",
        )


def _make_batch(parts: Any, num_groups: int | None, places: Tensor) -> Batch:
    """Return a batch of (inputs, targets) or (inputs, targets, groups)."""
    inputs, targets, *given = parts
    if not given and num_groups is not None:
        raise DataError(
            "the dataset gives (input, target) for an example, and groups are asked for; let it give "
            "(input, target, group), or put it into an equidp.GroupedDataset.",
            field="data",
        )
    groups = given[0] if given else torch.zeros(count_in(targets), dtype=torch.int64)
    check_groups(groups, num_groups)
    return Batch(inputs, targets, groups.long(), places)


def _check_functions(train: object, collate: object, augment: object) -> None:
    if collate is not None and isinstance(train, GroupedDataset):
        raise SettingError(
            "collate is for rows of a torch Dataset, and a GroupedDataset holds tensors that are in one "
            "batch already; leave it out, or give the rows themselves (a list, say).",
            field="collate",
        )
    if collate is not None and augment is not None:
        raise SettingError(
            "augment is given examples that collate padded to the longest of their sample, so that what it "
            "makes of one could follow from others; let the dataset augment its rows.",
            field="augment",
        )
