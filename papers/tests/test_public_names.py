"""Papers are written with public names of equidp alone: those at its top, and those of docs/extending.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import equidp

PAPERS = Path(__file__).parents[1]
REFERENCE = (PAPERS.parent / "docs" / "extending.md").read_text(encoding="utf-8")
PUBLIC = {
    module: set(re.findall(r"`(\w+)`", names))
    for module, names in re.findall(r"^\| `(equidp[\w.]*)` \| (.*?) \|", REFERENCE, re.MULTILINE)
} | {"equidp": set(equidp.__all__), "equidp.errors": set(dir(equidp.errors))}
"""Module -> its public names."""
FILES = sorted(path for path in PAPERS.rglob("*.py") if "tests" not in path.relative_to(PAPERS).parts)


def private_imports(text: str) -> Iterator[str]:
    """Imports of equidp that are not public, and reads of `module.name` where a module is imported whole."""
    tree = ast.parse(text)
    whole: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "equidp":
                    whole[alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "equidp":
            for alias in node.names:
                if f"{node.module}.{alias.name}" in PUBLIC:
                    whole[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                elif alias.name not in PUBLIC.get(str(node.module), ()):
                    yield f"{node.lineno}: {node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in whole:
            module = whole[node.value.id]
            if node.attr not in PUBLIC.get(module, ()):
                yield f"{node.lineno}: {module}.{node.attr}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PAPERS)))
def test_papers_import_public_names_alone(path):
    assert list(private_imports(path.read_text(encoding="utf-8"))) == []
