"""Tables for papers and notebooks hold the comparison's figures, and names in them stay text."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser

import pandas as pd
import pytest
from torch import nn

from equidp.errors import SettingError
from equidp.evaluation.costs import equal_cost, summary
from equidp.evaluation.metrics import METRICS
from equidp.policies.dpsgd import DPSGD
from equidp.report.comparison import markdown
from equidp.training.run import Run, RunFacts
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


def test_a_row_of_methods_is_the_comparisons():
    comparison = made_up(COSTS, epsilons=(1.0, 3.0))
    verdicts = equal_cost(comparison.costs()).set_index(["method", "setting"])
    table = comparison.table().set_index("method")
    assert list(table.index) == ["sgd", *(f"{m} (epsilon={e})" for m in COSTS for e in (1, 3))]
    assert table.at["sgd", "epsilon"] == "∞"
    assert table.at["sgd", "privacy cost"] == "–"
    for (method, setting), row in verdicts.query("method != 'sgd'").iterrows():
        cells = table.loc[f"{method} ({setting})"]
        gap = [100 * row[f"gap_{end}"] for end in ("mean", "low", "high")]
        assert figures(cells["largest gap"]) == pytest.approx(gap, abs=0.0501)
        assert cells["gap ≤ 5.0?"] == row["verdict"]
        assert cells["largest loss"].startswith("b: ")


def test_tables_are_of_the_metric_of_the_comparison():
    comparison = made_up(COSTS)
    results = comparison.results.assign(auc=comparison.results["accuracy"] / 2)
    found = dataclasses.replace(comparison, results=results, metric=METRICS["auc"])
    assert list(found.table())[2:4] == ["AUC", "privacy cost"]
    mean = found.costs().query("method == 'dpsgd' and group == 'b'")["privacy_cost"].mean()
    assert float(found.table("costs").set_index("group").at["b", "dpsgd"].split()[0]) == pytest.approx(
        mean, rel=6e-3
    )


def test_one_seed_has_no_intervals():
    comparison = made_up(COSTS, seeds=1)
    assert not comparison.table("costs").map(lambda cell: "[" in cell).to_numpy().any()
    assert "made-up; 95% intervals over 1 seed, delta 1e-05" in markdown(comparison)


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


class Texts(HTMLParser):
    """The texts and tags of a piece of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


def test_a_notebook_shows_the_methods_and_nothing_sensitive():
    secret = {"sensitive_individual": pd.DataFrame({"mean": [0.123456]})}
    comparison = dataclasses.replace(made_up(ODD), tables=secret)
    shown = Texts(comparison._repr_html_())
    assert shown.tags == {"table", "thead", "tbody", "tr", "th", "td", "small", "span"}
    assert "dp_sgd & <b>|{1}" in shown.texts
    assert "0.12" not in comparison._repr_html_()


def test_a_notebook_shows_what_a_run_spent_rounded_up():
    policy = type("<DPSGD>", (DPSGD,), {})()
    trainer_facts = RunFacts(policy=policy, num_examples=64, steps=2, groups=("a", "<b>"))
    run = Run(nn.Linear(1, 1), (), 1e-5, nn.functional.cross_entropy, facts=trainer_facts)
    shown = Texts(run._repr_html_())
    assert {"<DPSGD>", "a, <b>", "64", "1e-05", "epsilon"} <= set(shown.texts)
    assert not shown.tags & {"dpsgd", "b"}


def against(name: str, **arguments):
    comparison = made_up(COSTS, **arguments)
    return dataclasses.replace(comparison, setup=dataclasses.replace(comparison.setup, against=name))


@pytest.mark.soak
def test_differences_from_a_named_method_are_in_every_format(tmp_path):
    comparison = against("dpsgd-f")
    table = comparison.table("differences")
    assert list(table["method"]) == ["dpsgd"] * 3
    assert list(table["of"]) == ["accuracy, all", "accuracy, worst group", "largest gap"]
    for found, row in zip(table.to_dict("records"), comparison.differences().to_dict("records"), strict=True):
        expected = [100 * row[end] for end in ("mean", "low", "high")]
        assert figures(found["difference, points"]) == pytest.approx(expected, abs=0.0501)
    comparison.to_json(tmp_path / "found.json")
    assert comparison.to_markdown("differences") in markdown(comparison)
    listed = json.loads((tmp_path / "found.json").read_text())["differences"]
    assert [row["mean"] for row in listed] == pytest.approx(comparison.differences()["mean"].tolist())


def test_a_comparison_without_a_named_method_has_no_table_of_differences():
    with pytest.raises(SettingError):
        made_up(COSTS).table("differences")
