"""Terminal and page say of each reference whether it serves, and judge nothing by one that does not."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from equidp.comparison.result import Comparison
from equidp.report import comparison as html, words
from equidp.report.comparison import print_comparison
from equidp.report.summary import summarise
from support.made_up import made_up

COSTS = {"dpsgd": {"a": 0.02, "b": 0.30}, "fair": {"a": 0.03, "b": 0.04}}
BETTER = {"dpsgd": {"a": -0.02, "b": -0.30}, "fair": {"a": -0.03, "b": -0.04}}


def reference(kind: str) -> Comparison:
    """A comparison of two private methods with a reference of this kind."""
    found = made_up(BETTER if kind == "beaten" else COSTS, spread=0.001)
    results = found.results.assign(informative=True)
    own = results["method"] == "sgd"
    if kind == "diverged":
        results.loc[own & (results["seed"] < 2), ["accuracy", "loss"]] = np.nan
    if kind == "constant":
        results.loc[own, "informative"] = False
    return replace(found, results=results)


def shown(comparison: Comparison, tmp_path) -> str:
    console = Console(record=True, width=200, file=(tmp_path / "out").open("w"))
    print_comparison(comparison, console)
    return console.export_text()


FAULTS = {
    "diverged": "The reference without privacy, sgd, diverged in 2 of 5 seeds",
    "constant": "The reference without privacy, sgd, is no better than one constant answer in 5 of 5 seeds",
    "beaten": "reference without privacy, sgd, has learnt too little: dpsgd, fair are better in every group",
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_reference_that_does_not_serve_is_named_and_nothing_is_judged_by_it(kind, tmp_path):
    comparison = reference(kind)
    (finding,) = words.finding_sentences(summarise(comparison))
    assert FAULTS[kind] in finding
    (recommended,) = words.recommendation_sentences(summarise(comparison))
    assert recommended.startswith("No method can be recommended: the reference without privacy")
    verdicts = {row.kind.method: row.verdict for row in summarise(comparison).overview}
    assert verdicts == {"sgd": "reference", "dpsgd": "no verdict", "fair": "no verdict"}
    terminal, page = shown(comparison, tmp_path), html.render(comparison)
    for text in (terminal, page):
        assert FAULTS[kind] in " ".join(text.split())
        assert "no verdict" in text
        assert not re.search(r"\btake (dpsgd|fair)\b|This is clear|narrows the gap|holds under", text, re.I)


def test_a_well_trained_reference_has_verdicts_and_a_recommendation(tmp_path):
    comparison = reference("well trained")
    terminal, page = shown(comparison, tmp_path), html.render(comparison)
    for text in (terminal, page):
        assert "The reference without privacy" not in text
        assert "Take fair" in text
        assert "holds under fair" in " ".join(text.split())


def test_private_models_are_not_called_constant_where_the_reference_is():
    said = " ".join(words.finding_sentences(summarise(reference("constant"))))
    assert "dpsgd" not in said
