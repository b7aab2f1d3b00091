"""Rows of different lengths are collated as each is alone, padding aside, or refused before training."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from equidp.data.batches import loaded_batches
from equidp.data.collation import Collation
from equidp.errors import DataError, SettingError
from support.errors import raises_field

ROWS = [{"words": list(range(1, 2 + place % 4)), "label": place % 2} for place in range(40)]


def pad(rows: list[dict]) -> tuple:
    """Words padded with 0, a mask, and labels, which are a number each."""
    words = pad_sequence([torch.tensor(row["words"]) for row in rows], batch_first=True)
    return {"words": words, "mask": (words > 0).long()}, torch.tensor([row["label"] for row in rows])


def test_samples_are_padded_to_their_own_longest_and_may_be_empty():
    collation = Collation.of(pad, ROWS)
    samples = [torch.tensor(each, dtype=torch.int64) for each in ([0, 4], [1, 2, 0], [])]
    short, longer, empty = loaded_batches(ROWS, samples, collation=collation)
    assert short.inputs["words"].tolist() == [[1], [1]]
    assert longer.inputs["words"].tolist() == [[1, 2, 0], [1, 2, 3], [1, 0, 0]]
    assert longer.targets.tolist() == [1, 0, 0]
    assert empty.inputs["mask"].shape == (0, 4)
    assert collation.pads


def test_rows_may_be_padded_before_them_in_several_dimensions_and_with_any_number():
    images = [(torch.rand(1 + place % 3, 2 + place % 2), place) for place in range(30)]

    def stack(rows):
        sizes = [max(image.shape[axis] for image, _ in rows) for axis in (0, 1)]
        whole = torch.full((len(rows), *sizes), -7.0)
        for place, (image, _) in enumerate(rows):
            whole[place, sizes[0] - image.shape[0] :, sizes[1] - image.shape[1] :] = image
        return whole, torch.tensor([target for _, target in rows])

    collation = Collation.of(stack, images)
    extent = collation.extents[0]
    assert (extent.smallest, extent.largest) == ((1, 2), (3, 3))
    assert extent.paddings == {(-7.0, False)}
    padded, _ = collation.pad_examples(collation.short_example)
    assert padded.tolist() == [[[-7.0] * 3, [-7.0] * 3, [-7.0, 0.0, 0.0]]]
    assert all(map(torch.equal, collation(images), stack(images)))


def test_a_collator_that_goes_by_the_number_of_rows_mixes_none():
    """It is tried on 33 rows at most, and a sample may have any number."""

    def centred_if_many(rows):
        inputs, targets = pad(rows)
        if len(rows) > 35:
            inputs["words"] = inputs["words"] - inputs["words"].amax(dim=0)
        return inputs, targets

    samples = [torch.arange(40)]
    (found,) = loaded_batches(ROWS, samples, collation=Collation.of(centred_if_many, ROWS))
    (padded,) = loaded_batches(ROWS, samples, collation=Collation.of(pad, ROWS))
    assert torch.equal(found.inputs["words"], padded.inputs["words"])
    assert found.inputs["words"].tolist() == pad(ROWS)[0]["words"].tolist()


def test_rows_of_one_length_are_not_padded():
    assert not Collation.of(pad, [ROWS[1]] * 5).pads


def test_a_collator_that_changes_rows_in_place_does_not_change_the_data():
    rows = [dict(row) for row in ROWS]

    def changing(given):
        longest = max(len(row["words"]) for row in given)
        for row in given:
            row["words"] = row["words"] + [0] * (longest - len(row["words"]))
        return torch.tensor([row["words"] for row in given]), torch.tensor([row["label"] for row in given])

    Collation.of(changing, rows)
    assert rows == ROWS


def mixing(rows):
    inputs, labels = pad(rows)
    return inputs, labels.roll(1)


def centred(rows):
    inputs, labels = pad(rows)
    return inputs["words"] - inputs["words"].float().mean(), labels


def cutting(rows):
    shortest = min(len(row["words"]) for row in rows)
    return torch.tensor([row["words"][:shortest] for row in rows]), pad(rows)[1]


def masking(rows):
    inputs, labels = pad(rows)
    words = inputs["words"]
    return words.masked_fill(torch.rand(words.shape) < 0.15, 9), labels


def padded_with_others(rows):
    inputs, labels = pad(rows)
    words, mask = inputs["words"], inputs["mask"]
    return torch.where(mask > 0, words, words.max()), labels


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
    *((each, SettingError) for each in (mixing, centred, cutting, masking, padded_with_others)),
    *((each, SettingError) for each in (going_by_the_first, of_another_type)),
    *((each, DataError) for each in (failing_alone, packed, with_a_row_less, by_name, of_lists)),
    (lambda rows: None, DataError),
    (lambda rows: rows["words"], DataError),
]


@pytest.mark.parametrize(("collate", "error"), BAD, ids=lambda each: getattr(each, "__name__", None))
def test_collators_that_do_more_than_pad_or_give_no_batch_are_refused(collate, error):
    with raises_field(error, "collate"):
        Collation.of(collate, ROWS)


@pytest.mark.parametrize("odd", [{"words": []}, {"words": "ab", "label": 1}, 7, None], ids=str)
def test_a_row_that_cannot_be_collated_is_found_wherever_it_stands(odd):
    with raises_field(DataError, "collate"):
        Collation.of(pad, [*ROWS, odd, *ROWS])


@pytest.mark.parametrize("group", [-1, 2, 0.5])
def test_groups_that_there_are_not_are_found_wherever_they_stand(group):
    rows = [*ROWS, {"words": [1], "label": 0, "group": group}, *ROWS]

    def with_groups(given: list[dict]) -> tuple:
        return *pad(given), torch.tensor([row.get("group", 0) for row in given])

    with raises_field(DataError, "groups"):
        Collation.of(with_groups, rows, num_groups=2)


def test_errors_of_workers_name_their_field():
    with raises_field(SettingError, "collate"):
        Collation.of(mixing, ROWS, workers=1)
    with raises_field(DataError, "inputs"):
        list(loaded_batches([(torch.ones(2), 0), (torch.ones(3), 0)], [torch.arange(2)], workers=1))


class Growing(Dataset):
    """Rows that are longer each time they are read."""

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return 3

    def __getitem__(self, place: int) -> dict:
        self.reads += 1
        return {"words": [1] * self.reads, "label": 0}


def test_rows_longer_than_those_that_were_tried_are_refused():
    rows = Growing()
    collation = Collation.of(pad, rows)
    with raises_field(DataError, "collate"):
        list(loaded_batches(rows, [torch.tensor([0])], collation=collation))
