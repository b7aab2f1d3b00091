"""Every figure in the page's and the terminal's tables is the frame's, at the place that its headings
name."""

from __future__ import annotations

import dataclasses
from html.parser import HTMLParser

import pandas as pd
import pytest
from rich.console import Console

from equidp.comparison.result import Comparison
from equidp.data.dataset import ALL
from equidp.evaluation.costs import COSTS, equal_cost, summary
from equidp.report import comparison as html
from equidp.report.comparison import print_comparison
from support.made_up import made_up

COSTLY = {
    "dpsgd": {"a": 0.021, "b": 0.402, "c": 0.113},
    "naive": {"a": 0.034, "b": 0.251, "c": 0.127},
    "fair": {"a": 0.038, "b": 0.057, "c": 0.049},
}


class _Tables(HTMLParser):
    """Rows of each table: per cell, its own text and its small print."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tables: list[list[list[list[str]]]] = []
        self._part: int | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append(["", ""])
            self._part = 0
        elif tag == "small":
            self._part = 1

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._part = None

    def handle_data(self, data: str) -> None:
        if self._part is not None:
            self.tables[-1][-1][-1][self._part] += data


def _shown(metric: str, value: float) -> object:
    """What a rounded figure must lie near: points to a tenth, losses to three digits or a thousandth."""
    return (
        pytest.approx(100 * value, abs=0.0501)
        if metric in ("accuracy", "privacy_cost")
        else pytest.approx(value, abs=6e-4, rel=6e-3)
    )


def _columns_by_metric(comparison: Comparison) -> list[tuple[str, list[list[list[str]]]]]:
    tables = _Tables(html.render(comparison)).tables
    return list(zip(("accuracy", "privacy_cost", "loss", "excessive_risk"), tables[1:5], strict=True))


@pytest.mark.soak
@pytest.mark.parametrize("seeds", [1, 5])
def test_each_cell_of_the_pages_detail_tables_is_the_frames(seeds):
    comparison = made_up(COSTLY, seeds=seeds)
    frame = summary(comparison.costs()).set_index(["group", "method"])
    checked = 0
    for metric, (heading, *rows) in _columns_by_metric(comparison):
        methods = [text for text, _ in heading[2:]]
        assert set(COSTLY) <= set(methods)
        assert [row[0][0] for row in rows] == ["a", "b", "c", ALL]
        for (group, _), _, *cells in rows:
            for method, (mean, interval) in zip(methods, cells, strict=True):
                expected = frame.loc[(group, method)]
                assert float(mean) == _shown(metric, expected[f"{metric}_mean"])
                assert bool(interval) == (seeds > 1)
                if interval:
                    low, high = map(float, interval.split(" to "))
                    assert low == _shown(metric, expected[f"{metric}_low"])
                    assert high == _shown(metric, expected[f"{metric}_high"])
                checked += 1
    assert checked >= 4 * 4 * len(COSTLY)


@pytest.mark.soak
def test_each_row_of_the_pages_summary_is_the_frames():
    comparison = made_up(COSTLY)
    frame = summary(comparison.costs()).set_index(["group", "method"])
    verdicts = equal_cost(comparison.costs()).set_index("method")
    for row in _Tables(html.render(comparison)).tables[0][2:]:
        (method, _), (epsilon, _), (accuracy, _), (cost, _), (hardest, _), (gap, interval), (verdict, _) = row
        worst = frame["privacy_cost_mean"].xs(method, level="method").drop(ALL)
        assert float(epsilon) == pytest.approx(frame.loc[(ALL, method), "epsilon"])
        assert float(accuracy) == _shown("accuracy", frame.loc[(ALL, method), "accuracy_mean"])
        assert float(cost) == _shown("privacy_cost", frame.loc[(ALL, method), "privacy_cost_mean"])
        name, most = hardest.split(": ")
        assert name == worst.idxmax()
        assert float(most) == _shown("privacy_cost", worst.max())
        assert float(gap) == _shown("privacy_cost", verdicts.loc[method, "gap_mean"])
        low, high = map(float, interval.split(" to "))
        assert low == _shown("privacy_cost", verdicts.loc[method, "gap_low"])
        assert high == _shown("privacy_cost", verdicts.loc[method, "gap_high"])
        assert verdict == verdicts.loc[method, "verdict"]


def test_each_mean_on_the_terminal_is_the_frames(tmp_path):
    comparison = made_up(COSTLY)
    with (tmp_path / "out").open("w") as file:
        console = Console(record=True, width=110, file=file)
        print_comparison(comparison, console)
    tables = console.export_text().split("group (in training)")[1:]
    frame = summary(comparison.costs()).set_index(["group", "method"])
    for metric, table in zip(("accuracy", "privacy_cost", "loss", "excessive_risk"), tables, strict=True):
        heading, *lines = table.splitlines()
        methods = heading.split()
        assert methods == ([] if metric in COSTS else ["sgd"]) + list(COSTLY)
        rows = {
            words[0]: words for words in map(str.split, lines) if words and words[0] in ("a", "b", "c", ALL)
        }
        assert set(rows) == {"a", "b", "c", ALL}
        for group, (_, _, *cells) in rows.items():
            for method, cell in zip(methods, cells, strict=True):
                assert float(cell) == _shown(metric, frame.loc[(group, method), f"{metric}_mean"])


@pytest.mark.soak
def test_individual_epsilons_of_many_methods_keep_their_groups_on_a_narrow_terminal(tmp_path):
    methods = [f"method-{number}" for number in range(6)]
    comparison = made_up(dict.fromkeys(methods, COSTLY["dpsgd"]))
    rows = [
        {"method": method, "setting": "", "group": group, "seed": seed, "target_epsilon": 3.0,
             "release_epsilon": 0.1,
         "released_mean": 1.234 + at, "standard_error": 0.0561}
        for at, method in enumerate(methods) for group in ("a", "b", "c") for seed in range(2)
    ]  # fmt: skip
    with (tmp_path / "out").open("w") as file:
        console = Console(record=True, width=60, file=file)
        print_comparison(dataclasses.replace(comparison, individual=pd.DataFrame(rows)), console)
    text = console.export_text().split("mean epsilon of a group")[1]
    heads = [line.split()[1:] for line in text.splitlines() if line.split()[:1] == ["group"]]
    assert [each[-len(each) + 2 :] for each in heads] == [methods[:2], methods[2:4], methods[4:]]
    assert [line.split()[0] for line in text.splitlines() if "±" in line] == list("abcabcabc")
    assert "5.23 ± 0.0397   6.23 ± 0.0397" in text
