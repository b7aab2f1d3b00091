"""Runs `equidp` as a user does, and a small table of people."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import pandas as pd
import pytest

QUICK = ("--set", "privacy.accountant=rdp")
"""Options of an accountant that finds the noise in no time."""


def equidp_here(*arguments: str, cwd) -> subprocess.CompletedProcess:
    """`python -m equidp` in this process: libraries, which take seconds to load, are there already."""
    from equidp.cli import main

    return _run_here(main, arguments, cwd)


def papers_here(*arguments: str, cwd) -> subprocess.CompletedProcess:
    """`python -m papers` in this process."""
    from equidp.cli.app import main
    from papers.__main__ import app

    return _run_here(lambda: main(app), arguments, cwd)


def _run_here(main: Callable[[], None], arguments: Sequence[str], cwd) -> subprocess.CompletedProcess:
    code: object = 0
    with pytest.MonkeyPatch.context() as patch, StringIO() as out, StringIO() as err:
        patch.chdir(cwd)
        patch.setenv("NO_COLOR", "1")
        patch.setenv("COLUMNS", "120")
        patch.setattr(sys, "argv", ["equidp", *arguments])
        patch.setattr(warnings, "showwarning", warnings.showwarning)
        with redirect_stdout(out), redirect_stderr(err):
            try:
                main()
            except SystemExit as end:
                code = end.code or 0
        assert "Path(" not in err.getvalue(), err.getvalue()  # of PosixPath(...)
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    folder = tmp_path_factory.mktemp("people")
    index = range(200)
    table = pd.DataFrame(
        {
            "age": [20 + i % 37 for i in index],
            "job": ["clerk" if i % 3 else "cook" for i in index],
            "sex": ["F" if i % 2 else "M" for i in index],
            "income": ["high" if (i * 7) % 10 < 4 else "low" for i in index],
        }
    )
    table.to_csv(folder / "people.csv", index=False)
    return folder
