"""Models of several inputs, of position tables, and that return a mapping."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from equidp.engines import check_engine, check_model, make_engine
from equidp.engines.made_up import made_up_inputs, made_up_targets
from equidp.errors import ModelError
from equidp.kernel.inputs import tensors
from support.oracle import assert_exact, drawn, loss

TOKENS = torch.tensor([[3, 4, 5, 6], [7, 8, 1, 0], [9, 0, 0, 0], [2, 3, 4, 0], [6, 5, 4, 3]])
MASK = (TOKENS > 0).long()
CLASS = torch.tensor([1])


def made_up_examples(model, like):
    inputs = made_up_inputs(model, like, 16)
    return inputs, made_up_targets(model, inputs, CLASS, 2, 16)


class Reader(nn.Module):
    """Reads tokens where the mask says so, and a vector, with position ids of shape [1, positions]."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.kinds = nn.Embedding(10, 6), nn.Embedding(2, 6)
        self.positions = nn.Embedding(8, 6)
        self.norm, self.out, self.side = nn.LayerNorm(6), nn.Linear(6, 2), nn.Linear(3, 2)
        self.register_buffer("places", torch.arange(8).unsqueeze(0))

    def forward(self, ids: Tensor, attention_mask: Tensor, vector: Tensor) -> dict[str, Tensor]:
        places = self.norm(self.positions(self.places[:, : ids.shape[1]]))
        hidden = self.words(ids) + self.kinds(torch.zeros_like(ids)) + places
        weights = attention_mask.unsqueeze(2).to(hidden)
        read = (hidden.tanh() * weights).sum(dim=1) / weights.sum(dim=1)
        return {"logits": self.out(read) + self.side(vector), "hidden": hidden}


def reader() -> tuple[Reader, dict[str, Tensor]]:
    torch.manual_seed(0)
    return Reader().double(), {"ids": TOKENS, "attention_mask": MASK, "vector": drawn(5, 3)}


@pytest.mark.parametrize("engine", ["ghost", "functional"])
@pytest.mark.parametrize("form", [dict, tuple])
def test_several_inputs_and_shared_positions_give_exact_norms_and_sums(engine, form):
    model, inputs = reader()
    assert_exact(model, inputs if form is dict else tuple(inputs.values()), engine=engine)


@pytest.mark.parametrize("form", [dict, tuple])
def test_made_up_masks_are_valid_and_tokens_are_in_every_table(form):
    model, inputs = reader()
    like = inputs if form is dict else tuple(inputs.values())
    few = made_up_examples(model, like)
    ids, mask, vector = tensors(few[0])
    assert 1 < ids.max() < 10
    assert mask.unique().tolist() == [0, 1]
    assert (mask.sum(dim=1) > 0).all()
    assert vector.dtype == torch.float64
    check_model(model, loss, *few)
    check_engine(make_engine("ghost", model, loss), model, loss, *few)


class Positions(nn.Module):
    """Adds a table of positions to what it reads; what happens to their embeddings is `turned`."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions, self.out = nn.Embedding(10, 4), nn.Embedding(8, 4), nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out((self.words(ids) + self.turned(ids)).tanh().mean(dim=1))

    def turned(self, ids: Tensor) -> Tensor:
        return self.positions(torch.arange(ids.shape[1]).unsqueeze(0))


class Flat(Positions):
    def turned(self, ids):
        return self.positions(torch.arange(ids.shape[1]))


@pytest.mark.parametrize("batch", [1, 2, 4, 5])
def test_positions_of_one_row_are_exact_at_every_size_of_batch(batch):
    """Also of one example, and of as many as there are positions."""
    torch.manual_seed(0)
    assert_exact(Positions().double(), TOKENS[:batch])


class First(Positions):
    """Takes the first row, which is all there is for one example, of all examples'."""

    def turned(self, ids):
        return super().turned(ids)[0]


class Expanded(Positions):
    """Expands what it read once to one row for each example."""

    def turned(self, ids):
        return super().turned(ids).expand(len(ids), -1, -1)


class Repeated(Positions):
    """Repeats what it read once for each example."""

    def turned(self, ids):
        return super().turned(ids).repeat(len(ids), 1, 1)


def test_positions_that_are_read_once_and_expanded_for_each_example_are_exact():
    torch.manual_seed(0)
    model = Expanded()
    few = made_up_examples(model, TOKENS)
    check_engine(make_engine("ghost", model, loss), model, loss, *few)
    for batch in (1, 2, 4, 5):
        assert_exact(model.double(), TOKENS[:batch])


def test_positions_that_are_read_in_one_row_are_exact_once_another_size_of_batch_was_seen():
    """As many positions as examples cannot be told from examples."""
    torch.manual_seed(0)
    model = Flat().double()
    engine = make_engine("ghost", model, loss)
    engine(TOKENS[:3], torch.arange(3) % 2)
    for batch in (1, 2, 4, 5):
        assert_exact(model, TOKENS[:batch], engine=lambda *given: engine)


@pytest.mark.parametrize("kind", [First, Repeated])
def test_other_ways_with_positions_are_refused_and_never_wrong(kind):
    torch.manual_seed(0)
    model = kind()
    few = made_up_examples(model, TOKENS)
    check_model(model, loss, *few)
    with pytest.raises(ModelError):
        check_engine(make_engine("ghost", model, loss), model, loss, *few)
    check_engine(make_engine("functional", model, loss), model, loss, *few)
