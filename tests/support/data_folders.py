"""Folders of data sources for tests that write the files themselves."""

from __future__ import annotations

from pathlib import Path

import pytest


def empty_source_folder(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty folder of a source in a new EQUIDP_DATA, with a cache of its own."""
    monkeypatch.setenv("EQUIDP_CACHE", str(place / "cache"))
    monkeypatch.setenv("EQUIDP_DATA", str(place))
    folder = place / name
    folder.mkdir()
    return folder
