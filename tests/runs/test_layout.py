"""A run's folder is checked against its checksums, its card and its data before anything is read from it."""

from __future__ import annotations

import hashlib
import json

import pytest

from equidp.errors import DataError
from equidp.runs import layout
from equidp.runs.train import train


def test_the_manifest_has_the_checksum_of_each_finished_file(finished):
    lines = (finished.folder / layout.MANIFEST).read_text().splitlines()
    listed = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert set(listed) == {
        "config.json", "preprocessing.json", "model.pt", "record.parquet", "card.html", "card.md",
    }  # fmt: skip
    for name, digest in listed.items():
        assert hashlib.sha256((finished.folder / name).read_bytes()).hexdigest() == digest
    layout.check_files(finished.folder)


@pytest.mark.parametrize("name", [layout.CONFIG, layout.ENCODER, layout.MODEL, layout.RECORD, layout.PAGE])
def test_a_changed_or_missing_file_is_named(finished, name):
    path = finished.folder / name
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(DataError, match=rf"^{name} in .* is not as equidp wrote it .*bring it back\.$"):
        layout.check_files(finished.folder)
    path.unlink()
    with pytest.raises(DataError, match=f"^{name} in "):
        layout.check_files(finished.folder)


def test_an_added_file_is_named_with_a_changed_one(finished):
    (finished.folder / layout.RELEASED).write_text("[]")
    (finished.folder / layout.PAGE).write_text("another card")
    with pytest.raises(DataError, match=r"card\.html, released\.json in .* are not .* bring them back"):
        layout.check_files(finished.folder)


def test_a_missing_manifest_says_how_to_write_it_anew_and_that_works(finished):
    (finished.folder / layout.MANIFEST).unlink()
    with pytest.raises(DataError, match=r"files\.sha256 in .* cannot be read .*train --resume"):
        layout.check_files(finished.folder)
    train(finished.folder)
    layout.check_files(finished.folder)


def test_a_folder_without_a_run_that_this_version_reads_is_refused(finished, tmp_path):
    with pytest.raises(DataError, match=r"holds no run .*FileNotFoundError.*equidp train --out made"):
        layout.read_config(tmp_path)
    path = finished.folder / layout.CONFIG
    content = json.loads(path.read_text())
    del content["plan"]["steps"]
    for text in (json.dumps(content), "{", "[]"):
        path.write_text(text)
        with pytest.raises(DataError, match="holds no run that this version"):
            layout.read_config(finished.folder)


def test_released_figures_are_read_as_written_and_damaged_ones_refused(finished):
    assert layout.read_released(finished.folder) == []
    rows = [{"group": "F", "mean": 0.25, "standard_error": 0.1}]
    (finished.folder / layout.RELEASED).write_text(json.dumps(rows))
    assert layout.read_released(finished.folder) == rows
    (finished.folder / layout.RELEASED).write_text("[")
    with pytest.raises(DataError, match=r"released\.json in .* is not as equidp wrote it"):
        layout.read_released(finished.folder)


def test_a_run_goes_on_with_its_own_data_alone(finished):
    config, _, facts = layout.read_config(finished.folder)
    split = config.load()[0]
    layout.check_same(split, config, facts, finished.folder)
    with pytest.raises(DataError, match=r"is not the data that .* began with"):
        layout.check_same(split, config, {**facts, "sensitive_data_sha256": "0"}, finished.folder)


def test_the_card_shows_the_returned_evaluation_and_bounds_to_the_last_digit(finished):
    card = (finished.folder / layout.CARD).read_text()
    assert "| public bounds | age=0.1:1234567.891 |" in card
    groups = finished.evaluation.groups
    assert groups["count"].iloc[-1] > 0
    for row in groups.itertuples():
        assert f"| {row.group} | {row[2]:,} | {100 * row.accuracy:.1f} |" in card
