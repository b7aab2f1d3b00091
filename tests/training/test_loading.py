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
from equidp.data.views import Views
from equidp.errors import DataError, SettingError
from equidp.kernel.inputs import tensors
from equidp.kernel.noise import SeededRandomness, SystemRandomness
from equidp.ledger.ledger import Ledger
from equidp.training.collation import Collation, Form
from equidp.training.loading import Loading, check_numbers, load_batches
from support.errors import raises_field
from support.toy import make_trainer, toy


class Given(Dataset):
    """The same example at every index."""

    def __init__(self, example: object) -> None:
        self.example = example

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> object:
        return self.example


class ListOfRows(list):
    """A list that can say which groups there are."""


def load(train: object, *samples: list[int], **settings) -> list:
    """Batches of samples, once rows were tried."""
    given = {"views": Views(), **settings}
    loading = Loading.of(train, nn.Linear(1, 1), SeededRandomness(0), **given)
    return list(loading.load(torch.tensor(each, dtype=torch.int64) for each in samples))


def loaded(example: object, *sizes: int) -> list:
    return load(Given(example), *([*range(size)] for size in sizes))


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
    ledger = Ledger()
    with raises_field(DataError, "inputs"):
        make_trainer(OfTwoLengths(), epochs=1, ledger=ledger)
    assert not ledger.entries()


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
def test_a_row_unlike_the_first_ends_the_run_by_its_own_error_and_is_charged(wrong):
    ledger = Ledger()
    trainer = make_trainer(rows_with(wrong), batch_size=100, epochs=9, ledger=ledger, seed=0)
    with pytest.raises(DataError, match=r"row|example"):
        trainer.fit()
    assert 0 < sum(count for _, count in ledger.entries()) < trainer.steps


@pytest.mark.parametrize("kind", ["list", "tensors"])
@pytest.mark.parametrize("group", [-1, 2])
def test_one_group_beyond_the_others_is_refused_before_a_step_is_spent(kind, group):
    groups = torch.arange(200) % 2
    groups[117] = group
    train: object = TensorDataset(torch.ones(200, 5), torch.arange(200) % 2, groups)
    if kind == "list":
        train = ListOfRows((x, y, int(own)) for x, y, own in train)
    train.group_names = ("a", "b")
    ledger = Ledger()
    with raises_field(DataError, "groups"):
        make_trainer(train, equidp.DPSGDF(), batch_size=10, ledger=ledger)
    assert not ledger.entries()


class Indexed(Dataset):
    """Rows that have to be loaded."""

    def __init__(self, *columns: Tensor) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, place: int) -> tuple[Tensor, ...]:
        return tuple(column[place] for column in self.columns)


HOLDING = {
    "tensors": TensorDataset,
    "half of tensors": lambda *columns: Subset(TensorDataset(*columns), range(100, 200)),
    "tensors by name": lambda inputs, targets: {"input": inputs, "labels": targets},
    "mappings": lambda *columns: [({"input": x}, y) for x, y in zip(*columns, strict=True)],
    "rows that are loaded": Indexed,
}
"""Datasets of inputs and targets by how they hold them; the first three are looked at in whole."""


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.sum(dim=1) - targets).square()


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("part", ["inputs", "targets"])
@pytest.mark.parametrize("holding", HOLDING)
def test_a_number_that_is_not_finite_is_refused_before_a_step_is_spent(holding, part, number):
    inputs, targets, ledger = torch.randn(200, 5), torch.randn(200), Ledger()
    place = 117 if "tensors" in holding else 112  # every 200/32 rows are tried
    if part == "inputs":
        inputs[place, 2] = number
    else:
        targets[place] = number
    with raises_field(DataError, part):
        make_trainer(HOLDING[holding](inputs, targets), loss=squared, ledger=ledger)
    assert not ledger.entries()


def test_rows_that_a_subset_leaves_out_are_not_looked_at():
    inputs = torch.randn(200, 5)
    inputs[7, 2] = torch.nan
    make_trainer(Subset(TensorDataset(inputs, torch.arange(200) % 2), range(100, 200))).fit()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_huge_numbers_are_not_infinite_ones(dtype):
    check_numbers(
        TensorDataset(torch.full((200, 5), torch.finfo(dtype).max, dtype=dtype), torch.zeros(200)), None
    )


def test_a_collated_row_that_is_not_finite_is_refused_before_a_step_is_spent():
    rows = [{"words": [0.5] * (1 + place % 4), "label": place % 2} for place in range(200)]
    rows[112]["words"] = [0.5, torch.nan]
    with raises_field(DataError, "inputs"):
        load(rows, collate=pad)


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


