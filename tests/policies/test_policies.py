"""Policies compute what their papers say, and check_policy names each broken promise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from equidp.errors import PolicyError, SettingError
from equidp.kernel.policy import NoState, Policy, Setting
from equidp.policies import (
    DPSGD,
    DPSGDF,
    METHODS,
    PSAC,
    SGD,
    Automatic,
    DPSGDFCode,
    Global,
    GlobalAdapt,
    Naive,
    Quantile,
    QuantileBounded,
    SoftAdaClip,
    check_policy,
)
from equidp.policies.weights import released_values, sensitivity_of
from support.errors import raises_field
from support.policies import state_of

K = 3


def weights(policy: Policy, state: Any, norms: list[float], groups: list[int] | None = None) -> Tensor:
    """Weights of examples, [batch]."""
    groups = [0] * len(norms) if groups is None else groups
    return torch.stack(
        [
            policy.weight(state, torch.tensor(norm), torch.tensor(group))
            for norm, group in zip(norms, groups, strict=True)
        ]
    )


def test_plain_sgd_alone_is_not_private_and_has_no_bound():
    assert sensitivity_of(SGD(), NoState(), K) == math.inf
    assert [name for name, method in METHODS.items() if not method.policy.private] == ["sgd"]


class _State(NamedTuple):
    bound: Tensor


@dataclass(frozen=True)
class _Broken(DPSGD):
    """DP-SGD whose bound follows from releases; what is below breaks one promise each."""

    statistics_ratio: float = 10.0

    def init(self, setting: Setting) -> Any:
        return _State(torch.tensor(self.clipping_bound))

    def statistics(self, state: _State, norm: Tensor, group: Tensor) -> Tensor:
        return torch.ones(1)

    def update(self, state: _State, released: Tensor) -> Any:
        return _State(1 + released[0].abs().clamp(max=1.0))

    def bound(self, state: _State, group: Tensor) -> float | Tensor:
        return state.bound


class LongRows(_Broken):
    def statistics(self, state: _State, norm: Tensor, group: Tensor) -> Tensor:
        return torch.ones(2)


class HeavyWeights(_Broken):
    def weight(self, state: _State, norm: Tensor, group: Tensor) -> Tensor:
        return 1.01 * super().weight(state, norm, group)


class NegativeWeights(_Broken):
    def weight(self, state: _State, norm: Tensor, group: Tensor) -> Tensor:
        return -super().weight(state, norm, group)


class WritesToState(_Broken):
    def weight(self, state: _State, norm: Tensor, group: Tensor) -> Tensor:
        state.bound.mul_(0.5)
        return super().weight(state, norm, group)


class Draws(_Broken):
    def weight(self, state: _State, norm: Tensor, group: Tensor) -> Tensor:
        return super().weight(state, norm, group) * torch.rand(())


class UpdatesAnew(_Broken):
    def update(self, state: _State, released: Tensor) -> Any:
        return _State(1 + torch.rand(()))


class LeavesState(_Broken):
    def update(self, state: _State, released: Tensor) -> Any:
        return 1.0


class Unbounded(_Broken):
    def bound(self, state: _State, group: Tensor) -> float | Tensor:
        return math.nan


class AboveItsGroupsBound(_Broken):
    """Says that the first group is held to half of what weights allow it."""

    def bound(self, state: _State, group: Tensor) -> float | Tensor:
        return state.bound * torch.where(group == 0, 0.5, 1.0)

    def weight(self, state: _State, norm: Tensor, group: Tensor) -> Tensor:
        return (state.bound / norm).clamp(max=1.0)


class BatchSensitivity(DPSGDF):
    """The published leak: noise scaled by the groups in the batch, here by all groups but the last. The
    sensitivity of a policy with bounds is the largest of all groups', and nothing else."""

    def sensitivity(self, state: Any) -> float:
        return float(state.bounds[:-1].max())


@dataclass(frozen=True)
class HidesARule(_Broken):
    bound: float = 1.0  # type: ignore[assignment]


class TwoGroups(DPSGDF):
    """Made for two groups, whatever the data has."""

    def init(self, setting: Setting) -> Any:
        return super().init(setting._replace(num_groups=2))


@dataclass
class Thawed(Policy):
    clipping_bound: float = 1.0
    bound = DPSGD.bound


