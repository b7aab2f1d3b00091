"""The ledger on disk never says less than was spent: not after a kill, a full disk, an edit, or beside a
second process."""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import asdict

import pytest
from hypothesis import given, strategies as st

import equidp
from equidp.errors import BudgetError
from equidp.kernel.ledger import StepEvent, run_of
from equidp.ledger import append_only, file as ledger_file
from equidp.ledger.file import LedgerFile, PayAhead
from equidp.ledger.format import FORMAT, chained_line, read_ledger, seal_path
from support.errors import raises_field
from support.odd_places import made

STEP = StepEvent(0.1, 1.25, 12.5)
OTHER = StepEvent(1.0, 30.0)
MINE = (STEP, "mine")


def spend(path, steps, *, expected=0, event=STEP, close=True) -> None:
    ledger = LedgerFile(path)
    ledger.expect(event, expected)
    for _ in range(steps):
        ledger.spend(event)
    if close:
        ledger.close()
    else:  # as a kill leaves it
        ledger.abandon()


def test_what_was_spent_is_there_when_opened_again(tmp_path):
    path = tmp_path / "ledger"
    spend(path, 7, expected=100)
    spend(path, 2, event=OTHER)
    with LedgerFile(path) as ledger:
        assert ledger.entries == ((STEP, 7), (OTHER, 2))
        assert ledger.steps == 9
    assert [block.steps for block in read_ledger(path).blocks if block.exact] == [1, 2, 4, 1, 1]


@pytest.mark.soak
@given(steps=st.integers(1, 60), expected=st.integers(0, 60))
def test_a_kill_never_counts_less_and_at_most_a_block_more(tmp_path_factory, steps, expected):
    path = tmp_path_factory.mktemp("kill") / "ledger"
    expected = max(steps, expected)
    spend(path, steps, expected=expected, close=False)
    with LedgerFile(path) as ledger:
        assert steps <= ledger.steps <= min(expected, 2 * steps)


@pytest.mark.soak
@given(kinds=st.lists(st.sampled_from([STEP, OTHER]), min_size=1, max_size=40), expected=st.integers(0, 40))
def test_steps_of_two_kinds_pay_for_themselves(tmp_path_factory, kinds, expected):
    """A release between training steps is not paid from their block; after a kill neither kind counts less
    than was spent."""
    path = tmp_path_factory.mktemp("kinds") / "ledger"
    ledger = LedgerFile(path)
    ledger.expect(STEP, expected)
    for kind in kinds:
        ledger.spend(kind)
        counted = dict(read_ledger(path).entries)
        assert all(counted.get(each, 0) >= count for each, count in ledger.entries)
    ledger.abandon()
    counted = dict(read_ledger(path).entries)
    assert counted.get(STEP, 0) >= kinds.count(STEP)
    assert counted.get(OTHER, 0) == kinds.count(OTHER)


@pytest.mark.soak
@given(turns=st.lists(st.sampled_from("ab"), min_size=1, max_size=40), expected=st.integers(0, 40))
def test_steps_of_two_sessions_pay_for_themselves(tmp_path_factory, turns, expected):
    """As in a budget of two runs with the same settings: after a kill, neither counts less than it spent."""
    path = tmp_path_factory.mktemp("sessions") / "ledger"
    ledger = LedgerFile(path)
    for session in "ab":
        ledger.expect(STEP, expected, session)
    for session in turns:
        ledger.spend(STEP, session)
    assert {name: counts[STEP] for name, counts in ledger.by_session.items()} == Counter(turns)
    ledger.abandon()
    with LedgerFile(path) as again:
        counted = {name: counts[STEP] for name, counts in again.by_session.items()}
    assert set(counted) == set(turns)
    assert all(turns.count(name) <= steps <= 2 * turns.count(name) for name, steps in counted.items())


def test_a_run_keeps_its_id_and_each_process_has_a_session_of_its_own(tmp_path):
    """Copies of a run that go on apart share what they spent before, and nothing later."""
    path, copy = tmp_path / "ledger", tmp_path / "copy"
    spend(path, 3)
    for name in ("ledger", "ledger.seal"):
        shutil.copy(tmp_path / name, tmp_path / name.replace("ledger", "copy"))
    spend(path, 2)
    spend(copy, 2)
    with LedgerFile(path) as one, LedgerFile(copy) as other, LedgerFile(tmp_path / "new") as third:
        assert one.run_id == other.run_id == one.facts["id"] != third.run_id
        assert {run_of(session) for session in one.by_session} == {one.run_id}
        assert len({one.session, other.session, *one.by_session, *other.by_session}) == 2 + 3
        shared = set(one.by_session) & set(other.by_session)
        assert [one.by_session[session] for session in shared] == [{STEP: 3}]