@pytest.mark.parametrize(("error", "expected"), [(None, DataError), (OSError, OSError)])
def test_a_few_rows_of_a_dataset_are_loaded_before_training(error, expected):
    """Of 200 rows, the first 8, and 32 that are evenly spread."""
    ledger = Ledger()
    with pytest.raises(expected):
        make_trainer(Failing(112, error), ledger=ledger)
    assert not ledger.entries()
    loaded = []

    class Watched(Failing):
        def __getitem__(self, place: int) -> tuple[Tensor, int]:
            loaded.append(place)
            return super().__getitem__(place)

    make_trainer(Watched(200, None))
    assert loaded == sorted({*range(8), *(place * 200 // 32 for place in range(32))})


def test_a_row_that_fails_to_load_in_training_is_charged():
    """Which sample failed follows from the data: to draw another in its place would be to choose."""
    ledger = Ledger()
    trainer = make_trainer(Failing(117, OSError), batch_size=50, epochs=20, ledger=ledger)
    with pytest.raises(OSError, match="117"):
        trainer.fit()
    assert 0 < sum(count for _, count in ledger.entries()) < trainer.steps


def test_augmentation_that_fails_for_a_row_fails_before_a_step_is_spent():
    data, ledger = toy(60), Ledger()
    data.inputs[30] = 0.0

    def uncentred(row: Tensor) -> Tensor:
        if not row.any():
            raise ValueError("a row of zeros")
        return row

    with raises_field(DataError, "augment"):
        make_trainer(data, augment=uncentred, ledger=ledger)
    assert not ledger.entries()


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
        *("a name less", "other names", "another type", "a number and a tensor", "length"),
        *("double", "whole", "half"),
    ],
)
@pytest.mark.parametrize("sample", [[0, 1], [1, 0], [1]], ids=str)
def test_rows_unlike_the_first_are_refused_in_whatever_order_they_are_drawn(first, second, sample):
    """default_collate goes by the first row of a batch, which would choose how the others are read."""
    collation = Collation.of([first])
    with raises_field(DataError, "inputs"):
        collation([(first, second)[place] for place in sample])


def test_of_rows_with_further_names_those_of_the_first_are_read():
    rows = [({"a": ROW}, 0), ({"b": 2 * ROW, "a": 3 * ROW}, 1)]
    (batch,) = load(rows, [1])
    assert [*batch.inputs] == ["a"]
    assert torch.equal(batch.inputs["a"][0], 3 * ROW)


def test_examples_without_a_group_train_where_a_method_needs_none():
    """As a TensorDataset gives them; the result is that of one group."""
    data = toy(60)
    pairs = TensorDataset(data.inputs, data.targets)
    settings = {"seed": 3, "epochs": 1}
    runs = [make_trainer(train, **settings).fit() for train in (pairs, data)]
    torch.testing.assert_close(runs[0].model.weight, runs[1].model.weight)


def test_methods_that_need_groups_say_what_to_do_without():
    pairs = TensorDataset(torch.randn(60, 5), torch.arange(60) % 2)
    policy = equidp.DPSGDF(clipping_bound=1.0, smoothing=0.9)
    with raises_field(SettingError, "group_names"):
        make_trainer(pairs, policy)
    pairs.group_names = ("a", "b")
    with raises_field(DataError, "data"):
        make_trainer(pairs, policy)


@pytest.mark.parametrize("example", [("text", 0), ({"text": "a"}, 0), (torch.zeros(2), "no", 0)], ids=str)
def test_what_is_no_tensor_is_refused(example):
    with raises_field(DataError, "inputs"):
        loaded(example, 1)


def test_a_list_of_numbers_is_a_tensor():
    """Tokenizers return them, and a DataLoader would turn them by position."""
    (batch,) = load([({"ids": [1, 2, 3]}, 0), ({"ids": [4, 5, 6]}, 1)], [1, 0])
    assert batch.inputs["ids"].tolist() == [[4, 5, 6], [1, 2, 3]]


@pytest.mark.parametrize("example", [torch.zeros(2), (torch.zeros(2),), (1, 2, 3, 4), {"x": 1}], ids=str)
def test_examples_of_another_form_are_refused(example):
    with raises_field(DataError, "data"):
        loaded(example, 1)


@pytest.mark.parametrize("pinned", [True, False])
def test_samples_are_pinned_for_models_on_cuda_alone(monkeypatch, pinned):
    asked = []

    class Loader(torch.utils.data.DataLoader):
        def __init__(self, *given, pin_memory, **others):
            asked.append(pin_memory)
            super().__init__(*given, **others)

    monkeypatch.setattr("equidp.training.loading.DataLoader", Loader)
    row = (torch.ones(2), 0)
    list(load_batches(Given(row), Collation.of([row]), None, 0, pinned, None, [torch.arange(2)]))
    assert asked == [pinned]
    asked.clear()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    make_trainer(Given((torch.ones(5), 0)), batch_size=10, steps=1, epochs=None).fit()
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


def test_rows_may_be_padded_before_them_in_several_dimensions_and_with_any_number():
    images = [(torch.rand(1 + place % 3, 2 + place % 2), place) for place in range(30)]

    def stack(rows):
        sizes = [max(image.shape[axis] for image, _ in rows) for axis in (0, 1)]
        whole = torch.full((len(rows), *sizes), -7.0)
        for place, (image, _) in enumerate(rows):
            whole[place, sizes[0] - image.shape[0] :, sizes[1] - image.shape[1] :] = image
        return whole, torch.tensor([target for _, target in rows])

    collation = Collation.of(images, stack)
    assert collation.forms[0] == Form(torch.float32, (3, 3), -7.0, after=False)
    assert all(map(torch.equal, collation(images), stack(images)))
    assert all(map(torch.equal, collation(images[:2]), stack(images[:2])))


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


def test_a_collator_that_changes_rows_in_place_does_not_change_the_data():
    rows = [dict(row) for row in ROWS]

    def changing(given):
        longest = max(len(row["words"]) for row in given)
        for row in given:
            row["words"] = row["words"] + [0] * (longest - len(row["words"]))
        return torch.tensor([row["words"] for row in given]), torch.tensor([row["label"] for row in given])

    Collation.of(rows, changing)
    assert rows == ROWS


def cutting(rows):
    shortest = min(len(row["words"]) for row in rows)
    return torch.tensor([row["words"][:shortest] for row in rows]), pad(rows)[1]


def masking(rows):
    inputs, labels = pad(rows)
    words = inputs["words"]
    return words.masked_fill((torch.rand(words.shape) < 0.15) & (words > 0), 9), labels


def padded_with_several(rows):
    inputs, labels = pad(rows)
    words, mask = inputs["words"], inputs["mask"]
    return torch.where(mask > 0, words, torch.arange(words.shape[1])), labels


def going_by_the_first(rows):
    inputs, labels = pad(rows)
    return (inputs if rows[0]["label"] else inputs["words"]), labels


def of_another_type(rows):
    inputs, labels = pad(rows)
    return inputs["words"].to(torch.float32 if len(rows) == 1 else torch.int64), labels


def failing_alone(rows):
    return pad(rows if len(rows) > 1 else [])


def packed(rows):
    return torch.tensor([word for row in rows for word in row["words"]])[None], pad(rows)[1]


def with_a_row_less(rows):
    return pad(rows)[0], pad(rows)[1][1:]


def by_name(rows):
    inputs, labels = pad(rows)
    return {**inputs, "labels": labels}


def of_lists(rows):
    return [row["words"] for row in rows], [row["label"] for row in rows]


BAD = [
    *((each, SettingError) for each in (cutting, padded_with_several, going_by_the_first, of_another_type)),
    *((each, DataError) for each in (failing_alone, packed, with_a_row_less, by_name, of_lists)),
    (lambda rows: None, DataError),
    (lambda rows: rows["words"], DataError),
]


@pytest.mark.parametrize(("collate", "error"), BAD, ids=lambda each: getattr(each, "__name__", None))
def test_collators_that_pad_otherwise_or_give_no_batch_are_refused(collate, error):
    with raises_field(error, "collate"):
        Collation.of(ROWS, collate)


def test_collators_that_draw_get_each_row_alone():
    made, rows = Collation.of(ROWS, masking), [ROWS[0], ROWS[-1]]
    torch.manual_seed(0)
    together = made(rows)
    torch.manual_seed(0)
    alone = [made([row]) for row in rows]  # draws the same numbers
    for place, each in enumerate(alone):
        own, whole = tensors(each)[0][0], tensors(together)[0][place]
        assert torch.equal(whole[: len(own)], own)
        assert not whole[len(own) :].any()


@pytest.mark.parametrize("odd", [{"words": []}, {"words": "ab", "label": 1}, 7, None], ids=str)
def test_a_row_that_cannot_be_collated_ends_the_sample_by_its_own_error(odd):
    with raises_field(DataError, "collate"):
        Collation.of(ROWS, pad)([odd])
    with raises_field(DataError, "collate"):
        load([odd], [0], collate=pad)


@pytest.mark.parametrize("group", [-1, 2, 0.5])
def test_groups_that_there_are_not_are_refused(group):
    rows = [*ROWS, {"words": [1], "label": 0, "group": group}]

    def with_groups(given: list[dict]) -> tuple:
        return *pad(given), torch.tensor([row.get("group", 0) for row in given])

    with raises_field(DataError, "groups" if isinstance(group, int) else "inputs"):
        load(rows, [40], collate=with_groups, num_groups=2)


def test_rows_may_be_longer_than_those_that_were_tried():
    collation = Collation.of(ROWS, pad)
    inputs, _ = collation([ROWS[0], {"words": [1] * 9, "label": 1}])
    assert inputs["words"].tolist() == [[1] + [0] * 8, [1] * 9]


def test_rows_of_other_sizes_where_those_that_were_tried_had_one_are_refused():
    """How to pad them is not known."""
    collation = Collation.of([ROWS[1]] * 5, pad)
    assert collation([ROWS[1]])[1].tolist() == [1]
    with raises_field(DataError, "inputs"):
        collation([ROWS[1], ROWS[2]])
