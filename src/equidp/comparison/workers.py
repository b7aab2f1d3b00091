"""Processes and machines where calls are made: joblib's backends, or the workers of a Dask cluster.

`spread` and `on_cluster` yield each call with its result as calls finish, and make a call again where its
process died.
"""

from __future__ import annotations

import asyncio
import json
import platform
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError
from contextlib import contextmanager
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

import cloudpickle
import torch

from equidp._extras import require_extra
from equidp._provenance import versions
from equidp._validate import check_whole
from equidp.errors import EquidpError, SettingError

with require_extra("tables"):
    import joblib
    from joblib.externals.loky import get_reusable_executor
    from joblib.parallel import BACKENDS, get_active_backend

if TYPE_CHECKING:
    from distributed import Client, Future

TRIES = 2
"""Deaths of a call's process beside other calls before it runs alone, and alone before it is an error."""
PATIENCE = 10.0
"""Seconds to wait for a scheduler to answer, and for it to have a worker."""

_START = "Start one by dask scheduler, and give the address that it prints, such as tcp://10.0.0.5:8786."


class StaleWorker(SettingError):
    """A worker process has other code than the process that sent a call, or cannot import it."""


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
        StaleWorker: a worker process has other code, also after processes were restarted.
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
        except StaleWorker as error:  # processes of an earlier comparison; new ones read the files again
            if renewed:
                advice = "a file changed after it was imported. Restart Python, or give jobs=1."
                raise StaleWorker(f"{error}: {advice}", field=error.field) from error
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
        "more memory or fewer processes, and start the same again.",
        field="runs",
    )


def _begin(again: deque[Call], left: Iterator[Call], begun: dict[str, Call]) -> Iterator[Call]:
    while call := again.popleft() if again else next(left, None):
        begun[call.key] = call
        yield call


def _results(
    function: Callable[..., Any], calls: Iterator[Call], workers: Workers
) -> Iterator[tuple[str, Any]]:
    backend, _ = get_active_backend()
    tasks = (
        joblib.delayed(_call_with_key)(function, call.key, _Arguments(call.arguments), workers.threads)
        for call in calls
    )
    options = {"n_jobs": workers.number, "batch_size": 1, "pre_dispatch": "n_jobs"}
    if getattr(backend, "supports_return_generator", False):
        yield from joblib.Parallel(**options, return_as="generator_unordered")(tasks)
        return
    while some := list(islice(tasks, 4 * workers.number)):  # it gives results all at once
        yield from joblib.Parallel(**options)(some)


def _call_with_key(
    function: Callable[..., Any], key: str, arguments: _Arguments, threads: int | None
) -> tuple[str, Any]:
    return key, function(*arguments.values, threads)


def _deaths() -> tuple[type[Exception], ...]:
    """Exceptions that backends raise where a process died; Dask's only where Dask is imported."""
    dask = sys.modules.get("distributed")
    return (BrokenExecutor,) if dask is None else (BrokenExecutor, dask.KilledWorker)


@final
class _Arguments:
    """Arguments that another process unpickles where it can say what is missing."""

    def __init__(self, values: tuple[Any, ...] | bytes) -> None:
        self._values = values

    def __reduce__(self) -> tuple[Any, ...]:
        return _Arguments, (cloudpickle.dumps(self.values),)

    @property
    def values(self) -> tuple[Any, ...]:
        if not isinstance(self._values, bytes):
            return self._values
        try:
            values: tuple[Any, ...] = cloudpickle.loads(self._values)
        except (ImportError, AttributeError) as error:
            raise StaleWorker(f"a worker process cannot import a part of the run ({error})") from error
        return values


def check_one_place(jobs: int | None, cluster: str | None) -> None:
    """Check that jobs and cluster are not both given, and the number of jobs.

    Raises:
        SettingError: both are given, or no job at all.
    """
    if jobs is not None and cluster is not None:
        raise SettingError(
            f"jobs={jobs} and cluster={cluster!r}: a cluster trains as many runs at a time as it has "
            "workers; give one of the two."
        )
    if jobs is not None:
        check_whole(1, jobs=jobs)


