"""Private Adam divides by second moments without those of noise; schedules run over a run's steps to zero."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import equidp
from equidp.training.build import build
from equidp.training.optimizers import noise_deviation
from support.several import step_of
from support.toy import make_trainer, toy


def moved(gradients: list[torch.Tensor], deviations: list[float], **settings) -> torch.Tensor:
    """Where a parameter is after steps along these gradients."""
    parameter = nn.Parameter(torch.zeros(len(gradients[0])))
    optimizer, given = equidp.PrivateAdam([parameter], **settings), iter(deviations)
    optimizer.deviation = lambda: next(given)
    for gradient in gradients:
        parameter.grad = gradient
        optimizer.step()
    return parameter.detach()


def drawn(steps: int, scales: torch.Tensor, deviation: float) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        scales * (1 + 0.1 * torch.randn(len(scales), generator=generator))
        + deviation * torch.randn(len(scales), generator=generator)
        for _ in range(steps)
    ]


def test_the_formula_of_the_paper_with_a_noise_that_changes():
    """Tang et al. 2024, algorithm 1, in float64; phi is the mean of the variances, weighted as v is."""
    gradients = drawn(30, torch.tensor([1.0, 0.3, 1e-3]), 0.2)
    deviations = [0.2 if step % 3 else 0.1 for step in range(30)]
    theta, mean, square, variance = torch.zeros(3).double(), 0.0, 0.0, 0.0
    for step, (gradient, deviation) in enumerate(zip(gradients, deviations, strict=True), 1):
        gradient = gradient.double()
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.99 * square + 0.01 * gradient**2
        variance = 0.99 * variance + 0.01 * deviation**2
        phi = variance / (1 - 0.99**step)
        second = torch.clamp(square / (1 - 0.99**step) - phi, min=0.1 * phi)
        theta -= 0.05 * (mean / (1 - 0.9**step)) / second.sqrt()
    found = moved(gradients, deviations, lr=0.05, betas=(0.9, 0.99))
    torch.testing.assert_close(found.double(), theta, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", ["dpsgd-f", "sgd"])
def test_the_noise_of_each_step_is_the_one_that_was_added(method):
    """An empty batch releases noise alone: its standard deviation over 50,000 numbers (false alarm below
    1e-9)."""
    sigma = 0.0 if method == "sgd" else 3.0
    step = step_of(
        equidp.METHODS[method].policy(), equidp.kernel.noise.SeededRandomness(1), 50_000, sigma=sigma
    )
    for _ in range(3):
        (mean,) = step(torch.empty(0, 50_000), torch.empty(0), torch.empty(0, dtype=torch.int64))
        found = float(mean.std())
        assert noise_deviation(step) == pytest.approx(found, rel=0.03)


def test_a_trainer_tells_it_the_noise_and_a_plan_makes_it():
    plan = equidp.Plan(optimizer="adam", learning_rate=0.02, batch_size=30, noise_multiplier=2.0, epochs=2)
    trainer = build(plan.for_method("quantile").resolve(300), toy(), weights_seed=0, seed=0)
    assert isinstance(trainer.optimizer, equidp.PrivateAdam)
    trainer.fit()
    assert trainer.optimizer.deviation() == pytest.approx(2.0 * float(trainer.policy_state.bound) / 30)
    (state, *_) = trainer.optimizer.state.values()
    assert state["step"] == 20
    assert math.sqrt(state["variance"] / (1 - 0.999**20)) == pytest.approx(2.0 / 30, rel=0.5)


class Rates(equidp.Callback):
    """The learning rates that steps were taken with."""

    def __init__(self):
        self.seen, self.next = [], 0.5

    def after_step(self, trainer):
        self.seen.append(self.next)
        self.next = trainer.optimizer.param_groups[0]["lr"]


def rates(name: str, **settings) -> list[float]:
    watch = Rates()
    make_trainer(callbacks=[watch], schedule=name, **settings).fit()
    return [*watch.seen, watch.next]


@pytest.mark.soak
def test_each_falls_from_the_learning_rate_to_zero_over_all_steps():
    assert rates("constant") == [0.5] * 21
    assert rates("linear") == pytest.approx([0.5 * (1 - t / 20) for t in range(21)])
    assert rates("cosine") == pytest.approx([0.25 * (1 + math.cos(math.pi * t / 20)) for t in range(21)])
