"""The process of a command: several under torchrun speak as one, and freed memory stays with it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from equidp.cli import messages
from equidp.cli.messages import fail
from equidp.ledger.ledger import Ledger
from support.command import QUICK, equidp


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
    assert equidp("evaluate", str(out), cwd=tmp_path).returncode == 0


def test_a_process_that_alone_failed_says_why(monkeypatch, capsys):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(messages, "PATIENCE", 0.01)
    with pytest.raises(SystemExit, match="2"):
        fail("the disk is full.")
    assert capsys.readouterr().err == "process 1: error: the disk is full.\n"


FAULTS = """
import resource, sys
import numpy as np
if sys.argv[1] == "keep":
    from equidp.cli.messages import keep_freed_memory
    keep_freed_memory()
def use():
    np.empty(int(sys.argv[2]), dtype=np.uint8)[::4096] = 1  # each page
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.soak
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")
def test_memory_that_was_freed_comes_back_without_page_faults():
    """Counts pages that the operating system had to hand out again; an environment that has decided is left
    alone. Below 32 MiB the C library may keep memory by itself."""
    size = 40 * 2**20
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    decided = {**clean, "MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
    kept, returned, overruled = (
        int(subprocess.check_output([sys.executable, "-c", FAULTS, how, str(size)], env=environment))
        for how, environment in [("keep", clean), ("default", clean), ("keep", decided)]
    )
    assert 20 * kept < min(returned, overruled)
