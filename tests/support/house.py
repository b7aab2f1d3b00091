"""Checks the shape of a package: which module imports which.

    python tests/support/house.py [src/equidp]

Prints one line for each offence, as file:line: what is wrong, and exits with 1 if there is any. Imports
inside functions and under TYPE_CHECKING count like all others, and so does `import_module` with a literal
name.
"""

from __future__ import annotations

import ast
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

GROUND = (
    "errors",
    "_extras",
    "_validate",
    "_files",
    "_lazy",
    "_parts",
    "_provenance",
    "extend",
    "models",
    "digest",
    "store",
    "display",
)
FOLDERS = (
    *("kernel", "ledger", "distributed", "losses"),
    *("policies", "engines", "tables", "data", "accounting"),
    *("evaluation", "training", "integrations", "individual"),
    *("diagnostics", "advice", "estimator", "comparison", "audit", "report", "runs"),
    "cli",
)
TOP = ("__init__", "__main__")
TRUSTED = {
    "kernel": ("errors", "_validate", "kernel"),
    "ledger": ("errors", "_validate", "_files", "kernel", "ledger"),
    "distributed": ("errors", "_validate", "kernel", "distributed"),
}
"""Tiers of the guarantee that are whole folders -> what each may import of the package."""


class Offence(NamedTuple):
    """A broken rule and where."""

    file: Path
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


class Import(NamedTuple):
    """One module of the package imports another one."""

    importer: str
    imported: str
    line: int


