"""The functional engine's penalised gradients are those of the objective that they stand for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from equidp.engines import check_penalties
from equidp.engines.functional import FunctionalEngine, closeness
from equidp.errors import ModelError
from equidp.kernel.penalty import measure
from equidp.kernel.policy import Setting
from equidp.policies import FairLens

CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")
SHAPE = 6


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
    measured.weighted_sum(torch.ones_like(measured.norms))
    return flat(each.grad for each in trained_of(model).values())


@pytest.mark.parametrize("name", models())
def test_the_sum_of_penalised_gradients_is_the_gradient_of_the_whole_objective(name):
    """Of sum_i l_i + b (g1 sum_a |s_a - s| + g2 sum_a |h_a - h|), by autograd through the absolute values,
    where signs and sizes are those of the batch itself (Tran et al. 2021; b = n makes it n times L + R)."""
    model, (inputs, targets, groups) = models()[name], batch()
    n, trained = len(groups), trained_of(model)
    policy = FairLens(clipping_bound=1e9, smoothing=0.0, slope_penalty=0.7, boundary_penalty=1.3)
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
    state = policy.init(Setting(2, float(n), 1.0, len(direction)))
    state = state._replace(sums=sums, direction=direction)
    measured = measure(FunctionalEngine(model, CROSS_ENTROPY), policy.penalty(state), inputs, targets, groups)
    torch.testing.assert_close(measured.terms, torch.stack([slopes, near], dim=1).detach())
    torch.testing.assert_close(summed(measured, model), true)
    check_penalties(model, CROSS_ENTROPY, inputs, targets)


def test_zero_factors_leave_gradients_as_they_are():
    model, (inputs, targets, _) = models()["three classes"], batch()
    engine = FunctionalEngine(model, CROSS_ENTROPY)
    size = flat(trained_of(model).values()).numel()
    penalised = engine.penalised(inputs, targets, torch.zeros(12, 2), torch.randn(size))
    plain = engine(inputs, targets)
    assert plain.terms is None
    torch.testing.assert_close(penalised.norms, plain.norms)
    torch.testing.assert_close(summed(penalised, model), summed(plain, model))


def test_chunks_and_dropout_change_neither_norms_nor_sums():
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(SHAPE, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 2)).double()
    inputs, targets, _ = batch()
    factors, direction = torch.randn(12, 2), nn.functional.normalize(torch.randn(74), dim=0)
    model.eval()
    found = [
        FunctionalEngine(model, CROSS_ENTROPY, size).penalised(inputs, targets, factors, direction)
        for size in (None, 5)
    ]
    torch.testing.assert_close(found[0].norms, found[1].norms)
    torch.testing.assert_close(found[0].terms, found[1].terms)
    torch.testing.assert_close(summed(found[0], model), summed(found[1], model))
    model.train()  # masks of the second pass are those of the first, or the sum would be cut to the norms
    measured = FunctionalEngine(model, CROSS_ENTROPY, 5).penalised(inputs, targets, factors, direction)
    model.zero_grad(set_to_none=True)
    measured.weighted_sum(torch.eye(12)[7])
    total = flat(each.grad for each in model.parameters())
    torch.testing.assert_close(total.norm(), measured.norms[7])


@pytest.mark.parametrize(
    ("model", "targets", "says"),
    [
        (
            nn.Linear(SHAPE, 1),
            torch.zeros(12, dtype=torch.int64),
            r"gives \[4, 1\] for 4 examples; penalties",
        ),
        (nn.Linear(SHAPE, 2), torch.rand(12), "need a classifier with one output per class"),
        (nn.Unflatten(1, (3, 2)), torch.zeros(12, dtype=torch.int64), r"gives \[4, 3, 2\]"),
    ],
)
def test_what_is_no_classifier_is_refused(model, targets, says):
    with pytest.raises(ModelError, match=says):
        check_penalties(model, CROSS_ENTROPY, batch()[0].float(), targets)


class _Attends(nn.Module):
    """Attention, whose fast form has first derivatives alone."""

    def __init__(self):
        super().__init__()
        self.keys, self.out = nn.Linear(2, 2), nn.Linear(SHAPE, 2)

    def forward(self, inputs):
        keys = self.keys(inputs.reshape(-1, 1, 3, 2))
        return self.out(nn.functional.scaled_dot_product_attention(keys, keys, keys).flatten(1))


def test_attention_is_differentiated_twice():
    check_penalties(_Attends(), CROSS_ENTROPY, batch()[0].float(), batch()[1])


class _Distances(nn.Module):
    """Distances in the 3-norm have first derivatives alone."""

    def __init__(self):
        super().__init__()
        self.first, self.out = nn.Linear(SHAPE, 6), nn.Linear(9, 2)

    def forward(self, inputs):
        points = self.first(inputs).tanh().reshape(-1, 3, 2)
        return self.out(torch.cdist(points, torch.eye(3, 2).expand(len(points), 3, 2), p=3).flatten(1))


def test_a_model_without_second_derivatives_is_refused_in_words():
    with pytest.raises(ModelError, match="penalised losses need second derivatives of model and loss: "):
        check_penalties(_Distances(), CROSS_ENTROPY, batch()[0].float(), batch()[1])
