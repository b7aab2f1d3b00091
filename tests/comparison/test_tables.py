"""Tables for papers and notebooks hold the comparison's figures, and names in them stay text."""

from __future__ import annotations

import dataclasses
import re

import pandas as pd
import pytest

from equidp.errors import SettingError
from equidp.evaluation.costs import summary
from equidp.report.comparison import markdown
from support.errors import raises_field
from support.made_up import made_up

COSTS = {"dpsgd": {"a": 0.021, "b": 0.402}, "dpsgd-f": {"a": 0.038, "b": 0.057}}
ODD = {"dp_sgd & <b>|{1}": {"50% $x_1$": 0.3, "a\\b": 0.02}}


def figures(cell):
    return [float(figure) for figure in re.findall(r"-?\d+\.\d", cell)]


@pytest.mark.parametrize(("name", "column"), [("costs", "privacy_cost"), ("metric", "accuracy")])
def test_cells_by_group_are_the_means_and_intervals_over_seeds(name, column):
    comparison = made_up(COSTS)
    frame = summary(comparison.costs()).set_index(["group", "method"])
    table = comparison.table(name).set_index("group")
    assert list(table.index) == ["a", "b", "all"]
    assert list(table)[1:] == [*(["sgd"] if name == "metric" else []), *COSTS]
    for method in list(table)[1:]:
        for group in table.index:
            row = frame.loc[(group, method)]
            expected = [100 * row[f"{column}_{end}"] for end in ("mean", "low", "high")]
            assert figures(table.at[group, method]) == pytest.approx(expected, abs=0.0501)


def test_markdown_has_as_many_cells_in_each_row_whatever_the_names():
    for name in ("methods", "costs", "metric"):
        text = made_up(ODD).to_markdown(name)
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines()}) == 1
        assert "<b>" not in text


def test_all_tables_are_in_one_text_and_others_are_refused():
    comparison = made_up(COSTS)
    assert markdown(comparison).count("; 95% intervals over 5 seeds") == 3
    with raises_field(SettingError, "table", "'cost'", "'costs'"):
        comparison.table("cost")


def test_a_notebook_shows_the_methods_and_nothing_sensitive():
    secret = {"sensitive_individual": pd.DataFrame({"mean": [0.123456]})}
    comparison = dataclasses.replace(made_up(ODD), tables=secret)
    page = comparison._repr_html_()
    assert "dp_sgd &amp; &lt;b&gt;|{1}" in page
    assert "<b>" not in page
    assert "0.12" not in page


def test_a_comparison_without_a_named_method_has_no_table_of_differences():
    with pytest.raises(SettingError):
        made_up(COSTS).table("differences")