@dataclass(frozen=True)
class Package:
    """The modules of a package, read but not imported.

    Attributes:
        root: the package's folder, whose name is the package's.
    """

    root: Path

    @cached_property
    def files(self) -> dict[str, Path]:
        """Dotted names of modules below the package -> files. The package itself is "__init__"."""
        found = {}
        for file in sorted(self.root.rglob("*.py")):
            parts = file.relative_to(self.root).with_suffix("").parts
            found[".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)] = file
        return found

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        """The syntax tree of each module."""
        return {name: ast.parse(file.read_text(encoding="utf-8")) for name, file in self.files.items()}

    @cached_property
    def imports(self) -> list[Import]:
        """Every import of a module of the package by another one."""
        return [
            Import(name, imported, line)
            for name, tree in self.trees.items()
            for imported, line in self._imported(name, tree)
            if imported != name
        ]

    def _imported(self, name: str, tree: ast.Module) -> Iterator[tuple[str, int]]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = self._base(name, node)
                targets = [f"{base}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Call) and _names_import_module(node):
                targets = [node.args[0].value]  # type: ignore[attr-defined]
            else:
                continue
            for target in targets:
                if target == self.root.name or target.startswith(f"{self.root.name}."):
                    yield self._module(target), node.lineno

    def _base(self, name: str, node: ast.ImportFrom) -> str:
        """The absolute name of what stands between `from` and `import`."""
        if not node.level:
            return node.module or ""
        here = [self.root.name, *name.split(".")]
        if self.files[name].name != "__init__.py" or name == "__init__":
            here = here[:-1]
        here = here[: len(here) - node.level + 1]
        return ".".join([*here, *([node.module] if node.module else [])])

    def _module(self, target: str) -> str:
        """The module that an absolute name lies in: `equidp.kernel.epsilon.total` -> `kernel.epsilon`."""
        parts = target.split(".")[1:]
        while parts and ".".join(parts) not in self.files:
            parts.pop()
        return ".".join(parts) or "__init__"


def _names_import_module(node: ast.Call) -> bool:
    called = getattr(node.func, "attr", getattr(node.func, "id", ""))
    first = node.args[0] if node.args else None
    literal = isinstance(first, ast.Constant) and isinstance(first.value, str)
    return called in ("import_module", "__import__") and literal


def offences(package: Package) -> list[Offence]:
    """All offences against the rules of the house."""
    return [
        *cycles(package),
        *upward(package),
        *trusted(package),
        *private_torch(package),
        *experimental(package),
    ]


def cycles(package: Package) -> Iterator[Offence]:
    """Shortest cycles first, and none that shares an import with one before; the offence stands at each
    import of the cycle."""
    lines: dict[str, dict[str, int]] = {name: {} for name in package.files}
    for importer, imported, line in package.imports:
        lines[importer].setdefault(imported, line)
    seen: set[tuple[str, str]] = set()
    for cycle in sorted(filter(None, (_shortest_cycle(start, lines) for start in lines)), key=len):
        steps = list(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
        if seen.isdisjoint(steps):
            seen.update(steps)
            story = " -> ".join([*cycle, cycle[0]])
            for importer, imported in steps:
                line = lines[importer][imported]
                yield Offence(package.files[importer], line, f"import cycle {story}")


def _shortest_cycle(start: str, edges: dict[str, dict[str, int]]) -> list[str]:
    came_from: dict[str, str] = {}
    queue = deque([start])
    while queue:
        here = queue.popleft()
        for after in edges[here]:
            if after == start:
                cycle = [here]
                while cycle[-1] != start:
                    cycle.append(came_from[cycle[-1]])
                return cycle[::-1]
            if after not in came_from:
                came_from[after] = here
                queue.append(after)
    return []


def upward(package: Package) -> Iterator[Offence]:
    """Imports of something that stands higher, and modules that have no place in the order."""
    rank = {
        **dict.fromkeys(GROUND, 0),
        **{folder: place for place, folder in enumerate(FOLDERS, start=1)},
        **dict.fromkeys(TOP, len(FOLDERS) + 1),
    }
    for name, file in package.files.items():
        if _top(name) not in rank:
            yield Offence(file, 1, f"{_top(name)!r} has no place in the order of folders")
    for importer, imported, line in package.imports:
        low, high = _top(importer), _top(imported)
        if low in rank and high in rank and rank[low] < rank[high]:
            message = f"{importer} imports {imported}: {high} stands above {low}"
            yield Offence(package.files[importer], line, message)


def _top(name: str) -> str:
    return name.split(".")[0]


def trusted(package: Package) -> Iterator[Offence]:
    """Imports by a tier of the guarantee of anything else that its auditor would have to read too."""
    for importer, imported, line in package.imports:
        allowed = TRUSTED.get(_top(importer))
        if allowed is not None and _top(imported) not in allowed:
            message = f"{importer} imports {imported}; {_top(importer)} may import {', '.join(allowed)} only"
            yield Offence(package.files[importer], line, message)


def private_torch(package: Package) -> Iterator[Offence]:
    """Uses of private names of torch in the tiers of the guarantee."""
    for name, tree in package.trees.items():
        if _top(name) in TRUSTED:
            for node in ast.walk(tree):
                for used in _torch_names(node):
                    if any(part.startswith("_") and not part.startswith("__") for part in used.split(".")):
                        message = f"{name} uses {used}, which is private to torch"
                        yield Offence(package.files[name], node.lineno, message)


def experimental(package: Package) -> Iterator[Offence]:
    """Imports of young parts, in a package `experimental`, from elsewhere than files of its own folder.

    A command may import them, since it is how a user reaches them.
    """
    for importer, imported, line in package.imports:
        folder, young, _ = f"{imported}.".partition("experimental.")
        inside = importer.startswith(f"{folder}experimental")
        beside = folder and folder in (f"{importer}.", f"{importer.rpartition('.')[0]}.")
        if young and not inside and not beside and not importer.startswith("cli."):
            yield Offence(
                package.files[importer], line, f"{importer} imports {imported}, which is experimental"
            )


def _torch_names(node: ast.AST) -> list[str]:
    """The dotted names of torch that a statement or expression mentions."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level:
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
        names = [ast.unparse(node)]
    else:
        names = []
    return [name for name in names if name.split(".")[0] == "torch"]


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2] / "src" / "equidp"
    found = offences(Package(folder))
    for offence in found:
        print(offence)
    print(f"{len(found)} offences", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