@contextmanager
def connect_client(address: str | None) -> Iterator[Client | None]:
    """Connection to the scheduler at an address, or in a scheduler file, with at least one worker.

    Raises:
        MissingExtraError: the extra `cluster` is not installed; it is needed where workers run too.
        SettingError: no scheduler answers, or it has no workers.
    """
    if address is None:
        yield None
        return
    with require_extra("cluster"):
        from distributed import Client
    try:
        place = json.loads(Path(address).read_text())["address"] if address.endswith(".json") else address
        client = Client(place, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise SettingError(
            f"no scheduler answers at {address!r} ({reason}). {_START}", field="cluster"
        ) from error
    with client:
        try:
            client.wait_for_workers(1, timeout=PATIENCE)
        except TimeoutError as error:  # one class from Python 3.11 on
            raise SettingError(
                f"the scheduler at {address!r} has no workers. Start some, such as two with one thread each: "
                f"dask worker {address} --nworkers 2 --nthreads 1",
                field="cluster",
            ) from error
        yield client


def check_workers(client: Client, check: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> None:
    """Check that each worker has this process' packages, and make calls of `check` there.

    Args:
        client: of the cluster.
        check: raises what is wrong with arguments of a call on a worker.
        calls: arguments of each.

    Raises:
        SettingError: names a worker, what it has, and what it should have.
    """
    wanted = versions()
    installed = {name: client.run(version, name, on_error="return") for name in wanted if name != "python"}
    installed["python"] = client.run(platform.python_version)
    for worker in installed["python"]:
        has = {name: installed[name].get(worker) for name in wanted}
        if other := [f"{_number(has[name])} {name}" for name in wanted if has[name] != wanted[name]]:
            needs = ", ".join(f"{name} {wanted[name]}" for name in wanted if has[name] != wanted[name])
            raise SettingError(
                f"worker {worker} has {', '.join(other)}; install {needs} there, as here.",
                field="packages",
            )
    payload = cloudpickle.dumps((check, calls))
    for worker, error in client.run(_check, payload, on_error="return").items():
        if error is not None:
            raise _of_worker(worker, error)


def _number(installed: str | Exception | None) -> str:
    return "no" if installed is None or isinstance(installed, Exception) else f"{installed} of"


async def _check(payload: bytes) -> None:
    """Check in a thread, since reading data may take long and the worker must answer its scheduler."""
    await asyncio.to_thread(_check_each, payload)


def _check_each(payload: bytes) -> None:
    check, calls = cloudpickle.loads(payload)
    for arguments in calls:
        check(*arguments)


def _of_worker(worker: str, error: Exception) -> Exception:
    """Return the error with its worker and with what to do about it."""
    if isinstance(error, StaleWorker):
        return SettingError(
            f"{error}: worker {worker}. Copy the same files there, and restart it.", field=error.field
        )
    if isinstance(error, ModuleNotFoundError):
        return SettingError(f"worker {worker}: {error}. Put the module where its workers import from.")
    return (
        type(error)(f"worker {worker}: {error}", field=error.field)
        if isinstance(error, EquidpError)
        else error
    )


def on_cluster(
    function: Callable[..., Any], calls: Iterable[Call], *, client: Client
) -> Iterator[tuple[Call, Any]]:
    """Yield each call with the result of `function(*arguments, None)` on a worker, as calls finish.

    Each worker has one call at a time; the scheduler gives the calls of a worker that died to other workers.
    The name of a task is the call's key, so that a call that two clients submit at once is made once.

    Raises:
        SettingError: a call killed its worker each time, or the scheduler is gone.
    """
    with require_extra("cluster"):
        from distributed import as_completed

    def make_call(payload: bytes) -> Any:  # pickled by its code, so that the scheduler needs no equidp
        from equidp.comparison.workers import make_here

        return make_here(payload)

    left, finished = iter(calls), as_completed(loop=client.loop)
    begun: dict[Future[Any], Call] = {}
    while True:
        free = max(1, len(client.nthreads())) - len(begun)  # below 0 where workers have died
        for call in islice(left, max(0, free)):
            payload = cloudpickle.dumps((function, call.arguments))
            future = client.submit(make_call, payload, key=f"equidp-{call.key}", pure=True)
            begun[future] = call
            finished.add(future)
        if not begun:
            return
        future = next(finished)
        call = begun.pop(future)
        yield call, _result(future, call)


def make_here(payload: bytes) -> Any:
    """Make a call on a worker, and return its result.

    Args:
        payload: function and arguments, pickled.
    """
    with require_extra("cluster"):
        from distributed import get_worker

    try:
        function, arguments = cloudpickle.loads(payload)
        return function(*arguments, None)
    except (EquidpError, ModuleNotFoundError) as error:
        raise _of_worker(get_worker().address, error) from error


def _result(future: Future[Any], call: Call) -> Any:
    with require_extra("cluster"):
        from distributed import KilledWorker

    try:
        return future.result()
    except KilledWorker as error:
        raise killed_error(
            call.name, f"{error.allowed_failures + 1} workers, last {error.last_worker.address}"
        ) from error
    except CancelledError as error:
        raise SettingError(
            "the cluster's scheduler is gone, or dropped the runs. Finished runs are kept: start the cluster "
            "again, and then the same comparison.",
            field="cluster",
        ) from error
