"""What benchmarks decide, where no measurement is needed."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize(
    ("after", "equal"),
    [((0.5, 0.25), True), ((0.5, 0.2500000001), False), ((0.4, 0.25), False), (None, False)],
)
def test_checkouts_are_the_same_only_where_every_figure_is(capsys, after, equal):
    script = runpy.run_path(str(BENCHMARKS / "same_figures.py"))
    compare_checkouts, cell = script["compare_checkouts"], script["Cell"]
    found = {"old": (0.5, 0.25), "new": after}

    def figures(tree, name, methods, epochs, folder):
        rows = {cell(name, "sgd", "all"): (0.5, 0.25), cell(name, "sgd", "F"): found[tree.name]}
        return {place: row for place, row in rows.items() if row}

    compare_checkouts.__globals__["figures"] = figures
    assert compare_checkouts(Path("old"), Path("new"), ["csv"], "sgd", 1.0) is equal
    assert ("1 of 2 differ" in capsys.readouterr().out) is not equal
