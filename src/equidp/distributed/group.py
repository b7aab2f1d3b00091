"""The processes of torch.distributed's default group, and what happens to a process that is in none."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor

from equidp.errors import ProcessError, SettingError
from equidp.kernel.processes import ALONE, EndOfRun, Processes

_BUCKET = 2**20
"""Numbers that are sent at once: smaller tensors are joined, larger ones go alone."""

_LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that launchers of several processes set for each process."""

_ENDED = 2
"""Number that the first process sends where it ends the run; 1: it failed."""

_here = threading.local()
_left = threading.Event()  # this process left a group after a failure


@final
class Together(Processes):
    """The processes of torch.distributed's default group.

    | case | what happens |
    | --- | --- |
    | another process is gone, or silent for as long as the group waits | ProcessError |
    | used after `leave`, or from another thread than at first | ProcessError |
    | a group without a backend for the CPU | SettingError |
    """

    def __init__(self) -> None:
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        self._thread = threading.get_ident()
        self._everywhere: BaseException | None = None

    def run_on_first(self, action: Callable[[], None]) -> None:
        failed, error = torch.zeros(1, dtype=torch.int64), self._try_on_first(action)
        failed += _ENDED if isinstance(error, EndOfRun) else error is not None
        self._exchange(dist.broadcast, failed, 0)
        self._raise(int(failed), error)
        if not self.first:
            action()

    def broadcast_from_first(self, make: Callable[[], Any]) -> Any:
        made: list[Any] = []
        error = self._try_on_first(lambda: made.append(make()))
        held: list[Any] = [made]
        self._exchange(dist.broadcast_object_list, held, 0)
        self._raise(not held[0], error)
        return held[0][0]

    def _try_on_first(self, action: Callable[[], None]) -> BaseException | None:
        """Run the action in the first process alone, and return its exception."""
        if self.first:
            try:
                action()
            except BaseException as error:
                return error
        return None

    def _raise(self, failed: int, error: BaseException | None) -> None:
        """Raise in every process where the first one failed, or ended the run (`_ENDED`)."""
        if failed:
            stopped = "the first process stopped; its own message says why."
            there = EndOfRun() if failed == _ENDED else ProcessError(stopped)
            self._everywhere = there if error is None else error
            raise self._everywhere

    def sum_on_first(self, tensors: Sequence[Tensor]) -> None:
        asks = tensors[-1].new_full((1,), float(self.asks_to_stop))
        for bucket, parts in _buckets([*tensors, asks]):
            self._exchange(dist.reduce, bucket, 0)
            if self.first:
                _put(bucket, parts)
        if self.first:
            self.asked_to_stop = self.asked_to_stop or bool(asks > 0)

    def copy_from_first(self, tensors: Sequence[Tensor]) -> None:
        for bucket, parts in _buckets(tensors):
            self._exchange(dist.broadcast, bucket, 0)
            if not self.first:
                _put(bucket, parts)

    def gather_shards(self, rows: Tensor, num_examples: int) -> Tensor:
        longest = -(-num_examples // self.count)
        padded = rows.new_zeros((longest, *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in range(self.count)]
        self._exchange(dist.all_gather, parts, padded)
        lengths = (torch.arange(self.count + 1) * num_examples // self.count).diff().tolist()
        return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])

    def check_equal(self, facts: Mapping[str, object]) -> None:
        everyone: list[Any] = [None] * self.count
        self._exchange(dist.all_gather_object, everyone, dict(facts))
        for rank, other in enumerate(everyone):
            differing = [name for name in everyone[0] if everyone[0][name] != other.get(name)]
            if differing:
                listed = "; ".join(
                    f"{name} is {everyone[0][name]!r} in process 0 and {other.get(name)!r} in process {rank}"
                    for name in differing
                )
                self._everywhere = SettingError(
                    f"the processes disagree: {listed}. Give all of them the same settings and data.",
                    field=", ".join(differing),
                )
                raise self._everywhere

    def leave_group(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
            _left.set()

    def failed_everywhere(self, error: BaseException) -> bool:
        return error is self._everywhere

    def _exchange(self, send: Callable[..., Any], *content: Any) -> None:
        """Send and receive; turn what the backend raises into a sentence."""
        if not dist.is_initialized():
            raise ProcessError("this process left its group after a failure; start all processes again.")
        if threading.get_ident() != self._thread:
            raise ProcessError(
                "a group of processes is used from one thread, where its Trainer was made: the messages of "
                "two would be mixed up."
            )
        try:
            send(*content)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            if "No backend type" in reason:
                raise SettingError(
                    f"{reason}; initialise torch.distributed with 'gloo', or with 'cpu:gloo,cuda:nccl'."
                ) from error
            silent = "Timed out" in reason
            what = "did not answer in time" if silent else "of this training ended"
            raise ProcessError(
                f"another process {what} ({reason}), so this one stops. What was spent is in the ledger of "
                "the first process; its run can be resumed, with any number of processes."
            ) from error


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
        SettingError: a launcher started several processes, and this one is in no group, or left it after a
            failure: it would train and spend for itself, outside the first one's ledger.

    >>> processes_here().count
    1
    """
    if getattr(_here, "alone", False) or not dist.is_available():
        return ALONE
    if dist.is_initialized():
        _left.clear()
        return Together() if dist.get_world_size() > 1 else ALONE
    if _left.is_set():
        raise SettingError(
            "this process left its group after a failure, and would train alone, outside the ledger of the "
            "first process. Start all processes again, or call torch.distributed.init_process_group."
        )
    several = all(name in os.environ for name in _LAUNCHED) and os.environ["WORLD_SIZE"] != "1"
    if several or dist.is_torchelastic_launched():
        raise SettingError(
            "a launcher such as torchrun started several processes, and this one has joined no group, so "
            "that each would train a model of its own and spend for it. Call "
            "torch.distributed.init_process_group() first.",
            field="process_group",
        )
    return ALONE


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
    """Copy what was received into the parts, unless it was received in place."""
    if bucket is not parts[0]:
        for part, values in zip(parts, bucket.split([len(part) for part in parts]), strict=True):
            part.copy_(values)
