"""Files are complete or absent, and replacing one changes only its content."""

from __future__ import annotations

import os
import stat

import pytest

from equidp._files import write_whole


def test_a_replaced_file_keeps_its_permissions_and_leaves_no_other_file(tmp_path):
    path = tmp_path / "page.html"
    write_whole(path, b"old")
    path.chmod(0o640)
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_replaced_is_left_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    write_whole(path, b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match=r"No space left on device: .*page\.html"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
