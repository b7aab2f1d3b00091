"""A run's folder: what is to be given away in `share/`, what is to be kept in `private/`."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from equidp.errors import BudgetError, CheckpointError, DataError
from equidp.runs.folder import CONFIG, MODEL, RunFolder
from equidp.runs.train import train
from support.errors import raises_field


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_finished_run_has_these_files(finished):
    assert files(finished.folder) == ["private", "share"]
    assert files(finished.share) == [
        "README.txt", "SHA256SUMS", "card.html", "card.md", "model.safetensors", "run.json"
    ]  # fmt: skip
    described = (finished.share / "README.txt").read_text()
    assert all(name in described for name in files(finished.share)[1:])
    names = files(finished.private)
    assert len([name for name in names if name.startswith("checkpoint-")]) == 2
    assert [name for name in names if not name.startswith("checkpoint-")] == [
        "SHA256SUMS", "config.json", "ledger", "preprocessing.json", "record.parquet",
    ]  # fmt: skip


def test_a_folder_without_a_run_that_this_version_reads_is_refused(finished, tmp_path):
    for place, what in ((tmp_path / "empty", "a folder without a run"), (tmp_path / "file", "a file")):
        place.mkdir() if place.name == "empty" else place.write_text("age,sex\n")
        with raises_field(DataError, "folder", what, "equidp train --out"):
            RunFolder(place).read_settings()
    with raises_field(DataError, "folder", tmp_path / "none"):
        RunFolder(tmp_path / "none").read_settings()
    path = finished.private / CONFIG
    content = json.loads(path.read_text())
    del content["plan"]["steps"]
    for text in (json.dumps(content), "{", "[]"):
        path.write_text(text)
        with raises_field(DataError, "folder", finished.folder):
            RunFolder(finished.folder).read_settings()


def test_a_run_goes_on_with_its_own_data_alone(finished):
    folder = RunFolder(finished.folder)
    config, _, facts = folder.read_settings()
    split = config.load()[0]
    assert folder.load_same(config, None, facts).digest() == split.digest()
    with raises_field(DataError, "data"):
        folder.load_same(config, None, {**facts, "sensitive_data_sha256": "0"})
    gone = replace(config, data=replace(config.data, name=str(finished.folder / "gone.csv")))
    with raises_field(DataError, "data"):
        folder.load_same(gone, None, facts)


@pytest.mark.soak
def test_a_run_whose_checkpoints_are_gone_or_of_another_run_is_refused(finished, begun):
    for path in finished.private.glob("checkpoint-*"):
        path.rename(path.with_suffix(".gone"))
    with raises_field(CheckpointError, "folder", "bring it back, or train again"):
        train(finished.folder)
    train(begun)
    for path in begun.glob("private/checkpoint-*"):
        shutil.copy(path, finished.private)
    with raises_field(BudgetError, "steps"):
        train(finished.folder)


@pytest.mark.soak
def test_a_kill_while_results_are_replaced_leaves_a_run_that_is_written_again(finished, monkeypatch):
    replaced = []

    def killed(source, target):
        replaced.append(target)
        raise KeyboardInterrupt

    model = (finished.share / MODEL).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("equidp.runs.folder.os.replace", killed)
        with pytest.raises(KeyboardInterrupt):
            train(finished.folder)
    assert replaced
    train(finished.folder)
    assert (finished.share / MODEL).read_bytes() == model
    assert files(finished.folder) == ["private", "share"]
