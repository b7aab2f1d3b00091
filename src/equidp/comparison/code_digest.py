"""Digests of code: what a kept run depends on, besides its data and settings."""

from __future__ import annotations

import ast
import hashlib
from functools import lru_cache, partial
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
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
    """Of a class or function: its name if it is equidp's own, else its code and what that code uses of its
    module.

    A method or model of the user's keeps its name while its code changes, so the name says too little. The
    digest is the same in each process: neither the order of sets nor names that pickles draw at random are in
    it.
    """
    inner = thing
    while isinstance(inner, partial):
        inner = inner.func
    module = getattr(inner, "__module__", None) or type(inner).__module__
    if inner is thing and module.partition(".")[0] == "equidp":
        return f"{module}.{getattr(thing, '__qualname__', repr(thing))}"
    return hashlib.sha256(repr(_content(thing, module, {})).encode()).hexdigest()


def _content(thing: Any, module: str, seen: dict[int, Any]) -> Any:
    """Plain values that differ where the thing does; what other modules define goes in by name."""

    def inside(each: Any) -> Any:
        return _content(each, module, seen)

    name = getattr(thing, "__qualname__", "")
    if isinstance(thing, int | float | complex | str | bytes | None):
        return repr(thing)
    if isinstance(thing, ModuleType) or (
        isinstance(thing, type | FunctionType | BuiltinFunctionType) and thing.__module__ != module
    ):
        return getattr(thing, "__module__", ""), name or thing.__name__
    if not isinstance(
        thing, tuple | frozenset | CodeType
    ):  # which have no identity of their own, and no circles
        if id(thing) in seen:
            return name
        seen[id(thing)] = thing
    if isinstance(thing, set | frozenset):
        return sorted(repr(inside(each)) for each in thing)
    if isinstance(thing, dict):
        return [(inside(key), inside(value)) for key, value in thing.items()]
    if isinstance(thing, list | tuple):
        return [inside(each) for each in thing]
    if isinstance(thing, CodeType):
        return thing.co_code, thing.co_names, thing.co_varnames, [inside(each) for each in thing.co_consts]
    if isinstance(thing, FunctionType):
        used = {each: thing.__globals__.get(each) for each in sorted(_names(thing.__code__))}
        cells = [cell.cell_contents for cell in thing.__closure__ or ()]
        return name, [
            inside(each) for each in (thing.__code__, thing.__defaults__, thing.__kwdefaults__, cells, used)
        ]
    if isinstance(thing, classmethod | staticmethod):
        return inside(thing.__func__)
    if isinstance(thing, property):
        return [inside(each) for each in (thing.fget, thing.fset)]
    if isinstance(thing, partial):
        return [inside(each) for each in (thing.func, thing.args, thing.keywords)]
    if isinstance(thing, type):
        own = {
            key: value
            for key, value in vars(thing).items()
            if isinstance(value, FunctionType) or not key.startswith(("__", "_abc_"))
        }
        return name, [inside(each) for each in thing.__bases__], inside(own)
    if type(thing).__module__ == module:
        return inside(type(thing)), inside(vars(thing))
    return hashlib.sha256(cloudpickle.dumps(thing)).hexdigest()


def _names(code: CodeType) -> set[str]:
    """Names that code may look up in its module, also from functions inside it."""
    inner = [_names(each) for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*inner)
