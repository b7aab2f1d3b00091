"""Files are complete or absent, replacing one changes only its content, and only plain files are replaced."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from equidp._files import check_folder, check_outputs, check_writable, command_line, write_whole
from equidp.errors import SettingError
from support.errors import raises_field
from support.odd_places import made


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
    with pytest.raises(OSError, match=r"page\.html"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("there", "links"), [(True, 3), (False, 1)])
def test_a_link_stays_and_the_file_behind_it_is_written(tmp_path, monkeypatch, there, links):
    shared, here = tmp_path / "shared", tmp_path / "here"
    shared.mkdir()
    here.mkdir()
    if there:
        (shared / "page.html").write_bytes(b"old")
        (shared / "page.html").chmod(0o640)
    target = "../shared/page.html"
    for number in range(links):
        (here / f"link{number}").symlink_to(target)
        target = f"link{number}"
    monkeypatch.chdir(here)
    check_writable(target)
    write_whole(target, b"new")
    assert os.path.islink(target)
    assert (shared / "page.html").read_bytes() == b"new"
    assert stat.S_IMODE((shared / "page.html").stat().st_mode) == (0o640 if there else 0o644)
    assert [each.name for each in shared.iterdir()] == ["page.html"]


@pytest.mark.parametrize("kind", ["folder", "socket", "disk", "link in a circle", "pipe", "device"])
def test_what_cannot_hold_a_text_is_refused_and_left(tmp_path, kind):
    path = tmp_path / "out"
    made(path, kind)
    before = path.lstat()
    for call in (check_writable, lambda path: write_whole(path, b"new")):
        with raises_field(SettingError, "path", path):
            call(path)
    assert path.lstat() == before
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_command_reads_is_not_overwritten(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run/part").mkdir(parents=True)
    Path("run/part/card.md").touch()
    Path("link").symlink_to("run/part/card.md")
    for name in ("run/part/card.md", "./run/part/card.md", "link", tmp_path / "run/part/card.md"):
        with raises_field(SettingError, "path", "lost"):
            check_writable(name, None, "run")
    check_writable("run/part/new.md", "run")


def test_two_outputs_of_one_name_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("link").symlink_to("a.json")
    for second in ("./a.json", "link", tmp_path / "a.json"):
        with raises_field(SettingError, "--report"):
            check_outputs({"--json": "a.json", "--table": None, "--report": second})
    check_outputs({"--json": "a.json", "--report": "b.html"})
    assert not Path("a.json").exists()


def test_a_folder_that_cannot_be_made_is_refused_and_none_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    made(tmp_path / "circle", "link in a circle")
    for name in ("file", "file/under", "circle", "circle/under"):
        with pytest.raises(SettingError):
            check_folder(name)
    for name in (".", "./", "new/", "new/under", "..", "-f"):
        check_folder(name)
    assert sorted(os.listdir()) == ["circle", "file"]


def test_commands_are_printed_as_a_shell_takes_them(tmp_path):
    for name in ("run", "run 1 (new)", "it's", "a\nb", "-x", "--resume", "*", "~", "$HOME", "日本", 'a"b'):
        line = command_line("printf", "%s", Path(name))
        taken = subprocess.run(["sh", "-c", line], capture_output=True, check=True).stdout.decode()
        assert os.path.normpath(taken) == name
        assert taken[0] != "-"
