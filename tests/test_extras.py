"""The core works without the packages of any extra, and whatever needs one names its extra."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from equidp._extras import EXTRAS, check_extras, require_extra
from equidp.cli import app
from support.errors import raises_field

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OF_EXTRAS = sorted({package for packages in EXTRAS.values() for package in packages})
CORE = (
    *("equidp.training.trainer", "equidp.training.checkpoint", "equidp.training.progress"),
    *("equidp.training.averages", "equidp.training.optimizers"),
    *("equidp.data.dataset", "equidp.data.views", "equidp.ledger.ledger"),
    *("equidp.policies.checks", "equidp.policies.methods", "equidp.engines"),
    *("equidp.kernel.processes", "equidp.models", "equidp.display", "equidp.extend"),
    *("equidp.cli.app", "equidp.cli.account", "equidp.cli.methods"),
)
"""Modules of what the core promises; they and all that they import need no extra."""
COMMANDS = sorted(app.EXTRAS)
BLOCKED = f"""
import sys
sys.modules.update(dict.fromkeys({OF_EXTRAS}))
"""


def distribution(requirement: str) -> str:
    """Name of the package in a requirement, as in an index."""
    return re.match(r"[\w-]+", requirement)[0].lower()


def imports(body: list[ast.stmt], extra: str = "", top: bool = True) -> Iterator[tuple[str, str, bool]]:
    """(module, extra that it is imported under, True at the top of the file) of each import but for types."""
    for node in body:
        inner = extra
        if isinstance(node, ast.Import):
            yield from ((each.name, extra, top) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            yield node.module, extra, top
            yield from ((f"{node.module}.{each.name}", extra, top) for each in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from imports(node.orelse, extra, top)
            continue
        elif isinstance(node, ast.With) and "require_extra" in (call := ast.unparse(node.items[0])):
            inner = ast.literal_eval(call.partition("(")[2].rstrip(")"))
        at_top = top and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for field in ("body", "orelse", "finalbody"):
            yield from imports(
                [each for each in getattr(node, field, ()) if isinstance(each, ast.stmt)], inner, at_top
            )
        for handler in [*getattr(node, "handlers", ()), *getattr(node, "cases", ())]:
            yield from imports(handler.body, inner, at_top)


WITH_TORCH = "triton"
"""Package that comes with PyTorch for CUDA, and is imported where it is there alone."""


@pytest.mark.soak
def test_packages_that_the_core_does_not_bring_are_imported_under_their_extra():
    core = {*map(distribution, PROJECT["dependencies"]), "equidp"}
    of = packages_distributions()
    found = []
    for file in SOURCE.rglob("*.py"):
        for name, extra, _ in imports(ast.parse(file.read_text()).body):
            package = name.partition(".")[0]
            known = {each.lower() for each in of.get(package, ())}
            fits = package in EXTRAS[extra] if extra else bool(known & core)
            if package not in {*sys.stdlib_module_names, WITH_TORCH} and not fits:
                found.append(f"{file.relative_to(ROOT)} imports {name} under {extra or 'no extra'}")
    assert found == [], found


def requirements(extra: str) -> set[str]:
    """Names of the packages that an extra brings, of its own or through another extra."""
    found = set()
    for requirement in PROJECT["optional-dependencies"][extra]:
        others = re.fullmatch(r"equidp\[(.*)\]", requirement)
        if others:
            found.update(*map(requirements, others[1].split(",")))
        else:
            found.add(distribution(requirement))
    return found


def test_extras_of_the_project_bring_the_packages_of_the_table():
    of = packages_distributions()
    alternatives = {"pytorch_lightning"}
    for name, packages in EXTRAS.items():
        brought = requirements(name)
        known = {package: {each.lower() for each in of[package]} for package in {*packages} - alternatives}
        for package, distributions in known.items():
            assert distributions & brought, (name, package)
        assert brought <= set().union(*known.values()), name
    (everything,) = PROJECT["optional-dependencies"]["all"]
    assert set(EXTRAS) == set(re.search(r"\[(.*)\]", everything)[1].split(",")) | {"tables"}


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with raises_field(ImportError, "report", "pip install '.[report]'"), require_extra("report"):
        import matplotlib  # noqa: F401
    with raises_field(ImportError, "report", "matplotlib"):
        check_extras({"tables": EXTRAS["tables"], "report": EXTRAS["report"]})
    check_extras({"tables": EXTRAS["tables"]})
    with pytest.raises(ModuleNotFoundError), require_extra("tables"):
        import no_such_package  # noqa: F401


def run(code: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A fresh process without the packages of any extra."""
    command = [sys.executable, "-c", BLOCKED + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd)


def test_the_trainer_of_the_readme_needs_no_extra(tmp_path):
    examples = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    (example,) = (each for each in examples if "equidp.Trainer(" in each)
    done = run(example, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert 0 < float(done.stdout.split()[0]) <= 4


@pytest.mark.soak
def test_each_module_is_imported_or_names_an_extra(tmp_path):
    names = [
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted(SOURCE.rglob("*.py"))
        if path.stem != "__main__"
    ]
    code = f"""
import importlib
from equidp.errors import MissingExtraError
for name in {names}:
    try:
        importlib.import_module(name)
    except MissingExtraError as error:
        print(error.field, name)
    else:
        print("core", name)
"""
    done = run(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-500:]
    found = [line.split() for line in done.stdout.splitlines()]
    assert len(found) == len(names)
    assert {extra for extra, _ in found} <= {"core", *EXTRAS}
    assert set(CORE) <= {name for extra, name in found if extra == "core"}


@pytest.mark.parametrize("name", [each for each in COMMANDS if each in ("train", "compare")])
def test_commands_without_their_extra_name_it_and_fail(name, tmp_path):
    done = run("from equidp.cli import main; main()", name, "digits", cwd=tmp_path)
    assert done.returncode == 2
    assert f".[{app.EXTRAS[name]}]" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.soak
def test_parts_of_the_package_name_their_extra(tmp_path):
    code = """
import torch
import equidp
from equidp.data.efficientnet import efficientnet_lite0
def features(): efficientnet_lite0()
def hf(): import equidp.integrations.hugging_face
def lightning(): import equidp.integrations.lightning
PARTS = {
    "tables": [
        lambda: equidp.PrivateClassifier, lambda: equidp.EpochRecorder, lambda: equidp.diagnose,
        lambda: equidp.IndividualReport, lambda: equidp.by_person, lambda: equidp.audit_step,
        lambda: equidp.compare, lambda: equidp.METRICS,
    ],
    "features": [features],
    "hf": [hf],
    "lightning": [lightning],
}
for extra, parts in PARTS.items():
    for part in parts:
        try:
            part()
        except equidp.errors.MissingExtraError as error:
            print(error.field == extra, error)
        else:
            print("no error", extra)
"""
    done = run(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-500:]
    lines = done.stdout.splitlines()
    assert len(lines) == 11
    assert all(line.startswith("True ") for line in lines), done.stdout
