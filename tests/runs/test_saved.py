"""A finished run is read as it was left, whole or in batches; damaged folders are refused."""

from __future__ import annotations

import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from equidp.cli.app import app
from equidp.errors import DataError, DataWarning, SettingError
from equidp.evaluation.evaluation import evaluate
from equidp.runs import saved
from equidp.runs.folder import MODEL
from equidp.runs.saved import open_run
from equidp.runs.train import train
from equidp.tables import read as stream
from support.errors import raises_field


def test_a_run_is_read_as_it_was_left(finished):
    kept = open_run(finished.folder)
    assert kept.run.entries == finished.run.entries
    assert kept.run.epsilon() == finished.run.epsilon()
    assert not kept.run.model.training
    for name, value in finished.run.model.state_dict().items():
        assert torch.equal(kept.run.model.state_dict()[name], value)
    assert len(kept.test()) == finished.evaluation.groups["count"].iloc[-1]
    assert kept.released == []


def test_a_table_is_read_by_the_runs_columns_in_any_order(finished, tmp_path):
    kept = open_run(finished.folder)
    table = pd.read_csv(finished.table)
    table[["job", "age"]].assign(further="x").to_csv(tmp_path / "new.csv", index=False)
    assert torch.equal(kept.inputs(tmp_path / "new.csv"), kept.inputs(finished.table))
    with pytest.warns(DataWarning, match="rows that the run was trained on"):
        data = kept.read_grouped(finished.table)
    assert (data.group_names, data.class_names) == (("F", "M"), ("high", "low"))
    assert data.group_sizes().tolist() == [100, 100]
    table.assign(job=table.job.where(table.index < 50, "cleaner")).to_csv(tmp_path / "new.csv", index=False)
    with pytest.warns(DataWarning, match=r"values that the training data did not \('job': 150\)"):
        kept.inputs(tmp_path / "new.csv")
    with raises_field(SettingError, "table"):
        replace(kept, encoder=None).inputs(finished.table)


@pytest.mark.soak
def test_rows_of_one_person_in_a_new_file_count_as_one_person(finished, tmp_path):
    kept = open_run(finished.folder)
    data = kept.config.data
    data = replace(data, recipe=data.recipe.with_changes({"person": "id", "rows_per_person": 2}))
    kept = replace(kept, config=replace(kept.config, data=data))
    table = pd.read_csv(finished.table)
    ids = [f"0{row}" if sex == "M" else "one" for row, sex in enumerate(table.sex)]
    table.assign(id=ids).to_csv(tmp_path / "new.csv", index=False)
    found = evaluate(kept.run.model, kept.read_grouped(tmp_path / "new.csv"))
    assert found.people == 1 + (table.sex == "M").sum()
    assert found.small.groups == ("F",)
    table.assign(further="x").to_csv(tmp_path / "new.csv", index=False)
    with pytest.warns(DataWarning, match=r"lacks 'id', which says whose rows they are: each of its 200 rows"):
        assert kept.read_grouped(tmp_path / "new.csv").people is None


@pytest.mark.parametrize("name", ["share/model.safetensors", "private/preprocessing.json"])
def test_a_damaged_model_or_encoder_is_refused(finished, name):
    (finished.folder / name).write_bytes(b"damaged")
    with raises_field(DataError, Path(name).name):
        open_run(finished.folder)


@pytest.mark.parametrize("name", ["share/run.json", "private/record.parquet"])
def test_a_changed_or_missing_file_is_named(finished, name):
    path = finished.folder / name
    path.write_bytes(path.read_bytes() + b" ")
    with raises_field(DataError, path.name, "bring it back"):
        open_run(finished.folder)


@pytest.mark.soak
def test_files_of_another_run_are_refused(finished, begun):
    train(begun)
    shutil.copy(begun / "share" / MODEL, finished.share)
    with raises_field(DataError, MODEL):
        open_run(finished.folder)
    shutil.rmtree(finished.share)
    shutil.copytree(begun / "share", finished.share)
    with raises_field(DataError, "run", "belong together"):
        open_run(finished.folder)


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(stream, "_BLOCK", 2000)
    monkeypatch.setattr(saved, "ROWS", 33)


@pytest.fixture
def rows(finished, tmp_path, small_batches):
    path = tmp_path / "new.csv"
    table = pd.read_csv(finished.table).assign(id=lambda table: [f"{at:04d}" for at in table.index])
    table.assign(job=lambda table: table["job"].mask(table.index == 150, "cleaner")).to_csv(path, index=False)
    return path


def predicted(*arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        app(
            ["predict", *map(str, arguments)],
            print_error=False,
            exit_on_error=False,
            result_action="return_value",
        )


@pytest.mark.soak
def test_predictions_of_batches_are_those_of_the_whole_file(finished, rows, tmp_path, capsys):
    predicted(finished.folder, rows, "--keep", "id,age", "--out", tmp_path / "p.csv")
    capsys.readouterr()
    predicted(finished.folder, rows, "--keep", "id,age")
    assert capsys.readouterr().out == (tmp_path / "p.csv").read_text()
    pd.read_csv(rows, dtype={"id": str}).to_parquet(rows.with_suffix(".parquet"))
    predicted(finished.folder, rows.with_suffix(".parquet"), "--keep", "id,age")
    assert capsys.readouterr().out == (tmp_path / "p.csv").read_text()
    table = pd.read_csv(tmp_path / "p.csv", dtype={"id": str})
    assert table["id"].tolist() == [f"{at:04d}" for at in range(200)]  # an id with leading zeros is no number
    kept = open_run(finished.folder)
    with pytest.warns(DataWarning, match="'job': 1"):
        outputs = torch.softmax(kept.run.model(kept.inputs(rows)), 1)
    assert torch.allclose(torch.from_numpy(table["p(low)"].to_numpy()), outputs[:, 1].double(), atol=1e-5)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("column", "row", "value", "field", "given"),
    [
        ("age", 190, "old", "column", "'age' holds text, the first in row 191"),
        ("age", 190, "", "table", "1 of 200 rows"),
    ],
)
def test_a_bad_row_at_the_end_is_refused_before_anything_is_written(
    finished, rows, tmp_path, capsys, column, row, value, field, given
):
    table = pd.read_csv(rows, dtype=str)
    table.loc[row, column] = value
    table.to_csv(rows, index=False)
    for options in ((), ("--out", tmp_path / "p.csv")):
        with raises_field(DataError, field, given):
            predicted(finished.folder, rows, *options)
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "p.csv").exists()
