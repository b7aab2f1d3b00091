"""In a terminal of any width each row says whose it is, and no figure loses a digit."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

import equidp
from equidp.display import Column, Table
from equidp.evaluation.metrics import METRICS
from equidp.report.evaluation import groups_table, print_groups

NAMES = ("F", "Region=Mitte, Geschlecht=divers", "Region=Mitte, Geschlecht=weiblich", "x" * 60, "日本語" * 9)
WIDTHS = (1, 24, 40, 80, 200)


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


def test_figures_of_one_column_have_the_same_digits():
    """0.57 beside 0.581 would seem to be known less well, or exact."""
    rows = pd.DataFrame({"group": ["F", "M"], "count": [20, 30], "loss": [0.57, 0.581]})
    for end, value in (("low", 0.5), ("high", 0.66)):
        rows[f"loss_{end}"] = value
    assert groups_table(rows).texts() == [
        ["F", "20", "0.570 (0.500 to 0.660)"],
        ["M", "30", "0.581 (0.500 to 0.660)"],
    ]


def test_a_narrow_page_breaks_words_that_fit_no_screen_alone():
    cells = [["name", "default"], ["path", "my_package.my_module:my_function"]]
    page = Table((Column("setting", "name"), Column("from", "text")), cells).to_html()
    assert '<td class="left">default</td>' in page
    assert '<td class="left long">my_package.my_module:my_function</td>' in page
    document = (Path(equidp.__file__).parent / "report" / "templates" / "document.html").read_text()
    assert [line for line in document.splitlines() if "anywhere" in line and line.startswith("td")] == [
        "td.long { overflow-wrap: anywhere; }"
    ]
