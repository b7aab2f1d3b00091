"""Digests of the source of modules: code that is looked up by name, which reading objects does not find."""

from __future__ import annotations

import ast
import hashlib
import sys
from pathlib import Path
from typing import Any

from equidp.comparison.code_digest import file_of, is_installed, read_code, without_words


def run_digest(thing: Any) -> str:
    """As `object_digest`, and of the source of each module of the user's that its code lies in or imports.

    So code that is looked up by name, which no reading of objects finds, counts too. A module's source is as
    it was when this process first asked after importing it. A script or notebook, `__main__`, has none.
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


_SOURCES: dict[int, tuple[Any, tuple[str, list[str]]]] = {}
"""id of an imported module's spec, which a reload makes anew -> the spec, and what `_source` gave."""


def _source(name: str) -> tuple[str, list[str]] | None:
    """Digest of a module's source, and what it imports; None where it has no file, or is installed."""
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
    found = hashlib.sha256(text.encode()).hexdigest(), sorted(_imported(tree, package))
    if spec is not None:
        _SOURCES[id(spec)] = spec, found
    return found


def _imported(tree: ast.AST, package: str) -> set[str]:
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
