"""Runs the examples of docstrings in a folder of their own and from the same random numbers each time."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _examples_leave_nothing_behind(request, monkeypatch, tmp_path_factory):
    if type(request.node).__name__ == "DoctestItem":
        import torch

        folder = tmp_path_factory.mktemp("doctest")
        monkeypatch.chdir(folder)
        monkeypatch.setenv("EQUIDP_CACHE", str(folder))
        torch.manual_seed(0)
