"""Modules of the user's own: files in the current folder that can be imported by name."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def own_module(name: str, text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Write a module to a folder that becomes the current one; its name can be imported inside the block."""
    (folder / f"{name}.py").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    yield name
    sys.modules.pop(name, None)
