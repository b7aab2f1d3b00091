"""Private Adam divides by the second moments of gradients, not by those of their noise."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import equidp
from equidp.errors import SettingError
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


def test_without_noise_it_is_adam():
    gradients = drawn(20, torch.tensor([1.0, -0.1, 1e-3]), 0.0)
    parameter = nn.Parameter(torch.zeros(3))
    adam = torch.optim.AdamW([parameter], lr=0.01, weight_decay=0.1)
    for gradient in gradients:
        parameter.grad = gradient
        adam.step()
    found = moved(gradients, [0.0] * 20, lr=0.01, weight_decay=0.1)
    torch.testing.assert_close(found, parameter.detach(), rtol=1e-4, atol=1e-7)


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


def test_coordinates_of_other_scale_move_alike_where_noise_would_hide_them():
    """Gradients of 1 and of 0.1 under noise of 2: plain Adam moves the second a tenth as far."""
    gradients = drawn(4000, torch.tensor([1.0, 0.3]), 2.0)
    plain = moved(gradients, [0.0] * 4000, lr=0.01)
    corrected = moved(gradients, [2.0] * 4000, lr=0.01, floor=1e-3)
    assert plain[1] / plain[0] < 0.4
    assert corrected[1] / corrected[0] > 0.6


@pytest.mark.parametrize("method", ["dpsgd", "dpsgd-f", "naive", "quantile", "sgd"])
def test_the_noise_of_each_step_is_the_one_that_was_added(method):
    """An empty batch releases noise alone: its standard deviation over 50,000 numbers (false alarm below
    1e-9)."""
    sigma = 0.0 if method == "sgd" else 3.0
    step = step_of(
        equidp.METHODS[method].policy(), equidp.kernel.noise.SeededRandomness(1), 50_000, sigma=sigma
    )
    for _ in range(3):
        step(torch.empty(0, 50_000), torch.empty(0), torch.empty(0, dtype=torch.int64))
        found = float(step.parameters[0].grad.std())
        assert noise_deviation(step) == pytest.approx(found, rel=0.03)


def test_a_trainer_tells_it_the_noise_and_a_plan_makes_it():
    plan = equidp.Plan(optimizer="adam", learning_rate=0.02, batch_size=30, noise_multiplier=2.0, epochs=2)
    trainer = build(plan.resolve("quantile", 300), toy(), seed=0, secure=False)
    assert isinstance(trainer.optimizer, equidp.PrivateAdam)
    trainer.fit()
    assert trainer.optimizer.deviation() == pytest.approx(2.0 * float(trainer.policy_state.bound) / 30)
    (state, *_) = trainer.optimizer.state.values()
    assert state["step"] == 20
    assert math.sqrt(state["variance"] / (1 - 0.999**20)) == pytest.approx(2.0 / 30, rel=0.5)


def test_a_resumed_run_is_where_one_in_one_go_is(tmp_path):
    """Nothing is random; the optimizer is told of noise, so that all of its state matters."""

    def trainer_in(folder):
        model = nn.Linear(5, 2)
        with torch.no_grad():
            [each.fill_(0.1) for each in model.parameters()]
        trainer = make_trainer(
            model=model, optimizer=equidp.PrivateAdam(model.parameters(), lr=0.05), policy=equidp.SGD(),
            noise_multiplier=0.0, batch_size=300, epochs=20, ledger=equidp.LedgerFile(folder / "ledger"),
            callbacks=[checkpoints := equidp.Checkpoints(folder)], scheduler="linear",
        )  # fmt: skip
        trainer.optimizer.deviation = lambda: 0.01
        return trainer, checkpoints

    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole, _ = trainer_in(tmp_path / "whole")
    whole.fit()
    stopped, _ = trainer_in(tmp_path / "parts")
    batches = stopped.batches()
    stopped.callbacks[0].before_training(stopped)
    for _ in range(7):
        stopped.step(next(batches))
    stopped.callbacks[0].after_training(stopped)
    stopped.ledger.settle()
    stopped.ledger.close()
    resumed, checkpoints = trainer_in(tmp_path / "parts")
    assert checkpoints.restore(resumed) == 0
    resumed.fit()
    torch.testing.assert_close(resumed.model.state_dict(), whole.model.state_dict())


def test_bad_settings_are_named():
    parameters = list(nn.Linear(1, 1).parameters())
    for settings, message in (
        ({"lr": 0.0}, "lr=0"),
        ({"floor": 0.0}, "floor=0"),
        ({"betas": (0.9, 1.0)}, "beta=1"),
        ({"weight_decay": -1.0}, "weight_decay=-1"),
    ):
        with pytest.raises(SettingError, match=message):
            equidp.PrivateAdam(parameters, **settings)
    with pytest.raises(SettingError, match="Did you mean 'adam'"):
        equidp.Plan(optimizer="adm")
    with pytest.raises(SettingError, match=r"momentum=0\.9 is of SGD, and adam has its own"):
        equidp.Plan(optimizer="adam", momentum=0.9)
