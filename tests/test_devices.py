"""All that computes does so on a device that is not the CPU."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).with_name("support") / "device_checks.py"


@pytest.mark.soak
def test_everything_computes_on_a_second_device():
    """In a process of its own: PyTorch learns of devices before its first backward pass alone."""
    if not (shutil.which("ninja") and shutil.which("c++")):
        pytest.skip("the second device is C++, and takes a compiler and ninja")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", str(CHECKS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
