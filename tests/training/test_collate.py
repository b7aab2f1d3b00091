"""A Trainer pads rows to the longest of a sample, for models and losses that read no padding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import equidp
from equidp.errors import DataError, ModelError
from equidp.ledger.ledger import Ledger
from support.errors import raises_field
from support.toy import make_trainer

WORDS = 12


def texts(count: int = 60, shortest: int = 1) -> list[dict]:
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(shortest, 9, (count,), generator=draw).tolist()
    words = [torch.randint(1, WORDS, (length,), generator=draw).tolist() for length in lengths]
    return [{"words": each, "label": place % 2} for place, each in enumerate(words)]


def pad(rows: list[dict], longest: int = 0) -> tuple[dict[str, Tensor], Tensor]:
    columns = [torch.tensor(row["words"], dtype=torch.int64) for row in rows]
    words = pad_sequence([*columns, torch.zeros(longest, dtype=torch.int64)], batch_first=True)[:-1]
    lengths = torch.tensor([len(row["words"]) for row in rows])
    mask = (torch.arange(words.shape[1]) < lengths[:, None]).float()
    return {"words": words, "mask": mask}, torch.tensor([row["label"] for row in rows])


def pad_here(rows: list[dict]) -> tuple[dict[str, Tensor], Tensor]:
    return pad(rows)


def pad_to_all(rows: list[dict]) -> tuple[dict[str, Tensor], Tensor]:
    return pad(rows, longest=8)


class Reader(nn.Module):
    """Mean over words; `reads` says what of padding it reads."""

    def __init__(self, reads: str = "nothing") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.out = nn.Embedding(WORDS, 6), nn.Linear(6, 2)
        self.positions = nn.Embedding(9, 6)
        self.gate = nn.Parameter(torch.zeros(())) if reads == "behind a gate" else None
        self.dropout = nn.Dropout(0.5 if reads == "dropout" else 0.0)
        self.reads = reads

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        places = torch.arange(words.shape[1]).expand(words.shape)
        if self.reads == "positions from the end":
            places = places.flip(1)
        read = torch.tanh(self.dropout(self.words(words) + self.positions(places)))
        weights = mask.unsqueeze(2)
        if self.reads == "empty rows":  # as an attention whose mask leaves nothing
            scores = (1 - mask) * torch.finfo(mask.dtype).min
            return self.out((read * scores.softmax(dim=1).unsqueeze(2)).sum(dim=1))
        mean = (read * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)
        if self.reads == "all":
            mean = read.mean(dim=1)
        if self.gate is not None:
            mean = mean + self.gate * read.mean(dim=1)
        return self.out(mean)


def trainer(train=None, model=None, collate=pad_here, **settings) -> equidp.Trainer:
    given = {"seed": 3, **settings}
    return make_trainer(
        texts() if train is None else train, model=model or Reader(), collate=collate, **given
    )


@pytest.mark.soak
def test_padding_to_a_samples_longest_gives_the_weights_of_padding_to_one_length():
    inputs, labels = pad_to_all(texts())
    padded = [({name: each[place] for name, each in inputs.items()}, labels[place]) for place in range(60)]
    runs = [
        trainer(train, collate=collate, physical_batch_size=4).fit()
        for train, collate in ((None, pad_here), (None, pad_to_all), (padded, None))
    ]
    for run in runs[1:]:
        torch.testing.assert_close(run.model.state_dict(), runs[0].model.state_dict())
        assert run.entries == runs[0].entries


@pytest.mark.parametrize("reads", ["all", "behind a gate", "positions from the end"])
def test_models_that_read_padding_are_refused_before_a_step_is_spent(reads):
    ledger = Ledger()
    with raises_field(ModelError, "padding"):
        trainer(model=Reader(reads), ledger=ledger)
    assert not ledger.entries()
    trainer(model=Reader(reads), collate=pad_to_all)


def test_models_with_dropout_are_compared_without_it():
    trainer(model=Reader("dropout"))


class Marked(Reader):
    """Demands an end mark, which made-up rows lack."""

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        if not ((words == WORDS - 1).sum(dim=1) == 1).all():
            raise ValueError("one end mark in each row")
        return super().forward(words, mask)


@pytest.mark.soak
def test_public_rows_are_tried_as_the_dataset_gives_its_own():
    def marked(rows):
        return [{**row, "words": [*(word % 10 + 1 for word in row["words"]), WORDS - 1]} for row in rows]

    model, public = Marked(), marked(texts(12))
    with pytest.raises(ModelError, match="examples="):
        trainer(marked(texts()), model=model)
    with raises_field(ModelError, "padding"):
        trainer(marked(texts()), model=Marked("all"), examples=public)
    trainer(marked(texts()), model=model, examples=public).fit()
    for examples in (pad(public), public[:1], [{"words": []}, {}]):
        with raises_field(DataError, "examples"):
            trainer(marked(texts()), model=model, examples=examples)
