"""The ledger never says less than was spent: not after a kill, a full disk, an interrupt, an edit, a fork, or
beside a second process."""

from __future__ import annotations

import copy
import errno
import gc
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, strategies as st

from equidp.errors import BudgetError, SettingError
from equidp.kernel.event import PEOPLE, ROWS, Event
from equidp.ledger import ledger as module, lines
from equidp.ledger.ledger import Ledger
from support.errors import raises_field

STEP = Event(0.1, 1.25, 12.5)
OTHER = Event(1.0, 30.0, name="counts")
MANY = 10**6


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    """Blocks double without end: however slow the disk is, steps here are short."""
    monkeypatch.setattr(module, "_SECONDS", 1e9)


def counts(path) -> Counter:
    """What a file says is spent, before and after it was opened to go on: the same."""
    read = Counter(dict(Ledger.read(path).entries()))
    for _ in range(2):
        with Ledger(path) as again:
            assert Counter(dict(again.entries())) == read
    return read


def spend(ledger, steps, *, run="a", event=STEP, ahead=MANY) -> int:
    """Number of steps taken, each after it was charged, until a charge is refused."""
    for taken in range(steps):
        try:
            ledger.charge(run, event, ahead - taken)
        except BudgetError:
            return taken
    return steps


def within_a_block(path, left=20) -> tuple[Ledger, int]:
    """A ledger that has paid at least `left` steps ahead, and the number of steps taken."""
    ledger, taken = Ledger(path), 0
    while ledger._ahead is None or ledger._ahead.left < left:
        taken += spend(ledger, 1)
    return ledger, taken


def forget(ledger) -> None:
    """Close the file as a kill does."""
    ledger._file.close()


# ------------------------------------------------------------------------------------------ what is counted


def test_what_was_spent_is_there_when_opened_again(tmp_path):
    path = tmp_path / "ledger"
    with Ledger(path) as ledger:
        assert spend(ledger, 9, ahead=100) == 9  # of 15 that are paid
        assert ledger.count("a", STEP) == 9
        ledger.charge("b", OTHER)
        assert ledger.entries() == ((STEP, 9), (OTHER, 1))
    with Ledger(path) as ledger:
        assert ledger.runs == ("a", "b")
        assert (ledger.entries("a"), ledger.entries("b")) == (((STEP, 9),), ((OTHER, 1),))
        assert (ledger.count("a", STEP), ledger.count("b", STEP), ledger.count("c", STEP)) == (9, 0, 0)


def test_every_step_is_on_disk_before_charge_returns(tmp_path, monkeypatch):
    synced, sync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (sync(file), synced.append(os.fstat(file).st_size))[0])
    ledger = Ledger(tmp_path / "ledger")
    for step in range(1, 51):
        ledger.charge("a", STEP, 51 - step)
        assert os.path.getsize(ledger.path) in synced
        assert dict(Ledger.read(ledger.path).entries())[STEP] >= step
    assert dict(Ledger.read(ledger.path).entries())[STEP] == 50  # no block goes beyond the plan
    assert len(ledger.path.read_bytes().splitlines()) < 12  # far fewer lines than steps


def test_the_folder_is_synced_after_the_file_is_made(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(lines, "sync_folder", lambda folder: synced.append((folder, os.listdir(folder))))
    Ledger(tmp_path / "ledger").close()
    assert synced == [(tmp_path, ["ledger"])]


@pytest.mark.soak
@given(
    turns=st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([STEP, OTHER])), min_size=1, max_size=40),
    settled=st.sets(st.integers(0, 39)),
)
def test_runs_and_events_in_turn_pay_for_themselves(tmp_path_factory, turns, settled):
    path = tmp_path_factory.mktemp("turns") / "ledger"
    ledger, taken = Ledger(path), Counter()
    for number, (run, event) in enumerate(turns):
        ledger.charge(run, event, 40)
        taken[run, event] += 1
        there = Ledger.read(path)
        for kind, steps in taken.items():
            assert ledger.count(*kind) == steps <= there.count(*kind)
        if number in settled:
            ledger.settle()
    forget(ledger)
    with Ledger(path) as again:
        assert all(taken[kind] <= again.count(*kind) <= 2 * taken[kind] for kind in taken)


