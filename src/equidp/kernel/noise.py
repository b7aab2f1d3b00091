"""Where randomness comes from: a seed for research, the operating system for release.

Both the Poisson sample and the noise are part of the privacy guarantee, so both are drawn here. Whoever can predict either of
them can undo it: a seeded run is for comparing methods, never for a model that leaves the house.

Floating point: of the normal distribution's values a computer reaches some and not others, so that a noisy sum can prove which sum
it was (Mironov, CCS 2012). Draws therefore get finer towards both tails, as the values there lie further apart, and every noisy
sum is rounded to a grid that only its noise's scale tells (`grid`): up to 8 standard deviations, whatever the sum, some fifty to
10^12 draws lead to each point.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from equidp.errors import SettingError

_SHORT = 2**12  # bytes that the operating system gives sooner than a cipher is set up
_FAR = 1 - 2.0**-10  # beyond this place in (-1, 1), 53 bits of a word are too coarse and all 64 count
_GRID = 10
_SMALLEST = 1e-100


def grid(deviation: float) -> float:
    """Distance of the points that sums with such noise are rounded to: a power of 2, at most a 1024th of its deviation.

    Raises:
        SettingError: noise so small that floats have no room for a grid.
    """
    if deviation < _SMALLEST:
        raise SettingError(
            f"noise of standard deviation {deviation:g}; expected at least {_SMALLEST:g}. Choose a larger bound or multiplier."
        )
    return math.ldexp(1.0, math.frexp(deviation)[1] - 1 - _GRID)


class Randomness(ABC):
    """A stream of independent draws; never repeats one.

    A draw is one 64-bit word, brought into an open interval as an odd multiple of half the spacing: exact in float64, never an end.
    """

    @abstractmethod
    def words(self, count: int) -> npt.NDArray[np.int64]:
        """`count` independent words of 64 random bits, [count]."""

    def uniform(self, count: int) -> npt.NDArray[np.float64]:
        """`count` draws from the open interval (0, 1), [count]: odd multiples of 2^-53."""
        return ((self.words(count) >> 12).astype(np.float64) + 0.5) * 2.0**-52 + 0.5

    def normal(self, count: int, device: torch.device | str = "cpu", deviation: float = 1.0) -> Tensor:
        """Normal draws of mean 0 in float64, [count]: quantiles of odd multiples of 2^-54, in both tails of 2^-65."""
        words = self.words(count)
        places = ((words >> 11) + 0.5) * 2.0**-52  # in (-1, 1)
        far = (np.abs(places) > _FAR).nonzero()[0]
        draws = torch.from_numpy(places).erfinv_().mul_(math.sqrt(2) * deviation)
        if len(far):
            draws[far] = deviation * _tail_quantiles(words[far])
        return draws.to(device)


def _tail_quantiles(words: npt.NDArray[np.int64]) -> Tensor:
    """Standard normal quantiles of words near either end, whose distance from it a float holds without loss."""
    from_end = np.iinfo(np.int64).max - (words ^ (words >> 63))
    quantiles: Tensor = torch.special.ndtri(torch.from_numpy((from_end + 0.5) * 2.0**-64))
    return quantiles.copysign_(torch.from_numpy(words))


class SystemRandomness(Randomness):
    """Cryptographic draws under keys of the operating system: for models that are released.

    Many words at once are the keystream of AES-256 in counter mode, under a key that the operating system gives for this call
    alone; few are its own (os.urandom). Nothing is kept between calls that a fork or a copy of the process could use again.
    """

    def words(self, count: int) -> npt.NDArray[np.int64]:
        size = 8 * count
        words: npt.NDArray[np.int64] = np.frombuffer(
            os.urandom(size) if size <= _SHORT else _keystream(os.urandom(32), size), dtype=np.int64
        )
        return words


def _keystream(key: bytes, size: int) -> bytes:
    """`size` bytes of AES-256 in counter mode, from 0."""
    return Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update(bytes(size))


class SeededRandomness(Randomness):
    """A stream that a seed determines: for research, where two runs must see the same noise.

    Args:
        seed: whole number >= 0.
        part: numbers that tell streams of one seed apart, such as the steps spent before an interrupted run went on.
    """

    def __init__(self, seed: int, *part: int) -> None:
        self._numpy = np.random.default_rng([seed, *part] if part else seed)
        self._torch: dict[torch.device, torch.Generator] = {}
        self._seed = int(np.random.SeedSequence([seed, *part]).generate_state(1)[0]) if part else seed

    def words(self, count: int) -> npt.NDArray[np.int64]:
        return self._numpy.bit_generator.random_raw(count).view(np.int64)

    def normal(self, count: int, device: torch.device | str = "cpu", deviation: float = 1.0) -> Tensor:
        device = torch.device(device)
        if device.type == "cpu":
            return super().normal(count, device, deviation)
        if device not in self._torch:  # drawn where it is needed
            self._torch[device] = torch.Generator(device).manual_seed(self._seed)
        return deviation * torch.randn(
            count, generator=self._torch[device], dtype=torch.float64, device=device
        )
