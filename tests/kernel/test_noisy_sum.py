"""Noisy sums: rows are bounded, noise has its scale, is added in float64 and leaves no digits below its
grid."""

from __future__ import annotations

import math
from unittest import mock

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from equidp.kernel import noisy_sum
from equidp.kernel.noise import SeededRandomness, grid
from equidp.kernel.noisy_sum import (
    add_noise,
    join_sums,
    parameter_blocks,
    private_sum,
    split_sums,
)

inf, nan = math.inf, math.nan
ROWS = torch.tensor([[3.0, 4.0], [0.0, 0.5], [nan, 0.0], [inf, 0.0], [0.0, 0.0]])
BOUNDED = torch.tensor([0.6, 1.3], dtype=torch.float64)


def on_grid(values: Tensor, deviation: float) -> Tensor:
    return (values / grid(deviation)).round() * grid(deviation)


class CountUp:
    """Draws 1, 2, 3, ... in place of noise: what is drawn where can be read off."""

    def __init__(self, most: int = 10**9) -> None:
        self.drawn, self.most = 0, most

    def normal(self, count: int, device: torch.device | str = "cpu", deviation: float = 1.0) -> Tensor:
        assert count <= self.most
        self.drawn += count
        return deviation * torch.arange(self.drawn - count + 1, self.drawn + 1, dtype=torch.float64)


def test_noise_is_added_to_the_sum_of_the_bounded_rows():
    released = private_sum(ROWS, bound=1.0, noise_multiplier=2.0, randomness=SeededRandomness(4))
    noise = SeededRandomness(4).normal(2)
    torch.testing.assert_close(released, on_grid(BOUNDED + 2.0 * noise, 2.0), rtol=0, atol=grid(2.0))


def test_digits_below_the_noises_grid_are_gone():
    """They would tell which sum the noise was added to: of its values a computer reaches some only (Mironov,
    2012)."""
    released = private_sum(torch.rand(9, 50), bound=3.0, noise_multiplier=2.0, randomness=SeededRandomness(0))
    assert (released / grid(6.0) % 1 == 0).all()
    means = [torch.rand(50, dtype=torch.float64), torch.rand(7, dtype=torch.float64)]
    add_noise(means, 0.7, SeededRandomness(0), divisor=4.0)
    assert all((4 * mean / grid(0.7) % 1 == 0).all() for mean in means)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_noise_is_added_in_float64_before_all_rounding(dtype):
    total = torch.randn(5000, generator=torch.Generator().manual_seed(0)).to(dtype)
    total *= 1e6 if dtype == torch.float64 else 1.0  # float32 has no digits below 0.06 there
    means = [total.clone()]
    add_noise(means, 2.1, SeededRandomness(6), divisor=5.0)
    expected = on_grid(total.double() + 2.1 * SeededRandomness(6).normal(5000), 2.1) / 5.0
    assert means[0].dtype == dtype
    precision = {torch.bfloat16: 2**-7, torch.float32: 1e-6, torch.float64: 0.0}[dtype]
    torch.testing.assert_close(means[0], expected.to(dtype), rtol=precision, atol=grid(2.1))


@given(sizes=st.lists(st.integers(0, 12), min_size=1, max_size=6))
def test_each_number_gets_noise_of_its_own(sizes):
    """However draws are cut up among tensors: no number is left bare, and no draw is used twice."""
    totals = [torch.zeros(size) for size in sizes]
    with mock.patch.object(noisy_sum, "_NOISE_BLOCK", 5):
        add_noise(totals, 1.0, CountUp(most=5), divisor=2.0)
    noise = 2.0 * torch.cat(totals)
    torch.testing.assert_close(noise, torch.arange(1.0, sum(sizes) + 1))


@pytest.mark.parametrize("size", [1, 7, 100])
def test_sums_are_joined_in_blocks_and_split_again(size):
    """In the order of the parameters, whatever sums lie like in memory; zeros where there is none."""
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((3, 2), (0,), (), (4,), (5, 3))]
    parameters.insert(2, torch.nn.Parameter(torch.zeros(2, dtype=torch.float64)))
    blocks = parameter_blocks(parameters, size)
    assert [each for block in blocks for each in block] == parameters
    assert all(len(block) == 1 or sum(each.numel() for each in block) <= size for block in blocks)
    assert all(len({each.dtype for each in block}) == 1 for block in blocks)
    sums = {
        each: torch.randn(each.shape[::-1], dtype=torch.float64).permute(tuple(range(each.dim()))[::-1])
        for each in parameters[:-1]
    }
    joined = join_sums(blocks, sums)
    assert [total.dim() for total in joined] == [1] * len(blocks)
    means = split_sums(blocks, joined)
    for parameter, mean in zip(parameters, means, strict=True):
        expected = sums.get(parameter, torch.zeros(5, 3)).to(parameter.dtype)
        assert torch.equal(mean, expected)
        assert mean.dtype == parameter.dtype
    assert len(parameter_blocks(parameters)) == 3  # a parameter of another type between the others
