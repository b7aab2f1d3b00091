"""Sources of randomness: the operating system for models to release, a seed for research.

Both the Poisson sample and the noise are part of the privacy guarantee, so both are drawn here. The guarantee
does not hold against anyone who knows the seed. Use seeded runs to compare methods, never for a model that
you release.

Floating point: a computer reaches only some values of the normal distribution, and a noisy sum can reveal the
exact sum (Mironov, CCS 2012). Draws are therefore finer towards both tails, where values are further apart.
Every noisy sum is rounded to a grid that depends only on the scale of its noise (`grid`). For any sum, about
fifty to 10^12 draws lead to each grid point within 8 standard deviations.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from equidp.errors import SettingError
from equidp.kernel.generators import fill_from_the_system, from_the_system, generator_from_the_system
from equidp.kernel.keystream import keystream, makes_words

_FAR = 1 - 2.0**-10  # beyond this place in (-1, 1), 53 bits of a word are too coarse and all 64 are used
_SMALLEST = 1e-100
_SHORT = 2**12  # bytes; up to here os.urandom is faster than a cipher that is set up


def grid(deviation: float) -> float:
    """Return the spacing that sums with noise of this standard deviation are rounded to, a power of 2.

    Guarantee: it depends only on the deviation, so rounding to it is post-processing of the noisy sum.

    | deviation | spacing |
    | --- | --- |
    | at least 10^-100 | in (deviation / 2048, deviation / 1024] |
    | smaller, 0 included | SettingError: floats have no room for a grid |

    >>> grid(1.0)
    0.0009765625
    """
    if not deviation >= _SMALLEST:
        raise SettingError(
            f"noise of standard deviation {deviation:g}; expected at least {_SMALLEST:g}. Choose a larger "
            "bound or multiplier.",
            field="deviation",
        )
    return math.ldexp(1.0, math.frexp(deviation)[1] - 11)


class Randomness(ABC):
    """A stream of independent draws that never repeats.

    Guarantee: a draw is one 64-bit word, mapped into an open interval as an odd multiple of half the spacing.
    It is exact in float64 and never an end of the interval, so every draw is finite. A count of 0 gives an
    empty array.

    Attributes:
        shared: whether several processes have the same stream. A process that leaves draws to another then
            skips them, so that the stream stays the same in all.
        start_of_worker: called with the worker's number in each process that loads examples. None: torch
            seeds it.
    """

    shared = False
    start_of_worker: Callable[[int], None] | None = None

    @abstractmethod
    def words(self, count: int) -> npt.NDArray[np.int64]:
        """Return independent words of 64 random bits, [count]."""

    def uniform(self, count: int) -> npt.NDArray[np.float64]:
        """Return draws from the open interval (0, 1), [count]: odd multiples of 2^-53."""
        return ((self.words(count) >> 12).astype(np.float64) + 0.5) * 2.0**-52 + 0.5

    def words_on(self, device: torch.device, count: int) -> Tensor:
        """Return such words as a tensor on a device, [count], int64."""
        return torch.from_numpy(np.require(self.words(count), requirements="W")).to(device)

    def normal(self, count: int, device: torch.device | str = "cpu", deviation: float = 1.0) -> Tensor:
        """Return float64 normal draws, [count]: quantiles of odd multiples of 2^-54 (tails: 2^-65).

        They are computed on the device, or on the CPU if the device has no float64 (`exact_place`).
        """
        words = self.words_on(exact_place(torch.device(device)), count)
        places = (words >> 11).double().add_(0.5).mul_(2.0**-52)  # in (-1, 1)
        far = (places.abs() > _FAR).nonzero()
        draws = places.erfinv_().mul_(math.sqrt(2) * deviation)
        if len(far):  # so near an end that a float holds the distance from it exactly
            far = far.squeeze(1)
            ends = words[far]
            from_end = torch.iinfo(torch.int64).max - (ends ^ (ends >> 63))
            quantiles = torch.special.ndtri((from_end.double() + 0.5) * 2.0**-64).copysign_(ends)
            draws[far] = quantiles.mul_(deviation)
        return draws

    def skip(self, count: int) -> None:
        """Skip what `normal(count)` would draw, if the stream is shared."""
        assert not self.shared, "a shared stream says how to skip draws of it"

    def for_model(self, *devices: torch.device) -> AbstractContextManager[None]:
        """Return a context for user code that may draw random numbers: dropout in a forward pass, or
        augmentation.

        In this class, the global generators of torch, NumPy and Python stay as the caller left them.
        """
        return nullcontext()

    def generator(self) -> torch.Generator:
        """Return a CPU generator determined by one word of this stream."""
        return torch.Generator().manual_seed(int(self.words(1)[0]) & (2**63 - 1))


@lru_cache(maxsize=64)
def exact_place(device: torch.device) -> torch.device:
    """Return the device, or the CPU if it has no float64, like MPS: noise is added only in float64."""
    try:
        torch.zeros(1, dtype=torch.float64, device=device).erfinv_()
    except (TypeError, RuntimeError):
        return torch.device("cpu")
    return device


def to_double(values: Tensor) -> Tensor:
    """Return the values in float64, on the CPU if their device has no float64.

    >>> to_double(torch.tensor([1, 2]))
    tensor([1., 2.], dtype=torch.float64)
    """
    return values.double() if values.is_cpu else values.to(exact_place(values.device)).double()


def _start_worker(number: int) -> None:
    """Fill the generators of a DataLoader worker, which torch seeded with 32 bits and the worker's number."""
    fill_from_the_system()


