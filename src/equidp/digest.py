"""Digests of user-defined code: policies, losses, models and sources that stored results depend on.

Code counts by its source: the functions and classes of an object, and each user-defined module that contains
them or that they import. Values count too: attributes, arguments of a partial, values in a closure, and
globals that a function names. Installed packages and equidp count by name, and a key has their versions.

Code without source has no digest, and its results are not kept. Examples are code that was typed into a plain
interpreter, made by `exec`, or imported from a file that changed since. Notebook cells have a source.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import linecache
import sys
import textwrap
import threading
from collections import deque
from collections.abc import Iterator
from functools import cached_property, partial, partialmethod, singledispatchmethod
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple, final

import cloudpickle


def code_digest(thing: Any) -> str | None:
    """Digest of an object and of the source of each user-defined module that it needs; None without source.

    Only the name for a part of equidp. A module's source is read at the first call after its import, and
    again after a reload. For a script or a notebook, `__main__`, only its objects count.
    """
    digest, modules = read_code(thing)
    return _sha256(repr((digest, sorted(modules.items())))) if digest is not None and modules else digest


def object_digest(thing: Any) -> str | None:
    """Digest of an object and the code that it uses, not of all its modules, or None without source.

    Only the name for a part of equidp. It covers what this process would run, and is the same in each
    process. It contains neither the order of sets nor names that pickles draw at random.
    """
    return read_code(thing)[0]


def read_code(thing: Any) -> tuple[str | None, dict[str, str]]:
    """Digest of an object, None without source, and of each user-defined module that its code needs."""
    inner = thing
    while isinstance(inner, partial):
        inner = inner.func
    module = getattr(inner, "__module__", None) or type(inner).__module__
    if inner is thing and module.partition(".")[0] == "equidp" and hasattr(thing, "__qualname__"):
        return f"{module}.{thing.__qualname__}", {}
    reader = _Reader(module.partition(".")[0])
    content = repr(reader.content(thing))
    sources: dict[str, str] = {}
    left = sorted(reader.modules)
    while left:
        name = left.pop()
        if name in sources or name == "__main__" or not reader.owns(name):
            continue
        if (source := _read_source(name)) is not None:
            reader.known = reader.known and source.current
            sources[name] = source.digest
            left += [name.rpartition(".")[0], *source.imports]
    return _sha256(content) if reader.known else None, sources


def module_digest(name: str) -> str | None:
    """Digest of a module's source, or None if there is none, or if it changed since it was imported."""
    source = _read_source(name)
    return source.digest if source is not None and source.current else None


def without_words(source: str | bytes) -> str:
    """Canonical text of a source: equal for sources that differ only in docstrings, comments and layout."""
    return _canonical(_parse(source))


def _parse(source: str | bytes) -> ast.Module:
    with _PARSING:
        return ast.parse(source)


_PARSING = threading.Lock()
"""Two threads at once that make a tree get a SystemError from some versions of Python (issue 106905)."""


def _canonical(tree: ast.AST) -> str:
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


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@final
class _Reader:
    """Turn objects into plain values, which change with their code; installed code counts by name.

    Args:
        package: top name of the part's module, whose code is user-defined even if it is installed.

    Attributes:
        modules: names of modules that were met, or whose code was.
        known: False if the source of some code is not known.
    """

    def __init__(self, package: str) -> None:
        self.modules: set[str] = set()
        self.known = True
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
        made = isinstance(thing, FunctionType) and thing.__module__ in (None, "builtins")  # by exec
        if isinstance(thing, type | FunctionType | BuiltinFunctionType) and not (
            made or self.owns(thing.__module__)
        ):
            return thing.__module__ or "", name
        if not isinstance(thing, tuple | frozenset):  # these have no identity of their own, and no circles
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
        if isinstance(thing, FunctionType):
            cells = [cell.cell_contents for cell in thing.__closure__ or ()]
            text, imports = self._read_function(thing)
            used = self._find_used(thing, imports)
            parts = (thing.__defaults__, thing.__kwdefaults__, cells, used)
            return name, text, [self.content(each) for each in parts]
        if isinstance(thing, type):
            self.modules.add(thing.__module__ or "")
            own = {key: value for key, value in vars(thing).items() if _is_of_class(thing, key, value)}
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

    def _read_function(self, function: FunctionType) -> tuple[str, set[str]]:
        """Source of a function, without words, and names of modules that it imports when it runs."""
        self.modules.add(function.__module__ or "")
        source, code = _read_source(function.__module__ or ""), function.__code__
        if source is not None and source.file == code.co_filename:
            lines = source.lines
        else:
            lines = tuple(linecache.getlines(code.co_filename))
            # Cells of a notebook take over `from __future__` from each other.
            known = _compile("".join(lines), code.co_filename, code.co_flags & annotations.compiler_flag)
            self.known = self.known and code in known
        try:
            text = "".join(inspect.getblock(lines[code.co_firstlineno - 1 :]))
        except (IndexError, SyntaxError, ValueError):
            text = ""
        if code.co_name == "<lambda>":  # its lines may hold another one
            places = {(start, end) for _, _, start, end in code.co_positions()}
            return f"{text}{sorted(places, key=repr)}", set()
        try:
            tree = _parse(textwrap.dedent(text))
        except (SyntaxError, ValueError):
            return text, set()
        imports = _imported_names(tree, function.__globals__.get("__package__") or "")
        return _canonical(tree), imports

    def _find_used(self, function: FunctionType, imports: set[str]) -> dict[str, Any]:
        """Find objects that code looks up by name: in its module, or in user-defined modules that it uses."""
        names = {name for code in _codes(function.__code__) for name in code.co_names}
        found = {name: value for name, value in function.__globals__.items() if name in names}
        for name in imports:
            if self.owns(name) and (module := _import_module(name)) is not None:
                found[name] = module
        left = [(name, value) for name, value in sorted(found.items()) if isinstance(value, ModuleType)]
        while left:
            path, module = left.pop()
            for name in sorted(names & vars(module).keys()) if self.owns(module.__name__) else ():
                if (full := f"{path}.{name}") not in found and path.count(".") < _DEEPEST:
                    found[full] = value = vars(module)[name]
                    if isinstance(value, ModuleType):
                        left.append((full, value))
        return dict(sorted(found.items()))

    def owns(self, module: str | None) -> bool:
        """Return True if a module holds user-defined code."""
        top = (module or "").partition(".")[0]
        if top == "equidp" or top in sys.stdlib_module_names:
            return False
        if top in ("__main__", self._package):
            return True
        file = getattr(sys.modules.get(module or ""), "__file__", None) or _find_file(module or "")
        return file is not None and not _is_installed(file)


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


