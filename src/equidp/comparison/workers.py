"""Calls spread over the processes of joblib's active backend; by default, those of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor
from itertools import islice
from typing import Any, NamedTuple

import torch

from equidp._extras import require_extra
from equidp.errors import SettingError

with require_extra("tables"):
    import joblib
    from joblib.externals.loky import get_reusable_executor
    from joblib.parallel import BACKENDS, get_active_backend

Call = tuple[str, tuple[Any, ...]]
"""A key, unique to the call, and the arguments of the function."""


class StaleWorker(SettingError):
    """A worker process has other code than the process that sent a call."""


class Workers(NamedTuple):
    """Number of calls at a time, and of threads of each; None: as many threads as its process has."""

    number: int
    threads: int | None

    @classmethod
    def of(cls, jobs: int | None, calls: int) -> Workers:
        """Return the workers of joblib's active backend; by default, processes that share the cores.

        Args:
            jobs: processes; None: the number from `joblib.parallel_config`, or all of the backend.
            calls: number of calls.
        """
        backend, configured = get_active_backend()
        number = max(1, min(joblib.effective_n_jobs(jobs or configured or -1), calls))
        if not isinstance(backend, BACKENDS["loky"]):
            return cls(number, None)
        return cls(number, max(1, min(torch.get_num_threads(), int(joblib.cpu_count()) // number)))


def spread(
    function: Callable[..., Any], calls: Iterable[Call], workers: Workers
) -> Iterator[tuple[str, Any]]:
    """Yield the key of each call with the result of `function(*arguments, threads)`, as calls finish.

    Calls are taken from the iterable when a worker is free, which may be in another thread.

    Raises:
        SettingError: a process died.
    """
    backend, _ = get_active_backend()
    tasks = (
        joblib.delayed(_call_with_key)(function, key, arguments, workers.threads) for key, arguments in calls
    )
    options = {"n_jobs": workers.number, "batch_size": 1, "pre_dispatch": "n_jobs"}
    try:
        if getattr(backend, "supports_return_generator", False):
            yield from joblib.Parallel(**options, return_as="generator_unordered")(tasks)
            return
        while some := list(islice(tasks, 4 * workers.number)):  # it gives results all at once
            yield from joblib.Parallel(**options)(some)
    except BrokenExecutor as error:
        raise SettingError(
            f"a worker process died ({error}); most often, memory is too small. Finished runs are kept: give "
            "it more memory or fewer processes, and start the same again.",
            field="runs",
        ) from error


def renew_processes() -> None:
    """End the processes that joblib keeps for later calls; new ones read code from its files again."""
    get_reusable_executor().shutdown(wait=True)


def _call_with_key(
    function: Callable[..., Any], key: str, arguments: tuple[Any, ...], threads: int | None
) -> tuple[str, Any]:
    return key, function(*arguments, threads)
