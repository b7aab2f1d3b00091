"""Runs on the workers of a Dask cluster, each with its own memory, disk and copy of the data."""

from __future__ import annotations

import asyncio
import json
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle

from equidp._provenance import versions
from equidp.comparison.grid import Cell, StaleWorker, check_here, facts
from equidp.comparison.spread import Call, killed_error
from equidp.errors import EquidpError, SettingError
from equidp.training.device import chosen_device

if TYPE_CHECKING:
    from distributed import Client, Future

PATIENCE = 10.0
"""Seconds to wait for a scheduler to answer, and for it to have a worker."""

_START = "Start one by dask scheduler, and give the address that it prints, such as tcp://10.0.0.5:8786."


def check_one_place(jobs: int | None, cluster: str | None) -> None:
    """Check that jobs and cluster are not both given.

    Raises:
        SettingError: both are given.
    """
    if jobs is not None and cluster is not None:
        raise SettingError(
            f"jobs={jobs} and cluster={cluster!r}: a cluster trains as many runs at a time as it has "
            "workers; give one of the two."
        )


@contextmanager
def connect_client(address: str | None) -> Iterator[Client | None]:
    """Connection to the scheduler at an address, or in a scheduler file, with at least one worker.

    Raises:
        SettingError: the extra is not installed, no scheduler answers, or it has no workers.
    """
    if address is None:
        yield None
        return
    try:
        from distributed import Client
    except ImportError as error:
        raise SettingError(
            f"a cluster needs the package distributed ({error}); install it with pip install "
            "'equidp[cluster]', here and where its workers run."
        ) from error
    try:
        place = json.loads(Path(address).read_text())["address"] if address.endswith(".json") else address
        client = Client(place, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise SettingError(f"no scheduler answers at {address!r} ({reason}). {_START}") from error
    with client:
        try:
            client.wait_for_workers(1, timeout=PATIENCE)
        except TimeoutError as error:  # one class from Python 3.11 on
            raise SettingError(
                f"the scheduler at {address!r} has no workers. Start some, such as two with one thread each: "
                f"dask worker {address} --nworkers 2 --nthreads 1"
            ) from error
        yield client


def check_workers(client: Client, cells: Sequence[Cell]) -> None:
    """Check that each worker has this process' packages, code and data, and the device to train on.

    Args:
        cells: runs to check; of one seed, since each seed has its own split.

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
            raise SettingError(f"worker {worker} has {', '.join(other)}; install {needs} there, as here.")
    payload = cloudpickle.dumps([(cell, facts(cell)) for cell in cells])
    for worker, error in client.run(_check, payload, on_error="return").items():
        if error is not None:
            raise _of_worker(worker, error)


def _number(installed: str | Exception | None) -> str:
    return "no" if installed is None or isinstance(installed, Exception) else f"{installed} of"


async def _check(payload: bytes) -> None:
    """Check in a thread, since reading data may take long and the worker must answer its scheduler."""
    await asyncio.to_thread(_check_each, payload)


def _check_each(payload: bytes) -> None:
    for cell, asked in cloudpickle.loads(payload):
        check_here(cell, asked)
        chosen_device(cell.device)


def _of_worker(worker: str, error: Exception) -> Exception:
    """Return the error with its worker and with what to do about it."""
    if isinstance(error, StaleWorker):
        return SettingError(f"{error}: worker {worker}. Copy the same files there, and start it anew.")
    if isinstance(error, ModuleNotFoundError):
        return SettingError(f"worker {worker}: {error}. Put the module where its workers import from.")
    return type(error)(f"worker {worker}: {error}") if isinstance(error, EquidpError) else error


def on_cluster(
    function: Callable[..., Any], calls: Iterable[Call], *, client: Client
) -> Iterator[tuple[Call, Any]]:
    """Yield each call with the result of `function(*arguments, None)` on a worker, as calls finish.

    Each worker has one call at a time; the scheduler gives the calls of a worker that died to other workers.
    The name of a task is the call's key, so that a call that two clients submit at once is made once.

    Raises:
        SettingError: a call killed its worker each time, or the scheduler is gone.
    """
    from distributed import as_completed

    def make_call(payload: bytes) -> Any:  # pickled by its code, so that the scheduler needs no equidp
        from equidp.comparison.cluster import make_here

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
    from distributed import get_worker

    try:
        function, arguments = cloudpickle.loads(payload)
        return function(*arguments, None)
    except (EquidpError, ModuleNotFoundError) as error:
        raise _of_worker(get_worker().address, error) from error


def _result(future: Future[Any], call: Call) -> Any:
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
            "anew, and then the same comparison."
        ) from error
