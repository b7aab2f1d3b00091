"""The public names: listed once for Python and once for type checkers, and loaded on first use."""

from __future__ import annotations

import ast
import importlib.metadata
from pathlib import Path

import pytest

import equidp


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(equidp.__file__).with_suffix(".pyi").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    stated = {alias.asname: f"{node.module}.{alias.name}" for node in imports for alias in node.names}
    assert stated == {name: f"equidp.{home}.{name}" for name, home in equidp._HOME.items()}


def test_every_public_name_loads_is_listed_and_says_what_it_is():
    for name in equidp.__all__:
        thing = getattr(equidp, name)
        assert name in dir(equidp)
        assert thing.__doc__ or not callable(thing), name
    with pytest.raises(AttributeError, match="nope"):
        equidp.nope  # noqa: B018


def test_the_version_is_that_of_the_installed_package():
    assert equidp.__version__ == importlib.metadata.version("equidp")
    assert "__version__" in dir(equidp)
