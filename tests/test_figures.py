"""FIGURES is raised where figures change: stored runs of other figures would be read otherwise."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from equidp.store import FIGURES

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "same_figures.py"


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(SCRIPT))


def test_the_file_of_figures_was_made_with_the_present_number(script):
    assert json.loads(script["KEPT"].read_text(encoding="utf-8"))["FIGURES"] == FIGURES


def test_a_number_that_was_raised_without_a_new_file_is_found(script):
    assert "--keep" in script["moved_figures"](FIGURES + 1)[0]


@pytest.mark.parametrize(
    ("now", "close"),
    [
        ((0.5, 1.0, 100), True),
        ((0.52, 1.00009, 100), True),
        ((0.53, 1.0, 100), False),
        ((0.5, 1.0002, 100), False),
        ((0.5, 1.0, 99), False),
        (None, False),
    ],
)
def test_figures_are_close_within_two_examples_and_a_part_in_ten_thousand(script, now, close):
    assert script["is_close"]((0.5, 1.0, 100), now) is close


@pytest.mark.soak
def test_figures_of_all_methods_are_those_of_the_file(script):
    assert script["moved_figures"](FIGURES) == []