def test_facts_can_be_added_and_later_ones_count(tmp_path):
    with LedgerFile(tmp_path / "ledger", facts={"a": 1, "b": 2}) as ledger:
        ledger.spend(STEP)
        ledger.add_facts({"b": 3})
        facts = ledger.facts
    with LedgerFile(tmp_path / "ledger") as ledger:
        assert ledger.facts == facts == {"a": 1, "b": 3, "id": ledger.run_id}
        assert ledger.steps == 1


def test_a_ledger_of_an_older_version_is_refused_in_words(tmp_path):
    """It does not say which run its steps were paid for."""
    path, check, content = tmp_path / "ledger", "", b""
    for record in (
        {"equidp_ledger": 1, "time": ""},
        {"run": "a", "time": ""},
        {"spend": asdict(STEP), "steps": 3, "time": ""},
    ):
        line, check = chained_line(check, record)
        content += line
    path.write_bytes(content)
    seal_path(path).write_text(f"3 {check}")
    for opened in (LedgerFile, read_ledger, equidp.PrivacyBudget):
        with raises_field(BudgetError, "format", "format 1", f"format {FORMAT}"):
            opened(path)
    assert path.read_bytes() == content


def test_settling_twice_writes_nothing_twice(tmp_path):
    with LedgerFile(tmp_path / "ledger") as ledger:
        ledger.expect(STEP, 9)
        ledger.spend(STEP)
        ledger.settle()
        lines = len(read_ledger(ledger.path).checks)
        ledger.settle()
        assert len(read_ledger(ledger.path).checks) == lines


@pytest.mark.parametrize("unspent", [-1, 4])
def test_more_given_back_than_was_paid_is_refused(tmp_path, unspent):
    """Nobody can write such a line but with the right checksums."""
    path = tmp_path / "ledger"
    records = [
        {"equidp_ledger": FORMAT, "id": "a"},
        {"run": "a", "time": ""},
        {"spend": asdict(STEP), "steps": 3, "for": "a.b", "time": ""},
    ]
    check, content = "", b""
    for record in [*records, {"unspent": unspent}]:
        line, check = chained_line(check, record)
        content += line
    path.write_bytes(content)
    seal_path(path).write_text(f"4 {check}")
    with raises_field(BudgetError, "format"):
        LedgerFile(path)


def test_every_step_is_on_disk_before_spend_returns(tmp_path, monkeypatch):
    synced = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (sync(file), synced.append(os.fstat(file).st_size))[0])
    path = tmp_path / "ledger"
    ledger = LedgerFile(path)
    ledger.expect(STEP, 50)
    for step in range(1, 51):
        ledger.spend(STEP)
        assert os.path.getsize(path) in synced
        assert sum(block.steps for block in read_ledger(path).blocks) >= step
    assert len(read_ledger(path).checks) < 12  # far fewer lines than steps


def test_kinds_that_were_not_announced_are_never_paid_ahead(tmp_path):
    spend(tmp_path / "ledger", 5, close=False)
    with LedgerFile(tmp_path / "ledger") as ledger:
        assert ledger.steps == 5


def test_after_settling_nothing_more_is_expected(tmp_path):
    ledger = LedgerFile(tmp_path / "ledger")
    ledger.expect(STEP, 100)
    for _ in range(4):
        ledger.spend(STEP)
    ledger.settle()
    for _ in range(5):
        ledger.spend(STEP)
    ledger.abandon()
    assert LedgerFile(tmp_path / "ledger").steps == 9


