"""What is freed stays with the process."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import numpy as np
if sys.argv[1] == "keep":
    from equidp.cli.process import keep_freed_memory
    keep_freed_memory()
def use():
    np.empty(int(sys.argv[2]), dtype=np.uint8)[::4096] = 1  # each page
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")
@pytest.mark.parametrize("size", [40 * 2**20, pytest.param(5 * 2**28, marks=pytest.mark.soak)])
def test_memory_that_was_freed_comes_back_without_page_faults(size):
    """Counts pages that the operating system had to hand out again; an environment that has decided is left
    alone. Below 32 MiB the C library may keep memory by itself; 1.25 GiB hold a batch of wide images."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    decided = {**clean, "MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
    kept, returned, overruled = (
        int(subprocess.check_output([sys.executable, "-c", FAULTS, how, str(size)], env=environment))
        for how, environment in [("keep", clean), ("default", clean), ("keep", decided)]
    )
    assert 20 * kept < min(returned, overruled)
