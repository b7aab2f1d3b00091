"""Xu et al.'s bounds bracket the true error, and their best clipping bound is the best."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from equidp.diagnostics.excess_risk import best_clipping_bound, clipping_error
from equidp.errors import SettingError

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


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan])
def test_an_epsilon_that_is_none_is_refused(epsilon):
    with pytest.raises(SettingError, match="epsilon="):
        best_clipping_bound(torch.ones(3), epsilon=epsilon, expected_count=1.0)
