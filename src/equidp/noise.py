"""Where randomness comes from: a seed for research, the operating system for release.

Both the Poisson sample and the noise are part of the privacy guarantee, so both are drawn here. Whoever can predict either of
them can undo it: a seeded run is for comparing methods, never for a model that leaves the house.

Floating point: noise is drawn in float64 and rounded only after it was added to the sum, in the sum's own precision, which hides
the gaps in the set of reachable noise values (Mironov, CCS 2012). This lowers that risk; it is no proof against it.
"""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_BITS = 52  # uniforms are odd multiples of 2**-53: exact in float64, never 0 or 1


class Randomness(Protocol):
    """A stream of independent draws; never repeats one."""

    def uniform(self, count: int) -> npt.NDArray[np.float64]:
        """`count` draws from the open interval (0, 1), [count]."""

    def normal(self, like: Tensor) -> Tensor:
        """Standard normal draws in float64 with the shape and device of `like`."""


class SystemRandomness:
    """The operating system's entropy (os.urandom): for models that are released."""

    def uniform(self, count: int) -> npt.NDArray[np.float64]:
        words = np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
        return ((words >> np.uint64(64 - _BITS)).astype(np.float64) + 0.5) * 2.0**-_BITS

    def normal(self, like: Tensor) -> Tensor:
        draws: Tensor = torch.special.ndtri(torch.from_numpy(self.uniform(like.numel())))
        return draws.reshape(like.shape).to(like.device)


class SeededRandomness:
    """A stream that a seed determines: for research, where two runs must see the same noise.

    Args:
        seed: whole number >= 0.
        part: numbers that tell streams of one seed apart, such as the steps spent before an interrupted run went on.
    """

    def __init__(self, seed: int, *part: int) -> None:
        self._numpy = np.random.default_rng([seed, *part] if part else seed)
        self._torch: dict[torch.device, torch.Generator] = {}
        self._seed = int(np.random.SeedSequence([seed, *part]).generate_state(1)[0]) if part else seed

    def uniform(self, count: int) -> npt.NDArray[np.float64]:
        return self._numpy.random(count).clip(min=2.0 ** -(_BITS + 1))

    def normal(self, like: Tensor) -> Tensor:
        if like.device.type == "cpu":  # numpy's generator takes half the time of torch's
            return torch.from_numpy(self._numpy.standard_normal(like.numel())).reshape(like.shape)
        if like.device not in self._torch:
            self._torch[like.device] = torch.Generator(like.device).manual_seed(self._seed)
        generator = self._torch[like.device]
        return torch.randn(like.shape, generator=generator, dtype=torch.float64, device=like.device)
