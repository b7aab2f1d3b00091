"""A finished run reads a file in batches as it would read it whole, and writes predictions all or none."""

from __future__ import annotations

import warnings

import pandas as pd
import pytest
import torch

from equidp.cli import predict as command
from equidp.cli.app import app
from equidp.errors import DataError, DataWarning
from equidp.runs import saved
from equidp.runs.saved import open_run
from equidp.tables import read as stream


@pytest.fixture(autouse=True)
def small_batches(tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIDP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(stream, "_BATCH_ROWS", 70)
    for module in (saved, command):
        monkeypatch.setattr(module, "ROWS", 33)


@pytest.fixture
def rows(finished, tmp_path):
    path = tmp_path / "new.csv"
    table = pd.read_csv(finished.table).assign(id=lambda table: [f"id {at}" for at in table.index])
    table.assign(job=lambda table: table["job"].mask(table.index == 150, "cleaner")).to_csv(path, index=False)
    return path


def ways(monkeypatch):
    for limit in ("inf", "0"):
        monkeypatch.setenv("EQUIDP_STREAM_ABOVE", limit)
        yield limit


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
def test_predictions_of_batches_are_those_of_the_whole_file(finished, rows, tmp_path, monkeypatch, capsys):
    written = []
    for limit in ways(monkeypatch):
        predicted(finished.folder, rows, "--keep", "id,age", "--out", tmp_path / f"{limit}.csv")
        capsys.readouterr()
        predicted(finished.folder, rows, "--keep", "id,age")
        assert capsys.readouterr().out == (tmp_path / f"{limit}.csv").read_text()
        written.append((tmp_path / f"{limit}.csv").read_text())
    assert written[0] == written[1]
    table = pd.read_csv(tmp_path / "0.csv")
    assert table["id"].tolist() == [f"id {at}" for at in range(200)]
    kept = open_run(finished.folder)
    with pytest.warns(DataWarning, match="'job': 1"):
        outputs = torch.softmax(kept.run.model(kept.inputs(rows)), 1)
    assert torch.allclose(torch.from_numpy(table["p(low)"].to_numpy()), outputs[:, 1].double(), atol=1e-5)
    assert not list((tmp_path / "cache" / "tables").glob("[!.]*"))


def test_evaluation_of_others_reads_the_same_examples(finished, rows, monkeypatch):
    kept, found = open_run(finished.folder), []
    for _ in ways(monkeypatch):
        with pytest.warns(DataWarning, match="'job': 1"):
            data = kept.read_grouped(rows)
        found.append((data.inputs.tolist(), data.targets.tolist(), data.groups.tolist(), data.group_names))
        with pytest.warns(DataWarning, match="is the file that the run was trained on"):
            kept.read_grouped(finished.table)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("column", "row", "value", "message"),
    [
        ("age", 190, "1e30", "holds numbers beyond"),
        ("age", 190, "old", "holds texts, the first in row 191, where the training data had numbers"),
        ("age", 190, "", "1 of 200 rows have missing values"),
    ],
)
def test_a_bad_row_at_the_end_is_refused_before_anything_is_written(
    finished, rows, tmp_path, monkeypatch, capsys, column, row, value, message
):
    table = pd.read_csv(rows, dtype=str)
    table.loc[row, column] = value
    table.to_csv(rows, index=False)
    for _ in ways(monkeypatch):
        for options in ((), ("--out", tmp_path / "p.csv")):
            with pytest.raises(DataError, match=message):
                predicted(finished.folder, rows, *options)
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "p.csv").exists()
