"""`equidp cache` lists what is kept of large tables, and removes it when asked."""

from __future__ import annotations

import os

import pandas as pd
import pytest

from equidp.cli.app import app
from equidp.data import open_source
from equidp.tables.cache import table_store
from support.command import people as people


@pytest.fixture
def run(people, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("EQUIDP_CACHE", str(tmp_path))
    monkeypatch.setenv("EQUIDP_STREAM_ABOVE", "0")
    monkeypatch.setenv("COLUMNS", "200")
    open_source(str(people / "people.csv"), target="income", group="sex").split(0)

    def command(*arguments: str) -> str:
        quiet = {"print_error": False, "exit_on_error": False, "result_action": "return_value"}
        app(["cache", *arguments], **quiet)
        return capsys.readouterr().out

    return command


def test_the_list_names_size_time_and_what_it_is_and_clearing_empties_it(run, tmp_path):
    listed = run()
    for what in ("the table 'people.csv'", "the inputs of 'people'", "the split of 'people' by seed 0"):
        assert what in listed
    assert "3 with 0.0 MB in" in listed
    assert pd.Timestamp.now().strftime("%Y-%m-") in listed
    assert "Removed 3 from" in run("--clear")
    assert "Nothing is kept in" in run()
    assert not list((tmp_path / "tables").iterdir())


def test_only_what_was_not_used_for_some_days_is_removed(run):
    old = next(each for each in table_store().entries() if "table" in each.what)
    os.utime(old.place, (old.used - 40 * 86_400, old.used - 40 * 86_400))
    assert "1 with" in run("--older-than", "30")
    assert "Removed 1 from" in run("--clear", "--older-than", "30")
    assert len(table_store().entries()) == 2
    assert "for so long" in run("--older-than", "30")
