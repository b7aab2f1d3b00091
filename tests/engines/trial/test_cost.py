"""A trial costs a few sizes of the model in memory, and a few private steps in time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import TensorDataset
from torch.utils.flop_counter import FlopCounterMode

import equidp
from equidp.engines import make_engine
from equidp.errors import ModelError
from support.errors import raises_field

LOSS = nn.CrossEntropyLoss(reduction="none")
BATCH, PART = 32, 4


def layers(width: int = 384) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.Linear(width, 2))


def trainer(model: nn.Module, engine="ghost", physical: int | None = PART) -> equidp.Trainer:
    return equidp.Trainer(
        model,
        torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1),
        TensorDataset(torch.randn(64, 8), torch.arange(64) % 2),
        policy=equidp.DPSGD(),
        loss=LOSS,
        batch_size=BATCH,
        steps=1,
        noise_multiplier=1.0,
        delta=1e-3,
        physical_batch_size=physical,
        engine=engine,
    )


def size_of(model: nn.Module) -> int:
    return sum(each.numel() * each.element_size() for each in model.parameters())


def peak_bytes(run: Callable[[], object]) -> int:
    """The most bytes of tensors that are alive at a time beyond those before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    events = [each for each in profiled.profiler.kineto_results.events() if each.name() == "[memory]"]
    alive = most = 0
    for each in sorted(events, key=lambda event: event.start_ns()):
        alive += each.nbytes()
        most = max(most, alive)
    return most


@pytest.mark.soak
def test_a_trial_takes_memory_of_six_models_beside_that_of_a_step():
    model = layers()
    step = peak_bytes(trainer(layers(), make_engine("ghost", model, LOSS)).fit)
    assert peak_bytes(lambda: trainer(model)) <= 6 * size_of(model) + step


@pytest.mark.soak
def test_a_trial_multiplies_no_more_numbers_than_six_steps_do():
    model, inputs, targets = layers(), torch.randn(PART, 8), torch.arange(PART) % 2
    with FlopCounterMode(display=False) as part:
        measured = make_engine("ghost", model, LOSS)(inputs, targets)
        measured.sum_gradients(torch.ones_like(measured.norms))
    with FlopCounterMode(display=False) as trial:
        trainer(model)
    assert 0 < trial.get_total_flops() <= 6 * BATCH / PART * part.get_total_flops()


@pytest.mark.soak
def test_frozen_parameters_are_not_copied():
    model = layers(768)
    model[:3].requires_grad_(False)
    assert peak_bytes(lambda: trainer(model)) < size_of(model) / 2


class WritesToFrozen(nn.Module):
    """Keeps a mean of the data in a frozen layer, as a slow copy of a network does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.slow = nn.Linear(8, 2), nn.Linear(8, 2).requires_grad_(False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.slow.weight.data.lerp_(values.detach().mean(dim=0).expand(2, 8), 0.01)
        return self.layer(values)


def test_a_frozen_parameter_that_the_model_writes_to_is_refused():
    with raises_field(ModelError, "slow.weight"):
        trainer(WritesToFrozen())


@pytest.mark.parametrize("physical", [1, 3, None])
def test_the_engine_is_given_no_more_examples_at_a_time_than_training_gives_it(physical):
    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 2)

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            if torch.is_grad_enabled():
                sizes.append(len(values))
            return self.layer(values)

    sizes: list[int] = []
    trainer(Watched(), physical=physical)
    assert max(sizes) == (BATCH if physical is None else PART)
