"""Samples of a torch Dataset become batches, whatever form rows have, and are padded as by a collator."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, Subset, TensorDataset, get_worker_info

import equidp
from equidp.data.dataset import NamedTensors
from equidp.data.views import Views
from equidp.errors import DataError, SettingError
from equidp.kernel.inputs import tensors
from equidp.kernel.noise import SeededRandomness, SystemRandomness
from equidp.ledger.ledger import Ledger
from equidp.training.collation import Collation
from equidp.training.loading import Loading, load_batches
from support.errors import raises_field
from support.toy import make_trainer, toy


class Loaded(Dataset):
    """Rows that are loaded one by one; notes which. A row that is an error is raised."""

    def __init__(self, rows: list) -> None:
        self.rows, self.seen = rows, []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> object:
        self.seen.append(place)
        if isinstance(self.rows[place], Exception):
            raise self.rows[place]
        return self.rows[place]


def load(train: object, *samples: list[int], **settings) -> list:
    """Batches of samples, once rows were tried."""
    given = {"views": Views(), **settings}
    loading = Loading.of(train, nn.Linear(1, 1), SeededRandomness(0), **given)
    return list(loading.load(torch.tensor(each, dtype=torch.int64) for each in samples))


@pytest.mark.parametrize("sample", [[3, 0, 3], []])
def test_rows_in_memory_are_taken_at_once_and_are_those_that_are_loaded_singly(sample):
    inputs, targets, groups = torch.randn(5, 2), torch.arange(5.0), torch.tensor([0, 1, 0, 1, 1]).int()
    whole, order = TensorDataset(inputs, targets, groups), [4, 2, 0, 1]
    for train in (whole, Subset(whole, order), Subset(Subset(whole, np.uint8([3, 2, 1, 0])), range(-4, 0))):
        (known,) = load(train, sample, num_groups=2)
        (single,) = load(Loaded([train[place] for place in range(len(train))]), sample, num_groups=2)
        assert all(map(torch.equal, known, single))
        assert known.groups.dtype == torch.int64
    named = NamedTensors.of({"x": inputs, "labels": targets})
    (known,) = load(named, sample)
    assert torch.equal(known.inputs["x"], inputs[sample])
    assert torch.equal(known.targets, targets[sample])


def rows_with(wrong: object, place: int) -> list:
    """200 rows of inputs, target and group, one of which is wrong; a mapping changes parts of it."""
    rows = [{"inputs": torch.ones(5) * at / 200, "target": at / 200, "group": at % 2} for at in range(200)]
    rows: list = [tuple((row | (wrong if isinstance(wrong, dict) and at == place else {})).values())
                  for at, row in enumerate(rows)]  # fmt: skip
    if not isinstance(wrong, dict):
        rows[place] = wrong
    return rows


def in_tensors(rows: list) -> TensorDataset:
    columns = zip(*rows, strict=True)
    return TensorDataset(*(torch.stack([torch.as_tensor(each) for each in column]) for column in columns))


HOLDING = {
    "tensors": in_tensors,
    "half of tensors": lambda rows: Subset(in_tensors(rows), range(100, 200)),
    "a list": lambda rows: rows,
    "rows that are loaded": Loaded,
}
TRIED, FAR = 112, 117
"""Of 200 rows the first 8 are tried, and 32 that are evenly spread: every 200/32."""
NAN = {"inputs": torch.tensor([0.0, 1.0, torch.nan, 0.0, 0.0])}


def trainer(holding: str, rows: list, ledger: Ledger, **settings) -> equidp.Trainer:
    train = HOLDING[holding](rows)
    if isinstance(train, list):
        train = type("Rows", (list,), {})(train)
    train.group_names = ("a", "b")
    squares = lambda outputs, targets: (outputs.sum(dim=1) - targets).square()  # noqa: E731
    return make_trainer(train, equidp.DPSGDF(), loss=squares, ledger=ledger, seed=0, **settings)


@pytest.mark.parametrize(
    ("holding", "place", "wrong", "field"),
    [
        ("tensors", FAR, NAN, "inputs"),
        ("half of tensors", FAR, NAN, "inputs"),
        ("rows that are loaded", TRIED, NAN, "inputs"),
        ("tensors", FAR, {"target": -torch.inf}, "targets"),
        ("rows that are loaded", TRIED, {"target": torch.nan}, "targets"),
        ("tensors", FAR, {"group": -1}, "groups"),
        ("a list", FAR, {"group": 2}, "groups"),
        ("rows that are loaded", TRIED, {"inputs": torch.ones(6)}, "inputs"),
    ],
)
def test_a_wrong_row_is_refused_before_a_step_is_spent(holding, place, wrong, field):
    ledger = Ledger()
    with raises_field(DataError, field):
        trainer(holding, rows_with(wrong, place), ledger)
    assert not ledger.entries()


@pytest.mark.parametrize(
    "wrong",
    [
        {"inputs": {"a": torch.ones(5)}},
        {"target": "no"},
        {"group": 2},
        None,
        OSError("cannot be read"),
    ],
    ids=str,
)
def test_a_row_that_was_not_tried_ends_the_run_by_its_own_error_and_is_charged(wrong):
    ledger = Ledger()
    made = trainer("rows that are loaded", rows_with(wrong, FAR), ledger, batch_size=100, epochs=9)
    with pytest.raises(OSError if isinstance(wrong, OSError) else DataError):
        made.fit()
    assert 0 < sum(count for _, count in ledger.entries()) < made.steps


@pytest.mark.parametrize("holding", ["tensors", "rows that are loaded"])
def test_a_class_beyond_the_outputs_is_refused_before_a_step_is_spent(holding):
    def made(value: object, outputs: int = 2) -> equidp.Trainer:
        rows: list = [(torch.ones(5), at % 2) for at in range(200)]
        rows[TRIED] = torch.ones(5), value
        return make_trainer(HOLDING[holding](rows), model=nn.Linear(5, outputs), ledger=ledger)

    ledger = Ledger()
    for value in (2, -1):
        with raises_field(DataError, "targets"):
            made(value)
    made(-100)  # cross entropy ignores it
    made(2, outputs=3)
    assert not ledger.entries()


def test_augmentation_that_fails_for_a_row_fails_before_a_step_is_spent():
    data, ledger = toy(60), Ledger()
    data.inputs[30] = 0.0
    with raises_field(DataError, "augment"):
        make_trainer(data, augment=lambda row: row if row.any() else None, ledger=ledger)
    assert not ledger.entries()


ROW = torch.ones(5)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (({"a": ROW, "b": ROW}, 0), ({"a": ROW}, 1)),
        (((ROW, {"a": ROW}), 0), ((ROW, {"b": ROW}), 1)),
        ((ROW, 0), (ROW, 0.5)),
        ((ROW, 0), (ROW[:3], 1)),
        ((ROW, 0), (ROW.long(), 1)),
        (({"a": ROW}, 0), ({"a": ROW.half()}, 1)),
    ],
    ids=["a name less", "other names", "another type", "length", "whole", "half"],
)
@pytest.mark.parametrize("sample", [[0, 1], [1, 0]], ids=str)
def test_rows_unlike_the_first_are_refused_in_whatever_order_they_are_drawn(first, second, sample):
    """default_collate goes by the first row of a batch, which would choose how the others are read."""
    collation = Collation.of([first])
    with raises_field(DataError, "inputs"):
        collation([(first, second)[place] for place in sample])


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
    """Torch seeds a worker with 32 bits and its number: whoever tries all seeds learns the augmentations."""
    samples = [torch.arange(2)] * 4
    drawn = {}
    for randomness in (SeededRandomness(0), SystemRandomness()):
        torch.manual_seed(3)
        start = randomness.start_of_worker
        collation = Collation.of([Augmented()[0]])
        batches = [load_batches(Augmented(), collation, None, 2, False, start, samples) for _ in range(2)]
        drawn[type(randomness)] = [each for batch in batches for each in batch]
    rows = torch.cat([each.inputs for each in drawn[SystemRandomness]])
    assert all(len(column.unique()) == len(rows) for column in rows.T)
    for kind, batches in drawn.items():
        (by_torch, _, by_python), seed = batches[0].inputs[0].tolist(), int(batches[0].targets[0])
        assert (by_torch == torch.rand(1, generator=torch.Generator().manual_seed(seed)).item()) is (
            kind is SeededRandomness
        )
        assert (by_python == random.Random(seed).random()) is (kind is SeededRandomness)


ROWS = [{"words": list(range(1, 2 + place % 4)), "label": place % 2} for place in range(40)]


def pad(rows: list[dict]) -> tuple:
    """Words padded with 0, a mask, and labels, which are a number each."""
    words = pad_sequence([torch.tensor(row["words"]) for row in rows], batch_first=True)
    return {"words": words, "mask": (words > 0).long()}, torch.tensor([row["label"] for row in rows])


def test_samples_are_padded_to_their_own_longest_and_may_be_empty():
    short, longer, empty = load(ROWS, [0, 4], [1, 2, 0], [], collate=pad)
    assert short.inputs["words"].tolist() == [[1], [1]]
    assert longer.inputs["words"].tolist() == [[1, 2, 0], [1, 2, 3], [1, 0, 0]]
    assert longer.targets.tolist() == [1, 0, 0]
    assert empty.inputs["mask"].shape == (0, 4)


def mixing(rows):
    inputs, labels = pad(rows)
    return inputs, labels.roll(1)


def centred(rows):
    inputs, labels = pad(rows)
    words = inputs["words"].float()
    return (words - words.mean(dim=0)) * inputs["mask"], labels


@pytest.mark.parametrize("collate", [mixing, centred])
def test_a_collator_that_mixes_rows_mixes_none(collate):
    """It is given one at a time."""
    whole = Collation.of(ROWS[:8], collate)(ROWS)
    for place, row in enumerate(ROWS):
        for one, alone in zip(tensors(whole), tensors(collate([row])), strict=True):
            whole_row = one[place, : alone.shape[1]] if alone.dim() > 1 else one[place]
            assert torch.equal(whole_row, alone[0])


def cutting(rows):
    shortest = min(len(row["words"]) for row in rows)
    return torch.tensor([row["words"][:shortest] for row in rows]), pad(rows)[1]


def padded_with_several(rows):
    inputs, labels = pad(rows)
    words, mask = inputs["words"], inputs["mask"]
    return torch.where(mask > 0, words, torch.arange(words.shape[1])), labels


def failing_alone(rows):
    return pad(rows if len(rows) > 1 else [])


def with_a_row_less(rows):
    return pad(rows)[0], pad(rows)[1][1:]


BAD = [
    *((each, SettingError) for each in (cutting, padded_with_several)),
    *((each, DataError) for each in (failing_alone, with_a_row_less)),
]


@pytest.mark.parametrize(("collate", "error"), BAD, ids=lambda each: getattr(each, "__name__", None))
def test_collators_that_pad_otherwise_or_give_no_batch_are_refused(collate, error):
    with raises_field(error, "collate"):
        Collation.of(ROWS, collate)
