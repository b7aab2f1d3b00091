"""Both sources of randomness draw what they promise."""

from __future__ import annotations

import math
import os
from fractions import Fraction

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import example, given, strategies as st
from numpy.testing import assert_allclose
from scipy import stats

from equidp.errors import SettingError
from equidp.kernel.noise import (
    Randomness,
    SeededRandomness,
    SystemRandomness,
    exact_place,
    grid,
)
from support.errors import raises_field

CPU = torch.device("cpu")

SOURCES = {"seeded": lambda: SeededRandomness(0), "system": SystemRandomness}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_distributions(source):
    """Kolmogorov-Smirnov, false-alarm rate 1e-6 per test (the system's source has no seed to fix)."""
    randomness = source()
    normal = randomness.normal(30000)
    assert normal.shape == (30000,)
    assert normal.dtype == torch.float64
    assert stats.kstest(normal.numpy(), "norm").pvalue > 1e-6
    uniform = randomness.uniform(30000)
    assert stats.kstest(uniform, "uniform").pvalue > 1e-6
    assert 0 < uniform.min() < uniform.max() < 1


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_the_standard_deviation_is_one(source):
    """Within 5 standard errors, 0.8%: noise that is a little small is epsilon a little understated. False
    alarms below 1e-6."""
    draws = source().normal(200_000)
    assert abs(float(draws.std()) - 1) < 5 / (2 * len(draws)) ** 0.5
    assert abs(float(draws.mean())) < 5 / len(draws) ** 0.5


@pytest.mark.parametrize("size", [50, 100_000])
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_draws_never_repeat(source, size):
    """Neither from one call to the next nor within one."""
    randomness = source()
    normal = torch.cat([randomness.normal(size), randomness.normal(size)])
    assert len(set(normal.tolist())) == 2 * size
    uniform = np.concatenate([randomness.uniform(size), randomness.uniform(size)])
    assert len(set(uniform.tolist())) == 2 * size


@pytest.mark.parametrize("word", [-(2**63), 2**63 - 1])
def test_the_extreme_words_stay_inside_the_open_interval(word):
    """The ends themselves would be 0 and 1, whose normal quantiles are infinite."""

    class Extreme(Randomness):
        def words(self, count):
            return np.full(count, word)

    assert 0 < Extreme().uniform(1)[0] < 1
    assert 9 < abs(float(Extreme().normal(1))) < 9.5


@example(words=[2**63 - 1 - 2**40, -(2**63) + 2**40])
@given(words=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_a_normal_draw_is_the_quantile_of_its_word(words):
    """Far into both tails, beside scipy's inverse of the normal distribution: 53 bits of each word, in the
    tails all 64."""

    class Given(Randomness):
        def words(self, count):
            return np.array(words, dtype=np.int64)

    coarse = [Fraction(2 * ((word >> 11) + 2**52) + 1, 2**54) for word in words]
    fine = [Fraction(2 * (word + 2**63) + 1, 2**65) for word in words]
    places = [f if abs(2 * c - 1) > 1 - Fraction(1, 2**10) else c for c, f in zip(coarse, fine, strict=True)]
    assert_allclose(Given().normal(len(words)).numpy(), [_quantile(place) for place in places], rtol=1e-9)
    uniform = [((word >> 12) + 2**51 + 0.5) / 2**52 for word in words]
    assert_allclose(Given().uniform(len(words)), uniform, rtol=0, atol=0)


@pytest.mark.parametrize("sign", [1, -1])
def test_neighbouring_words_far_out_are_no_further_apart_than_a_grid_point_is_wide(sign):
    """A gap wider than the grid is an outcome that one sum can have and another cannot: none up to 8 standard
    deviations."""
    end = 2**63 - 1 if sign > 0 else -(2**63)
    words = [end - sign * (2**power + step) for power in range(11, 53) for step in (0, 1)]

    class Given(Randomness):
        def words(self, count):
            return np.array(words, dtype=np.int64)

    draws = Given().normal(len(words)).numpy().reshape(-1, 2)
    assert np.abs(draws).max() > 8
    assert np.abs(np.diff(draws)).max() < grid(1.0) / 10


@pytest.mark.parametrize("deviation", [1e-101, 1e-320])
def test_noise_that_leaves_no_room_for_a_grid_is_refused(deviation):
    """Dividing by its points would give no numbers, or infinite ones, and tell sums apart."""
    with raises_field(SettingError, "deviation"):
        grid(deviation)


@given(deviation=st.floats(1e-30, 1e30))
def test_the_grid_is_a_power_of_two_and_at_most_a_thousandth(deviation):
    mantissa, _ = math.frexp(grid(deviation))
    assert mantissa == 0.5
    assert deviation / 2048 < grid(deviation) <= deviation / 1024


def _quantile(place):
    """By symmetry from the lower tail, where floats are dense."""
    return stats.norm.ppf(float(place)) if place < 0.5 else -stats.norm.ppf(float(1 - place))


def test_many_words_are_a_keystream_under_a_fresh_key(monkeypatch):
    """AES-256 in counter mode, worked out block by block from the cipher itself."""
    key = bytes(range(32))
    asked = []
    monkeypatch.setattr("equidp.kernel.noise.os.urandom", lambda size: asked.append(size) or key)
    words = SystemRandomness().words(1001)
    assert asked == [32]
    counters = b"".join(counter.to_bytes(16, "big") for counter in range(501))
    stream = Cipher(algorithms.AES256(key), modes.ECB()).encryptor().update(counters)
    assert words.tobytes() == stream[: 8 * 1001]


@pytest.mark.parametrize("size", [50, 100_000])
def test_a_fork_draws_anew(size):
    """A child that went on with its parent's stream would add the same noise a second time."""
    randomness = SystemRandomness()
    randomness.normal(size)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, randomness.words(size)[:16].tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    others = set(np.frombuffer(os.read(reading, 128), dtype=np.int64).tolist())
    assert len(others) == 16
    assert others.isdisjoint(randomness.words(size).tolist())


def test_only_the_seeded_source_repeats_with_its_seed():
    assert np.array_equal(SeededRandomness(7).uniform(5), SeededRandomness(7).uniform(5))
    for size in (5, 100_000):
        draws = [SeededRandomness(seed).normal(size) for seed in (7, 7, 8)]
        assert torch.equal(draws[0], draws[1])
        assert not torch.equal(draws[0], draws[2])
    assert not np.array_equal(SystemRandomness().uniform(5), SystemRandomness().uniform(5))


@pytest.mark.parametrize("error", [TypeError, RuntimeError])
def test_a_device_without_float64_leaves_sums_to_the_cpu(monkeypatch, error):
    def refused(*_, **given):
        raise error("Cannot convert a MPS Tensor to float64 dtype")

    exact_place.cache_clear()
    monkeypatch.setattr(torch, "zeros", refused)
    assert exact_place(torch.device("mps")) == CPU
    exact_place.cache_clear()
