"""The functional engine's gradients of an objective are those of what it stands for, FairLens's above all."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from equidp.engines.functional import FunctionalEngine
from equidp.errors import ModelError
from equidp.kernel.bounding import example_context
from equidp.kernel.policy import Setting
from equidp.training.trial import try_objective
from papers.reproduction.fairlens import FairLens, closeness
from support.errors import raises_field
from support.oracle import add_gradients

CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")
SHAPE = 6
POLICY = FairLens(clipping_bound=1e9, smoothing=0.0, slope_penalty=0.7, boundary_penalty=1.3)
ENGINE = partial(FunctionalEngine, loss=CROSS_ENTROPY, objective=POLICY.objective)


def models() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    made = {
        "linear": nn.Linear(SHAPE, 2),
        "three classes": nn.Sequential(nn.Linear(SHAPE, 5), nn.Tanh(), nn.Linear(5, 3)),
        "norm": nn.Sequential(nn.Linear(SHAPE, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 2)),
        "convolution": nn.Sequential(
            nn.Unflatten(1, (1, SHAPE)), nn.Conv1d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 2)
        ),
        "frozen part": nn.Sequential(nn.Linear(SHAPE, 4).requires_grad_(False), nn.Tanh(), nn.Linear(4, 2)),
    }
    return {name: each.double() for name, each in made.items()}


def batch(count: int = 12) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, SHAPE, generator=generator, dtype=torch.float64)
    groups = (torch.rand(count, generator=generator) < 0.4).long()
    groups[:2] = torch.tensor([0, 1])
    return inputs, torch.arange(count) % 2, groups


def flat(values) -> Tensor:
    return torch.cat([each.flatten() for each in values])


def trained_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: each for name, each in model.named_parameters() if each.requires_grad}


def gradient_of(loss: Tensor, trained: dict[str, Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, list(trained.values()), create_graph=True)


def summed(measured, model: nn.Module) -> Tensor:
    model.zero_grad(set_to_none=True)
    add_gradients(measured, torch.ones_like(measured.norms))
    return flat(each.grad for each in trained_of(model).values())


def state_of(model: nn.Module, batch_size: float = 12.0):
    return POLICY.init(Setting(2, batch_size, 1.0, flat(trained_of(model).values()).numel()))


@pytest.mark.parametrize("name", models())
def test_the_sum_of_penalised_gradients_is_the_gradient_of_the_whole_objective(name):
    """The objective is sum_i l_i + b (g1 sum_a |s_a - s| + g2 sum_a |h_a - h|), by autograd through the
    absolute values, where signs and sizes are those of the batch itself (Tran et al. 2021; b = n makes it n
    times L + R)."""
    model, (inputs, targets, groups) = models()[name], batch()
    n, trained = len(groups), trained_of(model)
    direction = torch.randn(flat(trained.values()).shape, dtype=torch.float64)
    direction /= direction.norm()
    members = nn.functional.one_hot(groups, 2).double()

    outputs = model(inputs)
    losses, near = CROSS_ENTROPY(outputs, targets), closeness(outputs)
    slopes = torch.stack([flat(gradient_of(each, trained)) @ direction for each in losses])
    gaps = [(each @ members / members.sum(dim=0) - each.mean()).abs().sum() for each in (slopes, near)]
    assert min(gaps) > 1e-3  # away from the kinks
    objective = losses.sum() + n * (0.7 * gaps[0] + 1.3 * gaps[1])
    true = flat(gradient_of(objective, trained)).detach()

    sums = torch.stack([torch.ones(n).double() @ members, slopes @ members, near @ members]).detach()
    state = state_of(model, float(n))._replace(sums=sums, direction=direction)
    context = example_context(POLICY, state, groups)
    measured = ENGINE(model)(inputs, targets, *context)
    torch.testing.assert_close(measured.terms, torch.stack([slopes, near], dim=1).detach())
    torch.testing.assert_close(summed(measured, model), true)


def test_chunks_and_dropout_change_neither_norms_nor_sums():
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(SHAPE, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 2)).double()
    inputs, targets, _ = batch()
    context = torch.randn(12, 2), nn.functional.normalize(torch.randn(74), dim=0).expand(12, 74)
    model.eval()
    found = [ENGINE(model, chunk_size=size)(inputs, targets, *context) for size in (None, 5)]
    torch.testing.assert_close(found[0].norms, found[1].norms)
    torch.testing.assert_close(found[0].terms, found[1].terms)
    torch.testing.assert_close(summed(found[0], model), summed(found[1], model))
    model.train()  # masks of the second pass are those of the first, or the sum would be cut to the norms
    measured = ENGINE(model, chunk_size=5)(inputs, targets, *context)
    model.zero_grad(set_to_none=True)
    add_gradients(measured, torch.eye(12)[7])
    total = flat(each.grad for each in model.parameters())
    torch.testing.assert_close(total.norm(), measured.norms[7])


def try_model_on(model: nn.Module, state, targets: Tensor) -> None:
    try_objective(ENGINE(model), POLICY, state, (batch()[0].float(), targets))


class _Distances(nn.Module):
    """Distances in the 3-norm have first derivatives alone."""

    def __init__(self):
        super().__init__()
        self.first, self.out = nn.Linear(SHAPE, 6), nn.Linear(9, 2)

    def forward(self, inputs):
        points = self.first(inputs).tanh().reshape(-1, 3, 2)
        return self.out(torch.cdist(points, torch.eye(3, 2).expand(len(points), 3, 2), p=3).flatten(1))


def test_a_model_without_second_derivatives_is_refused_in_words():
    model = _Distances()
    with raises_field(ModelError, "policy"):
        try_model_on(model, state_of(model), batch()[1])
