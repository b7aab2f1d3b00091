"""User-defined parts by import path, such as my_package.methods:MyPolicy."""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from equidp.errors import SettingError, error_text

_PATH = re.compile(r"[^\s:=]+:[A-Za-z_][\w.]*")


def is_import_path(text: object) -> bool:
    """Return True for a text of the form module:name that is not the name of a file.

    >>> is_import_path("my_package.methods:MyPolicy"), is_import_path("dpsgd")
    (True, False)
    """
    return isinstance(text, str) and bool(_PATH.fullmatch(text)) and not os.path.isfile(text)


def own_part(path: str, what: str, fits: Callable[[Any], bool], expected: str) -> Any:
    """Return the object that an import path names. Modules of the current folder can be imported, as by
    `python -m`.

    Args:
        path: module:name; the name may have dots.
        what: kind of part, for messages, such as "method".
        fits: returns True for an object that can be such a part.
        expected: description of objects that fit, for messages.

    Raises:
        SettingError: no such module, a module that fails, no such name in it, or one that does not fit.

    >>> own_part("math:sqrt", "loss", callable, "a function")(9.0)
    3.0
    >>> own_part("math:sqr", "loss", callable, "a function")
    Traceback (most recent call last):
    equidp.errors.SettingError: loss 'math:sqr': module 'math' has no 'sqr'. Did you mean 'math:sqrt'? ...
    """
    module_name, _, name = path.partition(":")
    given = f"{what} {path!r}"
    module = _import_module(module_name, name, given)
    try:
        part = attrgetter(name)(module)
    except AttributeError:
        named = {each: value for each, value in vars(module).items() if not each.startswith("_")}
        known = [each for each, value in named.items() if fits(value) and not isinstance(value, ModuleType)]
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f" Did you mean '{module_name}:{close[0]}'?" if close else ""
        listed = f" It has {', '.join(known[:8])}." if known else ""
        raise SettingError(
            f"{given}: module {module_name!r} has no {name!r}.{hint}{listed} Expected {expected}."
        ) from None
    if not fits(part):
        kind = f"the class {part.__name__}" if isinstance(part, type) else f"of type {type(part).__name__}"
        raise SettingError(f"{given} is {kind}; expected {expected}.")
    return part


def _import_module(name: str, of_part: str, given: str) -> Any:
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    importlib.invalidate_caches()  # a file may be newer than the last look at its folder
    path = Path(name)
    if path.suffix == ".py" or os.sep in name:
        raise SettingError(
            f"{given} names a file; expected a module, as import has it: '{path.stem}:{of_part}', from the "
            "folder of the file."
        )
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or f"{name}.".startswith(f"{error.name}."):
            files = [each.stem for each in Path().glob("*.py")]
            close = difflib.get_close_matches(name, files, n=1)
            hint = f" Did you mean '{close[0]}:{of_part}'?" if close else ""
            raise SettingError(
                f"{given}: there is no module {error.name or name!r}.{hint} Expected a file "
                f"{name.partition('.')[0]}.py or a package in the current folder ({os.getcwd()}), or an "
                "installed package."
            ) from error
        raise SettingError(
            f"{given}: module {name!r} imports {error.name!r}, which is not there; install it."
        ) from error
    except (Exception, SystemExit) as error:
        raise SettingError(f"{given}: module {name!r} cannot be imported: {error_text(error)}.") from error
