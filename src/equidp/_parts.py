"""User-defined parts by import path, such as my_package.methods:MyPolicy."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable
from operator import attrgetter
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
        path: module:name. The name may have dots.
        what: kind of part, for messages, such as "method".
        fits: returns True for an object that can be such a part.
        expected: description of objects that fit, for messages.

    Raises:
        SettingError: no such module, a module that fails, no such name in it, or one that does not fit.

    >>> own_part("math:sqrt", "loss", callable, "a function")(9.0)
    3.0
    >>> own_part("math:sqr", "loss", callable, "a function")
    Traceback (most recent call last):
    equidp.errors.SettingError: loss 'math:sqr' cannot be imported (AttributeError: module 'math' has no ...
    """
    module, _, name = path.partition(":")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    importlib.invalidate_caches()  # a file may be newer than the last look at its folder
    try:
        part = attrgetter(name)(importlib.import_module(module))
    except (Exception, SystemExit) as error:
        raise SettingError(
            f"{what} {path!r} cannot be imported ({error_text(error)}); expected {expected} as module:name, "
            f"from a file module.py or a package in the current folder ({os.getcwd()}), or an installed one."
        ) from error
    if not fits(part):
        kind = f"the class {part.__name__}" if isinstance(part, type) else f"of type {type(part).__name__}"
        raise SettingError(f"{what} {path!r} is {kind}; expected {expected}.")
    return part
