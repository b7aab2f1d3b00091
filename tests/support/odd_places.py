"""Things that a path may name beside a plain file, made in a folder of the test's own."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest


def made(path: Path, kind: str) -> None:
    """Make a "folder", "pipe", "socket", "device", "disk" or "link in a circle".

    Skips the test where making a device is not permitted.

    The device has the numbers of the null device, and the disk those of no device at all.
    """
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            before = os.getcwd()
            os.chdir(path.parent)  # a socket's path has at most 107 bytes
            try:
                bound.bind(path.name)
            finally:
                os.chdir(before)
    elif kind == "link in a circle":
        path.symlink_to(path)
    else:
        numbers = (stat.S_IFCHR, os.makedev(1, 3)) if kind == "device" else (stat.S_IFBLK, os.makedev(0, 0))
        try:
            os.mknod(path, 0o666 | numbers[0], numbers[1])
        except PermissionError:
            pytest.skip("making a device is not permitted")