@pytest.mark.soak
def test_blocks_grow_until_they_last_half_a_second_and_shrink_again(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(ledger_file.time, "monotonic", lambda: clock[0])
    ledger = LedgerFile(tmp_path / "ledger")
    ledger.expect(STEP, 10**6)
    for seconds, steps in ((0.1, 200), (1.0, 200)):
        for _ in range(steps):
            ledger.spend(STEP)
            clock[0] += seconds
    ledger.close()
    sizes = [block.steps for block in read_ledger(tmp_path / "ledger").blocks]
    assert max(sizes) == 4
    assert sizes[-2] in (1, 2)


def test_a_clock_set_back_changes_nothing(tmp_path, monkeypatch):
    path = tmp_path / "ledger"
    spend(path, 5, expected=9)
    monkeypatch.setattr(ledger_file, "_today", lambda: "1970-01-01")
    spend(path, 5, expected=9)
    assert LedgerFile(path).steps == 10


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_last_line_counts_as_a_block(tmp_path, cut):
    path = tmp_path / "ledger"
    spend(path, 7, expected=7, close=False)
    line = path.read_bytes().splitlines(keepends=True)[-1]
    with path.open("ab") as file:
        file.write(line[:cut])
    with LedgerFile(path) as ledger:
        assert ledger.steps == 7 + 4
    assert LedgerFile(path).steps == 7 + 4


def test_a_torn_first_line_is_a_new_ledger(tmp_path):
    path = tmp_path / "ledger"
    path.write_bytes(b'{"equidp_led')
    assert LedgerFile(path).steps == 0


@pytest.mark.soak
@given(data=st.data())
def test_edits_by_hand_are_refused_or_safe(tmp_path_factory, data):
    """Any byte overwritten, any line taken out or put elsewhere: an error, or no less than was spent."""
    path = tmp_path_factory.mktemp("edit") / "ledger"
    spend(path, 9, expected=20)
    spend(path, 2, event=OTHER)
    content = path.read_bytes()
    kind = data.draw(st.sampled_from(["byte", "line", "order", "cut"]))
    if kind == "byte":
        place = data.draw(st.integers(0, len(content) - 1))
        content = content[:place] + bytes([data.draw(st.integers(0, 255))]) + content[place + 1 :]
    elif kind == "cut":
        content = content[: data.draw(st.integers(0, len(content)))]
    else:
        lines = content.splitlines(keepends=True)
        line = lines.pop(data.draw(st.integers(0, len(lines) - 1)))
        if kind == "order":
            lines.insert(data.draw(st.integers(0, len(lines))), line)
        content = b"".join(lines)
    path.write_bytes(content)
    try:
        with LedgerFile(path) as ledger:
            spent = dict(ledger.entries)
    except BudgetError:
        return
    assert spent[STEP] >= 9
    assert spent[OTHER] >= 2


def test_lines_missing_at_the_end_are_noticed_by_the_seal(tmp_path):
    path = tmp_path / "ledger"
    spend(path, 5)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))
    for reader in (LedgerFile, read_ledger):
        with raises_field(BudgetError, "seal"):
            reader(path)


@pytest.mark.parametrize("seal", [None, "", "x", "5 abc"])
def test_a_ledger_without_its_seal_is_refused(tmp_path, seal):
    path = tmp_path / "ledger"
    spend(path, 5)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))  # which the seal would tell
    seal_path(path).unlink() if seal is None else seal_path(path).write_text(seal)
    for reader in (read_ledger, LedgerFile):
        with raises_field(BudgetError, "seal"):
            reader(path)


@pytest.mark.parametrize("end", [b"", b'{"spend":"ste'])
@pytest.mark.parametrize("lines", [1, 2])
def test_more_than_the_first_line_never_stands_without_a_seal(tmp_path, lines, end):
    """The seal is synced before a second line: where it is gone, lines may be gone that spent something."""
    path = tmp_path / "ledger"
    spend(path, 5)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:lines]) + end)
    seal_path(path).unlink()
    if lines == 1 and not end:  # a process may have been killed there
        assert read_ledger(path).entries == ()
        return
    for reader in (read_ledger, LedgerFile):
        with raises_field(BudgetError, "seal"):
            reader(path)


def test_a_second_process_is_refused(tmp_path):
    path = tmp_path / "ledger"
    code = f"from equidp import LedgerFile; LedgerFile({str(path)!r})"
    with LedgerFile(path) as ledger:
        ledger.spend(STEP)
        with raises_field(BudgetError, "lock"):
            LedgerFile(path)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "in use by another process" in done.stderr
        assert read_ledger(path).blocks  # reading is free
    LedgerFile(path).close()


