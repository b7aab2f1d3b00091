"""Training on people with several rows: one sample, one clipped gradient and one account each."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import equidp
from equidp.data.people import by_person
from support.errors import raises_field
from support.toy import make_trainer, note_samples, toy


def people(n: int = 300, most_rows: int = 4) -> equidp.GroupedDataset:
    """A hundred people of one to four rows."""
    places = torch.randint(0, 100, (n,), generator=torch.Generator().manual_seed(3))
    with pytest.warns(equidp.errors.DataWarning, match="not trained on"):
        return by_person(toy(n), places, most_rows=most_rows)


@pytest.mark.parametrize("engine", ["ghost", "functional"])
def test_a_step_sums_one_clipped_gradient_of_each_person(engine):
    """Without noise worth mentioning, the released gradient is that of autograd, person by person."""
    data = people()
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))
    trainer = make_trainer(
        data, equidp.DPSGD(1.0), model, engine=engine, noise_multiplier=1e-6, seed=1, epochs=None, steps=1
    )
    before = copy.deepcopy(model)
    seen = note_samples(trainer)
    trainer.step()
    (batch,) = seen
    weights, expected = [], torch.zeros(sum(each.numel() for each in model.parameters()))
    for inputs, targets, present in zip(
        data.inputs[batch.indices], data.targets[batch.indices], data.weights[batch.indices], strict=True
    ):
        losses = nn.functional.cross_entropy(before(inputs), targets, reduction="none")
        gradients = torch.autograd.grad((losses * present).sum(), list(before.parameters()))
        flat = torch.cat([each.flatten() for each in gradients])
        weights.append(min(1.0, 1.0 / float(flat.norm())))
        expected += weights[-1] * flat
    start, end = (
        torch.cat([each.detach().flatten() for each in one.parameters()]) for one in (before, model)
    )
    moved = start - end
    assert torch.allclose(moved, 0.5 * expected / 30, atol=1e-5)
    assert min(weights) < 1.0  # somebody was clipped


def test_people_are_what_is_counted_and_sampled():
    data = people()
    trainer = make_trainer(data, batch_size=20, epochs=3)
    assert trainer.num_examples == len(data) < 100
    assert trainer.sample_rate == 20 / len(data)
    run = trainer.fit()
    assert run.facts.rows == 4
    assert run.facts.num_examples == len(data)
    assert run.metrics(toy(50, seed=1))["count"].tolist() == [25, 25, 50]


def test_a_model_that_mixes_rows_of_different_people_is_refused():
    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 2)

        def forward(self, values):
            return self.layer(values - values.mean(dim=0))

    with raises_field(equidp.ModelError, "losses"):
        make_trainer(people(), model=Mixing())
