"""`equidp`: the list of commands, options from a TOML file, and errors as one message with exit code 2.

Imports nothing heavy, so that help, version and completion start at once: a command's module is loaded
when it is called.
"""

from __future__ import annotations

import difflib
import errno
import io
import os
import re
import sys
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

import cyclopts
from cyclopts import App, Argument, ArgumentCollection, CycloptsError, Parameter
from cyclopts.config import Dict
from cyclopts.help import DefaultFormatter, HelpPanel
from rich.console import Console, ConsoleOptions
from rich.text import Text

from equidp._extras import EXTRAS as PACKAGES, check_extras
from equidp._files import toml_failure
from equidp._validate import names, unknown_name
from equidp.cli.messages import exit_code, fail, say, termination_in_words, warning_printer
from equidp.cli.process import keep_freed_memory
from equidp.errors import EquidpError, SettingError

COMMANDS = {
    "inspect": "Show what is in a table before it is used, and write a recipe for it.",
    "train": "Train one model privately and write its model card.",
    "evaluate": "Show the guarantee of a run, its metrics by group, and what privacy cost each group.",
    "verify": "Check the files of a run, and its epsilon by dp_accounting alone.",
    "predict": "Predict the class of each row with a trained model.",
    "compare": "Train one model several ways and show what privacy cost each group.",
    "account": "Work out epsilon and risk from noise, or the other way round, without data.",
    "ledger": "Explain what a run or a budget has spent.",
    "methods": "List the methods, or the settings of one of them.",
}
"""Name -> what it does. `equidp.cli.NAME:app` is the command, whose own help says more."""

EXTRAS = {
    **dict.fromkeys(("inspect", "evaluate", "verify", "predict"), "tables"),
    **dict.fromkeys(("train", "compare"), "report"),
}
"""Command -> extra that it needs; other commands need none."""

OPTION_EXTRAS: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "--features": {"efficientnet-lite0": ("features", PACKAGES["features"])},
}
"""Option -> value that needs more than its command -> extra, and the packages of it."""

Shell = Literal["bash", "zsh", "fish", "powershell"]


class OptionFormatter(DefaultFormatter):
    """Panels of help in which what is said of an option is one paragraph, wrapped to the terminal alone."""

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
    """Split lists at commas, and add options from the file of `--config`; the command line overrides them.

    Raises:
        SettingError: a file that cannot be read or has a value that cannot be.
        CycloptsError: the file has an option that the command does not have.
    """
    for argument in arguments:
        if _is_list(argument):
            argument.tokens = [
                token.evolve(value=part)
                for token in argument.tokens
                for part in _parts(argument, token.value)
            ]
    config = arguments.get("--config", None)
    if config is not None and config.tokens:
        path = config.tokens[0].value
        read = _read(path)
        _add_settings(path, read.pop("set", {}), arguments.get("--set", None))
        content = {
            name: _check_value(path, name, value, arguments.get(f"--{name}", None))
            for name, value in read.items()
        }
        # Below the command's name: at the top, cyclopts passes over keys that are names of commands.
        Dict({commands[0]: content}, source=repr(path))(command, commands[:1], arguments)
    for argument in arguments:
        kinds = (argument.hint, *get_args(argument.hint))
        takes_text = not {bool, int, float} & {*kinds} and not _is_list(argument)
        if takes_text and Path not in kinds and not all(token.value for token in argument.tokens):
            raise SettingError(
                f"{argument.name} '' has no value, as of a variable without one; give one, or leave it out.",
                field=argument.name,
            )
        for token in argument.tokens:
            if "\0" in token.value or (Path in kinds and not token.value):
                raise SettingError(f"{argument.name} {token.value!r}; expected a path.")
        for token in argument.tokens if int in kinds and float not in kinds else ():
            if token.value and not token.value.strip().lstrip("+-").isdigit():
                raise SettingError(f"{argument.name} {token.value!r}; expected a whole number.")


def _add_settings(path: str, settings: Any, argument: Argument | None) -> None:
    """Give the settings of the table [set] of a file as --set does, but for those that --set gives."""
    if not settings:
        return
    if not isinstance(settings, dict) or argument is None:
        raise SettingError(f"set in {path!r}; expected a table [set] of settings, of train or compare.")
    given = {token.value.partition("=")[0].strip().replace("-", "_") for token in argument.tokens}
    for name, value in settings.items():
        if name.replace("-", "_") not in given:
            text = str(value).lower() if isinstance(value, bool) else value
            argument.append(cyclopts.Token(keyword="--set", value=f"{name}={text}", source=repr(path)))


