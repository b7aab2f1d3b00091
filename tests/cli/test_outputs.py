"""Every command writes where it is told, or says before its work why it cannot."""

from __future__ import annotations

import os
import shlex
import shutil
import threading
from functools import partial
from pathlib import Path

import pytest

from support.command import equidp_here, people  # noqa: F401
from support.odd_places import made

pytestmark = pytest.mark.soak
TABLE = ("people.csv", "--target", "income", "--group", "sex")
QUICK = ("--set", "privacy.accountant=rdp", "--epochs", "1", "--batch-size", "50", "--noise-multiplier", "3")
ALONE = ("--seeds", "1", "--jobs", "1", "--methods", "dpsgd", *QUICK[2:])
NEW_LEDGER = ("--ledger-epsilon", "9", "--ledger-delta", "1e-3", "--ledger")
COMMANDS = {
    "predict --out": ("predict", "run", "people.csv", "--out"),
    "evaluate --json": ("evaluate", "run", "--json"),
    "inspect --out": ("inspect", *TABLE, "--out"),
    "inspect --json": ("inspect", *TABLE, "--json"),
    "compare --report": ("compare", *TABLE, *ALONE, "--report"),
}
"""Option that names a file to write -> the command up to it."""
FOLDERS = {
    "train --out": ("train", *TABLE, *QUICK, "--out"),
    "compare --directory": ("compare", *TABLE, *ALONE, "--directory"),
}
BUDGETS = {
    "train --ledger": ("train", *TABLE, *QUICK, "--out", "new", *NEW_LEDGER),
}
FILE_OF_FOLDER = {"train --out": "share/card.md"}
ODD_NAMES = ("", "new/", "nowhere/new", "run", "people.csv")


@pytest.fixture(scope="module")
def trained(people, tmp_path_factory):  # noqa: F811
    folder = tmp_path_factory.mktemp("trained")
    shutil.copy(people / "people.csv", folder)
    assert equidp_here("train", *TABLE, *QUICK, "--out", "run", cwd=folder).returncode == 0
    return folder


@pytest.fixture
def folder(trained, tmp_path, monkeypatch):
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(command, place, folder) -> str:
    """What a command says that stops before its work and leaves everything as it was."""
    before = {path: path.lstat() for path in folder.rglob("*")}
    done = equidp_here(*command, place, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert "None" not in done.stderr
    after = {path: path.lstat() for path in folder.rglob("*")}
    assert set(after) == set(before)
    for path, status in before.items():
        assert (after[path].st_mode, after[path].st_ino) == (status.st_mode, status.st_ino)
    return done.stderr


NO_FILES = ("folder", "socket", "disk", "link in a circle", "pipe", "device")
"""Kinds of things that no output is written to."""


@pytest.mark.soak
@pytest.mark.parametrize(
    ("option", "kind"),
    [
        *((option, NO_FILES[place % 6]) for place, option in enumerate([*COMMANDS, *BUDGETS])),
    ],
)
def test_what_no_file_can_be_written_to_is_refused(folder, option, kind):
    made(folder / "odd", kind)
    refused({**COMMANDS, **BUDGETS}[option], "odd", folder)


@pytest.mark.parametrize(
    ("option", "place"),
    [
        *(("predict --out", place) for place in ODD_NAMES),
        ("train --ledger", "run"),
    ],
)
def test_a_name_of_no_new_file_is_refused(folder, option, place):
    refused({**COMMANDS, **BUDGETS}[option], place, folder)


@pytest.mark.parametrize(
    ("option", "kind"),
    [
        *(("train --out", kind) for kind in ("link in a circle", "empty")),
        ("compare --directory", "file"),
    ],
)
def test_what_is_no_folder_is_refused(folder, option, kind):
    if kind == "file":
        (folder / "odd").touch()
    elif kind != "empty":
        made(folder / "odd", kind)
    for place in ("",) if kind == "empty" else ("odd", "odd/under"):
        refused(FOLDERS[option], place, folder)


def test_two_outputs_in_one_place_are_refused(folder):
    for first, second in (("a.html", "./a.html"), ("a.html", "link")):
        if second == "link":
            (folder / "link").symlink_to("a.html")
        said = refused(("compare", *TABLE, *ALONE, "--json", first, "--report"), second, folder)
        assert "--json" in said or "--report" in said


ODD_PLACES = ("link", "-odd name's\n")


@pytest.mark.parametrize(
    ("option", "kind"),
    [
        *((option, ODD_PLACES[place % len(ODD_PLACES)]) for place, option in enumerate(COMMANDS)),
        *(("evaluate --json", kind) for kind in ODD_PLACES if kind != ODD_PLACES[0]),
    ],
)  # each option in one place, and one option in each place: they share the code that writes
def test_every_output_is_written_and_what_stands_there_stays(folder, option, kind):
    command = COMMANDS[option]
    place = "odd" if kind == "link" else kind
    if kind == "link":
        (folder / place).symlink_to("behind")
    before = (folder / place).lstat() if os.path.lexists(folder / place) else None
    joined = (*command[:-1], f"{command[-1]}={place}")
    done = equidp_here(*joined, cwd=folder)
    assert done.returncode == 0, done.stderr
    content = (folder / place).read_bytes()
    assert content
    if before is not None:
        assert (folder / place).lstat().st_mode == before.st_mode
        assert (folder / place).lstat().st_ino == before.st_ino


@pytest.mark.parametrize(
    ("option", "place"),
    [
        *((option, "new/under/") for option in FILE_OF_FOLDER),
        *(("train --out", place) for place in ("dangling", "-odd name's\n")),
    ],
)
def test_every_folder_is_filled_where_it_is_named(folder, option, place):
    work = folder / "work"
    work.mkdir()
    (work / "dangling").symlink_to("../not yet") if place == "dangling" else None
    (folder / "elsewhere").mkdir()
    command = [{"people.csv": "../people.csv", "run": "../run"}.get(each, each) for each in FOLDERS[option]]
    done = equidp_here(*command[:-1], f"{command[-1]}={place}", cwd=work)
    assert done.returncode == 0, done.stderr
    assert (work / place / FILE_OF_FOLDER[option]).is_file()


@pytest.mark.parametrize("name", ["it's", "-run"])
def test_lines_to_go_on_with_are_taken_by_a_shell(folder, name):
    (folder / "run").rename(folder / name)
    shutil.rmtree(folder / name / "share")
    for command in (("evaluate",), ("predict",)):
        said = equidp_here(*command, "--", name, cwd=folder).stderr
        line = said[said.index("\nequidp ") + 1 :]
        typed = shlex.split(line)
        assert typed[:3] == ["equidp", "train", "--resume"]
        assert Path(typed[3]) == Path(name)
        assert typed[3][0] != "-"
        assert len(typed) == 4
    assert equidp_here(*typed[1:], cwd=folder).returncode == 0


def test_a_file_of_options_may_be_a_pipe(folder):
    content = '[table]\ngroup = ["sex"]\ntarget = "income"\n[training]\nepochs = 3\n'
    made(folder / "pipe", "pipe")
    threading.Thread(target=partial((folder / "pipe").write_text, content)).start()
    command = ("train", "people.csv", "--config", "pipe", "--dry-run", *QUICK)
    done = equidp_here(*command, cwd=folder)
    assert done.returncode == 0, done.stderr