def test_a_forked_copy_cannot_spend(tmp_path):
    """Not even what the process it comes from has paid for ahead."""
    with LedgerFile(tmp_path / "ledger") as ledger:
        ledger.expect(STEP, 100)
        for _ in range(4):
            ledger.spend(STEP)
        if (child := os.fork()) == 0:
            try:
                ledger.spend(STEP)
            except BudgetError as error:
                os._exit(17 if "process" in str(error) else 1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17


@pytest.mark.soak
def test_a_forked_copy_that_closes_or_forgets_the_ledger_leaves_the_lock_to_its_parent(tmp_path):
    path = tmp_path / "ledger"
    for leave in (lambda ledger: ledger.close(), lambda ledger: ledger._file.__dict__.clear()):
        ledger = LedgerFile(path)
        if (child := os.fork()) == 0:
            leave(ledger)
            gc.collect()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with raises_field(BudgetError, "lock"):
            LedgerFile(path)
        ledger.close()


def test_a_killed_process_leaves_no_lock(tmp_path):
    path = tmp_path / "ledger"
    if (child := os.fork()) == 0:
        LedgerFile(path).spend(STEP)
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    with LedgerFile(path) as ledger:
        assert ledger.steps == 1


def test_a_link_to_a_ledger_has_the_same_lock(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "ledger")
    with LedgerFile(tmp_path / "ledger"), raises_field(BudgetError, "lock"):
        LedgerFile(tmp_path / "link")


@given(
    actions=st.lists(st.sampled_from(["spend", "other", "theirs", "end", "forget"]), max_size=60),
    expected=st.integers(0, 30),
)
def test_a_block_never_pays_for_more_than_its_size_nor_for_another_kind_or_session(actions, expected):
    """Sizes alone, without a file: whatever is taken was begun before."""
    ahead, paid, taken = PayAhead(), Counter(), Counter()
    ahead.expect(MINE, expected)
    for action in actions:
        if action in ("end", "forget"):
            kind = ahead.kind
            paid[kind] -= ahead.end(forget=action == "forget")
            continue
        kind = {"spend": MINE, "other": (OTHER, "mine"), "theirs": (STEP, "theirs")}[action]
        if not ahead.covers(kind):
            previous = ahead.kind
            paid[previous] -= ahead.end()
            size = ahead.size(kind, 0.0, previous)
            assert size == 1 or (kind == MINE and size <= expected - taken[MINE])
            paid[kind] += size
            ahead.begin(kind, size, 0.0)
        ahead.take(kind)
        taken[kind] += 1
        assert taken[kind] <= paid[kind]
    assert ahead.left == paid[ahead.kind] - taken[ahead.kind] or ahead.kind is None


@pytest.mark.parametrize("kept", [0, 20])
def test_a_full_disk_stops_before_a_step_is_spent(tmp_path, monkeypatch, kept):
    path = tmp_path / "ledger"
    ledger = LedgerFile(path)
    ledger.spend(STEP)
    write = os.write

    def full(file, line):
        if kept:
            return write(file, line[:kept])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        for _ in range(2):
            with raises_field(BudgetError, "path", os.strerror(errno.ENOSPC)):
                ledger.spend(STEP)
    assert ledger.steps == 1
    ledger.spend(STEP)  # room was made
    ledger.close()
    assert LedgerFile(path).steps == 2


def test_after_a_failed_sync_nothing_more_is_spent_and_what_may_be_on_disk_counts(tmp_path, monkeypatch):
    path = tmp_path / "ledger"
    ledger = LedgerFile(path)
    ledger.spend(STEP)  # so that the line of the next step is the one that cannot be synced
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: (_ for _ in ()).throw(OSError(errno.EIO, "I/O error")))
        with raises_field(BudgetError, "path", "I/O error"):
            ledger.spend(STEP)
    with raises_field(BudgetError, "ledger"):
        ledger.spend(STEP)
    ledger.close()
    assert LedgerFile(path).steps == 2


def test_another_name_of_an_open_ledger_is_in_use_too(tmp_path):
    path, other = tmp_path / "ledger", tmp_path / "other"
    with LedgerFile(path) as ledger:
        ledger.spend(STEP)
        os.link(path, other)
        os.link(seal_path(path), seal_path(other))
        with raises_field(BudgetError, "lock"):
            LedgerFile(other)
    assert {each.name for each in tmp_path.iterdir()} == {"ledger", "ledger.seal", "other", "other.seal"}


def test_lines_added_while_a_ledger_is_opened_are_not_cut_off(tmp_path, monkeypatch):
    """Where a lock does not hold, as on some network disks: the second process stops, and all steps count."""
    path = tmp_path / "ledger"
    monkeypatch.setattr(append_only, "lock_descriptor", lambda file, blocking: True)
    first, check_seal = LedgerFile(path), ledger_file.check_seal
    first.spend(STEP)

    def spends_meanwhile(*arguments):
        check_seal(*arguments)
        first.spend(STEP)

    with monkeypatch.context() as patch:
        patch.setattr(ledger_file, "check_seal", spends_meanwhile)
        with raises_field(BudgetError, "path"):
            LedgerFile(path)
    first.close()
    assert LedgerFile(path).steps == 2


