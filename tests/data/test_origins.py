"""Origins of datasets: the folder that holds them, and the page that states where they come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from equidp.data import open_source
from equidp.data.origins import ORIGINS
from equidp.errors import DataError


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_a_data_folder_that_is_none_is_refused_before_anything_is_fetched(name, tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIDP_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="which is no folder"):
        open_source(name).split(0)


def test_the_page_on_data_states_each_origin():
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    for origin in ORIGINS.values():
        assert f"| {origin.page} | {origin.size} | {origin.licence} |" in page