def _is_list(argument: Argument) -> bool:
    return get_args(argument.hint)[1:] == (...,)


def _parts(argument: Argument, text: str) -> list[str]:
    """Texts between commas; an empty text is an empty list of texts, but not a number."""
    return names(text) or ([] if get_args(argument.hint)[0] is str else [text])


@cache
def config_text(path: Path) -> str:
    """The text of a file of options, read once by a command: it may be a pipe."""
    return path.read_text(encoding="utf-8")


def _read(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(config_text(Path(path)))
    except (OSError, ValueError) as error:
        raise SettingError(f"--config {path!r} {toml_failure(error)}.") from error


def _check_value(path: str, name: str, value: Any, option: Argument | None) -> Any:
    """Value of a TOML file, in the form that its option takes."""
    if option is None:
        return value  # refused later, with the closest name
    kinds, several = {option.hint, *get_args(option.hint)}, _is_list(option)
    if bool in kinds:
        expected, fits = "true or false", isinstance(value, bool)
    elif kinds & {int, float} and not several:
        expected = "a number" if float in kinds else "a whole number"
        fits = isinstance(value, int | float | str) and not isinstance(value, bool)
    else:
        expected = "a list, or a text with commas" if several else "a text"
        plain = value if several and isinstance(value, list) else [value]
        fits = all(isinstance(each, int | float | str) and not isinstance(each, bool) for each in plain)
    if not fits:
        given = (
            "a table" if isinstance(value, dict) else str(value).lower() if value in (True, False) else value
        )
        raise SettingError(f"{name} in {path!r} is {given}; expected {expected}.")
    return names(value) if isinstance(value, str) and several else value


def command_line(name: str, help_text: str, commands: Mapping[str, str], modules: str) -> App:
    """The app of a program with several commands, whose modules are loaded when they are called.

    Args:
        name: of the program.
        help_text: of the program.
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
    "Train with differential privacy, and know what it costs each group.",
    COMMANDS,
    "equidp.cli",
)
app.register_install_completion_command(help="Install completion for a shell, which never starts Python.")


@app.command(name="--show-completion")
def show_completion(shell: Shell | None = None) -> None:
    """Print what --install-completion would install."""
    sys.stdout.write(app.generate_completion(shell=shell))


_UNREADABLE = re.compile(
    r'Invalid value for (.+?): unable to convert "(.*)" into (float|int|bool)\.?', re.DOTALL
)
_EXPECTED = {
    "float": "a number, such as 3 or 0.5",
    "int": "a whole number, such as 3",
    "bool": "true or false",
}


def _error_text(error: CycloptsError) -> str:
    """A parser's message with names of a TOML file as they stand there: a.b in place of [a][b]."""
    text = re.sub(r"\[([\w-]+(?:\]\[[\w-]+)*)\]", lambda found: found[1].replace("][", "."), str(error))
    if found := _UNREADABLE.fullmatch(text):
        option, value, kind = found.groups()
        one = " (one, with a decimal point)" if "," in value and kind != "bool" else ""
        return f"{option} is {value!r}; expected {_EXPECTED[kind]}{one}."
    return text


def _unknown_option(error: cyclopts.UnknownOptionError) -> str:
    """Say which option is unknown, and the closest: two dashes that both have make none alike."""
    text = _error_text(error).partition(" Did you mean")[0]
    given = (error.token.keyword or error.token.value).partition("=")[0].strip("-").replace("_", "-")
    known = {name.strip("-"): name for argument in error.argument_collection for name in argument.names}
    close = difflib.get_close_matches(given, known, n=1, cutoff=0.7)
    return f"{text} Did you mean {known[close[0]]}?" if close else text


def _with_notes(text: str, error: BaseException) -> str:
    """The text of an error, and on lines of their own what a command adds to it."""
    return "\n".join([text, *getattr(error, "__notes__", ())])


def _missing(error: cyclopts.MissingArgumentError, called: str, tokens: list[str]) -> str:
    """Say which argument a command lacks, and what it is."""
    argument = error.argument
    assert argument is not None, "cyclopts names the argument that it misses"
    if argument.name in tokens:
        return f"{argument.name} has no value; give one after it."
    what = " ".join((argument.parameter.help or "").split())
    return f"{called} needs {argument.name}{f': {what[0].lower()}{what[1:]}' if what else '.'}"


def option_values(tokens: Sequence[str]) -> list[tuple[str, str]]:
    """(option, value) of a command line and its file of options, before they are parsed; lists are split."""
    given = [(name, value) for name, _, value in (token.partition("=") for token in tokens)]
    given += [(name, after) for (name, value), after in zip(given, tokens[1:], strict=False) if not value]
    with suppress(SettingError):
        files = [_read(value) for name, value in given if name == "--config" and value]
        given += [(f"--{key}", str(value)) for file in files for key, value in file.items()]
    return [(name, text) for name, value in given for text in re.split(r"[\s,'\"\[\]]+", value) if text]


def needed_packages(tokens: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Packages that a command line needs beside the core, by extra."""
    if not tokens or tokens[0] not in EXTRAS:
        return {}
    needed = {EXTRAS[tokens[0]]: PACKAGES[EXTRAS[tokens[0]]]}
    for name, text in option_values(tokens[1:]):
        extra, packages = OPTION_EXTRAS.get(name, {}).get(text.partition("@")[0], ("", ()))
        if extra:
            needed[extra] = tuple(dict.fromkeys((*needed.get(extra, ()), *packages)))
    return needed


def main(line: App = app) -> None:
    """Run the command of `sys.argv`."""
    keep_freed_memory()
    if isinstance(sys.stdout, io.TextIOWrapper):  # of characters that the terminal lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    warnings.showwarning = warning_printer()
    config_text.cache_clear()
    code: object = 0
    try:
        with termination_in_words():
            _run_command(line, sys.argv[1:])
    except BrokenPipeError:  # a reader, such as head, has seen enough
        pass
    except SystemExit as end:
        code = 0 if isinstance(end.__context__, BrokenPipeError) else end.code or 0  # rich ends with 1
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes again as it ends
        if not code and not isinstance(error, BrokenPipeError):
            fail(
                f"standard output took no more ({error.strerror}), so a part of what was printed is lost. "
                "What was to be written to files is there."
            )
    sys.exit(code)  # type: ignore[arg-type]


def _run_command(line: App, tokens: list[str]) -> None:
    """Run a command, and end with one message where it cannot go on."""
    commands = [name for name in line if not name.startswith("-")]
    called = " ".join([*line.name, *tokens[:1]])
    try:
        if "TORCHELASTIC_RUN_ID" in os.environ and tokens[:1] != ["train"]:
            fail("torchrun is for equidp train; start other commands without it.")
        if line is app:
            check_extras(needed_packages(tokens))
        if tokens and tokens[0] in commands and line[tokens[0]].default_command:
            line[tokens[0]].help = None  # of the list of commands; the command's own says more
        line(tokens, print_error=False, exit_on_error=False, verbose=False)
    except cyclopts.UnknownCommandError as error:
        fail(str(error if tokens[0] in commands else unknown_name("command", tokens[0], commands)))
    except cyclopts.UnusedCliTokensError as error:
        listed = ", ".join(map(repr, error.unused_tokens or ()))
        many = "are arguments" if len(error.unused_tokens or ()) > 1 else "is one argument"
        fail(f"{listed} {many} too many, or given twice; see {called} --help.")
    except cyclopts.MissingArgumentError as error:
        fail(_missing(error, " ".join([*line.name, *(error.command_chain or tokens[:1])]), tokens))
    except cyclopts.RepeatArgumentError as error:
        fail(f"{error.token.keyword} is given twice; give it once, with commas between several values.")
    except cyclopts.UnknownOptionError as error:
        chain = " ".join([*line.name, *(error.command_chain or ())])
        fail(f"{_unknown_option(error)} {chain} --help lists the options.")
    except CycloptsError as error:
        fail(_error_text(error))
    except EquidpError as error:
        fail(_with_notes(str(error), error))
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
        room = " Make room." if error.errno == errno.ENOSPC else ""
        again = " Then run the command again." if room and not getattr(error, "__notes__", ()) else ""
        fail(_with_notes(f"{place}{error.strerror or error}.{room}{again}", error))
