"""Terminal and page say of each reference whether it serves, and judge nothing by one that does not."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from equidp.comparison.result import Comparison
from equidp.report import comparison as html, words
from equidp.report.comparison import print_comparison
from equidp.report.summary import summarise
from support.made_up import made_up

pytestmark = pytest.mark.usefixtures("no_plots")
COSTS = {"dpsgd": {"a": 0.02, "b": 0.30}, "fair": {"a": 0.03, "b": 0.04}}
BETTER = {"dpsgd": {"a": -0.02, "b": -0.30}, "fair": {"a": -0.03, "b": -0.04}}


def baseline(kind: str) -> Comparison:
    """A comparison of two private methods with a baseline of this kind."""
    found = made_up(BETTER if kind == "beaten" else COSTS, spread=0.001)
    results = found.results.assign(informative=True)
    own = results["method"] == "sgd"
    if kind == "diverged":
        results.loc[own & (results["seed"] < 2), ["accuracy", "loss"]] = np.nan
    if kind == "constant":
        results.loc[own, "informative"] = False
    return replace(found, results=results)


def tried(comparison: Comparison, trees: float | None) -> Comparison:
    """The comparison after a search for its reference; `trees`: how much better boosted trees are."""
    own = comparison.results[comparison.results["method"] == "sgd"].assign(baseline="")
    rows = [own.assign(rate=0.1, chosen=True, best=trees is None or trees <= 0)]
    rows.append(own.assign(rate=1.0, chosen=False, best=False, loss=np.inf))
    if trees is not None:
        better = own.assign(method="boosted trees", rate=np.nan, chosen=False, best=trees > 0)
        better.loc[better["group"] != "a", "accuracy"] += trees
        rows.append(better)
    results = comparison.results.assign(baseline="")
    return replace(comparison, results=results, references=pd.concat(rows))


def shown(comparison: Comparison, tmp_path) -> str:
    console = Console(record=True, width=200, file=(tmp_path / "out").open("w"))
    print_comparison(comparison, console)
    return console.export_text()


FAULTS = {
    "diverged": "The non-private reference, sgd, diverged in 2 of 5 seeds",
    "constant": "The non-private reference, sgd, is no better than one constant prediction in 5 of 5 seeds",
    "beaten": "The non-private reference, sgd, has learnt too little: dpsgd, fair are better in every group",
}


@pytest.mark.soak
@pytest.mark.parametrize("kind", FAULTS)
def test_a_baseline_that_does_not_serve_is_named_and_nothing_is_judged_by_it(kind, tmp_path):
    comparison = baseline(kind)
    (finding,) = words.finding_sentences(summarise(comparison))
    assert FAULTS[kind] in finding
    (recommended,) = words.recommendation_sentences(summarise(comparison))
    assert recommended.startswith("No method can be recommended: the non-private reference")
    verdicts = {row.kind.method: row.verdict for row in summarise(comparison).overview}
    assert verdicts == {"sgd": "reference", "dpsgd": "no verdict", "fair": "no verdict"}
    (row,) = [row for row in summarise(comparison).overview if row.kind.method == "dpsgd"]
    assert np.isnan([row.cost, row.worst_cost, row.gap.value]).all()  # nor is a cost or a gap shown
    terminal, page = shown(comparison, tmp_path), html.render(comparison)
    for text in (terminal, page):
        assert FAULTS[kind] in " ".join(text.split())
        assert "no verdict" in text
        assert not re.search(
            r"\btake (dpsgd|fair)\b|This is clear|narrows the gap|within tolerance", text, re.I
        )


def test_the_price_has_two_parts_by_group_and_in_all():
    comparison = tried(baseline("well trained"), 0.04)
    costs = (
        comparison.costs().groupby(["method", "group"])[["model_cost", "privacy_cost", "total_cost"]].mean()
    )
    assert costs.loc[("sgd", "b")].tolist() == pytest.approx([0.04, 0.0, 0.04])
    assert costs.loc[("dpsgd", "a"), "model_cost"] == pytest.approx(0.0)
    assert costs["total_cost"].to_numpy() == pytest.approx(
        (costs["model_cost"] + costs["privacy_cost"]).to_numpy()
    )
    table = comparison.table("overall_costs").set_index("method")
    assert list(table.index) == ["dpsgd", "fair"]
    best, same, private, model, privacy, total = (
        float(cell.split()[0]) for cell in table.loc["fair"].astype(str)
    )
    assert (best, same, model) == (94.0, 90.0, 4.0)
    assert private == pytest.approx(best - total, abs=0.11)
    assert total == pytest.approx(model + privacy, abs=0.11)
