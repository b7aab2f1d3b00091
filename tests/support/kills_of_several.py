"""Kills one process of several at counted moments, and checks that the others stop and the run completes.

As `support.kills`, with one more kind of moment: the k-th message between processes.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed as dist

from equidp.errors import EquidpError
from equidp.runs.begin import begin, prepare
from equidp.runs.train import train
from support.kills import (
    KINDS,
    Moment,
    Tally,
    check_complete,
    check_killed,
    config_of_run,
    prepare_child,
)

_SECONDS = 60.0
"""What others may take to notice; they take a fraction of a second on an idle machine."""


@dataclass
class TallyOfSeveral(Tally):
    """What was seen; `hung` counts processes that went on after another was killed. Must stay 0.

    Attributes:
        hung: see above.
        counts: numbers of processes that runs were started or resumed with.
        slowest: seconds until the last process of a group had ended after a kill.
    """

    kills: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys([*KINDS, "message of the first", "message of another"], 0)
    )
    hung: int = 0
    counts: set[int] = field(default_factory=set)
    slowest: float = 0.0


def kill_one_of_several(
    kills: int, folder: Path, *, seed: int = 0, each: int = 5, epochs: float = 24.0
) -> TallyOfSeveral:
    """Train on scikit-learn's digits until so many processes were killed; each run is killed `each` times,
    resumed with another number of processes every time, and then left to end. Each kind of moment comes
    equally often; one that did not come before a run had ended is tried again in the next."""
    tally, moments, number = TallyOfSeveral(), random.Random(seed), 0
    kinds: list[str] = []
    while sum(tally.kills.values()) < kills:
        run = folder / f"run-{number}"
        prepared = prepare(config_of_run(number, folder, epochs))
        begin(prepared, run)
        count = 1  # so that a run begins with several
        for attempt in range(each + 1):
            if not kinds:
                kinds = moments.sample(list(tally.kills), len(tally.kills))
            kind = None if attempt == each else kinds.pop()
            several = not attempt or (kind or "").startswith("message")  # which one process never sends
            count = moments.choice([other for other in (1, 2, 3) if other != count and other > several])
            tally.counts.add(count)
            if _trained(run, count, kind, moments.randint(1, KINDS.get(kind or "", 40)), tally):
                kinds += [] if kind is None else [kind]
                break
        check_complete(run, prepared.trainer.steps, tally)
        number += 1
    return tally


def _trained(run: Path, count: int, kind: str | None, nth: int, tally: TallyOfSeveral) -> bool:
    """Whether the processes got to the end of the run before one of them was killed."""
    victim = count - 1 if kind == "message of another" else 0
    store = run.parent / f"store-{time.monotonic_ns()}"
    children = [
        _started(run, rank, count, store, kind if rank == victim else None, nth) for rank in range(count)
    ]
    status = os.waitpid(children[victim], 0)[1]
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    began, others = time.monotonic(), {child for child in children if child != children[victim]}
    codes = []
    while others and time.monotonic() < began + _SECONDS:
        for child in list(others):
            ended, other_status = os.waitpid(child, os.WNOHANG)
            if ended:
                others.remove(child)
                codes.append(os.waitstatus_to_exitcode(other_status))
        time.sleep(0.005)
    for child in others:
        tally.hung += 1
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if not killed:
        assert [os.waitstatus_to_exitcode(status), *codes] == [0] * count, "a run could not be resumed"
        return True
    assert kind is not None
    tally.slowest = max(tally.slowest, time.monotonic() - began)
    tally.kills[kind] += 1
    check_killed(run, tally)
    return False


def _started(run: Path, rank: int, count: int, store: Path, kind: str | None, nth: int) -> int:
    """A process of the group, which kills itself at the nth moment of this kind."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        if rank == 0:
            prepare_child(run, Moment(kind, nth) if kind in KINDS else None)
        if count > 1:
            dist.init_process_group(
                "gloo", rank=rank, world_size=count, store=dist.FileStore(str(store), count)
            )
        if kind is not None and kind.startswith("message"):
            _die_at_message(nth)
        train(run)
        code = 0
    except EquidpError as error:
        print(f"process {rank} of {count}: {type(error).__name__}: {error}", file=sys.stderr)
    except BaseException:
        traceback.print_exc(file=sys.stderr)
    with suppress(Exception):
        sys.stderr.flush()
    os._exit(code)


def _die_at_message(nth: int) -> None:
    """Make this process die before its nth message."""
    sent = 0

    def counted(send: Any) -> Any:
        def counted_send(*given: Any, **settings: Any) -> Any:
            nonlocal sent
            sent += 1
            if sent == nth:
                os.kill(os.getpid(), signal.SIGKILL)
            return send(*given, **settings)

        return counted_send

    dist.broadcast, dist.reduce = counted(dist.broadcast), counted(dist.reduce)  # type: ignore[assignment]
