"""Both sources of randomness draw what they promise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from equidp.noise import SeededRandomness, SystemRandomness

SOURCES = {"seeded": lambda: SeededRandomness(0), "system": SystemRandomness}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_distributions(source):
    """Kolmogorov-Smirnov, false-alarm rate 1e-6 per test (the system's source has no seed to fix)."""
    randomness = source()
    normal = randomness.normal(torch.empty(300, 100))
    assert normal.shape == (300, 100)
    assert normal.dtype == torch.float64
    assert stats.kstest(normal.flatten().numpy(), "norm").pvalue > 1e-6
    uniform = randomness.uniform(30000)
    assert stats.kstest(uniform, "uniform").pvalue > 1e-6
    assert 0 < uniform.min() < uniform.max() < 1


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_the_standard_deviation_is_one(source):
    """Within 5 standard errors, 0.8%: noise that is a little small is epsilon a little understated. False alarms below 1e-6."""
    draws = source().normal(torch.empty(200_000))
    assert abs(float(draws.std()) - 1) < 5 / (2 * len(draws)) ** 0.5
    assert abs(float(draws.mean())) < 5 / len(draws) ** 0.5


@pytest.mark.parametrize("size", [50, 100_000])
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_draws_never_repeat(source, size):
    """Neither from one call to the next nor within one."""
    randomness = source()
    normal = torch.cat([randomness.normal(torch.empty(size)), randomness.normal(torch.empty(size))])
    assert len(set(normal.tolist())) == 2 * size
    uniform = np.concatenate([randomness.uniform(size), randomness.uniform(size)])
    assert len(set(uniform.tolist())) == 2 * size


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_shapes_of_noise(source):
    for shape in [(), (0,), (3,), (2, 3), (40, 1000)]:
        assert source().normal(torch.empty(shape)).shape == shape


def test_the_extreme_words_of_the_system_stay_inside_the_open_interval(monkeypatch):
    """All-zero and all-one bytes would be 0 and 1, whose normal quantiles are infinite."""
    for byte in (b"\x00", b"\xff"):
        monkeypatch.setattr("equidp.noise.os.urandom", lambda size, byte=byte: byte * size)
        assert 0 < SystemRandomness().uniform(1)[0] < 1
        assert torch.isfinite(SystemRandomness().normal(torch.empty(1))).all()


def test_only_the_seeded_source_repeats_with_its_seed():
    assert np.array_equal(SeededRandomness(7).uniform(5), SeededRandomness(7).uniform(5))
    for size in (5, 100_000):
        draws = [SeededRandomness(seed).normal(torch.empty(size)) for seed in (7, 7, 8)]
        assert torch.equal(draws[0], draws[1])
        assert not torch.equal(draws[0], draws[2])
    assert not np.array_equal(SystemRandomness().uniform(5), SystemRandomness().uniform(5))
