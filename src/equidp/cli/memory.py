"""Freed memory is kept for the next step.

By default the C library gives what a step freed back to the operating system and asks for it anew in the next one: page by page, a
quarter of a step's time for a model of some size. Only a program may decide otherwise, so the command line does it and the library
does not.
"""

from __future__ import annotations

import ctypes
import os

# Names of the environment's settings, glibc's own numbers for them (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD), and bytes; older versions
# refuse more than 32 MiB of the first.
_SETTINGS = (("MALLOC_MMAP_THRESHOLD_", -3, (2**30, 2**25)), ("MALLOC_TRIM_THRESHOLD_", -1, (2**30,)))


def keep_freed_memory() -> None:
    """Here and in processes started from here on, where the C library can be told to and the environment has not decided."""
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    if tell is None:
        return
    for name, number, sizes in _SETTINGS:
        if name not in os.environ:
            taken = next((size for size in sizes if tell(number, size)), None)
            if taken is not None:
                os.environ[name] = str(taken)
