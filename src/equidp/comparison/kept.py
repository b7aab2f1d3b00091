"""Runs kept in a folder: each is trained once, also where two comparisons share the folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, final

from filelock import FileLock, Timeout

from equidp.comparison import grid
from equidp.comparison.grid import Cell, facts
from equidp.comparison.outputs import keep_outputs, outputs_path
from equidp.comparison.spread import Call
from equidp.training.record import RunRecord

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all) after each finished run."""

Spread = Callable[[Callable[..., Any], Iterable[Call]], Iterable[tuple[Call, Any]]]
"""Makes calls of a function somewhere, and yields each with its result, as calls finish."""

_PAUSE = 1.0
"""Seconds between checks of runs that another process trains."""


def train_all(
    cells: Sequence[Cell],
    folder: Path,
    spread: Spread,
    on_progress: Progress | None,
    *,
    fresh: bool = False,
) -> list[RunRecord]:
    """Train the runs that are not in the folder yet, and read the records of all.

    This process alone writes into the folder, so that workers need no disk in common with it. A run that
    another process trains into the folder at this moment is waited for. With `fresh`, runs that are in the
    folder are removed first.
    """
    asked = {folder / cell.file_name(): cell for cell in cells}
    if fresh:
        for path in asked:
            path.unlink(missing_ok=True)
            outputs_path(path).unlink(missing_ok=True)
    total = sum(cell.plan.steps for cell in _missing(asked).values())
    while missing := _missing(asked):
        done = total - sum(cell.plan.steps for cell in missing.values())
        if on_progress is not None:
            on_progress(done, total)
        claims = _Claims(missing)
        try:
            for call, finished in spread(grid.train_cell, claims):
                path = folder / call.key
                keep_outputs(path, finished.outputs)
                finished.record.save(path)
                claims.release(path)
                done += missing[path].plan.steps
                if on_progress is not None:
                    on_progress(done, total)
        finally:
            claims.release(*missing)
        if not claims.given:
            time.sleep(_PAUSE)
    return [RunRecord.load(path) for path in (folder / cell.file_name() for cell in cells)]


def _missing(asked: Mapping[Path, Cell]) -> dict[Path, Cell]:
    return {path: cell for path, cell in asked.items() if not is_kept(path)}


@final
class _Claims:
    """Missing runs that no other process trains, each locked when it is taken."""

    def __init__(self, missing: Mapping[Path, Cell]) -> None:
        self.given = 0
        self._missing, self._locks = missing, dict[Path, FileLock]()

    def __iter__(self) -> Iterator[Call]:
        for path, cell in self._missing.items():
            # joblib takes calls in threads of its own.
            lock = FileLock(path.with_suffix(".lock"), thread_local=False, fallback_to_soft=False)
            try:
                lock.acquire(blocking=False)
            except Timeout:
                continue
            except OSError:  # a file system without locks
                pass
            self._locks[path] = lock
            if is_kept(path):  # since a moment ago
                self.release(path)
                continue
            self.given += 1
            yield Call(path.name, cell.label, (cell, facts(cell)))

    def release(self, *paths: Path) -> None:
        """Release the locks of these runs; unlocked runs are skipped. A lock's file is removed while held."""
        for path in paths:
            if (lock := self._locks.pop(path, None)) is not None:
                with suppress(OSError):
                    os.unlink(lock.lock_file)
                lock.release()


def is_kept(path: Path) -> bool:
    """True where a run's record and its outputs are in the folder."""
    return path.exists() and outputs_path(path).exists()
