"""The terms of a step add up, and the papers' bounds stay below what they bound."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from equidp.diagnostics.excess_risk import (
    batch_risk,
    best_clipping_bound,
    clipping_error,
    direction_gap_bound,
    noise_risk,
    norm_condition,
)
from equidp.diagnostics.gradients import BatchGradients, cosine


def drawn(seed: int, size: int = 6):
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(4, size, generator=generator, dtype=torch.float64)
    root = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return vectors, root + root.T


def risk_of(mean, clipped, group, everyone, hessian, learning_rate=0.3):
    return batch_risk(
        BatchGradients(mean, clipped),
        group,
        everyone,
        mean_curvature=float(mean @ hessian @ mean),
        clipped_curvature=float(clipped @ hessian @ clipped),
        learning_rate=learning_rate,
    )


@given(seed=st.integers(0, 2**31), scale=st.floats(1e-3, 10), rate=st.floats(1e-3, 2))
def test_both_splits_add_up_to_the_risk_of_clipping_in_every_batch(seed, scale, rate):
    (mean, clipped, group, everyone), hessian = drawn(seed)
    clipped = scale * clipped
    risk = risk_of(mean, clipped, group, everyone, hessian, rate)
    by_hand = rate * group @ (mean - clipped) + rate**2 / 2 * (
        clipped @ hessian @ clipped - mean @ hessian @ mean
    )
    size = 1e-9 * (
        1 + abs(risk.direction) + abs(risk.direction_alternative) + abs(risk.magnitude_alternative)
    )
    assert risk.clipping == pytest.approx(float(by_hand), abs=size)
    assert risk.direction_alternative + risk.magnitude_alternative == pytest.approx(risk.clipping, abs=size)


@given(seed=st.integers(0, 2**31), scale=st.floats(0.01, 10))
def test_an_aligned_gradient_has_no_error_of_direction_and_one_of_equal_length_none_of_magnitude(seed, scale):
    (mean, clipped, group, everyone), hessian = drawn(seed)
    aligned = risk_of(mean, scale * mean, group, everyone, hessian)
    assert aligned.direction == pytest.approx(0, abs=1e-9 * (1 + scale**2))
    assert aligned.direction_alternative == pytest.approx(0, abs=1e-9)
    turned = risk_of(mean, clipped * mean.norm() / clipped.norm(), group, everyone, hessian)
    assert turned.magnitude == pytest.approx(0, abs=1e-9)
    assert turned.magnitude_alternative == pytest.approx(0, abs=1e-9)


def test_no_clipping_and_empty_batches_cost_nothing():
    (mean, _, group, everyone), hessian = drawn(0)
    assert risk_of(mean, mean, group, everyone, hessian).clipping == 0
    nothing = torch.zeros_like(mean)
    empty = risk_of(nothing, nothing, group, everyone, hessian)
    assert (empty.direction, empty.magnitude, empty.direction_alternative, empty.magnitude_alternative) == (
        0,
    ) * 4


def test_a_batch_that_is_clipped_to_nothing_has_an_error_of_magnitude_alone():
    (mean, _, group, everyone), hessian = drawn(0)
    risk = risk_of(mean, torch.zeros_like(mean), group, everyone, hessian)
    assert risk.direction == 0
    assert risk.magnitude == pytest.approx(float(0.3 * group @ mean - 0.045 * mean @ hessian @ mean))
    assert math.isnan(cosine(torch.zeros_like(mean), group))


@pytest.mark.soak
def test_noise_is_what_a_gaussian_step_adds_on_average():
    """2,000,000 draws of a quadratic loss; the mean is within 4 standard errors (false alarms: 1 in 16,000;
    the seed is fixed)."""
    _, hessian = drawn(1)
    generator = torch.Generator().manual_seed(0)
    steps = 0.3 * 0.7 * torch.randn(2_000_000, 6, generator=generator, dtype=torch.float64)
    added = 0.5 * ((steps @ hessian) * steps).sum(1)
    expected = noise_risk(float(hessian.trace()), learning_rate=0.3, noise_scale=0.7)
    assert abs(float(added.mean()) - expected) < 4 * float(added.std()) / math.sqrt(len(added))


class Problem:
    """Logistic regression with two groups, at random parameters: convex, with known gradients and
    Hessians."""

    def __init__(self, seed: int, *, full_batch: bool = False) -> None:
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        n, size = 60, int(torch.randint(2, 8, (1,), generator=generator))
        rare = float(torch.rand(1, generator=generator)) * 0.45 + 0.05
        self.of = torch.zeros(n, dtype=torch.bool)
        self.of[: max(2, round(rare * n))] = True
        spread = torch.where(self.of, *(draw(2) * 1.5).exp()).unsqueeze(1)
        inputs = draw(n, size) * spread + torch.where(self.of.unsqueeze(1), draw(size), draw(size))
        signs = torch.where(draw(n) > 0, 1.0, -1.0).double()
        chances = torch.sigmoid(-signs * (inputs @ draw(size)))
        self.rows = -(signs * chances).unsqueeze(1) * inputs
        second = (chances * (1 - chances)).unsqueeze(1)
        members = (self.of, ~self.of)
        self.gradients = [self.rows[each].mean(0) for each in members]
        self.hessians = [(inputs[each] * second[each]).T @ inputs[each] / each.sum() for each in members]
        self.largest = [float(torch.linalg.eigvalsh(each)[-1]) for each in self.hessians]
        self.shares = [float(each.double().mean()) for each in members]
        share = float(torch.rand(1, generator=generator))
        self.bound = float(torch.quantile(self.rows.norm(dim=1), share)) * (share if full_batch else 1)
        self.rate = share / max(self.largest)
        weights = (self.bound / self.rows.norm(dim=1)).clamp(max=1.0)
        self.batches = []
        for _ in range(1 if full_batch else 6):
            chosen = (
                torch.ones(n, dtype=torch.bool) if full_batch else torch.rand(n, generator=generator) < 0.3
            )
            b = n if full_batch else 0.3 * n
            self.batches.append(
                BatchGradients(self.rows[chosen].sum(0) / b, weights[chosen] @ self.rows[chosen] / b)
            )

    def risks(self, batch: BatchGradients):
        everyone = self.rows.mean(0)
        return [
            risk_of(batch.mean, batch.clipped, gradient, everyone, hessian, self.rate)
            for gradient, hessian in zip(self.gradients, self.hessians, strict=True)
        ]


@pytest.mark.soak
def test_the_bound_on_direction_is_below_the_truth_in_1000_random_convex_problems():
    """Esipova et al., Proposition 3: in every batch, so in expectation too; and for either order of the
    groups."""
    closest = math.inf
    for seed in range(1000):
        problem = Problem(seed)
        for batch in problem.batches:
            risks = problem.risks(batch)
            for one, other in ((0, 1), (1, 0)):
                bound = direction_gap_bound(
                    risks[one].direction_first_order,
                    risks[other].direction_first_order,
                    largest_eigenvalue=problem.largest[one],
                    other_largest_eigenvalue=problem.largest[other],
                    squared_clipped_norm=float(batch.clipped.norm()) ** 2,
                    learning_rate=problem.rate,
                )
                gap = risks[one].direction - risks[other].direction
                assert bound <= gap + 1e-12
                closest = min(closest, (gap - bound) / (abs(gap) + abs(bound)))
    assert closest < 0.05  # it is not below the truth for being far from it


def conditions(problem: Problem):
    """Tran's bound for either order of the groups, and the true difference, of each batch."""
    norms = [float(gradient.norm()) for gradient in problem.gradients]
    for batch in problem.batches:
        risks = problem.risks(batch)
        for one, other in ((0, 1), (1, 0)):
            condition = norm_condition(
                norms[one],
                norms[other],
                share=problem.shares[one],
                other_share=problem.shares[other],
                clipping_bound=problem.bound,
                learning_rate=problem.rate,
            )
            yield condition, risks[one].clipping - risks[other].clipping


