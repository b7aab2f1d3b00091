"""Poisson sampling: the only sampling whose amplification the accounting may claim."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

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
    """Yields samples that every example joins independently with probability `sample_rate`, again in each
    step.

    Guarantee: memberships are independent across examples and steps, up to the precision of 52-bit uniform
    draws. Steps and examples form one sequence of coin flips; the gaps between heads are geometric, and
    drawing gaps costs the size of the sample instead of that of the dataset.

    Samples of up to `_BLOCK` = 64 steps are drawn at once, when the first of them is asked for. Payment and
    samples do not depend on each other, so that what is drawn ahead and never used tells nothing; that each
    sample is paid for before it is used is up to the loop.

    Several processes: each draws a Poisson sample of its own shard, at the same rate. Coins of different
    shards are independent, so together these are one Poisson sample of all examples. From a seed, each draws
    the whole sample, which is the same in all, and keeps its shard of it.

    Rates by group: the coins above choose examples at `sample_rate`. A second coin of its own then keeps a
    chosen example of group k, by its label, with probability rates[k] / `sample_rate`. So an example of group
    k joins with probability rates[k], still independently. Only chosen examples take a second random number.

    | case | sample |
    | --- | --- |
    | all rates equal `sample_rate` | the same as without groups, by the same draws |
    | rate 0 of a group | none of its examples, ever |
    | a group without examples | draws nothing, and changes no other's draws |
    | a label that is no group, more labels than rates | SettingError, before a sample is drawn |
    | another label in another run | each run draws by the label that it was given |
    | rate 1 | every example |
    | nobody drawn | empty, and still a step to pay for |
    | a second pass over this object | new samples |
    | nobody drawn of this shard | empty, and a step of all processes |
    | more processes than examples | SettingError: a process would have no shard |
    | steps 0 | none |

    Args:
        num_examples: n >= 1.
        sample_rate: q in (0, 1].
        steps: T >= 0, the number of samples of one pass.
        randomness: where the draws come from.
        processes: that sample together.
        labels: group of each example, [n], whole numbers from 0; None: all join at `sample_rate`.
        rates: probability of each group, in [0, `sample_rate`], with labels.

    Yields:
        Sorted indices of this process' part of the sample, [batch] int64. The size is itself private.

    Raises:
        SettingError: a number outside its range.
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
        self.num_examples, self.sample_rate, self.steps = num_examples, sample_rate, steps
        self._randomness, self._shard = randomness, processes.shard(num_examples)
        self._labels = None if labels is None else labels.cpu().numpy()
        for rate in rates:
            check_number(f"[0, {sample_rate}]", ", at most the sample rate", rate=rate)
        self._stays = np.array(rates, dtype=np.float64) / sample_rate
        if self._labels is not None:
            self._check_labels(self._labels)
            if (self._stays == 1).all():
                self._labels = None

    def _check_labels(self, labels: Indices) -> None:
        groups = len(self._stays)
        known = labels.dtype.kind == "i" and ((labels >= 0) & (labels < groups)).all()
        if labels.shape != (self.num_examples,) or not known:
            raise SettingError(
                f"labels of shape {list(labels.shape)} and type {labels.dtype}; expected a whole number from "
                f"0 to {groups - 1}, that of a group, for each of {self.num_examples} examples.",
                field="labels",
            )

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Tensor]:
        for start in range(0, self.steps, _BLOCK):
            yield from self._block(min(_BLOCK, self.steps - start))

    def _block(self, steps: int) -> Iterator[Tensor]:
        first, last = self._shard.start, self._shard.stop
        if self._randomness.shared:
            step, index = np.divmod(self._heads(steps * self.num_examples), self.num_examples)
            step, index = self._thin(step, index)
            mine = (index >= first) & (index < last)
            step, index = step[mine], index[mine]
        else:
            step, index = np.divmod(self._heads(steps * (last - first)), last - first)
            index += first
            step, index = self._thin(step, index)
        sizes = np.bincount(step, minlength=steps)
        yield from torch.tensor_split(torch.from_numpy(index), torch.from_numpy(np.cumsum(sizes)[:-1]))

    def _thin(self, step: Indices, index: Indices) -> tuple[Indices, Indices]:
        """Keep each chosen example of group k with probability rates[k] / `sample_rate`."""
        if self._labels is None:
            return step, index
        stays = self._randomness.uniform(len(index)) < self._stays[self._labels[index]]
        return step[stays], index[stays]

    def _heads(self, flips: int) -> Indices:
        """Return the positions of heads among `flips` coins of probability q, ascending."""
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
