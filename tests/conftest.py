"""What several tests share: where real data is, and an engine made of given gradients."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("equidp", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("equidp")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real datasets."""
    folder = os.environ.get("EQUIDP_DATA")
    if not folder:
        pytest.skip("EQUIDP_DATA is not set; it names the folder with mnist/, adult/ and dutch/")
    return Path(folder)


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs `equidp` in this process: (*arguments, cwd) -> exit code, standard output, standard error in one
    line."""

    def invoke(*arguments, cwd):
        from equidp.cli import main

        monkeypatch.chdir(cwd)
        monkeypatch.setenv("COLUMNS", "150")
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
        monkeypatch.setattr(sys, "argv", ["equidp", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        seen = capsys.readouterr()
        return end.value.code or 0, seen.out, " ".join(seen.err.split())

    return invoke
