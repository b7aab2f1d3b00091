"""Names of a package that are loaded when they are first used (PEP 562)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package that imports a name's module when the name is first used.

    Args:
        package: its import path.
        homes: import path of a module -> the names that it defines, with spaces between them.

    Raises:
        AttributeError: another name; by the returned function.

    >>> lazy_names("made_up", {"math": "sqrt pi"})("sqrt")(9.0)
    3.0
    """
    home = {name: module for module, names in homes.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home[name]), name)

    return load
