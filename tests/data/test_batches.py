"""Samples of a torch Dataset become batches, whatever form its examples have."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, get_worker_info

import equidp
from equidp.data.batches import loaded_batches, places_to_try
from equidp.errors import DataError, SettingError
from equidp.kernel.ledger import MemoryLedger
from equidp.kernel.noise import SeededRandomness, SystemRandomness
from support import several
from support.errors import raises_field
from support.processes import together
from support.toy import make_trainer, toy


class Given(Dataset):
    """The same example at every index."""

    def __init__(self, example: object) -> None:
        self.example = example

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> object:
        return self.example


def loaded(example: object, *sizes: int, num_groups: int | None = None) -> list:
    samples = [torch.arange(size) for size in sizes]
    return list(loaded_batches(Given(example), samples, num_groups=num_groups))


def test_mappings_and_tuples_keep_their_form_also_when_a_sample_is_empty():
    ids, mask = torch.arange(3), torch.ones(3)
    for inputs in ({"ids": ids, "mask": mask}, (ids, mask)):
        full, empty = loaded((inputs, 1, 0), 2, 0)
        for batch, size in ((full, 2), (empty, 0)):
            parts = batch.inputs.values() if isinstance(inputs, dict) else batch.inputs
            assert type(batch.inputs) is type(inputs)
            assert [each.shape for each in parts] == [(size, 3)] * 2
            assert [each.dtype for each in parts] == [torch.int64, torch.float32]


def test_targets_keep_their_form_too():
    full, empty = loaded((torch.ones(2), {"a": 1, "b": (0.5, torch.ones(3))}, 0), 2, 0)
    assert full.targets["a"].tolist() == [1, 1]
    assert full.targets["b"][1].shape == (2, 3)
    assert empty.targets["b"][0].shape == (0,)


class OfTwoLengths(Dataset):
    """Rows of 5 numbers, and of 6 in the second half."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.ones(5 + (index >= 30)), index % 2


def test_rows_of_different_lengths_are_refused_before_a_step_is_spent():
    ledger = MemoryLedger()
    with raises_field(DataError, "inputs"):
        make_trainer(OfTwoLengths(), epochs=1, ledger=ledger)
    assert not ledger.entries


WRONG = {
    "shape": (torch.ones(6), 0),
    "type": (torch.ones(5, dtype=torch.float64), 0),
    "type that a batch would convert": (torch.ones(5, dtype=torch.int64), 0),
    "a part more": (torch.ones(5), 0, 0),
    "names": ({"a": torch.ones(5)}, 0),
    "type of target": (torch.ones(5), 0.5),
    "text": (torch.ones(5), "no"),
    "part that is none": (None, 0),
    "none": None,
}


def rows_with(wrong: object, place: int = 117) -> list:
    """Rows of which one, far from those that are evenly spread, is wrong."""
    rows: list = [(torch.ones(5) * at / 200, at % 2) for at in range(200)]
    rows[place] = wrong
    return rows


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize(
    "listed",
    [
        tuple,
        lambda rows: Subset(rows, range(100, 200)),
        lambda rows: ConcatDataset([rows[:50], rows[50:]]),
    ],
    ids=["tuple", "subset", "parts"],
)
def test_one_wrong_row_of_a_list_is_refused_before_a_step_is_spent(wrong, listed):
    ledger = MemoryLedger()
    with raises_field(DataError, "inputs"):
        make_trainer(listed(rows_with(wrong)), batch_size=10, ledger=ledger)
    assert not ledger.entries


@pytest.mark.parametrize("kind", ["list", "tensors"])
@pytest.mark.parametrize("group", [-1, 2])
def test_one_group_beyond_the_others_is_refused_before_a_step_is_spent(kind, group):
    groups = torch.arange(200) % 2
    groups[117] = group
    train: object = TensorDataset(torch.ones(200, 5), torch.arange(200) % 2, groups)
    if kind == "list":
        train = [(x, y, int(own)) for x, y, own in train]
    ledger = MemoryLedger()
    with raises_field(DataError, "groups"):
        make_trainer(train, equidp.DPSGDF(), num_groups=2, batch_size=10, ledger=ledger)
    assert not ledger.entries


