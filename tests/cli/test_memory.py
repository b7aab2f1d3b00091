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
    from equidp.cli.memory import keep_freed_memory
    keep_freed_memory()
def use():
    return np.ones(5 * 2**20)  # 40 MiB; below 32 the C library may keep memory by itself
for _ in range(2):
    use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")
def test_memory_that_was_freed_comes_back_without_page_faults():
    """Counts pages that the operating system had to hand out again; an environment that has decided is left
    alone."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    decided = {**clean, "MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
    kept, returned, overruled = (
        int(subprocess.check_output([sys.executable, "-c", FAULTS, how], env=environment))
        for how, environment in [("keep", clean), ("default", clean), ("keep", decided)]
    )
    assert 20 * kept < min(returned, overruled)
