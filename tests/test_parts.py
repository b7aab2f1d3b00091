"""An import path gives what it names, or an error that says what to do."""

from __future__ import annotations

import sys

import pytest

from equidp._parts import is_import_path, own_part
from equidp.errors import SettingError
from support.errors import raises_field

MODULE = """
import os, math

class Halved:
    class Inner:
        pass

def make_model(shape, classes):
    return shape, classes

BOUND = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a module and a package that only it has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    (tmp_path / "own_parts_here.py").write_text(MODULE)
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "models.py").write_text(MODULE)
    (tmp_path / "own_broken.py").write_text("import not_installed_anywhere\n")
    (tmp_path / "own_failing.py").write_text("raise RuntimeError('no licence.')\n")
    (tmp_path / "own_unfinished.py").write_text("def f(:\n")
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def found(path: str):
    return own_part(path, "model", callable, "a function of shape and classes")


@pytest.mark.parametrize("module", ["own_parts_here", "own_package.models"])
def test_a_module_of_the_current_folder_can_be_named(folder, module):
    assert found(f"{module}:make_model")((3,), 2) == ((3,), 2)
    assert found(f"{module}:Halved.Inner").__name__ == "Inner"


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("own_parts_hear:make_model", "No module named 'own_parts_hear'"),
        ("own_parts_here:make_modle", "no attribute 'make_modle'"),
        ("own_parts_here:BOUND", "int"),
        ("folder/own_parts_here.py:f", "expected a function of shape and classes as module:name"),
        ("own_broken:f", "not_installed_anywhere"),
        ("own_failing:f", "RuntimeError: no licence"),
        ("own_unfinished:f", "SyntaxError"),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_to_do(folder, path, word):
    with raises_field(SettingError, "model") as caught:
        found(path)
    assert path in str(caught.value)
    assert word in str(caught.value)
    assert not str(caught.value).endswith("..")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("my:Policy", True),
        ("my.package:make_model", True),
        ("my.py:Policy", True),
        ("dpsgd", False),
        ("C:\\people.csv", False),
        ("s3://bucket/people", False),
        ("age=0:100", False),
        (None, False),
    ],
)
def test_import_paths_are_told_from_names_and_files(text, meant):
    assert is_import_path(text) == meant
