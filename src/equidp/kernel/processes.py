"""Several processes that train one model: each sums its shard of the sample, one adds the noise.

Formal guarantee: shards are disjoint, so an example is in one process alone and moves the sum over processes
by as much as it moves that process' own: at most the sensitivity. Sums travel in units of the sensitivity
that each process capped its weights by, so that this holds also where processes disagree on it. Noise is
added once, by the first process, and what it made is what all of them get.

| case | what happens |
| --- | --- |
| a process has an empty sample | it takes part like any other |
| the first process cannot pay, or is asked to stop | nobody draws; ProcessError in the others |
| the first process ends the run before its plan | nobody draws; EndOfRun in all |
| a process dies | the others raise ProcessError; the step stays charged |
| a step, a callback or a load fails in one | it leaves the group: as if it died, and it cannot go on alone |
| processes of other settings or data | `training.agreement` refuses them, before anything is spent |

What is sent has the same length in every step, whatever is in the samples: 8 bytes to pay, and then each
trained number twice (a sum to the first process, the noisy mean back). The sums have no noise yet.

Trusted, beside what one process trusts: torch.distributed, the network between the processes, which must be
as safe as the machines, and a dataset that gives the same example at the same place in all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, final

from torch import Tensor

from equidp.errors import SettingError


class EndOfRun(Exception):
    """Raised by every process in place of a further step, where a run ends before its plan does."""


class Processes(ABC):
    """Processes that train one model, as one of them sees them.

    Attributes:
        rank: number of this process; process 0 holds ledger and budget, draws noise and writes files.
        count: number of processes.
        asks_to_stop: set where this process is asked to stop; the next `sum_on_first` says so to the first.
        asked_to_stop: set in the first process once any other asked.
    """

    rank: int
    count: int
    asks_to_stop = False
    asked_to_stop = False

    @property
    def first(self) -> bool:
        """Return whether this is process 0, which holds ledger and budget, draws noise and writes files."""
        return self.rank == 0

    def shard(self, num_examples: int) -> slice:
        """Return the places of this process' examples: shards are disjoint, and together all of them.

        Raises:
            SettingError: there are fewer examples than processes.

        >>> ALONE.shard(10)
        slice(0, 10, None)
        """
        if self.count > num_examples:
            raise SettingError(
                f"{self.count} processes for {num_examples} examples; start at most one for each.",
                field="processes",
            )
        start, stop = (num_examples * rank // self.count for rank in (self.rank, self.rank + 1))
        return slice(start, stop)

    @abstractmethod
    def run_on_first(self, action: Callable[[], None]) -> None:
        """Run an action in the first process, and in the others once it succeeded there.

        Raises:
            ProcessError: it failed in the first process, which raises its own error.
            EndOfRun: the first process raised it.
        """

    @abstractmethod
    def sum_on_first(self, tensors: Sequence[Tensor]) -> None:
        """Replace contiguous tensors of the first process by their sums over processes, in place."""

    @abstractmethod
    def copy_from_first(self, tensors: Sequence[Tensor]) -> None:
        """Replace contiguous tensors by those of the first process, in place."""

    @abstractmethod
    def broadcast_from_first(self, make: Callable[[], Any]) -> Any:
        """Return to every process the result of `make`, which the first process alone calls: plain values, or
        tensors on the CPU.

        Raises:
            ProcessError: it failed there.
        """

    @abstractmethod
    def gather_shards(self, rows: Tensor, num_examples: int) -> Tensor:
        """Return the rows of all shards, [num_examples, ...], to every process."""

    @abstractmethod
    def check_equal(self, facts: Mapping[str, object]) -> None:
        """Raise a SettingError in every process where facts differ between them."""

    @abstractmethod
    def leave_group(self) -> None:
        """End the connection, so that the others do not wait for a process that failed."""

    @abstractmethod
    def failed_everywhere(self, error: BaseException) -> bool:
        """Return whether all processes raised an error where this one raised this."""

    def leave_group_on_failure(self) -> AbstractContextManager[None]:
        """Leave the group if the body fails in this process alone.

        The others then stop, in place of waiting for it; this process cannot go on by itself.
        """
        return self._leaving_on_failure()

    @contextmanager
    def _leaving_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if not self.failed_everywhere(error):
                self.leave_group()
            raise


@final
class Alone(Processes):
    """One process.

    >>> ALONE.count, ALONE.broadcast_from_first(lambda: "a")
    (1, 'a')
    """

    rank, count = 0, 1

    def run_on_first(self, action: Callable[[], None]) -> None:
        action()

    def sum_on_first(self, tensors: Sequence[Tensor]) -> None:
        """Do nothing: the sum of one process is its own."""

    def copy_from_first(self, tensors: Sequence[Tensor]) -> None:
        """Do nothing."""

    def broadcast_from_first(self, make: Callable[[], Any]) -> Any:
        return make()

    def gather_shards(self, rows: Tensor, num_examples: int) -> Tensor:
        return rows

    def check_equal(self, facts: Mapping[str, object]) -> None:
        """Do nothing."""

    def leave_group(self) -> None:
        """Do nothing."""

    def leave_group_on_failure(self) -> AbstractContextManager[None]:
        """Do nothing: nobody waits."""
        return nullcontext()

    def failed_everywhere(self, error: BaseException) -> bool:
        return True


ALONE = Alone()
