"""The process of a command: several under torchrun speak as one, and freed memory stays with it."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from equidp.ledger.ledger import Ledger
from support.command import QUICK, equidp_here


def torchrun(count: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, "-m", "equidp", *arguments], capture_output=True, text=True, check=False, env=environment
    )


@pytest.fixture
def people(tmp_path):
    draws, path = np.random.default_rng(0), tmp_path / "people.csv"
    columns = {"age": draws.integers(18, 90, 600), "sex": draws.choice(["F", "M"], 600)}
    pd.DataFrame({**columns, "paid": draws.integers(0, 2, 600)}).to_csv(path, index=False)
    return str(path)


def options(people: str, out: str, *more: str) -> list[str]:
    table = [people, "--target", "paid", "--group", "sex", "--set", "column.age.range=[18, 90]"]
    plan = ("--noise-multiplier", "3", "--epochs", "2", "--set", "training.sample_rate=1", *QUICK)
    return ["train", *table, *plan, "--out", out, *more]


@pytest.mark.soak
def test_two_processes_train_one_run_and_the_first_speaks(people, tmp_path):
    out = tmp_path / "run"
    told = torchrun(2, *options(people, str(out)))
    assert told.returncode == 0, told.stderr
    assert told.stdout.count("Model card:") + told.stderr.count("Model card:") == 1
    assert Ledger.read(out / "private" / "ledger").entries()
    assert equidp_here("evaluate", str(out), cwd=tmp_path).returncode == 0
