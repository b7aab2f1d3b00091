"""Several processes that train one model: each sums its shard of the sample, one adds the noise.

Formal guarantee: shards are disjoint, so an example is in one process alone and moves the sum over processes
by as much as it moves that process' own: at most the sensitivity. Sums travel in units of the sensitivity
that each process capped its weights by, so that this holds also where processes disagree on it. Noise is
added once, by the first process, and what it made is what all of them get.

| case | what happens |
| --- | --- |
| a process has an empty sample | it takes part like any other |
| the first process cannot pay, or is asked to stop | nobody draws; ProcessError in the others |
| a process dies | the others raise ProcessError; the step stays charged |
| a step, a callback or a load fails in one | it leaves the group: as if it died, and it cannot go on alone |
| processes of other settings or data | `training.together` refuses them, before anything is spent |

What is sent has the same length in every step, whatever is in the samples: 8 bytes to pay, and then each
trained number twice (a sum to the first process, the noisy mean back). The sums have no noise yet.

Trusted, beside what one process trusts: torch.distributed, the network between the processes, which must be
as safe as the machines, and a dataset that gives the same example at the same place in all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

from torch import Tensor

from equidp.errors import SettingError

_BUCKET = 2**18
"""Numbers that are sent at once: smaller tensors are joined, larger ones go alone."""


_FIRST_STOPPED = "the first process stopped; its own message says why."


class Processes(ABC):
    """The processes that train one model, as one of them sees them.

    Attributes:
        rank: which of them this is; 0 holds ledger and budget, draws noise and writes files.
        count: how many there are.
    """

    rank: int
    count: int
    asks = False
    """Whether this process is asked to stop: the next `total` tells the first."""
    asked = False
    """Whether another process told the first so."""

    @property
    def first(self) -> bool:
        """Whether this process holds ledger and budget, draws the noise and writes files."""
        return self.rank == 0

    def shard(self, num_examples: int) -> slice:
        """The examples of this process: shards are disjoint, and together all of them.

        Raises:
            SettingError: there are fewer examples than processes.

        >>> ALONE.shard(10)
        slice(0, 10, None)
        """
        if self.count > num_examples:
            raise SettingError(
                f"{self.count} processes for {num_examples} examples; start at most one for each."
            )
        start, stop = (num_examples * rank // self.count for rank in (self.rank, self.rank + 1))
        return slice(start, stop)

    @abstractmethod
    def led(self, action: Callable[[], None]) -> None:
        """Runs an action in the first process, and in the others once it succeeded there.

        Raises:
            ProcessError: it failed in the first process, which raises its own error.
        """

    @abstractmethod
    def total(self, tensors: Sequence[Tensor]) -> None:
        """Replaces contiguous tensors of the first process by their sums over processes, in place."""

    @abstractmethod
    def share(self, tensors: Sequence[Tensor]) -> None:
        """Replaces contiguous tensors by those of the first process, in place."""

    @abstractmethod
    def told(self, make: Callable[[], Any]) -> Any:
        """What `make` returns in the first process, which alone calls it: plain values, or tensors on the
        processor.

        Raises:
            ProcessError: it failed there.
        """

    @abstractmethod
    def joined(self, rows: Tensor, num_examples: int) -> Tensor:
        """The rows of all shards, [num_examples, ...], from those of this one's, in every process."""

    @abstractmethod
    def alike(self, facts: Mapping[str, object]) -> None:
        """Raises a SettingError in every process where facts differ between them."""

    @abstractmethod
    def leave(self) -> None:
        """Ends the connection, so that the others do not wait for a process that failed."""

    @abstractmethod
    def failed_everywhere(self, error: BaseException) -> bool:
        """Whether all processes raised an error where this one raised this."""

    @contextmanager
    def or_leave(self) -> Iterator[None]:
        """Leaves the group where what is inside fails in this process alone.

        The others then stop, in place of waiting for it; this process cannot go on by itself.
        """
        try:
            yield
        except BaseException as error:
            if not self.failed_everywhere(error):
                self.leave()
            raise


@final
class Alone(Processes):
    """One process.

    >>> ALONE.count, ALONE.told(lambda: "a")
    (1, 'a')
    """

    rank, count = 0, 1

    def led(self, action: Callable[[], None]) -> None:
        action()

    def total(self, tensors: Sequence[Tensor]) -> None:
        """Leaves sums as they are."""

    def share(self, tensors: Sequence[Tensor]) -> None:
        """Leaves tensors as they are."""

    def told(self, make: Callable[[], Any]) -> Any:
        return make()

    def joined(self, rows: Tensor, num_examples: int) -> Tensor:
        return rows

    def alike(self, facts: Mapping[str, object]) -> None:
        """Agrees with itself."""

    def leave(self) -> None:
        """There is nobody to leave."""

    def failed_everywhere(self, error: BaseException) -> bool:
        return True


ALONE = Alone()
