"""Results on disk are whole or absent, belong to their key, and are written by one process at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pandas as pd
import pytest

from equidp.errors import CacheWarning, DataError, SettingError
from equidp.store import Entry, Store, key_of

KEY = "a-key"
ROWS = pd.DataFrame({"group": ["a", "b"], "value": [0.1, np.nan], "count": [3, 4]})
PARTS = {"rows": ROWS, "outputs": np.arange(6.0).reshape(2, 3), "state.pt": b"bytes"}

# Writes versions of one entry, on and on, and says when it has begun.
WRITER = """
import sys
import numpy as np
from equidp.store import Store

store, number = Store(sys.argv[1]), int(sys.argv[2])
print("begun", flush=True)
while True:
    number += 1
    store.put("a-key", {"one": np.full(5000, number), "two": np.full(7000, number)}, {"number": number})
"""


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "results")


def names(store: Store) -> list[str]:
    return sorted(str(each.relative_to(store.folder)) for each in store.folder.rglob("*"))


def check_whole(entry: Entry) -> int:
    number = int(entry.facts["number"])
    assert (entry.array("one") == number).all()
    assert (entry.array("two") == number).all()
    return number


def test_what_was_put_is_read_back_with_its_types(store):
    assert store.get(KEY) is None
    store.put(KEY, PARTS, {"seconds": 1.5, "worst": np.inf}, what="a study")
    entry = Store(store.folder).get(KEY)
    pd.testing.assert_frame_equal(entry.table("rows"), ROWS)
    assert entry.array("outputs").tolist() == PARTS["outputs"].tolist()
    assert entry.read("state.pt") == b"bytes"
    assert (entry.what, entry.facts) == ("a study", {"seconds": 1.5, "worst": np.inf})


def test_an_entry_is_replaced_and_leaves_nothing_behind(store):
    for number in range(3):
        store.put(KEY, {f"part-{number}": np.zeros(number)}, {"number": number})
    assert store.get(KEY).facts == {"number": 2}
    assert len(names(store)) == 3  # the index, a folder, and its file
    assert len(store.entries()) == 1


def test_facts_alone_need_no_folder(store):
    store.put(KEY, {}, {"value": 0.1})
    assert names(store) == [f"{KEY}.index"]
    assert store.get(KEY).facts == {"value": 0.1}


@pytest.mark.soak
@pytest.mark.parametrize("kills", [6])
def test_a_killed_writer_leaves_a_whole_entry(store, kills):
    """SIGKILL at any moment; the next writer removes what was left."""
    last = 0
    for attempt in range(kills):
        command = [sys.executable, "-c", WRITER, str(store.folder), str(last)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        process.stdout.readline()
        deadline = time.monotonic() + 0.02 * attempt
        while (
            time.monotonic() < deadline or getattr(store.get(KEY), "facts", {"number": 0})["number"] <= last
        ):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
        number = check_whole(store.get(KEY))
        assert number > last
        last = number
    store.put(KEY, {}, {"number": 0})
    assert names(store) == [f"{KEY}.index"]


@pytest.mark.soak
def test_a_reader_sees_whole_entries_while_they_are_replaced(store):
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(store.folder), "0"], stdout=subprocess.PIPE)
    process.stdout.readline()
    try:
        seen = set()
        while len(seen) < 20:
            entry = store.get(KEY)
            if entry is not None:
                seen.add(entry.facts["number"])
    finally:
        process.kill()
        process.wait()


def test_only_one_thread_makes_an_entry_and_the_others_wait(store):
    made, found = [], []

    def write(folder):
        made.append(folder)
        time.sleep(0.05)
        (folder / "numbers").write_bytes(b"1")
        return {"made": len(made)}

    def ask():
        found.append(store.get_or_make(KEY, write).facts)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [{"made": 1}] * 4
    assert len(made) == 1


def test_a_claim_is_for_one_at_a_time(store):
    with store.claim(KEY) as claim:
        assert store.claim_free(KEY) is None
        claim.put({}, {"number": 1})
        assert store.remove(*store.entries()) == []  # it is being written
    with store.claim_free(KEY):
        pass
    assert store.get(KEY).facts == {"number": 1}


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
@pytest.mark.parametrize("part", ["index", "rows.parquet", "outputs.npy", "state.pt"])
def test_damage_is_said_and_counts_as_nothing(store, damage, part):
    entry = store.put(KEY, PARTS, {"seconds": 1.5})
    if part == "index" and damage == "gone":
        pytest.skip("an entry without index is none")
    path = entry.place if part == "index" else entry.path(part)
    content = path.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    path.unlink() if damage == "gone" else path.write_bytes(flipped if damage == "flipped" else content[:-1])
    with pytest.warns(CacheWarning):
        assert store.get(KEY) is None
    store.put(KEY, PARTS)
    assert store.get(KEY) is not None


def test_the_content_of_another_entry_counts_as_damage(store):
    other = store.put("another", {}, {"value": 1.0})
    store.put(KEY, {}, {"value": 2.0}).place.write_bytes(other.place.read_bytes())
    with pytest.warns(CacheWarning):
        assert store.get(KEY) is None


def test_large_files_are_checked_by_their_size_alone(store):
    large = Store(store.folder, large=True)
    entry = large.put(KEY, {"numbers": bytes(100)})
    entry.path("numbers").write_bytes(b"1" * 100)
    assert large.get(KEY) is not None
    entry.path("numbers").write_bytes(b"1" * 99)
    with pytest.warns(CacheWarning):
        assert large.get(KEY) is None


def test_an_entry_stays_as_it_was_where_another_cannot_be_written(store, monkeypatch):
    store.put(KEY, PARTS, {"number": 1})
    before = names(store)

    def fail(_folder):
        (_folder / "part").write_bytes(b"1")
        raise OSError(28, "No space left on device")

    with pytest.raises(DataError), store.claim(KEY) as claim:
        claim.write(fail)
    with pytest.raises(KeyboardInterrupt), store.claim(KEY) as claim:
        claim.write(lambda folder: (_ for _ in ()).throw(KeyboardInterrupt))
    assert names(store) == before
    assert store.get(KEY).facts == {"number": 1}


def test_too_little_space_is_refused_before_anything_is_written(store):
    with pytest.raises(DataError):
        store.get_or_make(KEY, lambda folder: pytest.fail("it was written"), needed=10**18)
    assert names(store) == []


@pytest.mark.parametrize("what", ["a file", "in a file", "read-only"])
def test_a_folder_that_cannot_be_written_is_refused(tmp_path, what, monkeypatch):
    place = tmp_path / "place"
    if what == "read-only":
        monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: (_ for _ in ()).throw(OSError(30, "no")))
    else:
        place.write_text("")
    store = Store(place / "below" if what == "in a file" else place)
    with pytest.raises(SettingError):
        store.check()
    if what != "read-only":
        assert store.get(KEY) is None
        with pytest.raises(DataError):
            store.put(KEY, {})


def test_entries_are_listed_with_what_stopped_writers_left_and_removed(store):
    store.put(KEY, PARTS, what="a study")
    store.put("small", {}, {"number": 1}, what="a number")
    left = store.folder / "third.0123abcd"
    left.mkdir()
    (left / "numbers").write_bytes(bytes(10**6))
    (store.folder / "my notes.2025").mkdir()  # somebody else's
    (store.folder / "broken.index").write_text("nothing")
    found = store.entries()
    assert [entry.what for entry in found[:2]] == ["unfinished", "a study"]
    assert {entry.what for entry in found} == {"unfinished", "a study", "a number", "damaged"}
    assert [entry.whole for entry in found] == [entry.what[0] == "a" for entry in found]
    assert store.remove(*found) == found
    assert store.entries() == []
    assert names(store) == ["my notes.2025"]


def test_the_time_of_the_last_use_is_kept(store):
    entry = store.put(KEY, {})
    os.utime(entry.place, (1000, 1000))
    assert store.entries()[0].used == 1000
    store.get(KEY)
    assert store.entries()[0].used > 1000


def test_a_private_store_is_its_owners(tmp_path):
    store = Store(tmp_path / "private", private=True)
    entry = store.put(KEY, PARTS)
    assert store.folder.stat().st_mode & 0o77 == 0
    assert entry.folder.stat().st_mode & 0o77 == 0


@pytest.mark.parametrize("key", ["", "a.b", "../a", "a/b", "a b"])
def test_a_key_is_no_path(store, key):
    with pytest.raises(ValueError, match="letters"):
        store.get(key)


def test_keys_differ_where_parts_do():
    array = np.arange(4)
    parts = [(1, 2), (12,), ("1", 2), ([1, 2],), ({"a": 1},), (array,), (array.reshape(2, 2),)]
    parts += [(array.astype(float),), (array, 1), ("",), ("", "")]
    assert len({key_of(*each) for each in parts}) == len(parts)
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})
