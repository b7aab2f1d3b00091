"""Digests of user-defined code: policies, losses, models and sources that cached results depend on.

`code_digest` reads objects, and the source of each module that their code lies in or imports: code that is
looked up by name at run time is covered by its module's source alone.
"""

from __future__ import annotations

import ast
import dis
import hashlib
import importlib.util
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial, partialmethod, singledispatchmethod
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, final

import cloudpickle


def code_digest(thing: Any) -> str:
    """Return the digest of an object and of the source of each user-defined module that its code needs.

    A module's source is read at the first call after its import, and again after a reload. A script or
    notebook, `__main__`, counts by its objects alone.
    """
    digest, reader = read_code(thing)
    if reader is None:
        return digest
    found: dict[str, str] = {}
    left = sorted(reader.modules)
    while left:
        name = left.pop()
        if name not in found and name != "__main__" and reader.owns(name) and (source := _source(name)):
            found[name], imported = source
            left += [name.rpartition(".")[0], *imported]
    return hashlib.sha256(repr((digest, sorted(found.items()))).encode()).hexdigest()


def without_words(source: str | bytes) -> str:
    """Canonical text of a source: equal for sources that differ in docstrings, comments and layout alone."""
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
    """Identity of a class, function or object: its name if it is part of equidp, else a digest of its code.

    A user-defined method or model keeps its name while its code changes, so its name is not enough. The
    digest also covers user-defined code that it uses: in the same module, the same package, or any other
    module that is not installed. It covers what this process would run, and is the same in each process:
    neither the order of sets nor names that pickles draw at random are in it.
    """
    return read_code(thing)[0]


def read_code(thing: Any) -> tuple[str, CodeReader | None]:
    """Return the digest of an object, and the reader of its code; None for the reader of a part of equidp."""
    inner = thing
    while isinstance(inner, partial):
        inner = inner.func
    module = getattr(inner, "__module__", None) or type(inner).__module__
    if inner is thing and module.partition(".")[0] == "equidp" and hasattr(thing, "__qualname__"):
        return f"{module}.{thing.__qualname__}", None
    reader = CodeReader(module.partition(".")[0])
    return hashlib.sha256(repr(reader.content(thing)).encode()).hexdigest(), reader


def own_digests(parts: Mapping[str, Any]) -> dict[str, str]:
    """Digests of the user-defined ones of these parts, by kind of part."""
    digests = {what: object_digest(part) for what, part in parts.items() if part is not None}
    return {what: digest for what, digest in digests.items() if not digest.startswith("equidp.")}


@final
class CodeReader:
    """Turn user-defined code into plain values, which change with the code; installed code counts by name.

    Args:
        package: top name of the part's module, whose code is user-defined even if it is installed.
    """

    def __init__(self, package: str) -> None:
        self.modules: set[str] = set()  # that were met, or whose code was
        self._package = package
        self._seen: dict[int, Any] = {}  # which also keeps them alive, so that no id is used twice

    def content(self, thing: Any) -> Any:
        value, kind = self._value(thing), type(thing)
        if not self.owns(kind.__module__):
            return value
        held = {} if isinstance(thing, type) else getattr(thing, "__dict__", {})
        return self.content(kind), value, self.content(held)

    def _value(self, thing: Any) -> Any:
        """Plain value of an object, without the code of its class."""
        name = getattr(thing, "__qualname__", "")
        if isinstance(thing, int | float | complex | str | bytes | None):
            return repr(thing)
        if isinstance(thing, ModuleType):
            self.modules.add(thing.__name__)
            return thing.__name__
        if isinstance(thing, type | FunctionType | BuiltinFunctionType) and not self.owns(thing.__module__):
            return thing.__module__ or "", name
        # Tuples, frozen sets and code have no identity of their own, and no circles.
        if not isinstance(thing, tuple | frozenset | CodeType):
            if id(thing) in self._seen:
                return name
            self._seen[id(thing)] = thing
        if isinstance(thing, set | frozenset):
            return sorted(repr(self.content(each)) for each in thing)
        if isinstance(thing, dict):
            items = [(self.content(key), self.content(value)) for key, value in thing.items()]
            return items, self.content(getattr(thing, "default_factory", None))
        if isinstance(thing, list | tuple | deque):
            return [self.content(each) for each in thing]
        if isinstance(thing, CodeType):
            constants = [self.content(each) for each in thing.co_consts]
            return thing.co_code, thing.co_names, thing.co_varnames, constants
        if isinstance(thing, type | FunctionType):
            self.modules.add(thing.__module__ or "")
        if isinstance(thing, FunctionType):
            cells = [cell.cell_contents for cell in thing.__closure__ or ()]
            parts = (thing.__code__, thing.__defaults__, thing.__kwdefaults__, cells, self._find_used(thing))
            return name, [self.content(each) for each in parts]
        if isinstance(thing, type):
            own = {
                key: value
                for key, value in vars(thing).items()
                if isinstance(value, FunctionType) or not key.startswith(("__", "_abc_"))
            }
            in_order = dict(sorted(own.items()))  # a class that was pickled may have another
            return name, [self.content(each) for each in thing.__bases__], self.content(in_order)
        for kind, names in _WRAPPERS.items():
            if isinstance(thing, kind):
                return [self.content(getattr(thing, each)) for each in names]
        if hasattr(thing, "__wrapped__"):  # by functools.cache, for one
            return self.content(thing.__wrapped__)
        if self.owns(type(thing).__module__) and hasattr(thing, "__dict__"):
            return self.content(vars(thing))
        try:
            if _is_plain(type(thing)):
                return type(thing).__qualname__, self.content(thing.__reduce_ex__(4)[2])  # its state
            return hashlib.sha256(cloudpickle.dumps(thing)).hexdigest()
        except Exception:  # a lock or an open file: what it is, is all that there is to tell
            return type(thing).__qualname__

    def _find_used(self, function: FunctionType) -> dict[str, Any]:
        """Find objects that code looks up by name: in its module, or in user-defined modules that it uses."""
        codes = list(_codes(function.__code__))
        found = _looked_up(codes, function.__globals__)
        package = function.__globals__.get("__package__") or ""
        for name in sorted({name for code in codes for name in _imports(code)}):
            for full in (name, f"{package}.{name}"):
                if self.owns(full) and (module := _module(full)) is not None:
                    found[full] = module
        names = {name for code in codes for name in code.co_names}
        left = [(name, value) for name, value in found.items() if isinstance(value, ModuleType)]
        while left:
            path, module = left.pop()
            for name in sorted(names & vars(module).keys()) if self.owns(module.__name__) else ():
                if (full := f"{path}.{name}") not in found and path.count(".") < _DEEPEST:
                    found[full] = value = vars(module)[name]
                    if isinstance(value, ModuleType):
                        left.append((full, value))
        return found

    def owns(self, module: str | None) -> bool:
        """Return True if a module holds user-defined code."""
        top = (module or "").partition(".")[0]
        if top == "equidp" or top in sys.stdlib_module_names:
            return False
        if top in ("__main__", self._package):
            return True
        file = getattr(sys.modules.get(module or ""), "__file__", None)
        if file is None:
            return (spec := file_of(module or "")) is not None and not is_installed(spec)
        return not is_installed(file)


