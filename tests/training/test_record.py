"""A record comes back from disk as it was written, or says why not."""

from __future__ import annotations

import pytest

from equidp.errors import DataError
from equidp.training.record import RunRecord
from support.errors import raises_field


def test_save_and_load(tmp_path):
    record = RunRecord({"method": "dpsgd", "results": [{"group": "a", "accuracy": 0.5}]})
    record.append({"epoch": 1, "group": "a", "loss": 0.25})
    record.append({"epoch": 2, "group": "a", "loss": float("nan")})
    record.save(tmp_path / "run.parquet")
    loaded = RunRecord.load(tmp_path / "run.parquet")
    assert loaded.settings == record.settings
    assert loaded.table().equals(record.table())
    assert [path.name for path in tmp_path.iterdir()] == ["run.parquet"]


def test_a_save_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "run.parquet"
    RunRecord({"version": 1}, [{"epoch": 1}]).save(path)
    with pytest.raises(TypeError):
        RunRecord({"version": object()}, [{"epoch": 1}]).save(path)
    assert RunRecord.load(path).settings == {"version": 1}
    assert len(list(tmp_path.iterdir())) == 1


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "run.parquet"
    path.write_bytes(b"not parquet")
    with raises_field(DataError, "path"):
        RunRecord.load(path)