def test_blocks_grow_until_they_last_half_a_second_and_shrink_again(tmp_path, monkeypatch):
    clock, sizes = [0.0], []
    monkeypatch.setattr(module, "_SECONDS", 0.5)
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    ledger = Ledger(tmp_path / "ledger")
    for seconds in (0.1, 1.0):
        for _ in range(200):
            ledger.charge("a", STEP, MANY)
            sizes.append(ledger._ahead.size)
            clock[0] += seconds
    assert max(sizes) == 4
    assert sizes[-1] in (1, 2)


# -------------------------------------------------------------------------- interrupted, full, forked, torn


def test_a_full_disk_while_settling(tmp_path):
    """A release settles the block; the user goes on after there is space again."""
    path = tmp_path / "ledger"
    ledger, taken = within_a_block(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 30, hard))
    try:
        with raises_field(BudgetError, "path", "cannot be written"):
            ledger.charge("a", OTHER)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert spend(ledger, 20) == 0  # dead until it is opened again
    ledger.close()
    assert counts(path)[STEP] >= taken
    with Ledger(path) as again:
        assert spend(again, 5) == 5


@pytest.mark.parametrize("act", ["settle", "charge"])
def test_ctrl_c_once_steps_are_given_back_takes_none_of_them(tmp_path, monkeypatch, act):
    path, append = tmp_path / "ledger", lines.LineFile.append
    ledger, taken = within_a_block(path)

    def interrupted(file: lines.LineFile, record: lines.Record) -> None:
        append(file, record)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(lines.LineFile, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ledger.settle() if act == "settle" else ledger.charge("a", OTHER)
    taken += spend(ledger, 20)
    forget(ledger)
    assert counts(path)[STEP] >= taken


@pytest.mark.parametrize("act", ["settle", "charge"])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "I/O error"), KeyboardInterrupt()], ids=repr)
def test_after_a_failed_sync_nothing_more_is_spent_and_what_may_be_on_disk_counts(
    tmp_path, monkeypatch, act, error
):
    path, sync = tmp_path / "ledger", os.fsync
    ledger, taken = within_a_block(path)

    def fails(file: int) -> None:
        sync(file)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else BudgetError):
            ledger.settle() if act == "settle" else ledger.charge("a", OTHER)
    assert spend(ledger, 20) == 0
    ledger.close()
    assert counts(path)[STEP] >= taken


def in_a_fork(act) -> int:
    """Exit status of a child that does something; 17: BudgetError."""
    if (child := os.fork()) == 0:
        try:
            act()
        except BudgetError:
            os._exit(17)
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("act", ["charge", "settle", "close", "collected"])
def test_a_forked_copy_spends_nothing_and_gives_nothing_back(tmp_path, act):
    """Not even what the process it comes from has paid for ahead; the lock stays that one's."""
    path = tmp_path / "ledger"
    ledger, taken = within_a_block(path)
    content = path.read_bytes()

    def child() -> None:
        if act == "charge":
            ledger.charge("a", STEP)
        elif act == "collected":
            ledger.__del__()
            gc.collect()
        else:
            getattr(ledger, act)()

    status = in_a_fork(child)
    assert status == (17 if act in ("charge", "settle") else 0)
    assert path.read_bytes() == content
    with raises_field(BudgetError, "lock"):
        Ledger(path)
    taken += spend(ledger, 31)
    forget(ledger)
    assert counts(path)[STEP] >= taken


def test_a_forked_copy_of_a_ledger_in_memory_spends_nothing():
    ledger = Ledger()
    assert in_a_fork(lambda: ledger.charge("a", STEP)) == 17


