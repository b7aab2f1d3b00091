"""What the commands share. They parse, call, and turn equidp's own errors into one clear message and exit code 2."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from equidp._validate import names
from equidp.cli.memory import keep_freed_memory
from equidp.comparison.grid import Progress as ProgressHook
from equidp.errors import (
    ApproximationWarning,
    DataWarning,
    EquidpError,
    PrivacyWarning,
    SettingError,
    TrainingStopped,
)

app = typer.Typer(
    name="equidp",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Train with differential privacy, see what it costs each group, and even that out.",
)
messages = Console(stderr=True)


def main() -> None:
    """Entry point of the `equidp` command."""
    keep_freed_memory()
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    try:
        app()
    except EquidpError as error:
        sys.exit(_fail(str(error)))
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        place = f"{error.filename!r}: " if error.filename else ""
        sys.exit(_fail(f"{place}{error.strerror or error}."))


@contextmanager
def stoppable(otherwise: str) -> Iterator[None]:
    """Has a stopped command end with a sentence on how to go on, `otherwise` where the interruption has none."""
    try:
        yield
    except TrainingStopped as stopped:
        say(str(stopped))
        raise typer.Exit(128 + stopped.signal) from stopped
    except KeyboardInterrupt as stopped:
        say(otherwise)
        raise typer.Exit(130) from stopped


def say(text: str) -> None:
    """A line for a person, beside the results on standard output."""
    messages.print(escape(text), highlight=False, soft_wrap=True)


def numbers(option: str, text: str) -> list[float]:
    try:
        given = [float(number) for number in names(text)]
        if not given:
            raise ValueError
        return given
    except ValueError:
        raise SettingError(
            f"{option} {text!r}; expected a number, or several with commas between them."
        ) from None


def _fail(text: str) -> int:
    messages.print(f"[bold red]error:[/] {escape(text)}", highlight=False, soft_wrap=True)
    return 2


def _show_warning(message: Warning | str, category: type[Warning], *_: Any) -> None:
    if issubclass(category, PrivacyWarning | DataWarning | ApproximationWarning):
        messages.print(f"[bold yellow]warning:[/] {escape(str(message))}", highlight=False, soft_wrap=True)


@contextmanager
def progress_bar() -> Iterator[ProgressHook]:
    """A bar over the steps of all runs, with the time left; shown on a terminal only."""
    columns = (
        TextColumn("training"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=messages, transient=True, disable=not messages.is_terminal) as progress:
        task = progress.add_task("training", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
