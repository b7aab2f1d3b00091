"""Data that is not there: where to get it, how large it is, and under which licence."""

from __future__ import annotations

from pathlib import Path

import pytest

from equidp.data import open_source
from equidp.data.origins import ORIGINS
from equidp.errors import DataError


@pytest.mark.parametrize("name", ["mnist", "adult", "dutch", "cifar10"])
def test_each_source_without_its_files_says_where_they_are_how_large_and_under_which_licence(
    name, tmp_path, monkeypatch
):
    monkeypatch.setenv("EQUIDP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("EQUIDP_DATA", str(tmp_path))
    # No name is found, as on a machine without a network.
    monkeypatch.setattr("socket.getaddrinfo", _no_network)
    origin = ORIGINS[name]
    with pytest.raises(DataError) as raised:
        open_source(name).split(0)
    said = str(raised.value)
    assert all(each in said for each in (origin.page, origin.size, origin.licence, origin.layout))
    assert "set EQUIDP_DATA to a folder" in said


def _no_network(*_, **__):
    raise OSError("no network")


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_a_data_folder_that_is_none_is_refused_before_anything_is_fetched(name, tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIDP_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="which is no folder"):
        open_source(name).split(0)


def test_the_page_on_data_states_each_origin():
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    for origin in ORIGINS.values():
        assert f"| {origin.page} | {origin.size} | {origin.licence} |" in page