def test_nothing_is_spent_from_a_block_that_may_have_been_given_back(tmp_path, monkeypatch):
    """The line that gives the rest back is on disk, as far as anyone knows, though syncing it failed."""
    path = tmp_path / "ledger"
    ledger = LedgerFile(path)
    ledger.expect(STEP, 100)
    for _ in range(4):
        ledger.spend(STEP)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: (_ for _ in ()).throw(OSError(errno.EIO, "I/O error")))
        with raises_field(BudgetError, "path", "I/O error"):
            ledger.settle()
    with raises_field(BudgetError, "ledger"):
        ledger.spend(STEP)
    ledger.close()
    assert LedgerFile(path).steps == 4


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    def read_only(path, flags, *rest):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with raises_field(BudgetError, "path", os.strerror(errno.ENOENT)):
        LedgerFile(tmp_path / "nowhere" / "ledger")
    monkeypatch.setattr(os, "open", read_only)
    with raises_field(BudgetError, "path", os.strerror(errno.EROFS)):
        LedgerFile(tmp_path / "ledger")


@pytest.mark.parametrize("change", ["replaced", "removed", "longer"])
def test_a_file_that_changes_under_it_stops_it(tmp_path, change):
    path = tmp_path / "ledger"
    ledger = LedgerFile(path)
    ledger.spend(STEP)
    content = path.read_bytes()
    if change == "longer":
        path.write_bytes(content + b"\n")
    else:
        path.rename(tmp_path / "moved")
        if change == "replaced":
            path.write_bytes(content)
    with raises_field(BudgetError, "path", path):
        ledger.spend(STEP)
    assert ledger.steps == 1


@pytest.mark.parametrize("content", [b"notes", b'{"a": 1}', b'{"equidp_ledger" of mine'])
def test_a_file_that_is_something_else_is_left_as_it_is(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    for opened in (LedgerFile, lambda file: equidp.PrivacyBudget(file, epsilon=1.0, delta=1e-5)):
        with raises_field(BudgetError, "path"):
            opened(path)
    assert path.read_bytes() == content
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


def test_what_is_no_ledger_is_refused(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text("a,b\n1,2\n")
    for reader in (LedgerFile, read_ledger):
        with raises_field(BudgetError, "checksum"):
            reader(path)
    assert path.read_text() == "a,b\n1,2\n"
    with raises_field(BudgetError, "path"):
        read_ledger(tmp_path / "nowhere")


@pytest.mark.parametrize("kind", ["folder", "pipe", "socket", "device"])
def test_what_keeps_no_record_is_no_ledger(tmp_path, kind):
    path = tmp_path / "people.ledger"
    made(path, kind)
    for opened in (LedgerFile, lambda file: equidp.PrivacyBudget(file, epsilon=1.0, delta=1e-5)):
        with raises_field(BudgetError, "path", repr(str(path))):
            opened(path)
    assert [each.name for each in tmp_path.iterdir()] == ["people.ledger"]
    assert not path.is_file()


def test_a_ledger_behind_a_link_is_written_there(tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "people.ledger").symlink_to(tmp_path / "shared" / "ledger")
    spend(tmp_path / "people.ledger", 3)
    assert read_ledger(tmp_path / "shared" / "ledger").entries == ((STEP, 3),)


def test_a_ledger_left_open_at_the_end_of_the_interpreter_says_nothing():
    code = """
import tempfile
from equidp.ledger import append_only
from equidp.ledger.file import LedgerFile
ledger = LedgerFile(tempfile.mkdtemp() + "/ledger")
append_only.os = None  # as the interpreter takes names of modules away at its end
del ledger
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_a_ledger_left_open_is_closed_when_the_interpreter_ends(tmp_path):
    """By an own loop that ends within a block: it counts the steps spent, and not the whole block."""
    code = """
import sys
from equidp.kernel.ledger import StepEvent
from equidp.ledger.file import LedgerFile
ledger, step = LedgerFile(sys.argv[1]), StepEvent(0.1, 1.0)
ledger.expect(step, 100)
for _ in range(4):
    ledger.spend(step)
assert ledger._ahead.left
"""
    path = tmp_path / "ledger"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert [steps for _, steps in read_ledger(path).entries] == [4]


def test_lines_say_days_and_no_time(tmp_path):
    """A time of payment tells how long steps took."""
    path = tmp_path / "ledger"
    with LedgerFile(path) as ledger:
        ledger.spend(STEP)
    lines = [json.loads(line.rpartition(" ")[0]) for line in path.read_text().splitlines()]
    times = [line["time"] for line in lines if "time" in line]
    assert [len(time) for time in times] == [len("2026-11-25")] * 3
    assert [block.time for block in read_ledger(path).blocks] == [times[-1]]
