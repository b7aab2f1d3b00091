"""Poisson sampling, the only sampling whose amplification the accounting may use."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from equidp._validate import check_number, check_whole
from equidp.errors import SettingError
from equidp.kernel.noise import Randomness
from equidp.kernel.processes import ALONE, Processes

Indices = npt.NDArray[np.int64]

_BLOCK = 64  # steps whose samples are drawn together; bounds memory at about _BLOCK expected batches


class PoissonSampler:
    """Yields Poisson samples: in each step, every example joins independently with probability `sample_rate`.

    Guarantee: memberships are independent across examples and steps, up to the precision of 52-bit uniform
    draws. Steps and examples form one sequence of coin flips. The gaps between heads are geometric, and the
    cost of drawing gaps grows with the size of the sample, not of the dataset. A second coin keeps a chosen
    example of label k with probability rates[k] / `sample_rate`.

    Samples of up to 64 steps are drawn at once. Payments and samples are independent of each other, so
    samples drawn ahead and never used reveal nothing. The loop must pay for each sample before using it.

    With several processes, each draws a Poisson sample of its own shard. Coins of different shards are
    independent, so together these are one Poisson sample of all examples. With a seed, each process draws the
    same whole sample, and keeps its shard of it.

    | case | sample |
    | --- | --- |
    | all rates equal `sample_rate` | the same as without labels, by the same draws |
    | rate 0 of a label | none of its examples, ever |
    | a label without examples | draws nothing, and changes no other's draws |
    | rate 1 | every example |
    | no example drawn, or none of this shard | empty, and still a step to pay for |
    | Ctrl-C while samples are drawn | drawn again with the next request |
    | a second pass over this object | new samples |

    Args:
        num_examples: number of examples n >= 1.
        sample_rate: sampling rate q in (0, 1].
        steps: number of samples T >= 0 of one pass.
        randomness: source of the draws.
        processes: processes that sample together.
        labels: label of each example, [n], whole numbers from 0. None: all join at `sample_rate`.
        rates: probability of each label, in [0, `sample_rate`], with labels.

    Yields:
        Sorted indices of this process's part of the sample, [batch] int64. The size is private.

    Raises:
        SettingError: a number is outside its range, a label has no rate, or there are more processes than
            examples.
    """

    def __init__(
        self,
        num_examples: int,
        sample_rate: float,
        steps: int,
        randomness: Randomness,
        processes: Processes = ALONE,
        *,
        labels: Tensor | None = None,
        rates: Sequence[float] = (),
    ) -> None:
        check_whole(1, " to sample from", num_examples=num_examples)
        check_number("(0, 1]", ", a probability", sample_rate=sample_rate)
        check_whole(0, steps=steps)
        for rate in rates:
            check_number(f"[0, {sample_rate}]", ", at most the sample rate", rate=rate)
        if labels is not None and not (
            labels.shape == (num_examples,)
            and labels.dtype in (torch.int64, torch.int32)
            and ((labels >= 0) & (labels < len(rates))).all()
        ):
            raise SettingError(
                f"labels of shape {list(labels.shape)} and type {labels.dtype}; expected a whole number from "
                f"0 to {len(rates) - 1} for each of {num_examples} examples.",
                field="labels",
            )
        self.num_examples, self.sample_rate, self.steps = num_examples, sample_rate, steps
        self._randomness, self._shard = randomness, processes.shard(num_examples)
        self._stays = np.array(rates, dtype=np.float64) / sample_rate
        self._labels = None if labels is None or (self._stays == 1).all() else labels.cpu().numpy()

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Tensor]:
        return _Samples(self)

    def _block(self, steps: int) -> Iterable[Tensor]:
        """Return the samples of this many steps."""
        first, last = self._shard.start, self._shard.stop
        if self._randomness.shared:
            first, last = 0, self.num_examples
        step, index = np.divmod(self._heads(steps * (last - first)), last - first)
        index += first
        if self._labels is not None:
            stays = self._randomness.uniform(len(index)) < self._stays[self._labels[index]]
            step, index = step[stays], index[stays]
        mine = (index >= self._shard.start) & (index < self._shard.stop)
        step, index = step[mine], index[mine]
        ends = np.cumsum(np.bincount(step, minlength=steps))[:-1]
        return torch.tensor_split(torch.from_numpy(index), torch.from_numpy(ends))

    def _heads(self, flips: int) -> Indices:
        """Return the positions of heads among `flips` coins of probability q, ascending."""
        if self.sample_rate == 1:
            return np.arange(flips, dtype=np.int64)
        found, last = [np.empty(0, dtype=np.int64)], -1
        while last < flips:
            expected = (flips - last) * self.sample_rate
            draws = self._randomness.uniform(int(expected + 4 * math.sqrt(expected)) + 16)
            gaps = (
                np.floor(np.log(draws) / math.log1p(-self.sample_rate)).clip(max=flips).astype(np.int64) + 1
            )
            found.append(last + np.cumsum(gaps))
            last = int(found[-1][-1])
        heads = np.concatenate(found)
        return heads[: int(np.searchsorted(heads, flips))]


class _Samples:
    """One pass over samples. An interrupt does not change its position."""

    def __init__(self, sampler: PoissonSampler) -> None:
        self._sampler, self._left, self._drawn = sampler, sampler.steps, list[Tensor]()

    def __iter__(self) -> Iterator[Tensor]:
        return self

    def __next__(self) -> Tensor:
        if not self._left:
            raise StopIteration
        if not self._drawn:
            self._drawn = list(self._sampler._block(min(_BLOCK, self._left)))[::-1]
        sample = self._drawn.pop()
        self._left -= 1
        return sample