class SystemRandomness(Randomness):
    """Cryptographic draws with keys from the operating system, for models to release.

    Guarantee: a few words come directly from os.urandom. Many words are a keystream under a key from
    os.urandom that is used for this call only. The cipher is AES-256 in counter mode on the CPU. It is
    ChaCha20 on a GPU if that is faster and gives the words of the library `cryptography`
    (`keystream.makes_words`). Nothing is kept between calls that a fork or a copy of the process could reuse.

    The global generators, also in workers, draw from the operating system too (`generators`).
    """

    start_of_worker = staticmethod(_start_worker)

    def words(self, count: int) -> npt.NDArray[np.int64]:
        size = 8 * count
        if size <= _SHORT:
            return np.frombuffer(os.urandom(size), dtype=np.int64)
        cipher = Cipher(algorithms.AES256(os.urandom(32)), modes.CTR(bytes(16))).encryptor()
        return np.frombuffer(cipher.update(bytes(size)), dtype=np.int64)

    def words_on(self, device: torch.device, count: int) -> Tensor:
        if makes_words(device, count):
            return keystream(os.urandom(32), count, device)
        return super().words_on(device, count)

    def for_model(self, *devices: torch.device) -> AbstractContextManager[None]:
        return from_the_system(*devices)

    def generator(self) -> torch.Generator:
        return generator_from_the_system()


class SeededRandomness(Randomness):
    """A stream determined by a seed, on every device, for research in which two runs must see the same noise.

    Args:
        seed: whole number >= 0.
        part: numbers that distinguish streams of one seed, such as the steps spent before a run was resumed.
    """

    shared = True

    def __init__(self, seed: int, *part: int) -> None:
        self._seed, self._numpy = seed, np.random.default_rng([seed, *part] if part else seed)

    def go_on_after(self, steps: int) -> None:
        """Switch to the stream of a run resumed after this many steps, so that no noise is used twice."""
        self._numpy = np.random.default_rng([self._seed, steps] if steps else self._seed)

    def words(self, count: int) -> npt.NDArray[np.int64]:
        return self._numpy.bit_generator.random_raw(count).view(np.int64)

    def skip(self, count: int) -> None:
        self._numpy.bit_generator.advance(count)  # type: ignore[attr-defined]  # PCG64 has it
