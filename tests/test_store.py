"""Results on disk are whole or absent, belong to their key, and are written by one process at a time."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

from equidp.errors import CacheWarning, DataError, SettingError
from equidp.store import Entry, Store, key_of

KEY = "a-key"
ROWS = pd.DataFrame({"group": ["a", "b"], "value": [0.1, np.nan], "count": [3, 4]})
PARTS = {"rows": ROWS, "outputs": np.arange(6.0).reshape(2, 3)}

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
    store.put(KEY, PARTS, {"seconds": 1.5, "worst": np.inf})
    entry = Store(store.folder).get(KEY)
    pd.testing.assert_frame_equal(entry.table("rows"), ROWS)
    assert entry.array("outputs").tolist() == PARTS["outputs"].tolist()
    assert entry.facts == {"seconds": 1.5, "worst": np.inf}


def test_an_entry_is_replaced_removed_and_leaves_nothing_behind(store):
    for number in range(3):
        store.put(KEY, {f"part-{number}": np.zeros(number)}, {"number": number})
    assert store.get(KEY).facts == {"number": 2}
    assert names(store) == [KEY, f"{KEY}/facts.json", f"{KEY}/part-2.npy"]
    store.remove(KEY)
    assert names(store) == []


@pytest.mark.soak
def test_a_killed_writer_leaves_a_whole_entry_or_none(store):
    """SIGKILL at any moment; the next writer removes what was left."""
    for attempt in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(store.folder), "0"], stdout=subprocess.PIPE
        )
        process.stdout.readline()
        time.sleep(0.02 * attempt)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if (entry := store.get(KEY)) is not None:
            check_whole(entry)
    store.put(KEY, {}, {"number": 0})
    assert names(store) == [KEY, f"{KEY}/facts.json"]


def test_the_content_of_another_entry_counts_as_damage(store):
    other = store.put("another", {}, {"value": 1.0})
    store.put(KEY, {}, {"value": 2.0}).path("facts.json").write_bytes(other.path("facts.json").read_bytes())
    with pytest.warns(CacheWarning):
        assert store.get(KEY) is None


def test_large_files_are_checked_by_their_size_alone(store):
    large = Store(store.folder, large=True)
    entry = large.put(KEY, {"numbers": np.zeros(100)})
    content = entry.path("numbers.npy").read_bytes()
    entry.path("numbers.npy").write_bytes(content[:-1] + b"1")
    assert large.get(KEY) is not None
    entry.path("numbers.npy").write_bytes(content[:-1])
    with pytest.warns(CacheWarning):
        assert large.get(KEY) is None


def test_what_cannot_be_written_is_refused_and_leaves_nothing(store, tmp_path):
    def fail(folder):
        (folder / "part").write_bytes(b"1")
        raise OSError(28, "No space left on device")

    with pytest.raises(DataError):
        store.get_or_make(KEY, fail)
    with pytest.raises(DataError):
        store.get_or_make(KEY, lambda folder: pytest.fail("it was written"), needed=10**18)
    assert names(store) == []
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(SettingError):
            Store(place).check()
        with pytest.raises(DataError):
            Store(place).put(KEY, {})


def test_a_private_store_is_its_owners(tmp_path):
    store = Store(tmp_path / "private", private=True)
    entry = store.put(KEY, PARTS)
    assert store.folder.stat().st_mode & 0o77 == 0
    assert entry.folder.stat().st_mode & 0o77 == 0


@pytest.mark.parametrize("key", ["", "../a", "a b"])
def test_a_key_is_no_path(store, key):
    with pytest.raises(ValueError, match="letters"):
        store.get(key)


def test_keys_differ_where_parts_do():
    array = np.arange(4)
    parts = [(1, 2), (12,), ("1", 2), ([1, 2],), ({"a": 1},), (array,), (array.reshape(2, 2),)]
    parts += [(array.astype(float),), (array, 1), ("",), ("", "")]
    assert len({key_of(*each) for each in parts}) == len(parts)
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})
