"""Units of several rows: one gradient, one norm and one contribution, whatever the layers and the shapes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import equidp
from equidp.data.targets import with_weights
from equidp.engines import ENGINES, make_engine
from equidp.engines.units import UnitModel
from equidp.kernel.event import Event
from equidp.kernel.noise import SeededRandomness
from equidp.kernel.step import PrivateStep
from support.oracle import SumOfSquares, add_gradients, assert_exact, drawn
from support.units import LOSS, assert_units, ragged


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


class Words(nn.Module):
    """Tokens, a bag of them, and a table of positions that is read once for all rows."""

    def __init__(self, bag: str) -> None:
        super().__init__()
        self.words, self.bag = nn.Embedding(6, 3, padding_idx=0), nn.EmbeddingBag(6, 3, mode=bag)
        self.positions = nn.Embedding(4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = self.positions(torch.arange(4).unsqueeze(0))
        return self.words(tokens) * positions + self.bag(tokens).unsqueeze(1)


@pytest.mark.parametrize("bag", ["sum", "mean"])
@pytest.mark.parametrize("rows", [1, 3])
def test_embeddings(bag, rows):
    model = nn.Sequential(Words(bag), SumOfSquares()).double()
    assert_units(model, torch.randint(0, 6, (4, rows, 4)), 4, rows)


def test_rows_that_cancel_never_understate_the_norm():
    """Two rows with the same input and opposite classes: what is left of the gradient is rounding, and its
    norm must not be below what the sum contains (weights of 1 / norm would multiply it)."""
    model = nn.Sequential(nn.Conv2d(2, 9, 3), nn.Tanh(), nn.Flatten(), nn.Linear(9 * 36, 2))
    nn.init.zeros_(model[3].bias)
    image = 30 * torch.randn(1, 1, 2, 8, 8).expand(2, 2, 2, 8, 8)
    with torch.no_grad():
        model[3].weight[1] = model[3].weight[0]
    targets = with_weights(torch.tensor([0, 1, 0, 1]), torch.ones(4)).reshape(2, 2, 2)
    for engine in ENGINES:
        measured = make_engine(engine, UnitModel(model), LOSS)(image, targets)
        weights = torch.tensor([1.0, 0.0]) / measured.norms.clamp_min(1e-10)
        model.zero_grad()
        add_gradients(measured, weights)
        total = torch.cat([each.grad.flatten() for each in model.parameters()])
        assert total.norm() <= 1.01


@pytest.mark.parametrize("engine", list(ENGINES))
def test_a_person_with_many_identical_huge_rows_moves_the_sum_by_the_sensitivity_at_most(engine):
    """Through PrivateStep: with and without that person, the sums before noise differ by at most S."""
    torch.manual_seed(1)
    model, bound = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)), 0.7
    inputs, rows = torch.randn(6, 5, 3), torch.ones(6, 5)
    inputs[0] = 1e4
    targets = with_weights(torch.ones(30, dtype=torch.int64), rows.flatten()).reshape(6, 5, 2)

    def total(units: slice) -> Tensor:
        step = PrivateStep(
            make_engine(engine, UnitModel(model), LOSS),
            equidp.DPSGD(bound),
            list(model.parameters()),
            event=Event(0.1, 1e-6),
            expected_batch_size=1.0,
            num_groups=1,
            randomness=SeededRandomness(0),
        )
        groups = torch.zeros(len(inputs[units]), dtype=torch.int64)
        return torch.cat([each.flatten() for each in step(inputs[units], targets[units], groups)])

    moved = (total(slice(None)) - total(slice(1, None))).norm()
    assert 0.9 * bound < moved <= bound * (1 + 1e-4)


def test_a_frozen_part_and_none_of_the_rows():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    model[0].requires_grad_(False)
    targets = ragged(3, 2)
    targets[1, :, 1] = 0.0  # contributes nothing
    assert_exact(UnitModel(model), drawn(3, 2, 3), targets, loss=LOSS)