_WRAPPERS: dict[type, tuple[str, ...]] = {
    classmethod: ("__func__",),
    staticmethod: ("__func__",),
    MethodType: ("__func__", "__self__"),
    property: ("fget", "fset"),
    partial: ("func", "args", "keywords"),
    partialmethod: ("func", "args", "keywords"),
    cached_property: ("func",),
    singledispatchmethod: ("func", "dispatcher"),
    SimpleNamespace: ("__dict__",),
}
"""Type that only wraps other code -> the attributes that hold this code."""
_DEEPEST = 6
"""Largest number of dots in names that are followed from module to module."""


def is_installed(file: str) -> bool:
    """Return True for a file of an installed package."""
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def file_of(module: str) -> str | None:
    """File of a module that is not imported yet; None if it is not found or has no file."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return None if spec is None else spec.origin


def _is_plain(kind: type) -> bool:
    """Return True if objects of a class of a package are pickled by their attributes alone."""
    usual = all(getattr(kind, each) is getattr(object, each) for each in ("__reduce__", "__reduce_ex__"))
    return usual and kind.__module__.partition(".")[0] not in sys.stdlib_module_names


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except Exception:  # it may never be called
        return None


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of functions inside it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _looked_up(codes: Sequence[CodeType], namespace: Mapping[str, Any]) -> dict[str, Any]:
    names = {each.argval for code in codes for each in dis.get_instructions(code) if each.opname in _GLOBALS}
    return {name: namespace[name] for name in sorted(names) if name in namespace}


def _imports(code: CodeType) -> set[str]:
    """Modules that code imports when it runs."""
    return {each.argval for each in dis.get_instructions(code) if each.opname == "IMPORT_NAME"}


_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")


_SOURCES: dict[int, tuple[Any, tuple[str, list[str]]]] = {}
"""id of an imported module's spec, which a reload makes anew -> the spec, and the result of `_source`."""


def _source(name: str) -> tuple[str, list[str]] | None:
    """Digest of a module's source, and the names that it imports; None if it has no file, or is installed."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if id(spec) in _SOURCES:
        return _SOURCES[id(spec)][1]
    file = getattr(spec, "origin", None) or file_of(name)
    if file is None or is_installed(file) or not Path(file).is_file():
        return None
    source = Path(file).read_bytes()
    try:
        text, tree = without_words(source), ast.parse(source)
    except (SyntaxError, ValueError):  # it is compiled, or half written
        text, tree = repr(source), ast.Module([], [])
    package = name if Path(file).stem == "__init__" else name.rpartition(".")[0]
    found = hashlib.sha256(text.encode()).hexdigest(), sorted(_imported_names(tree, package))
    if spec is not None:
        _SOURCES[id(spec)] = spec, found
    return found


def _imported_names(tree: ast.AST, package: str) -> set[str]:
    """Full names of the modules that a source of that package imports, and of names that may be modules."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            found |= {base, *(f"{base}.{each.name}" for each in node.names)}
    return found
