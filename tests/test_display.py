"""In a terminal of any width each row says whose it is, and no figure loses a digit."""

from __future__ import annotations

import pandas as pd
import pytest
from rich.console import Console

from equidp.display import Column, Table
from equidp.evaluation.metrics import METRICS
from equidp.report.evaluation import print_groups

NAMES = ("F", "Region=Mitte, Geschlecht=divers", "Region=Mitte, Geschlecht=weiblich", "x" * 60, "日本語" * 9)
WIDTHS = (1, *range(20, 100), 200)


@pytest.mark.parametrize("lines", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_names_and_figures_are_whole(width, lines, capsys):
    rows = [(name, f"{number}1.3 (65.0 to 77.0)") for number, name in enumerate(NAMES)]
    Table([Column("group", "name"), Column("accuracy, %")], rows).print(Console(width=width), lines=lines)
    said = capsys.readouterr().out
    assert "…" not in said
    assert [f"{number}1.3 (65.0 to 77.0)" in said for number in range(len(NAMES))] == [True] * len(NAMES)
    for letter in "日本語":
        assert said.count(letter) == 9
    assert said.count("x") == 60
    assert said.split()[0] == "group"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("by_class", [False, True])
def test_every_table_of_groups_has_the_names_of_its_rows(monkeypatch, capsys, width, by_class):
    monkeypatch.setenv("COLUMNS", str(width))
    rows = pd.DataFrame({"group": ["Male", "Female", "all"], "count": [123, 45, 168]})
    if by_class:
        rows.insert(1, "class", ["high", "low", "high"])
    for place, name in enumerate(("accuracy", "loss", "recall", "privacy_cost")):
        for end in ("", "_low", "_high"):
            rows[name + end] = [0.1 + place / 10 + len(end) / 1000, 0.2, 0.3]
    print_groups(rows, METRICS["accuracy"])
    said = capsys.readouterr().out
    assert "…" not in said
    tables = said.count("group")
    for name in ("Male", "Female", "all"):
        assert sum(line.split()[:1] == [name] for line in said.splitlines()) == tables
    assert said.count("10.0 (10.4 to 10.5)") == 1
    assert said.count("40.0 (40.4 to 40.5)") == 1
    assert said.count("30.0 (30.4 to 30.5)") == 1