def in_memory(inputs: Tensor, targets: Tensor) -> TensorDataset:
    return TensorDataset(inputs, targets)


def listed(inputs: Tensor, targets: Tensor) -> list:
    return list(zip(inputs, targets, strict=True))


class Indexed(Dataset):
    """Rows that have to be loaded."""

    def __init__(self, *columns: Tensor) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, place: int) -> tuple[Tensor, ...]:
        return tuple(column[place] for column in self.columns)


HOLDING = {
    "tensors": in_memory,
    "list": listed,
    "arrays": lambda *columns: [(x.numpy(), float(y)) for x, y in zip(*columns, strict=True)],
    "mappings": lambda *columns: [({"input": x}, y) for x, y in zip(*columns, strict=True)],
    "half of tensors": lambda *columns: Subset(in_memory(*columns), range(100, 200)),
    "parts": lambda *columns: ConcatDataset(
        [in_memory(*(each[:90] for each in columns)), listed(*(each[90:] for each in columns))]
    ),
    "rows that a step would load": lambda *columns: Indexed(*columns),
}
"""Datasets of inputs and targets by how they hold them."""


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.sum(dim=1) - targets).square()


def known(outputs: Tensor, targets: Tensor) -> Tensor:
    return squared(outputs, torch.where(targets.isfinite(), targets, outputs.detach().sum(dim=1)))


class TakesMissing(nn.Linear):
    def forward(self, values: Tensor) -> Tensor:
        return super().forward(torch.where(values.isfinite(), values, 0.0))


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("part", ["inputs", "targets"])
@pytest.mark.parametrize("holding", HOLDING)
def test_a_row_without_a_finite_gradient_is_refused_before_a_step_is_spent(holding, part, number):
    inputs, targets, ledger = torch.randn(200, 5), torch.randn(200), MemoryLedger()
    if part == "inputs":
        inputs[116, 2] = number
    else:
        targets[116] = number
    train = HOLDING[holding](inputs, targets)
    batch_size = 50 if holding == "rows that a step would load" else 10
    with raises_field(DataError, part):
        make_trainer(train, batch_size=batch_size, loss=squared, ledger=ledger)
    assert not ledger.entries


@pytest.mark.parametrize("holding", ["tensors", "list", "parts"])
def test_rows_with_missing_numbers_are_for_models_and_losses_that_take_them(holding):
    inputs, targets = torch.randn(200, 5), torch.randn(200)
    inputs[116, 2], inputs[::7, 1], targets[3] = torch.inf, torch.nan, torch.nan
    trainer = make_trainer(HOLDING[holding](inputs, targets), model=TakesMissing(5, 2), loss=known)
    trainer.fit()
    assert all(each.isfinite().all() for each in trainer.model.parameters())
    with raises_field(DataError, "targets"):
        make_trainer(HOLDING[holding](inputs, targets), model=TakesMissing(5, 2), loss=squared)


def test_huge_numbers_are_not_infinite_ones():
    inputs = torch.full((200, 5), 3e38)
    assert places_to_try(in_memory(inputs, torch.zeros(200)), 1, slice(0, 200)).tolist() == [0]
    assert places_to_try(listed(inputs, torch.zeros(200)), 1, slice(0, 200)).tolist() == [0]


def test_a_collated_row_without_a_finite_gradient_is_refused_before_a_step_is_spent():
    rows = [(torch.ones(2 + place % 3), place % 2) for place in range(200)]
    rows[117][0][1] = torch.nan

    def pad(rows: list) -> tuple[Tensor, Tensor]:
        inputs = nn.utils.rnn.pad_sequence([row for row, _ in rows], batch_first=True)
        return inputs, torch.tensor([target for _, target in rows])

    class Summed(nn.Linear):
        def forward(self, values: Tensor) -> Tensor:
            return super().forward(values.sum(dim=1, keepdim=True))

    ledger = MemoryLedger()
    with raises_field(DataError, "inputs"):
        make_trainer(rows, model=Summed(1, 2), collate=pad, ledger=ledger)
    assert not ledger.entries