def test_threads_charge_one_after_the_other(tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    taken = Counter()

    def charge(run: str) -> None:
        taken[run] = spend(ledger, 100, run=run)

    threads = [threading.Thread(target=charge, args=(name,)) for name in "abcd"]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    ledger.close()
    assert taken == dict.fromkeys("abcd", 100)
    assert counts(ledger.path)[STEP] == 400


@pytest.mark.parametrize("cut", [1, 22, 50])
def test_a_torn_last_line_counts_as_a_block(tmp_path, cut):
    path = tmp_path / "ledger"
    ledger = Ledger(path)
    spend(ledger, 7, ahead=7)
    forget(ledger)
    with path.open("ab") as file:
        file.write(path.read_bytes().splitlines(keepends=True)[-1][:cut])
    assert counts(path) == {STEP: 7 + 4}


def test_a_last_line_that_is_not_whole_counts_as_a_block(tmp_path):
    """As after a power failure that left the end of a line without its beginning."""
    path = tmp_path / "ledger"
    ledger = Ledger(path)
    spend(ledger, 7, ahead=7)
    forget(ledger)
    with path.open("ab") as file:
        file.write(b'\0\0\0\0"count":4} 0123\n')
    assert counts(path) == {STEP: 7 + 4}


@pytest.mark.soak
@given(data=st.data())
def test_edits_before_the_end_are_refused(tmp_path_factory, data):
    """Any byte overwritten, any line taken out or put elsewhere, but for the last line."""
    path = tmp_path_factory.mktemp("edit") / "ledger"
    with Ledger(path) as ledger:
        spend(ledger, 9, ahead=20)
        ledger.charge("a", OTHER)
    *lines, last = path.read_bytes().splitlines(keepends=True)
    if data.draw(st.booleans()):
        number = data.draw(st.integers(0, len(lines) - 1))
        line = bytearray(lines[number])
        line[data.draw(st.integers(0, len(line) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        lines[number] = bytes(line)
    else:
        line = lines.pop(data.draw(st.integers(0, len(lines) - 1)))
        if data.draw(st.booleans()):
            lines.insert(data.draw(st.integers(0, len(lines))), line)
    changed = b"".join([*lines, last])
    if changed == path.read_bytes():
        return
    path.write_bytes(changed)
    for opened in (Ledger, Ledger.read):
        with pytest.raises(BudgetError):
            opened(path)
    assert path.read_bytes() == changed


# ------------------------------------------------------------------------------------------------ the file


def test_opening_it_twice_is_refused(tmp_path):
    path = tmp_path / "ledger"
    with Ledger(path) as ledger:
        ledger.charge("a", STEP)
        with raises_field(BudgetError, "lock"):
            Ledger(path)
        assert Ledger.read(path).entries()  # reading is free
    Ledger(path).close()


def test_a_refused_opening_keeps_no_lock(tmp_path):
    """Not while a notebook keeps the traceback either."""
    path = tmp_path / "ledger"
    Ledger(path, unit=PEOPLE).close()
    with pytest.raises(BudgetError) as kept:
        Ledger(path, unit=ROWS)
    Ledger(path).close()
    assert kept.tb is not None


@pytest.mark.parametrize("change", ["replaced", "removed", "longer"])
def test_a_file_that_changes_under_it_stops_it(tmp_path, change):
    path = tmp_path / "ledger"
    ledger = Ledger(path)
    ledger.charge("a", STEP)
    content = path.read_bytes()
    if change == "longer":
        path.write_bytes(content + b"\n")
    else:
        path.rename(tmp_path / "moved")
        if change == "replaced":
            path.write_bytes(content)
    with raises_field(BudgetError, "path", path):
        ledger.charge("a", STEP)
    assert ledger.count("a", STEP) == 1


@pytest.mark.parametrize("content", [b"notes", b'{"equidp_ledger" of mine', b"a,b\n1,2\n"])
def test_a_file_that_is_something_else_is_left_as_it_is(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    for opened in (Ledger, Ledger.read):
        with raises_field(BudgetError, "checksum"):
            opened(path)
    assert path.read_bytes() == content
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.soak
@pytest.mark.parametrize("end", ["left open", "collected"])
def test_a_ledger_left_open_counts_the_steps_spent_and_says_nothing(tmp_path, end):
    code = f"""
import sys
from equidp import Ledger
from equidp.kernel.event import Event
ledger = Ledger(sys.argv[1])
for _ in range(4):
    ledger.charge("a", Event(0.1, 1.0), 100)
assert ledger._ahead.left
{"" if end == "left open" else "del ledger"}
"""
    path = tmp_path / "ledger"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert counts(path) == {Event(0.1, 1.0): 4}


def test_a_copy_is_the_same_ledger_and_none_goes_to_another_process():
    ledger = Ledger()
    assert copy.deepcopy({"ledger": ledger})["ledger"] is ledger
    with raises_field(BudgetError, "ledger"):
        pickle.dumps(ledger)


# -------------------------------------------------------------------------- facts, labels, runs, releases


@pytest.mark.parametrize(
    ("made_with", "given"),
    [
        ({}, {"limit": (0.5, 1e-5)}),
        ({"limit": (3.0, 1e-5)}, {"limit": (3.0, 1e-6)}),
        ({"unit": PEOPLE}, {"unit": ROWS}),
    ],
)
def test_facts_that_differ_from_the_files_are_refused(tmp_path, made_with, given):
    path = tmp_path / "ledger"
    Ledger(path, **made_with).close()
    content = path.read_bytes()
    with raises_field(BudgetError, *given):
        Ledger(path, **given)
    assert path.read_bytes() == content
    with Ledger(path, **made_with) as ledger:
        for name, value in made_with.items():
            assert getattr(ledger, name) == value


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"limit": 3.0}, "limit"),
        ({"limit": (0.0, 1e-5)}, "epsilon"),
        ({"limit": (1.0, 1.0)}, "delta"),
        ({"limit": (float("nan"), 1e-5)}, "epsilon"),
        ({"unit": "person"}, "unit"),
    ],
)
def test_facts_that_cannot_be_are_refused(tmp_path, given, field):
    with raises_field(SettingError, field):
        Ledger(tmp_path / "ledger", **given)
    assert not (tmp_path / "ledger").exists()


def test_a_column_is_known_by_its_names_and_labels_in_its_ledger_alone(tmp_path):
    """Nobody can try out whose label is which: the key is random, and in the file."""
    labels = np.array([0, 1, 1])
    with Ledger(tmp_path / "ledger") as ledger:
        column = ledger.column(("a", "b"), labels)
        others = ledger.column(("a", "c"), labels), ledger.column(("a", "b"), labels[::-1])
    assert column == Ledger.read(tmp_path / "ledger").column(["a", "b"], labels.astype("int32"))
    assert len({column, *others, Ledger().column(("a", "b"), labels)}) == 4


def test_a_seeded_run_says_so_on_its_lines(tmp_path):
    with Ledger(tmp_path / "ledger") as ledger:
        run, seeded = ledger.new_run(), ledger.new_run(seeded=True)
        ledger.charge(seeded, STEP)
        assert len({run, seeded, ledger.new_run()}) == 3
    assert b'"run":"seeded-' in (tmp_path / "ledger").read_bytes()
    assert not run.startswith("seeded")


def test_a_release_is_paid_before_it_is_drawn_and_is_no_step(tmp_path):
    with Ledger(tmp_path / "ledger") as ledger:
        spend(ledger, 3)

        def draw(noise: float) -> float:
            assert dict(Ledger.read(ledger.path).entries())[OTHER] == 1
            return 2 * noise

        assert ledger.release("a", "counts", 30.0, draw) == 60.0
        assert ledger.entries("a") == ((STEP, 3), (OTHER, 1))
        with raises_field(SettingError, "name"):
            ledger.release("a", "step", 30.0, draw)


def test_a_release_that_cannot_be_paid_is_not_drawn():
    ledger = Ledger(limit=(0.1, 1e-5))
    with raises_field(BudgetError, "ledger"):
        ledger.release("a", "counts", 1.0, lambda noise: pytest.fail("was drawn"))
    assert ledger.entries() == ()