@pytest.mark.parametrize(
    ("policy", "field", "given"),
    [
        (TwoGroups(), "state", "some group"),
        (DPSGD, "policy", "DPSGD"),
        (Thawed(), "policy", "frozen"),
        (LongRows(), "statistics", "row of norm"),
        (HeavyWeights(), "weight", "group's bound"),
        (NegativeWeights(), "weight", ">= 0"),
        (WritesToState(), "state", "WritesToState"),
        (Draws(), "Draws.weight", "random operation"),
        (UpdatesAnew(), "update", "UpdatesAnew"),
        (LeavesState(), "state", "NamedTuple"),
        (Unbounded(), "sensitivity", "nan"),
        (BatchSensitivity(), "sensitivity", "largest bound"),
        (AboveItsGroupsBound(), "weight", "group 0"),
        (HidesARule(), "bound", "rename"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Policy) else "",
)
def test_each_broken_promise_is_named(policy, field, given):
    with raises_field(PolicyError, field, given):
        check_policy(policy, K)


def test_dpsgd_f_as_printed():
    """C^k = C0 (1 + (m^k / b^k) / (m / b)) by hand: m = (10, 30), b = (80, 40)."""
    policy = DPSGDF(2.0)
    state = policy.update(state_of(policy, groups=2, b=100.0), torch.tensor([70.0, 10.0, 10.0, 30.0]))
    torch.testing.assert_close(state.bounds, 2 * (1 + torch.tensor([10 / 80, 30 / 40]) / (40 / 100)))
    assert sensitivity_of(policy, state, 2) == pytest.approx(2 * (1 + 0.75 / 0.4))
    assert released_values(policy, state, 2)["clipping_bound"].tolist() == state.bounds.tolist()


def test_dpsgd_f_as_run():
    """C^k = C0 (1 + rho_k / mean rho) with floored counts, rho = 1 for a group without a count."""
    policy = DPSGDFCode(1.0)
    state = policy.update(state_of(policy, b=100.0), torch.tensor([70.9, 10.2, -3.0, 10.1, 30.0, 0.4]))
    rho = torch.tensor([10 / 80, 30 / 40, 1.0])
    torch.testing.assert_close(state.bounds, 1 + rho / rho.mean())


@pytest.mark.parametrize("policy", [DPSGDF(1.0, max_ratio=5.0), DPSGDFCode(1.0, max_ratio=5.0)], ids=repr)
def test_dpsgd_f_survives_absurd_counts(policy):
    """Noise can make every count negative, or one of them huge: bounds stay finite and within the stated
    cap."""
    state = state_of(policy, groups=2, b=100.0)
    for counts in (
        [-9.0, -9.0, -9.0, -9.0],
        [1e9, -1.0, 0.0, 1e9],
        [0.0, 0.0, 0.0, 0.0],
        [5.0, 5.0, 0.2, 0.0],
        [0.0, 5.0, 1.0, 0.0],
    ):
        state = policy.update(state, torch.tensor(counts))
        assert torch.isfinite(state.bounds).all()
        assert (state.bounds >= 1.0).all()
        assert (state.bounds <= 6.0).all()


def test_smoothing_averages_released_counts():
    policy = DPSGDF(1.0, smoothing=0.75)
    state = policy.update(state_of(policy, groups=1, b=100.0), torch.tensor([40.0, 8.0]))
    torch.testing.assert_close(state.counts.flatten(), torch.tensor([40.0, 8.0]))
    state = policy.update(state, torch.tensor([80.0, 0.0]))
    torch.testing.assert_close(state.counts.flatten(), torch.tensor([50.0, 6.0]))


def test_naive_theta():
    """theta^k = (b / K) / b^k; counts below min_count are raised to it."""
    policy = Naive(2.0)
    state = policy.update(state_of(policy, groups=2, b=100.0), torch.tensor([80.0, -3.0]))
    torch.testing.assert_close(state.theta, torch.tensor([50 / 80, 50.0]))
    assert sensitivity_of(policy, state, 2) == pytest.approx(100.0)
    torch.testing.assert_close(weights(policy, state, [1.0, 4.0]), torch.tensor([0.625, 0.3125]))
    assert list(released_values(policy, state, 2)) == ["clipping_bound", "theta"]


def test_global_drops_and_global_adapt_clips_what_is_too_long():
    torch.testing.assert_close(weights(Global(1.0, 20.0), NoState(), [10.0, 40.0]), torch.tensor([0.05, 0.0]))
    policy = GlobalAdapt(1.0, initial_bound=20.0)
    torch.testing.assert_close(weights(policy, state_of(policy), [10.0, 40.0]), torch.tensor([0.05, 0.025]))
    assert released_values(policy, state_of(policy), K)["Z"] == 20.0
    assert released_values(Global(1.0, 20.0), NoState(), K)["Z"] == 20.0


def test_global_adapt_follows_the_expected_batch_size():
    """Z <- max(C, Z exp(-eta + d / b)), with the expected batch size b."""
    policy = GlobalAdapt(1.0, initial_bound=10.0, bound_learning_rate=0.1)
    state = policy.update(state_of(policy, b=50.0), torch.tensor([20.0]))
    assert float(state.bound) == pytest.approx(10 * math.exp(-0.1 + 0.4))
    for _ in range(100):
        state = policy.update(state, torch.tensor([0.0]))
    assert float(state.bound) == 1.0
    assert sensitivity_of(policy, state, K) == 1.0


def test_quantile_finds_the_target_quantile():
    """With exact counts the bound settles at the median of the norms."""
    policy = Quantile(10.0, bound_learning_rate=0.2)
    state, norms = state_of(policy, b=1000.0), torch.linspace(0.0, 2.0, 1001)[1:]
    for _ in range(300):
        state = policy.update(
            state, torch.func.vmap(policy.statistics, (None, 0, None))(state, norms, None).sum(dim=0)
        )
    assert sensitivity_of(policy, state, K) == pytest.approx(1.0, abs=0.02)


def test_a_lowest_bound_holds_from_the_start_and_leaves_higher_ones_alone():
    """C <- max(C_min, C exp(-eta (share - gamma))), Zhao et al. 2025."""
    policy = QuantileBounded(2.0, lowest_bound=0.5, bound_learning_rate=0.2)
    state = state_of(policy, b=50.0)
    assert sensitivity_of(policy, state, K) == 2.0
    everyone_within = torch.tensor([25.0])
    state = policy.update(state, everyone_within)
    assert sensitivity_of(policy, state, K) == pytest.approx(2.0 * math.exp(-0.2 * 0.5))
    for _ in range(100):
        state = policy.update(state, everyone_within)
    assert sensitivity_of(policy, state, K) == 0.5
    torch.testing.assert_close(weights(policy, state, [0.4, 5.0]), torch.tensor([1.0, 0.1]))
    state = policy.update(state, -everyone_within)
    assert sensitivity_of(policy, state, K) == pytest.approx(0.5 * math.exp(0.2 * 0.5))
    policy = QuantileBounded(0.1, lowest_bound=0.5)
    assert sensitivity_of(policy, state_of(policy), K) == 0.5


def test_softadaclip_is_smooth_below_its_bound_and_keeps_the_order_of_lengths():
    policy = SoftAdaClip(2.0)
    state, norms = state_of(policy), [0.0, 1e-44, 1e-30, 1e-3, 1.0, 2.0, 4.0, 1e3, 1e30, 3e38]
    found = weights(policy, state, norms)
    expected = [1.0 if not norm else 2 * math.tanh(norm / 2) / norm for norm in norms]
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=1e-38)
    lengths = (found.double() * torch.tensor(norms).double())[3:7]
    assert (lengths.diff() > 0).all()
    assert lengths.max() < sensitivity_of(policy, state, K)
    hard = weights(Quantile(2.0), state, norms)
    assert (found <= hard + 1e-6).all()


def test_automatic_and_psac_formulas():
    torch.testing.assert_close(
        weights(Automatic(3.0, stability=0.5), NoState(), [0.0, 2.0]), torch.tensor([6.0, 1.2])
    )
    torch.testing.assert_close(
        weights(PSAC(3.0, stability=0.5), NoState(), [0.0, 2.0]), torch.tensor([3.0, 3 / (2 + 0.5 / 2.5)])
    )


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: DPSGD(math.nan), "clipping_bound"),
        (lambda: DPSGDF(1.0, smoothing=1.0), "smoothing"),
        (lambda: DPSGDF(1.0, statistics_ratio=0.0), "statistics_ratio"),
        (lambda: Global(5.0, 1.0), "strict_bound"),
        (lambda: Quantile(1.0, target_quantile=0.0), "target_quantile"),
        (lambda: PSAC(1.0, stability=0.0), "stability"),
    ],
)
def test_bad_settings_are_named(make, field):
    with raises_field(SettingError, field):
        make()
