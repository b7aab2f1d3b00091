"""Poisson samples are what the accounting says they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from equidp.errors import SettingError
from equidp.kernel.noise import SeededRandomness, SystemRandomness
from equidp.kernel.sampling import PoissonSampler
from support.errors import raises_field
from support.faults import SAMPLE_FAULTS, samples_changed


def indicators(n: int, q: float, steps: int, randomness: object) -> np.ndarray:
    """[steps, n]: who is in which sample."""
    taken = np.zeros((steps, n), dtype=bool)
    for step, sample in enumerate(PoissonSampler(n, q, steps, randomness)):
        taken[step, sample.numpy()] = True
    return taken


@pytest.mark.parametrize("randomness", [SeededRandomness(0), SystemRandomness()], ids=["seeded", "system"])
@pytest.mark.parametrize("q", [0.01, 0.3, 0.9])
def test_sizes_are_binomial(randomness, q):
    """Mean and variance within 5 standard errors (false alarm below 1e-5 each): Poisson sampling, not
    fixed-size batches."""
    n, steps = 200, 4000
    sizes = indicators(n, q, steps, randomness).sum(axis=1)
    variance = n * q * (1 - q)
    assert abs(sizes.mean() - n * q) < 5 * np.sqrt(variance / steps)
    assert abs(sizes.var() / variance - 1) < 5 * np.sqrt((2 + 1 / variance) / steps)


def test_draws_that_run_out_are_followed_by_more_where_they_ended():
    """Coins that all fall heads need more draws than were expected: nobody is left out, the first example
    included."""

    class AllHeads:
        shared = False

        def uniform(self, count: int) -> np.ndarray:
            return np.full(count, 1 - 1e-9)

    assert indicators(500, 0.01, 70, AllHeads()).all()


def failures(taken: np.ndarray, q: float) -> set[str]:
    """What Poisson samples of this rate do not show: [steps, n] -> tests that failed.

    Each of some 200 numbers is compared with 5.8 standard errors: false alarm below 2e-6. Two samples of 200
    examples at rate .3 are equal with probability 1e-47, and of 2,000, any two, with 3e-41.
    """
    centred = (taken - q) / np.sqrt(q * (1 - q))
    steps, n = taken.shape
    found = set()
    for lag in range(1, 129):  # within two blocks of the sampler
        products = (centred[:-lag] * centred[lag:]).sum() / np.sqrt(n * (steps - lag))
        found |= {"lags"} if abs(products) > 5.8 else set()
    if abs(centred.sum(axis=0) / np.sqrt(steps)).max() > 5.8:
        found.add("rates")
    if len(np.unique(taken, axis=0)) < steps:
        found.add("again")
    within = np.triu(np.corrcoef(centred.T), 1) if "rates" not in found else np.zeros(1)
    if abs(within).max() * np.sqrt(steps) > 6.6:  # of 20,000 pairs
        found.add("pairs")
    if abs(taken.sum(axis=1).var() / (n * q * (1 - q)) - 1) > 5.8 * np.sqrt(2 / steps):
        found.add("sizes")
    return found


@pytest.mark.parametrize("randomness", [SeededRandomness(6), SystemRandomness()], ids=["seeded", "system"])
def test_samples_are_independent_at_all_distances_and_none_comes_again(randomness):
    assert failures(indicators(200, 0.3, 2000, randomness), 0.3) == set()


@pytest.mark.parametrize("name", SAMPLE_FAULTS)
def test_a_sampler_with_a_fault_is_found(name, monkeypatch):
    """Samples that come again 32 steps later were found by no test once."""
    monkeypatch.setitem(globals(), "PoissonSampler", samples_changed(name))
    assert failures(indicators(200, 0.3, 2000, SeededRandomness(6)), 0.3)


@given(n=st.integers(1, 30), q=st.floats(1e-9, 1.0), steps=st.integers(0, 150))
def test_samples_are_sorted_distinct_indices(n, q, steps):
    samples = list(PoissonSampler(n, q, steps, SeededRandomness(5)))
    assert len(samples) == steps
    for sample in samples:
        assert sample.dtype == torch.int64
        assert len(torch.unique(sample)) == len(sample)
        assert ((sample >= 0) & (sample < n)).all()
        assert (sample.diff() > 0).all()


def test_rate_one_takes_everyone_and_small_rates_give_empty_samples():
    assert all(len(sample) == 7 for sample in PoissonSampler(7, 1.0, 3, SeededRandomness(0)))
    assert sum(len(sample) for sample in PoissonSampler(10, 1e-12, 1000, SeededRandomness(0))) == 0


def test_a_seed_gives_the_same_samples_and_a_second_pass_gives_new_ones():
    first = PoissonSampler(100, 0.1, 5, SeededRandomness(1))
    once, again = list(first), list(first)
    other = list(PoissonSampler(100, 0.1, 5, SeededRandomness(1)))
    assert all(torch.equal(a, b) for a, b in zip(once, other, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


def test_an_interrupt_while_samples_are_drawn_does_not_end_them(monkeypatch):
    """Ctrl-C in a notebook, and then on: every later step has its sample."""
    samples, draw = iter(PoissonSampler(50, 0.3, 70, SystemRandomness())), PoissonSampler._heads
    interrupts = iter([KeyboardInterrupt, None, KeyboardInterrupt, None])

    def interrupted(self: PoissonSampler, flips: int) -> np.ndarray:
        if error := next(interrupts):
            raise error
        return draw(self, flips)

    monkeypatch.setattr(PoissonSampler, "_heads", interrupted)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            list(samples)
    assert len(list(samples)) == 6


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ((0, 0.1, 1), "num_examples"),
        ((5, 0.0, 1), "sample_rate"),
        ((5, 1.5, 1), "sample_rate"),
        ((5, 0.1, -1), "steps"),
    ],
)
def test_bad_settings_are_named(arguments, field):
    with raises_field(SettingError, field):
        PoissonSampler(*arguments, SeededRandomness(0))
