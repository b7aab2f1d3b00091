"""Keeps freed memory for the next step.

By default the C library returns what a step freed to the operating system, and asks for it again in the next
step, page by page: a quarter of the time of a step for a model of some size. Only a program may decide
otherwise, so the command line does it and the library does not.
"""

from __future__ import annotations

import ctypes
import os

_MOST = 2**31 - 1  # mallopt takes an int
# Environment variables, numbers that glibc has for them (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD), and bytes;
# older versions refuse more than 32 MiB of the first.
_SETTINGS = (("MALLOC_MMAP_THRESHOLD_", -3, (_MOST, 2**25)), ("MALLOC_TRIM_THRESHOLD_", -1, (_MOST,)))


def keep_freed_memory() -> None:
    """For this process and those it starts, unless the environment has decided or the C library cannot."""
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    if tell is None:
        return
    for name, number, sizes in _SETTINGS:
        if name not in os.environ:
            taken = next((size for size in sizes if tell(number, size)), None)
            if taken is not None:
                os.environ[name] = str(taken)
