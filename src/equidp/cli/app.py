"""`equidp`: the list of commands, and errors as one message with exit code 2.

Imports nothing heavy, so that help, version and completion start at once: a command's module is loaded
when it is called.
"""

from __future__ import annotations

import difflib
import errno
import io
import os
import signal
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from itertools import zip_longest
from typing import Any, get_args

import cyclopts
from cyclopts import App, ArgumentCollection, CycloptsError, Parameter
from cyclopts.help import DefaultFormatter, HelpPanel
from rich.console import Console, ConsoleOptions
from rich.text import Text

from equidp._extras import EXTRAS as PACKAGES, check_extras
from equidp._files import within_command
from equidp._parts import is_import_path
from equidp._validate import names, unknown_name
from equidp.cli.messages import (
    exit_code,
    fail,
    keep_freed_memory,
    say,
    warning_printer,
)
from equidp.errors import EquidpError, SettingError
from equidp.policies.table import AUTO, METHODS

COMMANDS = {
    "inspect": "Show what is wrong with a table, and begin run.toml.",
    "train": "Train one model privately and write its model card.",
    "evaluate": "Show how good a run's model is for each group, and at what epsilon.",
    "verify": "Check the files of a run and its epsilon, or explain what the runs in a ledger spent.",
    "predict": "Predict the class of each row with a trained model.",
    "compare": "Train one model several ways and show what privacy cost each group.",
    "account": "Work out epsilon and risk from noise, or the other way round, without data.",
    "methods": "List the methods, or the settings of one of them.",
}
"""Name -> what it does. `equidp.cli.NAME:app` is the command, whose own help says more."""

EXTRAS = {
    **dict.fromkeys(("inspect", "evaluate", "verify", "predict"), "tables"),
    **dict.fromkeys(("train", "compare"), "report"),
}
"""Command -> extra that it needs; other commands need none."""


class OptionFormatter(DefaultFormatter):
    """Panels of help in which the text of an option is one paragraph, wrapped only to the terminal."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Print a panel without the line ends of the docstrings that its texts come from."""
        for entry in panel.entries:
            text = getattr(entry.description, "primary_renderable", None)
            if isinstance(text, Text):
                entry.description.primary_renderable = Text(" ".join(text.plain.split()))
        super().__call__(console, options, panel)


def command(name: str, *examples: str) -> App:
    """The app of one command, whose help ends with examples."""
    return App(name=name, help_epilogue="\n\n  ".join(("Examples:", *examples)))


