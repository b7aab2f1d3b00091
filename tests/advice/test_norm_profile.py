"""Profiles of gradient norms: what a private one reads is bounded, noisy and charged; a public one is exact
and free."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from equidp.advice import norm_profile
from equidp.advice.norm_profile import NormProfile, private_profile, public_profile
from equidp.errors import ModelError, SettingError
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import MemoryLedger
from equidp.kernel.noise import SeededRandomness, SystemRandomness
from support.errors import raises_field
from support.toy import toy


class Silence(SystemRandomness):
    """No noise, so that what one example moves is plain to see."""

    def normal(self, count, device="cpu", deviation=1.0):
        return torch.zeros(count, dtype=torch.float64)


class Broken(Silence):
    def normal(self, count, device="cpu", deviation=1.0):
        raise RuntimeError("no noise to be had")


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(5, 2)


@pytest.mark.soak
@settings(max_examples=30)
@given(index=st.integers(0, 39), scale=st.sampled_from([0.0, 1e-9, 1.0, 1e6, 1e30]))
def test_one_example_moves_the_released_sum_by_at_most_its_sensitivity(monkeypatch_noise, index, scale):
    data = toy(40)
    data.inputs[index] *= scale
    others = data.subset(torch.tensor([i for i in range(40) if i != index]))
    with_it, without = (monkeypatch_noise(each) for each in (data, others))
    assert np.linalg.norm(with_it - without) <= 1 + 1e-9


@pytest.fixture(scope="module")
def monkeypatch_noise():
    """The released counts of a dataset as they would be without noise."""
    from equidp.advice import norm_profile as profile

    def released(data):
        kept, profile._TRUSTED = profile._TRUSTED, -math.inf  # counts below the noise are of interest here
        try:
            found = private_profile(data, model(), epsilon=1.0, delta=1e-5, randomness=Silence())
        finally:
            profile._TRUSTED = kept
        return np.array(found.counts)

    return released


def test_it_costs_what_it_says_and_is_charged_before_noise_is_drawn():
    ledger = MemoryLedger()
    found = private_profile(toy(), model(), epsilon=0.5, delta=1e-5, ledger=ledger)
    assert ledger.entries == found.spent
    assert 0.499 < epsilon(found.spent, 1e-5) <= 0.5
    with pytest.raises(RuntimeError, match="no noise"):
        private_profile(toy(), model(), epsilon=0.5, delta=1e-5, ledger=ledger, randomness=Broken())
    assert ledger.steps == 2


def test_with_much_data_it_is_close_to_the_truth():
    data = toy(8_000)
    private = private_profile(data, model(), epsilon=0.3, delta=1e-6, randomness=SeededRandomness(0))
    public = public_profile(data, model())
    for level in (0.25, 0.5, 0.9):
        assert private.quantile(level) == pytest.approx(
            public.quantile(level), rel=0.21
        )  # a cell is 20% wide


@pytest.mark.soak
def test_noise_far_above_the_norms_does_not_set_the_bound():
    """40 seeds; noise alone passes in one of them once in 100 times."""
    data, highest = toy(1400), public_profile(toy(1400), model()).quantile(0.999)
    given = {"epsilon": 0.3, "delta": 1e-5}
    for seed in range(40):
        found = private_profile(data, model(), **given, randomness=SeededRandomness(seed))
        assert found.quantile(0.97) <= 1.21 * highest


def test_a_public_one_is_exact_and_free():
    data = toy()
    found = public_profile(data, model())
    assert found.spent == ()
    assert sum(found.counts) == 300
    layer, losses = model(), nn.CrossEntropyLoss()
    norms = []
    for x, y in zip(data.inputs, data.targets, strict=True):
        layer.zero_grad()
        losses(layer(x[None]), y[None]).backward()
        norms.append(math.hypot(layer.weight.grad.norm(), layer.bias.grad.norm()))
    for level in (0.1, 0.5, 0.9):
        true = np.quantile(norms, level, method="inverted_cdf")
        assert true <= found.quantile(level) * (1 + 1e-6)
        assert found.quantile(level) < true * 1.21


def test_noise_alone_is_not_taken_for_counts():
    found = private_profile(toy(20), model(), epsilon=0.01, delta=1e-6, randomness=SeededRandomness(1))
    assert not found.is_usable
    with raises_field(SettingError, "epsilon"):
        found.quantile(0.5)
    with raises_field(SettingError, "level"):
        NormProfile((1.0,)).quantile(1)


def test_a_model_that_mixes_examples_is_refused_before_anything_is_spent():
    ledger = MemoryLedger()
    mixing = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    with raises_field(ModelError, "1"):
        private_profile(toy(), mixing, epsilon=0.5, delta=1e-5, ledger=ledger)
    assert ledger.entries == ()


@pytest.mark.parametrize("secure", [True, False])
def test_dropout_follows_from_the_randomness_of_the_release(secure, monkeypatch):
    """Under a known seed, a row in front would give all rows after it other masks, and so other norms."""
    rows, dropping = [], nn.Sequential(nn.Dropout(0.5), model())
    private_sum = norm_profile.private_sum
    monkeypatch.setattr(
        norm_profile, "private_sum", lambda each, **named: rows.append(each) or private_sum(each, **named)
    )
    for _ in range(2):
        torch.manual_seed(0)
        randomness = None if secure else SeededRandomness(0)
        private_profile(toy(), dropping, epsilon=0.5, delta=1e-5, randomness=randomness)
    assert torch.equal(*rows) is not secure
