"""Several processes that train one model: each sums its shard of the sample, one adds the noise.

Formal guarantee: shards are disjoint, so an example is in one process alone and moves the sum over processes
by as much as it moves that process' own: at most the sensitivity. Sums travel in units of the sensitivity
that each process capped its weights by, so that this holds also where processes disagree on it. Noise is
added once, by the first process, and what it made is what all of them get.

| case | what happens |
| --- | --- |
| a process has an empty sample | it takes part like any other |
| the first process cannot pay, or is asked to stop | nobody draws; ProcessError in the others |
| a process dies, or a step fails in it | the others raise ProcessError; the step stays charged |
| processes of other settings or data | `Processes.alike` refuses them, before anything is spent |

What is sent has the same length in every step, whatever is in the samples: 8 bytes to pay, and then each
trained number twice (a sum to the first process, the noisy mean back). The sums have no noise yet: the
network between the processes must be as safe as the machines.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor

from equidp.errors import ProcessError, SettingError

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


ALONE = Alone()
_here = threading.local()


@final
class Together(Processes):
    """The processes of torch.distributed's default group.

    Raises:
        SettingError: there is no such group.
    """

    def __init__(self) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise SettingError("torch.distributed is not initialised; call init_process_group first.")
        self.rank, self.count = dist.get_rank(), dist.get_world_size()

    def led(self, action: Callable[[], None]) -> None:
        failed = torch.zeros(1, dtype=torch.int64)
        try:
            if self.first:
                failed += 1
                action()
                failed -= 1
        finally:
            with _connected():
                dist.broadcast(failed, 0)
        if self.first:
            return
        if failed:
            raise ProcessError(_FIRST_STOPPED)
        action()

    def total(self, tensors: Sequence[Tensor]) -> None:
        for bucket, parts in _buckets(tensors):
            with _connected():
                dist.reduce(bucket, 0)
            if self.first:
                _put(bucket, parts)

    def share(self, tensors: Sequence[Tensor]) -> None:
        for bucket, parts in _buckets(tensors):
            with _connected():
                dist.broadcast(bucket, 0)
            if not self.first:
                _put(bucket, parts)

    def told(self, make: Callable[[], Any]) -> Any:
        made: list[Any] = []
        held: list[Any] = [made]
        try:
            if self.first:
                made.append(make())
        finally:
            with _connected():
                dist.broadcast_object_list(held, 0)
        if not held[0]:
            raise ProcessError(_FIRST_STOPPED)
        return held[0][0]

    def joined(self, rows: Tensor, num_examples: int) -> Tensor:
        longest = -(-num_examples // self.count)
        padded = rows.new_zeros((longest, *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in range(self.count)]
        with _connected():
            dist.all_gather(parts, padded)
        lengths = (torch.arange(self.count + 1) * num_examples // self.count).diff().tolist()
        return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])

    def alike(self, facts: Mapping[str, object]) -> None:
        everyone: list[Any] = [None] * self.count
        with _connected():
            dist.all_gather_object(everyone, dict(facts))
        for rank, other in enumerate(everyone):
            differing = [name for name in everyone[0] if everyone[0][name] != other.get(name)]
            if differing:
                listed = "; ".join(
                    f"{name} is {everyone[0][name]!r} in process 0 and {other.get(name)!r} in process {rank}"
                    for name in differing
                )
                raise SettingError(
                    f"the processes disagree: {listed}. Give all of them the same settings and data."
                )

    def leave(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def alone() -> Iterator[None]:
    """Inside, this thread trains for itself, whatever group it is in: to try a run out."""
    before, _here.alone = getattr(_here, "alone", False), True
    try:
        yield
    finally:
        _here.alone = before


def processes_here() -> Processes:
    """The group of torch.distributed that this process is in; alone where it is in none.

    Raises:
        SettingError: torchrun started this process, and it has joined no group: each would train and spend
            for itself.

    >>> processes_here().count
    1
    """
    if getattr(_here, "alone", False) or not dist.is_available():
        return ALONE
    if dist.is_initialized():
        return Together() if dist.get_world_size() > 1 else ALONE
    if dist.is_torchelastic_launched():
        raise SettingError(
            "torchrun started this process, and it has joined no group, so that each process would train a "
            "model of its own and spend for it. Call torch.distributed.init_process_group('gloo') first."
        )
    return ALONE


@contextmanager
def _connected() -> Iterator[None]:
    """Turns what the backend raises when a peer is gone into a sentence."""
    try:
        yield
    except RuntimeError as error:
        raise ProcessError(
            f"another process of this training ended ({str(error).splitlines()[0]}), so this one stops. What "
            "was spent is in the ledger of the first process; its run can be resumed, with any number of "
            "processes."
        ) from error


def _buckets(tensors: Sequence[Tensor]) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Flat tensors to send, and the parts that each was joined from, in order of places."""
    waiting: list[Tensor] = []
    for tensor in tensors:
        flat = tensor.view(-1)
        alike = not waiting or (flat.dtype, flat.device) == (waiting[0].dtype, waiting[0].device)
        if waiting and (not alike or sum(map(len, waiting)) + len(flat) > _BUCKET):
            yield waiting[0] if len(waiting) == 1 else torch.cat(waiting), waiting
            waiting = []
        waiting.append(flat)
    if waiting:
        yield waiting[0] if len(waiting) == 1 else torch.cat(waiting), waiting


def _put(bucket: Tensor, parts: list[Tensor]) -> None:
    """Copies what was received into the parts, unless it was received in place."""
    if bucket is not parts[0]:
        for part, values in zip(parts, bucket.split([len(part) for part in parts]), strict=True):
            part.copy_(values)
