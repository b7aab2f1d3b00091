"""A comparison on a cluster of this machine, one of whose workers is killed while it trains."""

from __future__ import annotations

import os
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import distributed
import equidp

GIVEN: dict[str, Any] = {
    "methods": ["dpsgd", "dpsgd-f", "global-adapt"],
    "plan": equidp.Plan(batch_size=300, epochs=1),
    "baseline": "plan",
}


@dataclass(frozen=True)
class Tally:
    """What became of a comparison.

    Attributes:
        comparison: its figures.
        killed: ids of the processes that were killed, in order.
        finished: run -> how often a worker finished it.
        before: run in the folder at the call of progress before a kill -> how often it was finished by the
            first such kill. The scheduler no longer holds its result.
        kept: all runs in the folder.
    """

    comparison: equidp.Comparison
    killed: list[int]
    finished: Counter[str]
    before: dict[str, int]
    kept: set[str]

    @property
    def again(self) -> set[str]:
        """Runs that were made again after the folder had them."""
        return {run for run, times in self.before.items() if self.finished[run] > times}


def compare_and_kill(folder: Path, *, seeds: int, kills: int) -> Tally:
    """Compare on two workers, and kill the process of one of them again and again, evenly spread.

    Args:
        folder: where runs are kept.
        seeds: of 4 runs each.
        kills: how many.
    """
    killed: list[int] = []
    before: dict[str, int] = {}
    at_last_call: set[str] = set()

    def kept() -> set[str]:
        return {path.stem for path in folder.glob("*.index")}

    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as workers,
        distributed.Client(workers, set_as_default=False) as client,
    ):

        def kill(done: int, total: int) -> None:
            if len(killed) < kills and done >= (len(killed) + 1) * total / (kills + 2):
                found = dict(client.run(_who, on_error="ignore").values())
                if 0 in found and found[0] not in killed:  # it is back
                    times = Counter(client.run_on_scheduler(_finished))
                    before.update({run: times[run] for run in at_last_call - before.keys()})
                    os.kill(found[0], signal.SIGKILL)
                    killed.append(found[0])
            at_last_call.update(kept())

        comparison = equidp.compare(
            **GIVEN, seeds=seeds, directory=folder, cluster=workers.scheduler_address, on_progress=kill
        )
        finished = Counter(client.run_on_scheduler(_finished))
    return Tally(comparison, killed, finished, before, kept())


def _who(dask_worker: Any) -> tuple[int, int]:
    """A worker's number, which stays when its process is made anew, and the id of its process."""
    return dask_worker.name, os.getpid()


def _finished(dask_scheduler: Any) -> list[str]:
    """The name of each run, as often as it came to an end."""
    log = dask_scheduler.state.transition_log if hasattr(dask_scheduler, "state") else None
    log = dask_scheduler.transition_log if log is None else log
    ended = [str(key) for key, _, finish, *_ in log if finish == "memory"]
    return [key.removeprefix("equidp-") for key in ended if key.startswith("equidp-")]
