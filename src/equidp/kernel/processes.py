"""Several processes train one model: each sums its shard of the sample, and the first adds the noise.

Formal guarantee: shards are disjoint, so each example is in only one process. It moves the sum over processes
by as much as it moves that process's own sum, which is at most the sensitivity. The first process resolves
the plan, pays before any process uses a sample, and adds the noise once. All processes receive its results.

| case | what happens |
| --- | --- |
| a process has an empty sample | it takes part like any other |
| the first process cannot pay, or is stopped | no process uses a sample; ProcessError in the others |
| a process fails | its launcher, such as torchrun, ends the others; the step stays charged |

Processes exchange sums without noise, in messages whose length is the same in every step. In addition to what
one process trusts, they trust torch.distributed, the network between them, and a dataset that gives the same
example at the same index in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor

from equidp.errors import ProcessError, SettingError


@dataclass(frozen=True)
class Processes:
    """The processes that train one model, as seen by one of them.

    Attributes:
        rank: number of this process.
        count: number of processes.
    """

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Return whether this is process 0, which has the ledger, draws noise and writes files."""
        return self.rank == 0

    def shard(self, num_examples: int) -> slice:
        """Return the indices of this process's examples. Shards are disjoint and together have all examples.

        Raises:
            SettingError: there are fewer examples than processes.

        >>> Processes(rank=1, count=3).shard(10)
        slice(3, 6, None)
        """
        if self.count > num_examples:
            raise SettingError(
                f"{self.count} processes for {num_examples} examples; start at most one for each.",
                field="processes",
            )
        return slice(num_examples * self.rank // self.count, num_examples * (self.rank + 1) // self.count)

    def from_first(self, make: Callable[[], Any]) -> Any:
        """Call `make` in the first process only, and return its result in every process.

        Raises:
            ProcessError: `make` failed. The first process raises its own error.

        >>> ALONE.from_first(lambda: "a")
        'a'
        """
        if self.count == 1:
            return make()
        sent: list[Any] = [None]
        try:
            if self.first:
                sent = [(make(),)]
        finally:
            dist.broadcast_object_list(sent, 0)
        if sent[0] is None:
            raise ProcessError("the first process stopped; its own message says why.")
        return sent[0][0]

    def sum_on_first(self, tensors: Sequence[Tensor]) -> None:
        """Replace contiguous tensors of the first process by their sums over processes, in place."""
        for tensor in tensors if self.count > 1 else ():
            dist.reduce(tensor, 0)

    def copy_from_first(self, tensors: Sequence[Tensor]) -> None:
        """Replace contiguous tensors by the first process's tensors, in place."""
        for tensor in tensors if self.count > 1 else ():
            dist.broadcast(tensor, 0)


ALONE = Processes()