@pytest.mark.soak
def test_the_bound_from_norms_is_below_the_truth_in_1000_random_convex_problems_of_whole_batches():
    """Tran et al., Theorem 3, where its assumptions hold; its condition then means what it says."""
    used = met = 0
    for seed in range(1000):
        for condition, gap in conditions(Problem(seed, full_batch=True)):
            if condition.assumed:
                used += 1
                assert condition.gap_bound <= gap + 1e-12
            if condition.holds:
                met += 1
                assert condition.assumed
                assert condition.gap_bound >= 0
                assert gap > 0
    assert used >= 500
    assert met >= 10


@pytest.mark.soak
def test_the_bound_from_norms_may_fail_without_its_assumptions():
    """`assumed` and the whole batch matter: in samples of three tenths, or for a shorter gradient, it is
    too high at times."""
    sampled = [
        gap < c.gap_bound - 1e-12 for s in range(300) for c, gap in conditions(Problem(s)) if c.assumed
    ]
    shorter = [
        gap < c.gap_bound - 1e-12
        for s in range(1000)
        for c, gap in conditions(Problem(s, full_batch=True))
        if not c.assumed
    ]
    assert any(sampled)
    assert any(shorter)


NORMS = st.lists(st.floats(0.01, 100), min_size=1, max_size=30)


def upper(norms: torch.Tensor, bound: float, epsilon: float, count: float) -> float:
    weights = (bound / norms).clamp(max=1.0)
    return clipping_error(norms, weights, sensitivity=bound, epsilon=epsilon, expected_count=count).upper


@given(norms=NORMS, epsilon=st.floats(0.05, 20), count=st.floats(0.1, 50))
def test_no_bound_has_a_smaller_error_than_the_best_one(norms, epsilon, count):
    values = torch.tensor(norms, dtype=torch.float64)
    best = best_clipping_bound(values, epsilon=epsilon, expected_count=count)
    least = upper(values, best, epsilon, count)
    # The error is convex and piecewise linear in the bound, with its corners at the norms.
    for other in [0.0, *norms, *np.linspace(0, 120, 41).tolist()]:
        assert least <= upper(values, other, epsilon, count) * (1 + 1e-9) + 1e-12


def test_the_best_bound_is_that_quantile():
    norms = torch.arange(1.0, 101.0)
    assert best_clipping_bound(norms, epsilon=1.0, expected_count=10) == 90.0
    assert best_clipping_bound(norms, epsilon=math.inf, expected_count=10) == 100.0
    assert best_clipping_bound(norms, epsilon=0.1, expected_count=10) == 0.0


def test_the_error_lies_between_the_bounds():
    """In one dimension with gradients of one sign, where Xu et al. show the lower bound; 400,000 draws of
    noise, fixed seed."""
    generator = np.random.default_rng(0)
    gradients = torch.from_numpy(generator.exponential(2.0, 20))
    bound, epsilon = 1.5, 0.8
    weights = (bound / gradients).clamp(max=1.0)
    noise = generator.laplace(0, bound / epsilon, 400_000) / 20
    error = np.abs(float((weights * gradients).mean()) + noise - float(gradients.mean())).mean()
    bounds = clipping_error(gradients, weights, sensitivity=bound, epsilon=epsilon, expected_count=20)
    assert bounds.lower <= error <= bounds.upper
    assert bounds.bias == pytest.approx(float((gradients - bound).clamp_min(0).mean()))
