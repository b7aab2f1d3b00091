"""The terms of a step add up, and the best clipping bound has the smallest error."""

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


def test_a_batch_that_is_clipped_to_nothing_has_an_error_of_magnitude_alone():
    (mean, _, group, everyone), hessian = drawn(0)
    risk = risk_of(mean, torch.zeros_like(mean), group, everyone, hessian)
    assert risk.direction == 0
    assert risk.magnitude == pytest.approx(float(0.3 * group @ mean - 0.045 * mean @ hessian @ mean))
    assert math.isnan(cosine(torch.zeros_like(mean), group))


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
