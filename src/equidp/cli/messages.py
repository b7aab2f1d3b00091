"""What commands say to a person, on standard error beside the results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from rich.console import Console
from rich.markup import escape

from equidp.errors import ApproximationWarning, DataWarning, PrivacyWarning, TrainingStopped

_console = Console(stderr=True)


def say(text: str, heading: str = "") -> None:
    """Prints a message as it stands, after a heading in rich's markup."""
    _console.print(f"{heading}{escape(text)}", highlight=False, soft_wrap=True)


def fail(text: str) -> NoReturn:
    """Ends the command with one message and exit code 2."""
    say(text, "[bold red]error:[/] ")
    sys.exit(2)


def show_warning(message: Warning | str, category: type[Warning], *_: Any) -> None:
    """Prints equidp's own warnings and no others; for `warnings.showwarning`."""
    if issubclass(category, PrivacyWarning | DataWarning | ApproximationWarning):
        say(str(message), "[bold yellow]warning:[/] ")


@contextmanager
def stoppable(otherwise: str) -> Iterator[None]:
    """Ends a stopped command with a sentence on how to continue: the interruption's own, or `otherwise`."""
    try:
        yield
    except TrainingStopped as stopped:
        say(str(stopped))
        sys.exit(128 + stopped.signal)
    except KeyboardInterrupt:
        say(otherwise)
        sys.exit(130)


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int], None]]:
    """Shows a bar over the steps of all runs with the time left, on a terminal only."""
    from rich.progress import Progress, TimeElapsedColumn

    columns = (*Progress.get_default_columns(), TimeElapsedColumn())
    with Progress(*columns, console=_console, transient=True, disable=not _console.is_terminal) as progress:
        task = progress.add_task("training", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
