"""A run's folder is checked against its checksums, its card and its data before anything is read from it."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import equidp
from equidp.accounting.budget import PrivacyBudget
from equidp.accounting.target import Target
from equidp.data import Recipe
from equidp.errors import BudgetError, DataError
from equidp.ledger.format import read_ledger
from equidp.runs import layout
from equidp.runs.begin import begin
from equidp.runs.config import BudgetFile, RunData, TrainConfig
from equidp.runs.prepare import prepare
from equidp.runs.train import train
from equidp.training.record import RunRecord
from support.errors import raises_field

RECIPE = Recipe(target="income", group=("sex",))

PLAN = equidp.Plan(batch_size=40, epochs=2, noise_multiplier=2.0)
CONFIG = TrainConfig(RunData("digits"), "dpsgd", PLAN)  # of a run without releases


def test_the_manifest_has_the_checksum_of_each_finished_file(finished):
    lines = (finished.folder / layout.MANIFEST).read_text().splitlines()
    listed = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert set(listed) == {
        "config.json", "preprocessing.json", "model.safetensors", "record.parquet", "card.html", "card.md",
        "settings.json",
    }  # fmt: skip
    for name, digest in listed.items():
        assert hashlib.sha256((finished.folder / name).read_bytes()).hexdigest() == digest
    layout.check_files(finished.folder, CONFIG)


@pytest.mark.parametrize("name", [layout.CONFIG, layout.ENCODER, layout.MODEL, layout.RECORD, layout.PAGE])
def test_a_changed_or_missing_file_is_named(finished, name):
    path = finished.folder / name
    path.write_bytes(path.read_bytes() + b" ")
    with raises_field(DataError, name, "bring it back"):
        layout.check_files(finished.folder, CONFIG)
    path.unlink()
    with raises_field(DataError, name):
        layout.check_files(finished.folder, CONFIG)


def test_an_added_file_is_named_with_a_changed_one(finished):
    (finished.folder / layout.RELEASED).write_text("[]")
    (finished.folder / layout.PAGE).write_text("another card")
    with raises_field(DataError, "card.html, released.json", "bring them back"):
        layout.check_files(finished.folder, CONFIG)


@pytest.mark.soak
def test_a_missing_manifest_says_how_to_write_it_anew_and_that_works(finished):
    (finished.folder / layout.MANIFEST).unlink()
    with raises_field(DataError, layout.MANIFEST, "\nequidp train --resume"):
        layout.check_files(finished.folder, CONFIG)
    train(finished.folder)
    layout.check_files(finished.folder, CONFIG)


def test_a_folder_without_a_run_that_this_version_reads_is_refused(finished, tmp_path):
    with raises_field(DataError, "folder", "a folder without a run", "equidp train --out"):
        layout.read_config(tmp_path)
    with raises_field(DataError, "folder", tmp_path / "none"):
        layout.read_config(tmp_path / "none")
    path = finished.folder / layout.CONFIG
    content = json.loads(path.read_text())
    del content["plan"]["steps"]
    for text in (json.dumps(content), "{", "[]"):
        path.write_text(text)
        with raises_field(DataError, "folder", finished.folder):
            layout.read_config(finished.folder)


def test_released_figures_are_read_as_written_and_damaged_ones_refused(finished):
    assert layout.read_released(finished.folder) == []
    rows = [{"group": "F", "mean": 0.25, "standard_error": 0.1}]
    (finished.folder / layout.RELEASED).write_text(json.dumps(rows))
    assert layout.read_released(finished.folder) == rows
    (finished.folder / layout.RELEASED).write_text("[")
    with raises_field(DataError, layout.RELEASED):
        layout.read_released(finished.folder)


def test_a_run_goes_on_with_its_own_data_alone(finished):
    config, _, facts = layout.read_config(finished.folder)
    split = config.load()[0]
    assert layout.load_same(config, None, facts, finished.folder).digest() == split.digest()
    with raises_field(DataError, "data"):
        layout.load_same(config, None, {**facts, "sensitive_data_sha256": "0"}, finished.folder)
    gone = replace(config, data=replace(config.data, name=str(finished.folder / "gone.csv")))
    with raises_field(DataError, "data"):
        layout.load_same(gone, None, facts, finished.folder)


@pytest.mark.soak
def test_a_published_checksum_confirms_no_guess_of_a_row(finished, begun):
    """All that the files hold but their salt is known to someone who knows every row but one, and guesses
    it."""
    listed = (finished.folder / layout.MANIFEST).read_text()
    for name in (layout.CONFIG, layout.ENCODER):
        content = json.loads((finished.folder / name).read_text())
        salt = content.pop("salt")
        assert re.fullmatch("[0-9a-f]{32}", salt)
        for guess in (content, {**content, "salt": ""}, {**content, "salt": "0" * 32}):
            assert hashlib.sha256(json.dumps(guess, indent=2).encode()).hexdigest() not in listed
        assert hashlib.sha256(json.dumps({**content, "salt": salt}, indent=2).encode()).hexdigest() in listed
        assert json.loads((begun / name).read_text())["salt"] != salt  # the same data and settings
    train(begun)
    records = [RunRecord.load(folder / layout.RECORD) for folder in (finished.folder, begun)]
    assert records[0].settings["salt"] != records[1].settings["salt"]


def test_the_folder_says_of_every_file_whether_it_may_be_shared(finished):
    (finished.folder / layout.RELEASED).touch()
    (finished.folder / layout.COUNTS).touch()
    (finished.folder / layout.HISTORIES.replace("*", "0")).touch()
    notice = (finished.folder / layout.NOTICE).read_text()
    for path in finished.folder.iterdir():
        assert sum(fnmatch.fnmatch(path.name, pattern) for pattern in layout.FILES) == 1, path.name
    for pattern in layout.FILES:
        assert len(list(finished.folder.glob(pattern))) in (1, 2), pattern
        assert f"\n{pattern}: " in notice
    constants = {value for name, value in vars(layout).items() if name.isupper() and type(value) is str}
    constants = {value for value in constants if value[0] != " "}  # part of a sentence
    kinds = {layout.SHAREABLE, layout.RESTRICTED, layout.CONFIDENTIAL}
    assert constants - kinds - {layout.COPIES} == set(layout.FILES)
    assert "two models" in " ".join(notice.split())


def test_the_page_on_sharing_says_the_same_as_the_folder():
    page = (Path(__file__).parents[2] / "docs" / "share.md").read_text()
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]+) \| ([^|]+) \|", page, re.MULTILINE)
    assert [(name, kind, what[0].lower() + what[1:]) for name, kind, what in rows] == [
        (name, kind.lower(), what) for name, (kind, what) in layout.FILES.items()
    ]


@pytest.mark.parametrize("name", [layout.MODEL, layout.PAGE, layout.CARD])
def test_what_tells_the_shape_of_an_input_says_that_it_counts_the_categories_of_the_data(finished, name):
    notice = " ".join((finished.folder / layout.NOTICE).read_text().split())
    assert "the number of inputs, which follows from the categories" in layout.FILES[name][1]
    assert f"{name}: {layout.FILES[name][1]}" in notice
    card = " ".join((finished.folder / layout.CARD).read_text().split())
    assert "nor their number, which the sizes of inputs and weights show" in card


@pytest.mark.soak
def test_a_resumed_run_takes_an_older_copy_of_its_budget_and_no_other_file(finished, tmp_path):
    """The copy is charged what the run spent since, although another run with the same settings is in it."""
    budget = tmp_path / "b.ledger"
    data, target = RunData(str(finished.table), RECIPE), Target(accountant="rdp")
    for name, limits in (("one", {"epsilon": 50.0, "delta": 1e-2}), ("two", {})):
        config = TrainConfig(data, "dpsgd", PLAN, target, BudgetFile(budget, **limits))
        begin(prepare(config), tmp_path / name)
        if name == "one":
            train(tmp_path / name)
    once = read_ledger(budget).entries[0][1]
    copy = {path: path.read_bytes() for path in tmp_path.glob("b.ledger*")}
    train(tmp_path / "two")
    spent = read_ledger(budget).entries
    for path, content in copy.items():
        path.write_bytes(content)
    train(tmp_path / "two")  # has no steps left
    assert read_ledger(budget).entries == spent == ((spent[0][0], 2 * once),)
    for path in copy:
        path.unlink()
    PrivacyBudget(budget, epsilon=50.0, delta=1e-2).close()
    with raises_field(BudgetError, "budget", tmp_path / "two"):
        train(tmp_path / "two")
    budget.unlink()
    with raises_field(BudgetError, "budget", tmp_path / "two"):
        train(tmp_path / "two")
    assert not budget.exists()


@pytest.mark.soak
def test_a_budget_of_another_dataset_is_refused_unless_it_is_said_to_be_the_same_people(finished, tmp_path):

    def config(table, **budget):
        file = BudgetFile(tmp_path / "b.ledger", **budget)
        return TrainConfig(RunData(str(table), RECIPE), "dpsgd", PLAN, Target(accountant="rdp"), file)

    begin(prepare(config(finished.table, epsilon=50.0, delta=1e-2)), tmp_path / "one")
    train(tmp_path / "one")
    other = shutil.copy(finished.table, tmp_path / "others.csv")
    with raises_field(BudgetError, "data", "'people'", "'others'", "--budget-data people"):
        prepare(config(other))
    prepare(config(other, data="people"))


def test_the_card_shows_the_returned_evaluation_and_bounds_to_the_last_digit(finished):
    card = (finished.folder / layout.CARD).read_text()
    assert "| public bounds | age=0.1:1234567.891 |" in card
    groups = finished.evaluation.groups
    assert groups["count"].iloc[-1] > 0
    for row in groups.itertuples():
        assert f"| {row.group} | {row[2]:,} | {100 * row.accuracy:.1f} [" in card


@pytest.mark.parametrize(("name", "kind"), [("table.csv", "a file"), ("empty", "a folder without a run")])
def test_what_holds_no_run_is_named_as_what_it_is(name, kind, tmp_path):
    place = tmp_path / name
    if name == "empty":
        place.mkdir()
    else:
        place.write_text("age,sex\n")
    with raises_field(DataError, "folder", kind):
        layout.read_config(place)