def _format_default(default: Any) -> str | None:
    """Default of an option as typed; None for an empty one."""
    if default is None or default is False or default in ("", ()):
        return None
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def read_options(command: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Split lists at commas, except for --set, whose values may have commas. Reject "", for example from an
    unset variable, and 100.7 for a whole number."""
    for argument in arguments:
        kinds = (argument.hint, *get_args(argument.hint))
        if kinds[2:] == (...,) and argument.name != "--set":
            argument.tokens = [
                token.evolve(value=part)
                for token in argument.tokens
                for part in names(token.value) or ([] if kinds[1] is str else [token.value])
            ]
        if bool not in kinds and not all(token.value for token in argument.tokens):
            name = argument.name
            raise SettingError(f"{name} has an empty value; give one, or leave it out.", field=name)
        for token in argument.tokens if int in kinds and float not in kinds else ():
            if not token.value.strip().lstrip("+-").isdigit():
                raise SettingError(f"{argument.name} {token.value!r}; expected a whole number.")


def command_line(name: str, help_text: str, commands: Mapping[str, str], modules: str) -> App:
    """The app of a program with several commands, whose modules are loaded when they are called.

    Args:
        name: name of the program.
        help_text: help text of the program.
        commands: name -> what it does.
        modules: package with a module for each command, in which `app` is the command, by `command`.
    """
    made = App(
        name=name,
        help=help_text,
        version=lambda: version("equidp"),
        help_format="plaintext",
        help_formatter=OptionFormatter(),
        help_epilogue=f"{name} COMMAND --help describes a command, with examples.",
        default_parameter=Parameter(negative=(), show_default=_format_default),
        config=read_options,
        suppress_keyboard_interrupt=False,  # it would end the command without a word, and SIGTERM as SIGINT
    )
    for place, (each, what) in enumerate(commands.items()):
        made.command(f"{modules}.{each}:app", name=each, help=what, sort_key=place)
    return made


app = command_line(
    "equidp",
    "Train with differential privacy, and measure what each group loses.",
    COMMANDS,
    "equidp.cli",
)
app.register_install_completion_command(help="Install shell completion, which never starts Python.")


def check_methods(tokens: Sequence[str]) -> None:
    """Refuse an unknown method of --method or --methods before libraries load, which takes seconds.

    >>> check_methods(["compare", "--methods", "sgd,my_module:MyPolicy"])
    """
    for token, after in zip_longest(tokens, tokens[1:], fillvalue=""):
        option, equals, value = token.partition("=")
        given = value if equals else after if not after.startswith("-") else ""
        for method in names(given) if option in ("--method", "--methods") else ():
            if method not in (AUTO, *METHODS) and not is_import_path(method):
                raise unknown_name("method", method, METHODS)


def _unknown_option(error: cyclopts.UnknownOptionError) -> str:
    """Say which option is unknown, and the closest, or that it is a field of run.toml."""
    from equidp.runs.run_file import section_of  # not before: it loads torch

    name = (error.token.keyword or error.token.value).partition("=")[0].strip("-").replace("-", "_")
    takes_fields = any("--set" in argument.names for argument in error.argument_collection)
    with suppress(SettingError):
        if takes_fields:
            return (
                f"--{name.replace('_', '-')} is given by --set {section_of(name)}.{name}=..., or in run.toml."
            )
    known = {each.strip("-"): each for argument in error.argument_collection for each in argument.names}
    close = difflib.get_close_matches(name.replace("_", "-"), known, n=1, cutoff=0.7)
    text = str(error).partition(" Did you mean")[0]  # which takes dashes for likeness
    return f"{text} Did you mean {known[close[0]]}?" if close else text


def main(line: App = app) -> None:
    """Run the command of `sys.argv`."""
    keep_freed_memory()
    if isinstance(sys.stdout, io.TextIOWrapper):  # of characters that the terminal lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    warnings.showwarning = warning_printer()
    code: object = 0
    try:
        with within_command():
            _run_command(line, sys.argv[1:])
    except BrokenPipeError:  # a reader, such as head, has seen enough
        pass
    except SystemExit as end:
        code = 0 if isinstance(end.__context__, BrokenPipeError) else end.code or 0  # rich ends with 1
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes again as it ends
    sys.exit(code)  # type: ignore[arg-type]


def _run_command(line: App, tokens: list[str]) -> None:
    """Run a command, and end with one message if it cannot continue."""
    name = tokens[0] if tokens else ""
    try:
        if line is app and name in EXTRAS:
            check_extras({EXTRAS[name]: PACKAGES[EXTRAS[name]]})
            check_methods(tokens)
        if not name.startswith("-") and name in line and line[name].default_command:
            line[name].help = None  # of the list of commands; the command's own says more
        command, bound, _ = line.parse_args(tokens, print_error=False, exit_on_error=False, verbose=False)
        if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        command(*bound.args, **bound.kwargs)
        sys.stdout.flush()
    except cyclopts.UnknownCommandError:  # whose own text loads every command
        fail(str(unknown_name("command", name, [each for each in line if not each.startswith("-")])))
    except cyclopts.UnknownOptionError as error:
        fail(_unknown_option(error))
    except CycloptsError as error:
        fail(str(error))
    except EquidpError as error:
        fail("\n".join([str(error), *getattr(error, "__notes__", ())]))
    except ImportError as error:  # cyclopts's, of a command's module that help or completion loads
        if not isinstance(error.__cause__, EquidpError):
            raise
        fail(str(error.__cause__))
    except KeyboardInterrupt as stopped:  # while libraries load, or where a command has nothing to say of it
        say("stopped.")
        sys.exit(exit_code(stopped))
    except BrokenPipeError:
        raise
    except OSError as error:
        place = f"{error.filename!r}: " if error.filename else ""
        text = f"{place}{error.strerror or error}.{' Make room.' if error.errno == errno.ENOSPC else ''}"
        fail("\n".join([text, *getattr(error, "__notes__", ())]))
