"""Calls spread over processes, or over any backend of joblib; repeated where a process died."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor
from itertools import islice
from typing import Any, NamedTuple

import joblib
import torch
from joblib.externals.loky import get_reusable_executor
from joblib.parallel import BACKENDS, get_active_backend

from equidp.comparison.grid import StaleWorker
from equidp.errors import SettingError

TRIES = 2
"""Deaths of a call's process beside other calls before it runs alone, and alone before it is an error."""


class Call(NamedTuple):
    """One call to spread.

    Attributes:
        key: unique to the call.
        name: of the call in messages.
        arguments: of the function.
    """

    key: str
    name: str
    arguments: tuple[Any, ...]


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
) -> Iterator[tuple[Call, Any]]:
    """Yield each call with the result of `function(*arguments, threads)`, as calls finish.

    A call whose process died is begun again, and alone after the second death. Calls are taken from the
    iterable when a worker is free, which may be in another thread.

    Raises:
        SettingError: a call killed its process each time.
        StaleWorker: a worker process has other code, also after processes were started anew.
    """
    left, again, deaths, renewed = iter(calls), deque[Call](), Counter[str](), False
    while True:
        suspect = next((call for call in again if deaths[call.key] >= TRIES), None)
        if suspect is not None:
            again.remove(suspect)
        begun: dict[str, Call] = {}
        todo = _begin(*((again, left) if suspect is None else (deque([suspect]), iter(()))), begun)
        try:
            for key, result in _results(function, todo, workers):
                yield begun.pop(key), result
        except StaleWorker as error:  # processes of an earlier comparison; new ones read the files anew
            if renewed:
                advice = "a file changed after it was imported. Start Python anew, or give jobs=1."
                raise StaleWorker(f"{error}: {advice}") from error
            get_reusable_executor().shutdown(wait=True)
            renewed = True
        except _deaths() as error:
            deaths.update(list(begun))
            if suspect is not None and deaths[suspect.key] == 2 * TRIES:
                raise killed_error(suspect.name, f"its process {TRIES} times, where it ran alone") from error
        again.extend(begun.values())
        if suspect is None and not again:
            return


def killed_error(name: str, what: str) -> SettingError:
    """Error for a run whose process died each time."""
    return SettingError(
        f"the run {name} killed {what}; most often, memory is too small. Finished runs are kept: give it "
        "more memory or fewer processes, and start the same again."
    )


def _begin(again: deque[Call], left: Iterator[Call], begun: dict[str, Call]) -> Iterator[Call]:
    while call := again.popleft() if again else next(left, None):
        begun[call.key] = call
        yield call


def _results(
    function: Callable[..., Any], calls: Iterator[Call], workers: Workers
) -> Iterator[tuple[str, Any]]:
    backend, _ = get_active_backend()
    tasks = (joblib.delayed(_call_with_key)(function, call, workers.threads) for call in calls)
    options = {"n_jobs": workers.number, "batch_size": 1, "pre_dispatch": "n_jobs"}
    if getattr(backend, "supports_return_generator", False):
        yield from joblib.Parallel(**options, return_as="generator_unordered")(tasks)
        return
    while some := list(islice(tasks, 4 * workers.number)):  # it gives results all at once
        yield from joblib.Parallel(**options)(some)


def _call_with_key(function: Callable[..., Any], call: Call, threads: int | None) -> tuple[str, Any]:
    return call.key, function(*call.arguments, threads)


def _deaths() -> tuple[type[Exception], ...]:
    """Exceptions that backends raise where a process died; Dask's only where Dask is imported."""
    dask = sys.modules.get("distributed")
    return (BrokenExecutor,) if dask is None else (BrokenExecutor, dask.KilledWorker)
