"""Runs `equidp` as a user does, in a process of its own, and a small table of people."""

from __future__ import annotations

import os
import subprocess
import sys

import pandas as pd
import pytest


def equidp(*arguments: str, cwd) -> subprocess.CompletedProcess:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "120"}
    return subprocess.run(
        [sys.executable, "-m", "equidp", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
    )


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
    table.assign(age=[None, *table["age"][1:]]).to_csv(folder / "gaps.csv", index=False)
    table.assign(income="low").to_csv(folder / "one-class.csv", index=False)
    table.assign(sex=["X", *table["sex"][1:]]).to_csv(folder / "lonely.csv", index=False)
    return folder
