"""The terms of a step add up, and the best clipping bound has the smallest error."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, strategies as st

from equidp.diagnostics.excess_risk import (
    best_clipping_bound,
    clipping_error,
)

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
