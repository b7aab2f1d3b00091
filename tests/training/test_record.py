"""A record comes back from disk as it was written, or says why not."""

from __future__ import annotations

import dataclasses

import equidp
from equidp.errors import DataError
from equidp.training.record import RunRecord
from support.errors import raises_field
from support.toy import make_trainer, toy


def test_save_and_load(tmp_path):
    record = RunRecord({"method": "dpsgd", "results": [{"group": "a", "accuracy": 0.5}]})
    record.append({"epoch": 1, "group": "a", "loss": 0.25})
    record.append({"epoch": 2, "group": "a", "loss": float("nan")})
    record.save(tmp_path / "run.parquet")
    loaded = RunRecord.load(tmp_path / "run.parquet")
    assert loaded.settings == record.settings
    assert loaded.table().equals(record.table())
    assert [path.name for path in tmp_path.iterdir()] == ["run.parquet"]


def test_a_test_set_with_other_groups_or_classes_is_refused_before_it_costs():
    """The bound of one group would stand in the row of another."""
    test = toy(seed=2)
    swapped = dataclasses.replace(test, group_names=test.group_names[::-1], groups=1 - test.groups)
    classes = dataclasses.replace(test, class_names=test.class_names[::-1])
    for other, field in ((swapped, "group_names"), (classes, "class_names")):
        trainer = make_trainer(
            method=equidp.DPSGDF(0.1), callbacks=[equidp.EpochRecorder(equidp.RunRecord(), other)]
        )
        with raises_field(DataError, field):
            trainer.fit()
        assert trainer.entries == ()