class Failing(Dataset):
    """Rows of which one cannot be loaded, or is of another form."""

    def __init__(self, place: int, error: type[Exception] | None) -> None:
        self.place, self.error = place, error

    def __len__(self) -> int:
        return 200

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        if place == self.place and self.error is not None:
            raise self.error(place)
        return torch.ones(5 + (place == self.place)), place % 2


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize(("error", "expected"), [(None, DataError), (OSError, OSError)])
def test_rows_of_a_dataset_are_loaded_before_training_as_many_as_a_step_takes(error, expected, workers):
    """Of 200 rows, 50 at a time: every fourth."""
    ledger = MemoryLedger()
    with pytest.raises(expected):
        make_trainer(Failing(116, error), batch_size=50, workers=workers, ledger=ledger)
    assert not ledger.entries
    loaded = []

    class Watched(Failing):
        def __getitem__(self, place: int) -> tuple[Tensor, int]:
            loaded.append(place)
            return super().__getitem__(place)

    make_trainer(Watched(200, None), batch_size=50)
    assert len(loaded) <= 52
    assert {*loaded} == {*range(0, 200, 4)}


def test_a_row_that_fails_to_load_in_training_is_charged():
    """Which sample failed follows from the data: to draw another in its place would be to choose."""
    ledger = MemoryLedger()
    trainer = make_trainer(Failing(117, OSError), batch_size=50, epochs=20, ledger=ledger)
    with pytest.raises(OSError, match="117"):
        trainer.fit()
    assert 0 < ledger.steps < trainer.steps


def test_augmentation_that_fails_for_a_row_fails_before_a_step_is_spent():
    data, ledger = toy(60), MemoryLedger()
    data.inputs[30] = 0.0

    def uncentred(row: Tensor) -> Tensor:
        if not row.any():
            raise ValueError("a row of zeros")
        return row

    with raises_field(DataError, "augment"):
        make_trainer(data, augment=uncentred, ledger=ledger)
    assert not ledger.entries


@pytest.mark.soak
def test_a_wrong_row_in_the_shard_of_one_process_stops_all_before_a_step_is_spent():
    assert together(2, several.with_a_wrong_row, rows_with(WRONG["shape"])) == [
        (0, "ProcessError"),
        (0, "DataError"),
    ]


@pytest.mark.parametrize(
    ("example", "field"),
    [((object(), 1), "inputs"), ((torch.ones(5), {"a": 1, "b": "no"}), "inputs")],
    ids=["no tensor", "a target that is a text"],
)
def test_rows_that_are_no_tensors_are_named(example, field):
    with raises_field(DataError, field):
        make_trainer(Given(example), epochs=1)


ROW = torch.ones(5)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (({"a": ROW}, 0), ({"a": ROW, "b": ROW}, 1)),
        (({"a": ROW, "b": ROW}, 0), ({"a": ROW}, 1)),
        (((ROW, {"a": ROW}), 0), ((ROW, {"b": ROW}), 1)),
        ((ROW, 0), (ROW, 0.5)),
        ((ROW, 1.0), (ROW, torch.ones(2))),
        ((ROW, 0), (ROW[:3], 1)),
        ((ROW, 0), (ROW.double(), 1)),
        ((ROW, 0), (ROW.long(), 1)),
        (({"a": ROW}, 0), ({"a": ROW.half()}, 1)),
    ],
    ids=[
        *("a further name", "a name less", "other names", "another type", "a number and a tensor", "length"),
        *("double", "whole", "half"),
    ],
)
@pytest.mark.parametrize("sample", [[0, 1], [1, 0], [1]], ids=str)
def test_rows_unlike_the_first_are_refused_in_whatever_order_they_are_drawn(first, second, sample):
    """default_collate goes by the first row of a batch, which would choose how the others are read."""
    with raises_field(DataError, "inputs"):
        list(loaded_batches([first, second], [torch.tensor(sample)]))


