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


@pytest.mark.soak
def test_a_well_trained_baseline_has_verdicts_and_a_recommendation(tmp_path):
    comparison = baseline("well trained")
    terminal, page = shown(comparison, tmp_path), html.render(comparison)
    for text in (terminal, page):
        assert "The non-private reference" not in text
        assert "Take fair" in text
        assert "within tolerance under fair" in " ".join(text.split())


def test_private_models_are_not_called_constant_where_the_baseline_is():
    said = " ".join(words.finding_sentences(summarise(baseline("constant"))))
    assert "dpsgd" not in said


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


@pytest.mark.soak
def test_terminal_and_page_say_what_the_model_costs(tmp_path):
    comparison = tried(baseline("well trained"), 0.04)
    terminal, page = shown(comparison, tmp_path), html.render(comparison)
    for text in (terminal, page):
        plain = " ".join(text.split())
        assert "The best model without privacy is boosted trees: accuracy 94.0." in plain
        assert "has 90.0: the model costs 4.0 points of accuracy" in plain
        assert "within tolerance under fair" in plain
    assert "Model cost" in page
    assert "diverged in 5 of 5 seeds" in page


@pytest.mark.soak
def test_where_no_other_model_is_better_the_model_costs_nothing():
    comparison = tried(baseline("well trained"), -0.01)
    sentence = "It is the model of the private methods too, so the model costs nothing."
    assert any(sentence in each for each in words.finding_sentences(summarise(comparison)))
    assert (comparison.costs()["model_cost"].abs() < 1e-12).all()
    assert "What the model costs, and what privacy costs" not in html.render(comparison)


@pytest.mark.soak
def test_each_kind_of_model_is_measured_against_its_own_baseline(tmp_path):
    comparison = tried(baseline("well trained"), None)
    own = comparison.results["method"] == "sgd"
    results = comparison.results.assign(
        baseline=comparison.results["method"].map({"fair": "features=f"}).fillna("")
    )
    other = comparison.results[own].assign(setting="features=f", baseline="features=f")
    other["accuracy"] += 0.02
    references = comparison.references.assign(best=False)
    second = other.assign(rate=0.1, chosen=True, best=True)
    comparison = replace(
        comparison, results=pd.concat([other, results]), references=pd.concat([references, second])
    )
    means = comparison.costs().query("group == 'all'").groupby("method")["total_cost"].mean()
    assert means["fair"] - means["dpsgd"] == pytest.approx(-0.125, abs=0.005)
    (first, *_) = words.finding_sentences(summarise(comparison))
    assert "The best model without privacy is sgd (features=f): accuracy 92.0." in first
    assert "sgd, the same model as dpsgd without privacy, has 90.0: the model costs 2.0 points" in first
    assert "Model cost" in html.render(comparison)


def test_baselines_of_two_classes_have_two_names():
    found = made_up(COSTS, spread=0.001)
    results = found.results.assign(baseline="")
    other = results["method"] == "fair"
    results.loc[other, "baseline"] = "features=scattering"
    own = results[results["method"] == "sgd"]
    second = own.assign(setting="features=scattering", baseline="features=scattering")
    both = replace(found, results=pd.concat([own, second, results[results["method"] != "sgd"]]))
    named = [row[0] for row in html.methods_table(summarise(both)).rows]
    assert named == ["sgd", "sgd (features=scattering)", "dpsgd", "fair"]


@pytest.mark.parametrize("spread", [0.0, 1e-5])
def test_no_gap_is_said_to_narrow_from_one_number_to_the_same(spread):
    alike = made_up({"dpsgd": {"a": 0.02, "b": 0.04}, "fair": {"a": 0.02, "b": 0.0399}}, spread=spread)
    said = " ".join(words.finding_sentences(summarise(alike)))
    assert "No method narrows the gap between groups" in said
    assert not re.search(r"from ([\d.]+) to \1 points", said)
