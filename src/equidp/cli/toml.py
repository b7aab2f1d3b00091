"""Options from a TOML file."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import Any

import typer

from equidp._validate import unknown_name
from equidp.errors import SettingError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Callback of `--config`: makes what the file says the defaults of the other options.

    Raises:
        SettingError: no such file, no TOML, an option that the command does not have, or a value that none takes.
    """
    if path is None:
        return None
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingError(f"--config {str(path)!r} cannot be read as TOML: {reason}.") from error
    parameters = {parameter.name or "": parameter for parameter in context.command.params}
    known = parameters.keys() - {"config", "help"}
    defaults = {}
    for name, value in content.items():
        option = name.replace("-", "_")
        if option not in known:
            raise unknown_name(f"option in {str(path)!r}", name, known)
        if isinstance(value, bool) != getattr(parameters[option], "is_flag", False):
            expected = "a value" if isinstance(value, bool) else "true or false"
            raise SettingError(f"{name} in {str(path)!r} is {str(value).lower()}; expected {expected}.")
        defaults[option] = _plain(path, name, value)
    context.default_map = defaults
    return path


def _plain(path: Path, name: str, value: Any) -> Any:
    if isinstance(value, list) and all(isinstance(each, str | int | float) for each in value):
        line = io.StringIO()
        csv.writer(line).writerow(value)
        return line.getvalue().strip()
    if isinstance(value, str | int | float):
        return value
    raise SettingError(
        f"{name} in {str(path)!r} is a {type(value).__name__}; expected a text, a number, true or false, or a list."
    )