def test_examples_without_a_group_train_where_a_method_needs_none():
    """As a TensorDataset gives them; the result is that of one group."""
    data = toy(60)
    pairs = TensorDataset(data.inputs, data.targets)
    settings = {"secure": False, "seed": 3, "epochs": 1}
    runs = [make_trainer(train, **settings).fit() for train in (pairs, data)]
    torch.testing.assert_close(runs[0].model.weight, runs[1].model.weight)


def test_methods_that_need_groups_say_what_to_do_without():
    pairs = TensorDataset(torch.randn(60, 5), torch.arange(60) % 2)
    policy = equidp.DPSGDF(clipping_bound=1.0, smoothing=0.9)
    with raises_field(SettingError, "num_groups"):
        make_trainer(pairs, policy)
    with raises_field(DataError, "train"):
        make_trainer(pairs, policy, num_groups=2)


@pytest.mark.parametrize(
    "example",
    [
        ([1, 2, 3], 0, 0),
        ({"ids": [1, 2]}, 0, 0),
        ("text", 0),
        ({"text": "a"}, 0, 0),
        (torch.zeros(2), "no", 0),
    ],
    ids=str,
)
def test_what_is_no_tensor_is_refused(example):
    """Lists of numbers too: tokenizers return them, and a DataLoader would turn them by position."""
    with raises_field(DataError, "inputs"):
        loaded(example, 1)


@pytest.mark.parametrize("example", [torch.zeros(2), (torch.zeros(2),), (1, 2, 3, 4), {"x": 1}], ids=str)
def test_examples_of_another_form_are_refused(example):
    with raises_field(DataError, "train"):
        loaded(example, 1)


@pytest.mark.parametrize("pinned", [True, False])
def test_samples_are_pinned_for_models_on_cuda_alone(monkeypatch, pinned):
    asked = []

    class Loader(torch.utils.data.DataLoader):
        def __init__(self, *given, pin_memory, **others):
            asked.append(pin_memory)
            super().__init__(*given, **others)

    monkeypatch.setattr("equidp.data.batches.DataLoader", Loader)
    list(loaded_batches(Given((torch.ones(2), 0)), [torch.arange(2)], pinned=pinned))
    assert asked == [pinned]
    asked.clear()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    make_trainer(Given((torch.ones(5), 0)), batch_size=10)
    assert asked == [False]


class Augmented(Dataset):
    """Draws by each generator that a Dataset may draw from, and says how its process was seeded."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        drawn = [torch.rand(1).item(), np.random.rand(), random.random()]  # noqa: NPY002
        worker = get_worker_info()
        return torch.tensor(drawn, dtype=torch.float64), worker.seed if worker else 0


@pytest.mark.soak
def test_workers_draw_from_the_system_where_samples_do():
    """Torch seeds a worker by a number of 32 bits and its own: who tries them all has every augmentation."""
    samples = [torch.arange(2)] * 4
    drawn = {}
    for randomness in (SeededRandomness(0), SystemRandomness()):
        torch.manual_seed(3)
        start = randomness.start_of_worker
        batches = [loaded_batches(Augmented(), samples, workers=2, start_of_worker=start) for _ in range(2)]
        drawn[type(randomness)] = [each for batch in batches for each in batch]
    rows = torch.cat([each.inputs for each in drawn[SystemRandomness]])
    assert all(len(column.unique()) == len(rows) for column in rows.T)
    for kind, batches in drawn.items():
        (by_torch, _, by_python), seed = batches[0].inputs[0].tolist(), int(batches[0].targets[0])
        assert (by_torch == torch.rand(1, generator=torch.Generator().manual_seed(seed)).item()) is (
            kind is SeededRandomness
        )
        assert (by_python == random.Random(seed).random()) is (kind is SeededRandomness)
