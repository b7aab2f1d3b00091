"""One example cannot exceed its bound: the tables of `kernel/bounding.py`, row by row, and for any norms."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from equidp.errors import PolicyError, SettingError
from equidp.kernel.bounding import (
    SMALLEST_NORM,
    SMALLEST_SENSITIVITY,
    bounded_rows,
    capped_weights,
    each_alone,
    example_rows,
    example_weights,
)
from equidp.kernel.policy import NoState, copy_state
from equidp.policies import DPSGD, DPSGDF, SGD, Global
from equidp.policies.weights import share_clipped, step_weights
from support.errors import raises_field
from support.policies import GROUPS, POLICIES, Largest, Rogue, state_of

inf, nan = math.inf, math.nan
values = st.sampled_from([0.0, -0.0, 1e-310, 1e-30, 1e-12, 0.3, 1.0, -2.0, 1e12, 1e30, 1e300, inf, -inf, nan])
norms_of_any_kind = st.sampled_from([0.0, 1e-30, 1e-8, 0.3, 1.0, 2.0, 40.0, 1e12, 1e30, inf, nan])


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([0.3, 0.4], [0.3, 0.4]),
        ([0.6, 0.8], [0.6, 0.8]),
        ([3.0, 4.0], [0.6, 0.8]),
        ([0.0, 0.0], [0.0, 0.0]),
        ([inf, 1.0], [0.0, 0.0]),
        ([1.0, -inf], [0.0, 0.0]),
        ([nan, 1.0], [0.0, 0.0]),
    ],
    ids=["short", "at the bound", "long", "zero", "infinite", "minus infinite", "NaN"],
)
def test_a_row_is_bounded_as_the_table_says(row, expected):
    others = torch.tensor([[9.0, 9.0], row, [nan, nan]])
    torch.testing.assert_close(bounded_rows(others, 1.0)[1].tolist(), expected)
    assert bounded_rows(others, 1.0).dtype == torch.float64


@given(
    rows=st.lists(st.lists(values, min_size=3, max_size=3), max_size=5),
    extra=st.lists(values, min_size=3, max_size=3),
    bound=st.sampled_from([1e-3, 1.0, 7.0]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@settings(max_examples=30)
def test_one_row_moves_the_sum_of_bounded_rows_by_at_most_the_bound(rows, extra, bound, dtype):
    without = bounded_rows(torch.tensor(rows, dtype=dtype).reshape(-1, 3), bound)
    together = bounded_rows(torch.tensor([*rows, extra], dtype=dtype), bound)
    assert torch.equal(together[:-1], without)
    assert torch.linalg.vector_norm(together.sum(dim=0) - without.sum(dim=0)) <= bound * (1 + 1e-9)


@pytest.mark.parametrize(
    ("weight", "norm", "expected"),
    [
        (0.5, 2.0, 0.5),
        (1.5, 2.0, 1.5),
        (5.0, 2.0, 1.5),
        (inf, 2.0, 0.0),
        (1.0, 0.0, 1.0),
        (1e30, 0.0, 3.0 / SMALLEST_NORM),
        (1e30, 1e-12, 3.0 / SMALLEST_NORM),
        (-1.0, 2.0, 0.0),
        (nan, 2.0, 0.0),
        (-inf, 2.0, 0.0),
        (1.0, inf, 0.0),
        (1.0, nan, 0.0),
    ],
)
def test_a_weight_is_capped_as_the_table_says(weight, norm, expected):
    weights, norms = torch.tensor([9.0, weight], dtype=torch.float64), torch.tensor([9.0, norm])
    for sensitivity in (3.0, torch.tensor([1.0, 3.0])):
        capped = capped_weights(weights.clone(), norms, sensitivity)
        torch.testing.assert_close(capped[1], torch.tensor(expected), rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.int64])
def test_norms_that_are_rounded_by_more_than_noise_covers_are_refused(kind):
    """A weight in bfloat16 is off by 2^-8 of it, sixteen times what noise is scaled up by."""
    with raises_field(SettingError, "engine"):
        capped_weights(torch.ones(2), torch.ones(2, dtype=kind), 1.0)


@given(
    pairs=st.lists(st.tuples(values, norms_of_any_kind), max_size=6),
    sensitivity=st.sampled_from([1e-3, 1.0, 1e6]),
)
def test_no_weight_lifts_a_finite_norm_above_the_sensitivity(pairs, sensitivity):
    weights = torch.tensor([weight for weight, _ in pairs], dtype=torch.float32)
    norms = torch.tensor([norm for _, norm in pairs], dtype=torch.float32)
    capped = capped_weights(weights, norms, sensitivity)
    finite = torch.isfinite(norms)
    assert (capped[finite] >= 0).all()
    assert (capped[finite].double() * norms[finite].double() <= sensitivity * (1 + 1e-6)).all()


@pytest.mark.parametrize("sensitivity", [SMALLEST_SENSITIVITY / 16, SMALLEST_SENSITIVITY, 1e-20, 1e-7, 1e-4])
def test_no_cap_is_rounded_up_near_the_least_positive_number(sensitivity):
    """Beside the least positive number, a cap would be rounded to up to twice what it should be."""
    norms = torch.logspace(-12, 38.5, 4001, dtype=torch.float64).float()
    for given_sensitivity in (sensitivity, torch.full_like(norms, sensitivity)):
        capped = capped_weights(torch.full_like(norms, 1e38), norms, given_sensitivity)
        moved = capped.double() * norms.double().clamp_min(SMALLEST_NORM)
        assert (moved <= sensitivity * (1 + 2.0**-21)).all()
        assert (capped[norms < 0.9 * sensitivity / torch.finfo(norms.dtype).tiny] > 0).all()


@pytest.mark.parametrize("name", POLICIES)
@given(rows=st.lists(st.tuples(norms_of_any_kind, st.integers(0, GROUPS - 1)), min_size=1, max_size=6))
@settings(max_examples=20)
def test_what_a_rule_gives_an_example_is_what_it_gives_it_alone(name, rows):
    """Bit for bit: neither other examples nor what a rule wrote to earlier reaches it."""
    policy = POLICIES[name]
    state = state_of(policy)
    norms = torch.tensor([norm for norm, _ in rows])
    groups = torch.tensor([group for _, group in rows])
    rules = [policy.weight] if policy.statistics_ratio is None else [policy.weight, policy.statistics]
    for rule in rules:
        examples = norms, groups
        together = each_alone(rule, state, *examples)
        alone = [
            each_alone(rule, state, *(each[at : at + 1] for each in examples)) for at in range(len(rows))
        ]
        torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=0, equal_nan=True)
        if name != "overwriting":
            apart = zip(*(each.clone() for each in examples), strict=True)
            own = [rule(copy_state(state), *numbers) for numbers in apart]
            torch.testing.assert_close(together, torch.stack(own), rtol=0, atol=0, equal_nan=True)


def test_rules_write_to_copies_alone():
    """State, norms and groups are as they were, whatever a rule does to its arguments in place."""
    policy, state = Rogue(), Largest(torch.tensor(1.0))
    norms, groups = torch.tensor([2.0, 5.0]), torch.tensor([0, 1])
    example_rows(policy, state, norms, groups)
    example_weights(policy, state, norms, groups)
    example_weights(POLICIES["overwriting"], NoState(), norms, groups)
    assert state.largest == 1.0
    assert norms.tolist() == [2.0, 5.0]
    assert groups.tolist() == [0, 1]


@pytest.mark.parametrize(
    "weight",
    [
        lambda self, state, norm, group: norm if norm > 1 else 2 * norm,
        lambda self, state, norm, group: float(norm),
        lambda self, state, norm, group: torch.from_numpy(1 / norm.numpy().clip(1.0)),
        lambda self, state, norm, group: state.largest.copy_(norm),
        lambda self, state, norm, group: None,
        lambda self, state, norm, group: norm.unsqueeze(0),
    ],
    ids=["branch", "number", "escape", "write", "none", "shape"],
)
def test_a_rule_that_cannot_be_asked_for_one_example_is_refused(weight):
    policy, state = type("Rule", (DPSGD,), {"weight": weight})(), Largest(torch.ones(()))
    with pytest.raises(PolicyError):
        example_weights(policy, state, torch.ones(2), torch.zeros(2, dtype=torch.int64))


def test_the_share_clipped_counts_weights_below_that_of_a_vanishing_gradient():
    norms, groups = torch.tensor([0.1, 0.9, 1.1, 7.0]), torch.zeros(4, dtype=torch.int64)
    for policy, share in ((DPSGD(1.0), 0.5), (Global(1.0, 5.0), 0.25), (SGD(), 0.0)):
        weights = step_weights(policy, NoState(), norms, groups, 1)
        assert share_clipped(policy, NoState(), weights, groups, 1) == share
    policy = DPSGDF(1.0)
    bounds = state_of(policy)._replace(bounds=torch.tensor([1.0, 2.0, 4.0]))
    norms, groups = torch.tensor([1.5, 1.5, 1.5, 5.0]), torch.tensor([0, 1, 2, 2])
    weights = step_weights(policy, bounds, norms, groups, 3)
    assert share_clipped(policy, bounds, weights, groups, 3) == 0.5
