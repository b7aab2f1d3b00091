"""In a terminal of any width each row says whose it is, and no figure loses a digit."""

from __future__ import annotations

import pytest
from rich.console import Console

from equidp.display import Column, Interval, Table, measured_number

NAMES = ("F", "Region=Mitte, Geschlecht=divers", "Region=Mitte, Geschlecht=weiblich", "x" * 60, "日本語" * 9)
WIDTHS = (1, 24, 80)


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
def test_every_part_of_a_split_table_has_the_names_of_its_rows(capsys, width):
    columns = [Column("group", "name"), *(Column(head) for head in ("accuracy, %", "loss", "recall, %"))]
    cells = [f"{place}0.0 (0.4 to 0.5)" for place in (1, 2, 3)]
    table = Table(columns, [[name, *cells] for name in ("Male", "Female", "all")], total="all")
    table.print(Console(width=width), split=True)
    said = capsys.readouterr().out
    assert "…" not in said
    tables = said.count("group")
    for name in ("Male", "Female", "all"):
        assert sum(line.split()[:1] == [name] for line in said.splitlines()) == tables
    for cell in cells:
        assert said.count(cell) == 3


def test_figures_of_one_column_have_the_same_digits():
    """0.57 beside 0.581 would seem to be known less well, or exact."""
    column = Column("loss", show=measured_number)
    assert column.parts(Interval(0.57, 0.5, 0.66)) == ("0.570", "0.500 to 0.660")
    assert column.parts(Interval(0.581, 0.5, 0.66))[0] == "0.581"
