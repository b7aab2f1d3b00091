"""Digests of code: what a kept run depends on, besides its data and settings."""

from __future__ import annotations

import ast
import hashlib
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import cloudpickle

_PACKAGE = Path(__file__).parents[1]
_FIGURES = (
    "kernel", "policies", "engines", "data", "accounting", "evaluation", "training", "individual",
    "diagnostics", "models.py", "comparison/grid.py",
)  # fmt: skip
"""Parts of equidp that a run's figures depend on. Words of reports and commands are not among them."""


@lru_cache(maxsize=1)
def package_digest() -> str:
    """Of equidp's code that figures depend on, without docstrings and comments."""
    digest = hashlib.sha256()
    for part in _FIGURES:
        place = _PACKAGE / part
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            code = without_words(path.read_text(encoding="utf-8"))
            digest.update(f"{path.relative_to(_PACKAGE)}\n{code}".encode())
    return digest.hexdigest()


def without_words(source: str) -> str:
    """A text that is equal for sources that differ in docstrings, comments and layout alone."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_text(each)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(ast.Constant(str())):
            return True
    return False


def object_digest(thing: Any) -> str:
    """Of a class or function: its name if it is equidp's own, else its code and what that code uses.

    A method or model of the user's keeps its name while its code changes, so the name says too little.
    """
    module = getattr(thing, "__module__", None) or type(thing).__module__
    if module.partition(".")[0] == "equidp":
        return f"{module}.{getattr(thing, '__qualname__', repr(thing))}"
    found = sys.modules.get(module)
    by_value = found is not None and module != "__main__"
    if by_value:
        cloudpickle.register_pickle_by_value(found)
    try:
        content = cloudpickle.dumps(thing)
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(found)
    return hashlib.sha256(content).hexdigest()
