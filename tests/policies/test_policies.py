"""Every policy passes the one suite, and computes what its paper says."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from equidp.errors import PolicyError, SettingError
from equidp.policies import (
    DPSGD,
    DPSGDF,
    PSAC,
    SGD,
    Automatic,
    DPSGDFCode,
    Global,
    GlobalAdapt,
    Naive,
    Policy,
    Quantile,
    check_policy,
)

K = 3
ALL = [
    lambda: DPSGD(0.7),
    lambda: DPSGDF(0.7, K),
    lambda: DPSGDF(0.7, K, smoothing=0.9),
    lambda: DPSGDFCode(0.7, K),
    lambda: DPSGDFCode(0.7, K, smoothing=0.9),
    lambda: Naive(0.7, K),
    lambda: Global(0.7, 20.0),
    lambda: GlobalAdapt(0.7),
    lambda: GlobalAdapt(0.7, tolerance=0.7),
    lambda: Quantile(0.7),
    lambda: Automatic(0.7),
    lambda: PSAC(0.7),
]


def prepared(policy: Policy, b: float = 100.0) -> Policy:
    policy.prepare(noise_multiplier=1.0, expected_batch_size=b)
    return policy


@pytest.mark.parametrize("make", ALL, ids=lambda make: type(make()).__name__)
def test_keeps_the_contract(make):
    check_policy(make(), K)
    check_policy(make())


def test_plain_sgd_keeps_the_contract_without_noise():
    check_policy(SGD(), K, noise_multiplier=0.0)
    assert SGD().sensitivity == math.inf


class _Broken(DPSGD):
    statistics_ratio = 10.0
    state_names = ("clipping_bound",)

    def statistics(self, norms: Tensor, groups: Tensor) -> Tensor:
        return torch.ones(len(norms), 1)


class LongRows(_Broken):
    def statistics(self, norms: Tensor, groups: Tensor) -> Tensor:
        return torch.ones(len(norms), 2)


class HeavyWeights(_Broken):
    def weights(self, norms: Tensor, groups: Tensor) -> Tensor:
        return 1.01 * super().weights(norms, groups)


class LooksAtOthers(_Broken):
    def weights(self, norms: Tensor, groups: Tensor) -> Tensor:
        return super().weights(norms, groups) * norms.min() / norms.max()


class RowsLookAtOthers(_Broken):
    def statistics(self, norms: Tensor, groups: Tensor) -> Tensor:
        return (norms / norms.sum()).unsqueeze(1)


class Remembers(_Broken):
    def weights(self, norms: Tensor, groups: Tensor) -> Tensor:
        weights = super().weights(norms, groups)
        self.clipping_bound = float(norms.median())
        return weights


class ForgetsState(_Broken):
    state_names = ()

    def observe(self, released: Tensor) -> None:
        self.clipping_bound = 0.5 * self.clipping_bound + abs(float(released[0]))


class Unbounded(_Broken):
    @property
    def sensitivity(self) -> float:
        return math.nan


class NamesAnotherBound(_Broken):
    """Says that the first group is held to half of what weights allow it."""

    def released_state(self) -> dict[str, Tensor | float]:
        return {"clipping_bound": self.clipping_bound * torch.tensor([0.5, 1.0, 1.0])}


class BatchSensitivity(DPSGDF):
    """The published leak: noise scaled by the groups in the batch, here by all groups but the last."""

    @property
    def sensitivity(self) -> float:
        return float(self.bounds[:-1].max())


class Masks(DPSGD):
    """What the mechanism cannot apply to one example at a time."""

    def weights(self, norms: Tensor, groups: Tensor) -> Tensor:
        weights = torch.ones_like(norms)
        weights[norms > 1] = 1 / norms[norms > 1]
        return weights


class LeavesTorch(DPSGD):
    def weights(self, norms: Tensor, groups: Tensor) -> Tensor:
        return torch.from_numpy(1 / norms.numpy().clip(1.0))


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Masks(1.0), "cannot be applied to one example at a time"),
        (LeavesTorch(1.0), "cannot be applied to one example at a time"),
        (DPSGDF(1.0, K - 1), "failed in trial 0 with IndexError"),
        (DPSGD, "is no policy; expected an object"),
        (LongRows(1.0), "row of norm"),
        (HeavyWeights(1.0), "above its sensitivity"),
        (LooksAtOthers(1.0), "changes with the other examples"),
        (RowsLookAtOthers(1.0), "changes with the other examples"),
        (Remembers(1.0), "changes its state"),
        (ForgetsState(1.0), "goes on differently"),
        (Unbounded(1.0), "sensitivity nan"),
        (BatchSensitivity(1.0, K), "above its sensitivity"),
        (NamesAnotherBound(1.0), "group 0 has clipping_bound 0.5, and lets a contribution be"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Policy) else "",
)
def test_each_broken_promise_is_named(policy, message):
    with pytest.raises(PolicyError, match=message):
        check_policy(policy, K)


def test_dpsgd_f_as_printed():
    """C^k = C0 (1 + (m^k / b^k) / (m / b)) by hand: m = (10, 30), b = (80, 40)."""
    policy = prepared(DPSGDF(2.0, 2), b=100.0)
    policy.observe(torch.tensor([70.0, 10.0, 10.0, 30.0]))
    torch.testing.assert_close(policy.bounds, 2 * (1 + torch.tensor([10 / 80, 30 / 40]) / (40 / 100)))
    assert policy.sensitivity == pytest.approx(2 * (1 + 0.75 / 0.4))


def test_dpsgd_f_as_run():
    """C^k = C0 (1 + rho_k / mean rho) with floored counts, rho = 1 for a group without a count."""
    policy = prepared(DPSGDFCode(1.0, 3))
    policy.observe(torch.tensor([70.9, 10.2, -3.0, 10.1, 30.0, 0.4]))
    rho = torch.tensor([10 / 80, 30 / 40, 1.0])
    torch.testing.assert_close(policy.bounds, 1 + rho / rho.mean())


def test_dpsgd_f_survives_absurd_counts():
    """Noise can make every count negative, or one of them huge: bounds stay finite and within the stated
    cap."""
    for variant in (DPSGDF, DPSGDFCode):
        policy = prepared(variant(1.0, 2, max_ratio=5.0))
        for counts in (
            [-9.0, -9.0, -9.0, -9.0],
            [1e9, -1.0, 0.0, 1e9],
            [0.0, 0.0, 0.0, 0.0],
            [5.0, 5.0, 0.2, 0.0],
        ):
            policy.observe(torch.tensor(counts))
            assert torch.isfinite(policy.bounds).all()
            assert (policy.bounds >= 1.0).all()
            assert (policy.bounds <= 6.0).all()


def test_smoothing_averages_released_counts():
    policy = prepared(DPSGDF(1.0, 1, smoothing=0.75))
    policy.observe(torch.tensor([40.0, 8.0]))
    policy.observe(torch.tensor([80.0, 0.0]))
    torch.testing.assert_close(policy.counts.flatten(), torch.tensor([50.0, 6.0]))


def test_sensitivity_covers_groups_that_are_not_in_the_batch():
    policy = prepared(DPSGDF(1.0, 3))
    policy.observe(torch.tensor([50.0, 45.0, 0.0, 5.0, 0.0, 5.0]))
    absent = int(policy.bounds.argmax())
    assert absent == 2
    weight = policy.weights(torch.tensor([100.0]), torch.tensor([absent]))
    assert float(weight) * 100 == pytest.approx(policy.sensitivity)


def test_naive_theta():
    """theta^k = (b / K) / b^k; counts below min_count are raised to it."""
    policy = prepared(Naive(2.0, 2), b=100.0)
    policy.observe(torch.tensor([80.0, -3.0]))
    torch.testing.assert_close(policy.theta, torch.tensor([50 / 80, 50.0]))
    assert policy.sensitivity == pytest.approx(100.0)
    torch.testing.assert_close(
        policy.weights(torch.tensor([1.0, 4.0]), torch.tensor([0, 0])), torch.tensor([0.625, 0.3125])
    )


def test_global_drops_and_global_adapt_clips_what_is_too_long():
    norms, groups = torch.tensor([10.0, 40.0]), torch.tensor([0, 0])
    torch.testing.assert_close(Global(1.0, 20.0).weights(norms, groups), torch.tensor([0.05, 0.0]))
    torch.testing.assert_close(
        GlobalAdapt(1.0, initial_bound=20.0).weights(norms, groups), torch.tensor([0.05, 0.025])
    )


def test_global_adapt_follows_the_expected_batch_size():
    """Z <- max(C, Z exp(-eta + d / b)), with the expected batch size b."""
    policy = prepared(GlobalAdapt(1.0, initial_bound=10.0, learning_rate=0.1), b=50.0)
    policy.observe(torch.tensor([20.0]))
    assert policy.bound == pytest.approx(10 * math.exp(-0.1 + 0.4))
    for _ in range(100):
        policy.observe(torch.tensor([0.0]))
    assert policy.bound == 1.0


def test_quantile_finds_the_target_quantile():
    """With exact counts the bound settles at the median of the norms."""
    policy = prepared(Quantile(10.0, learning_rate=0.2), b=1000.0)
    norms = torch.linspace(0.0, 2.0, 1001)[1:]
    for _ in range(300):
        policy.observe(policy.statistics(norms, torch.zeros(1000, dtype=torch.int64)).sum(dim=0))
    assert policy.clipping_bound == pytest.approx(1.0, abs=0.02)


def test_automatic_and_psac_formulas():
    norms, groups = torch.tensor([0.0, 2.0]), torch.tensor([0, 0])
    torch.testing.assert_close(Automatic(3.0, stability=0.5).weights(norms, groups), torch.tensor([6.0, 1.2]))
    torch.testing.assert_close(
        PSAC(3.0, stability=0.5).weights(norms, groups), torch.tensor([3.0, 3 / (2 + 0.5 / 2.5)])
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DPSGD(0.0), "clipping_bound=0"),
        (lambda: DPSGD(math.nan), "clipping_bound=nan"),
        (lambda: DPSGDF(1.0, 0), "num_groups=0"),
        (lambda: DPSGDF(1.0, 2, smoothing=1.0), "smoothing=1"),
        (lambda: Global(5.0, 1.0), "strict_bound=1"),
        (lambda: GlobalAdapt(5.0, initial_bound=1.0), "initial_bound=1"),
        (lambda: Quantile(1.0, target_quantile=0.0), "target_quantile=0"),
        (lambda: Naive(1.0, 2).observe(torch.ones(2)), "prepare"),
    ],
)
def test_bad_settings_are_named(make, message):
    with pytest.raises(SettingError, match=message):
        make()


def test_a_state_of_another_policy_is_refused():
    with pytest.raises(SettingError, match="the saved state has"):
        DPSGDF(1.0, 2).load_state_dict(Naive(1.0, 2).state_dict())