def _is_of_class(owner: type, name: str, value: Any) -> bool:
    """Return True for an attribute that the user wrote; what dataclasses make follows from the others."""
    if isinstance(value, FunctionType):
        made = hasattr(owner, "__dataclass_fields__") or hasattr(owner, "_fields")
        inner = inspect.unwrap(value)
        return not (made and name.startswith("__") and inner.__code__.co_filename == "<string>")
    return not name.startswith(("__", "_abc_"))


def _is_plain(kind: type) -> bool:
    """Return True if objects of a class of a package are pickled only by their attributes."""
    usual = all(getattr(kind, each) is getattr(object, each) for each in ("__reduce__", "__reduce_ex__"))
    return usual and kind.__module__.partition(".")[0] not in sys.stdlib_module_names


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function, and of all functions inside it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _compile(text: str, file: str, flags: int = 0) -> set[CodeType]:
    """Code of all functions in a source, to compare with code that runs: files change after their import."""
    try:
        return set(_codes(compile(text, file, "exec", flags, dont_inherit=True)))
    except (SyntaxError, ValueError):
        return set()


def _import_module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except Exception:  # it may never be called
        return None


class _Source(NamedTuple):
    """Source of a user-defined module.

    Attributes:
        file, lines: file and lines of the source.
        digest: digest of its canonical text.
        imports: full names of modules that it imports, and of names that may be modules.
        current: False if this process imported the module from another source.
    """

    file: str
    lines: tuple[str, ...]
    digest: str
    imports: tuple[str, ...]
    current: bool


_SOURCES: dict[int, tuple[Any, _Source]] = {}
"""id of an imported module's spec, which a reload renews -> the spec, and the source."""


def _read_source(name: str) -> _Source | None:
    """Source of a module, or None if it has no file, or is installed."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if id(spec) in _SOURCES:
        return _SOURCES[id(spec)][1]
    file = getattr(spec, "origin", None) or (_find_file(name) if name else None)
    if name in ("", "__main__") or file is None or _is_installed(file) or not Path(file).is_file():
        return None
    content = Path(file).read_bytes()
    try:
        text, tree = importlib.util.decode_source(content), _parse(content)
    except (SyntaxError, ValueError):  # it is compiled, or half written
        text, tree = "", ast.Module([ast.Expr(ast.Constant(content))], [])
    package = name if Path(file).stem == "__init__" else name.rpartition(".")[0]
    imports = tuple(sorted(_imported_names(tree, package)))
    current = spec is None or type(spec.loader) is not SourceFileLoader or _is_current(module, file, text)
    found = _Source(file, tuple(text.splitlines(keepends=True)), _sha256(_canonical(tree)), imports, current)
    if spec is not None:
        _SOURCES[id(spec)] = spec, found
    return found


def _is_current(module: ModuleType | None, file: str, text: str) -> bool:
    """Return True if the functions of a module and of its classes are compiled from this source."""
    values = list(vars(module).values())
    values += [each for kind in values if isinstance(kind, type) for each in vars(kind).values()]
    codes = [each.__code__ for each in values if isinstance(each, FunctionType)]
    return {code for code in codes if code.co_filename == file} <= _compile(text, file)


def _is_installed(file: str) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def _find_file(module: str) -> str | None:
    """File of a module that is not imported yet, or None if it is not found or has no file."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return None if spec is None else spec.origin


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
