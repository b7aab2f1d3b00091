"""A model's own random numbers come from the operating system where noise does."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from equidp.engines import make_engine
from equidp.errors import PrivacyWarning
from equidp.kernel import model_randomness
from equidp.kernel.ledger import MemoryLedger, StepEvent
from equidp.kernel.model_randomness import from_the_system
from equidp.kernel.noise import SeededRandomness, SystemRandomness
from equidp.kernel.step import PrivateStep
from equidp.policies import DPSGD

CPU = torch.device("cpu")


class WithoutNoise(SystemRandomness):
    """The operating system's for the model; no noise, to see the sum."""

    def normal(self, count: int, device: torch.device | str = "cpu", deviation: float = 1.0) -> Tensor:
        return torch.zeros(count, dtype=torch.float64)


class SeededWithoutNoise(SeededRandomness):
    """The caller's generator for the model; no noise, to see the sum."""

    def normal(self, count: int, device: torch.device | str = "cpu", deviation: float = 1.0) -> Tensor:
        return torch.zeros(count, dtype=torch.float64)


def summed(randomness: SystemRandomness | SeededRandomness, engine: str, *, physical: int | None) -> Tensor:
    """The sum of 64 clipped gradients of a model with dropout, right after torch.manual_seed(0)."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 2))
        inputs = torch.randn(64, 10)
    step = PrivateStep(
        make_engine(engine, model, nn.CrossEntropyLoss(reduction="none")),
        DPSGD(0.1),
        list(model.parameters()),
        event=StepEvent(1.0, 1e-9),
        expected_batch_size=1.0,
        num_groups=1,
        ledger=MemoryLedger(),
        randomness=randomness,
        physical_batch_size=physical,
    )
    torch.manual_seed(0)
    step(inputs, torch.zeros(64, dtype=torch.int64), torch.zeros(64, dtype=torch.int64))
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("engine", ["ghost", "functional"])
@pytest.mark.parametrize("physical", [None, 16])
def test_a_known_seed_does_not_determine_dropouts_masks(engine, physical):
    """With masks of a known seed, one more example gives all others after it other masks: 22.8 times the
    sensitivity for 512 examples."""
    first, again = (summed(WithoutNoise(), engine, physical=physical) for _ in range(2))
    assert torch.linalg.vector_norm(first - again) > 0.1


@pytest.mark.parametrize("engine", ["ghost", "functional"])
def test_seeded_research_takes_the_masks_of_the_callers_seed(engine):
    first, again = (summed(SeededWithoutNoise(0), engine, physical=None) for _ in range(2))
    assert torch.equal(first, again)


def test_the_callers_generator_is_left_as_it_was():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with from_the_system(CPU):
        inside = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    assert not torch.equal(inside, expected)
    torch.manual_seed(5)
    with suppress(RuntimeError), from_the_system(CPU):
        torch.rand(3)
        raise RuntimeError
    assert torch.equal(torch.rand(3), expected)


def test_draws_inside_are_uniform_and_new_each_time():
    """Mean and correlation within 5 standard errors; false alarm below 1e-5."""
    draws = []
    for _ in range(2):
        with from_the_system(CPU):
            draws.append(torch.rand(100_000, dtype=torch.float64))
    for each in draws:
        assert abs(each.mean() - 0.5) < 5 * (1 / 12 / 100_000) ** 0.5
    assert abs(np.corrcoef(*draws)[0, 1]) < 5 / 100_000**0.5


def test_the_whole_state_is_the_systems():
    """A seed of 32 bits could be tried through: all 624 words must differ from those that a seed gives."""
    template, start = model_randomness._layout()
    assert start >= 0
    words = [model_randomness._fresh_state().numpy().view(np.uint64)[start : start + 624] for _ in range(2)]
    assert (words[0] < 2**32).all()
    assert len(set(words[0].tolist())) > 620
    assert (words[0] != words[1]).mean() > 0.99
    seeded = template.numpy().view(np.uint64)[start : start + 624]
    assert (words[0] != seeded).mean() > 0.99


def test_an_unknown_form_of_the_state_is_said(monkeypatch):
    monkeypatch.setattr(model_randomness, "_layout", lambda: (torch.get_rng_state(), -1))
    with pytest.warns(PrivacyWarning, match="32 bits"), from_the_system(CPU):
        first = torch.rand(2)
    with pytest.warns(PrivacyWarning), from_the_system(CPU):
        assert not torch.equal(torch.rand(2), first)
