"""Progress across processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from equidp.training.trainer import Callback, Trainer

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all) now and then."""


_TICK = 0.3  # seconds between signs of life


class _StepFile(Callback):
    """Leaves the number of steps done in a file, which another process reads for its progress bar."""

    def __init__(self, path: Path) -> None:
        self._path, self._last = path, 0.0

    def after_step(self, trainer: Trainer) -> None:
        if time.monotonic() - self._last > _TICK:
            self._path.write_text(str(trainer.steps_done))
            self._last = time.monotonic()


@contextmanager
def _watched(step_files: list[Path], total: int, on_progress: Progress | None) -> Iterator[None]:
    """Reports the sum of the step files until the block ends."""
    if on_progress is None or not step_files:
        yield
        return
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(_TICK):
            on_progress(sum(_read_count(path) for path in step_files), total)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()
    on_progress(total, total)


def _read_count(path: Path) -> int:
    try:
        return int(path.read_text() or 0)
    except OSError:
        return 0
