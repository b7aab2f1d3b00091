"""Messages of commands to a person, on standard error beside the results."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from rich.console import Console
from rich.markup import escape

from equidp.cli.process import rank, wait_for_the_first
from equidp.errors import ApproximationWarning, CacheWarning, DataWarning, PrivacyWarning, TrainingStopped

_console = Console(stderr=True)

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all) now and then."""


def say(text: str, heading: str = "") -> None:
    """Print a message as it stands, after a heading in rich's markup; of several processes, the first."""
    if not rank():
        _print(text, heading)


def _print(text: str, heading: str) -> None:
    _console.print(f"{heading}{escape(text)}", highlight=False, soft_wrap=True)


def fail(text: str) -> NoReturn:
    """End the command with one message and exit code 2; of several processes, the first says it."""
    wait_for_the_first()
    _print(text, f"[bold red]{f'process {rank()}: ' if rank() else ''}error:[/] ")
    sys.exit(2)


def warning_printer() -> Callable[..., None]:
    """Return a `warnings.showwarning` that prints each of equidp's own warnings once, and no others."""
    said: set[str] = set()

    def show_warning(message: Warning | str, category: type[Warning], *_: Any) -> None:
        own = issubclass(category, PrivacyWarning | DataWarning | ApproximationWarning | CacheWarning)
        if own and str(message) not in said:
            said.add(str(message))
            say(str(message), "[bold yellow]warning:[/] ")

    return show_warning


class Terminated(KeyboardInterrupt):
    """SIGTERM ended a command outside of training, where it ends one as Ctrl-C does."""


def exit_code(stopped: KeyboardInterrupt) -> int:
    """Exit code of a command that a signal stopped: 128 and the signal's number."""
    if isinstance(stopped, TrainingStopped):
        return 128 + stopped.signal
    return 128 + (signal.SIGTERM if isinstance(stopped, Terminated) else signal.SIGINT)


@contextmanager
def termination_in_words() -> Iterator[None]:
    """Raise `Terminated` at SIGTERM, which would end the command without a word.

    Processes of torchrun end at once: one that waits for the others could not end in words.
    """
    own = threading.current_thread() is threading.main_thread() and "TORCHELASTIC_RUN_ID" not in os.environ
    if not own or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise Terminated

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def stoppable(otherwise: str | Callable[[], str]) -> Iterator[None]:
    """End a stopped command with a sentence on how to continue: the interruption's own, or `otherwise`."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        own = str(stopped) if isinstance(stopped, TrainingStopped) else ""
        say(own or (otherwise if isinstance(otherwise, str) else otherwise()))
        sys.exit(exit_code(stopped))


def progress_lines(every: float = 30.0, clock: Callable[[], float] = time.monotonic) -> Progress:
    """Say what share of the work is done, and about how long the rest takes, at most every `every` seconds;
    nothing where all is done before."""
    began = said = clock()

    def say_progress(done: int, total: int) -> None:
        from equidp.training.progress import duration

        nonlocal began, said
        if not done:  # the next runs that train together
            began = clock()
            return
        if clock() - said < every:
            return
        said = clock()
        share, left = done / total, ""
        if 0.05 <= share < 1:  # less says little about the rest
            left = f", about {duration((said - began) * (1 / share - 1))} left"
        say(f"{share:.0%} done{left}.")

    return say_progress


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Show a bar over the work of all runs with the time left; in a log, a line now and then."""
    if not _console.is_terminal:
        yield progress_lines()
        return
    from rich import progress as rich

    columns = (*rich.Progress.get_default_columns(), rich.TimeElapsedColumn())
    with rich.Progress(*columns, console=_console, transient=True) as progress:
        task = progress.add_task("training", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
