"""Fixtures of the tests of equidp and of papers, and a folder of their own for examples of docstrings."""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support import seeds
from tests.support.bins import COARSE_BINS, FINE_BINS, round_privacy_losses

settings.register_profile("equidp", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("equidp")


COARSE = (
    "advice",
    "cli",
    "comparison",
    "data",
    "diagnostics",
    "estimator",
    "evaluation",
    "report",
    "runs",
    "tables",
    "training",
)
"""Folders of tests whose promises are about something else than how tight an epsilon is."""
COARSE_FILES = (
    "tests/test_devices",
    "tests/test_docs",
    "tests/test_examples",
    "tests/test_tutorials",
)
"""Slow files of tests elsewhere of which the same holds."""
FINE_FILES = ("tests/report/test_recomputed",)
"""Files in these folders that recompute an epsilon by dp_accounting."""


TRAINS = ("compare(", "train(", ".fit(", "audit_")
"""Calls in examples of docstrings that take longer than a second."""


def pytest_collection_modifyitems(items) -> None:
    """Mark examples of docstrings that train as soak; refuse names of tests that differ by process."""
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"{item.nodeid} names an address; give its parameters ids.")
        if isinstance(item, pytest.DoctestItem) and any(
            word in example.source for example in item.dtest.examples for word in TRAINS
        ):
            item.add_marker(pytest.mark.soak)


def pytest_addoption(parser) -> None:
    parser.addoption("--device", default="cpu", help="device that tests of devices and of engines compute on")


def pytest_configure(config) -> None:
    os.urandom = seeds.urandom
    os.environ["EQUIDP_TEST_DEVICE"] = config.getoption("--device")  # for processes of tests too


@pytest.fixture(scope="session")
def device():
    """The device of --device."""
    import torch

    return torch.device(os.environ["EQUIDP_TEST_DEVICE"])


def pytest_fixture_setup(fixturedef, request) -> None:
    seeds.seed_everything(f"{request.node.nodeid} {fixturedef.argname}")


def pytest_runtest_call(item) -> None:
    seeds.seed_everything(item.nodeid)


@pytest.fixture(scope="module", autouse=True)
def _coarse_epsilons(request) -> None:
    """Round privacy losses of some files up to ten times wider bins: a tenth of the time, and still an upper
    bound, about 0.1% above. Nothing worked out with other bins is taken over."""
    place = request.path.relative_to(request.config.rootpath).with_suffix("")
    coarse = place.parts[:2] in {("tests", folder) for folder in COARSE} or place.as_posix() in COARSE_FILES
    coarse = coarse and place.as_posix() not in FINE_FILES
    round_privacy_losses(COARSE_BINS if coarse else FINE_BINS)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real datasets."""
    folder = os.environ.get("EQUIDP_DATA")
    if not folder:
        pytest.skip("EQUIDP_DATA is not set; it names the folder with mnist/, adult/ and dutch/")
    return Path(folder)


@pytest.fixture
def no_plots(monkeypatch) -> None:
    """Leaves plots out of pages of comparisons, most of whose time they take."""
    monkeypatch.setattr("equidp.report.plots.style.draw_plots", lambda plots, summary: [])


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs `equidp` in this process: (*arguments, cwd) -> exit code, standard output, standard error in one
    line."""

    def invoke(*arguments, cwd):
        from equidp.cli import main

        monkeypatch.chdir(cwd)
        monkeypatch.setenv("COLUMNS", "150")
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
        monkeypatch.setattr(sys, "argv", ["equidp", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        seen = capsys.readouterr()
        return end.value.code or 0, seen.out, " ".join(seen.err.split())

    return invoke


@pytest.fixture(autouse=True)
def _examples_leave_nothing_behind(request, monkeypatch, tmp_path_factory):
    if type(request.node).__name__ == "DoctestItem":
        folder = tmp_path_factory.mktemp("doctest")
        monkeypatch.chdir(folder)
        monkeypatch.setenv("EQUIDP_CACHE", str(folder))


if not any(map(importlib.util.find_spec, ("lightning", "pytorch_lightning"))):
    collect_ignore = ["src/equidp/integrations/lightning.py"]
    """Doctests of modules whose extra is not installed."""
