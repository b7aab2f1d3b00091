"""Poisson sampling: the only sampling whose amplification by subsampling the accounting may claim."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from equidp.errors import SettingError
from equidp.kernel.noise import Randomness

_BLOCK = 64  # steps whose samples are drawn together; bounds memory at about _BLOCK expected batches


class PoissonSampler:
    """In each step every example joins the sample independently with probability `sample_rate`.

    Steps and examples form one long sequence of independent coin flips, step after step. The gaps between heads are geometric,
    so drawing gaps costs the size of the sample where flipping every coin would cost the size of the dataset.

    Args:
        num_examples: n.
        sample_rate: q in (0, 1].
        steps: how many samples one pass over this object gives.
        randomness: where the draws come from.

    Yields:
        Sorted indices of the sample, [batch] int64. The size varies, may be 0, and is itself private.
    """

    def __init__(self, num_examples: int, sample_rate: float, steps: int, randomness: Randomness) -> None:
        if num_examples < 1:
            raise SettingError(f"num_examples={num_examples}; expected at least one example to sample from.")
        if not 0 < sample_rate <= 1:
            raise SettingError(f"sample_rate={sample_rate}; expected a probability in (0, 1].")
        if steps < 0:
            raise SettingError(f"steps={steps}; expected 0 or more.")
        self.num_examples = num_examples
        self.sample_rate = sample_rate
        self.steps = steps
        self._randomness = randomness

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Tensor]:
        for start in range(0, self.steps, _BLOCK):
            yield from self._block(min(_BLOCK, self.steps - start))

    def _block(self, steps: int) -> Iterator[Tensor]:
        positions = self._heads(steps * self.num_examples)
        step, index = np.divmod(positions, self.num_examples)
        sizes = np.bincount(step, minlength=steps)
        yield from torch.tensor_split(torch.from_numpy(index), torch.from_numpy(np.cumsum(sizes)[:-1]))

    def _heads(self, flips: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Positions of the heads among `flips` coins of probability q, ascending."""
        if self.sample_rate == 1:
            return np.arange(flips, dtype=np.int64)
        found = []
        last = -1
        while last < flips:
            expected = (flips - last) * self.sample_rate
            draws = self._randomness.uniform(int(expected + 4 * math.sqrt(expected)) + 16)
            gaps = (
                np.floor(np.log(draws) / math.log1p(-self.sample_rate)).clip(max=flips).astype(np.int64) + 1
            )
            positions = last + np.cumsum(gaps)
            found.append(positions)
            last = int(positions[-1])
        heads = np.concatenate(found)
        return heads[: int(np.searchsorted(heads, flips))]
