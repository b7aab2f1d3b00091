"""The report says what the figures say, and needs no other file."""

from __future__ import annotations

import re

import pytest
from rich.console import Console

from equidp.comparison.result import Comparison
from equidp.display import points
from equidp.report import comparison as html, words
from equidp.report.comparison import print_comparison
from equidp.report.format import upper
from equidp.report.summary import summarise
from support.made_up import made_up

CLEAR = {"dpsgd": {"a": 0.02, "b": 0.40}, "fair": {"a": 0.03, "b": 0.05}}


def findings_of(comparison: Comparison) -> list[str]:
    return words.finding_sentences(summarise(comparison))


def test_clear_differences_are_named_with_their_figures():
    pays, narrows, holds = findings_of(made_up(CLEAR, spread=0.001))
    assert re.fullmatch(
        r"Under dpsgd, privacy costs group b most: (39|40)\.\d points of accuracy, "
        r"where group a loses [12]\.\d\.",
        pays,
    )
    assert re.fullmatch(
        r"fair narrows the largest gap between groups from 3[78]\.\d to [12]\.\d points\.", narrows
    )
    assert (
        ": within tolerance under fair; exceeds tolerance under dpsgd (95% intervals over 5 seeds)" in holds
    )


def test_one_seed_supports_no_finding():
    pays, narrows, holds = findings_of(made_up(CLEAR, seeds=1))
    assert "One run shows no tendency" in pays
    assert "In this one run" in narrows
    assert "cannot be judged from one seed" in holds


@pytest.fixture(scope="module", params=["one seed", "epsilons"])
def comparison(request):
    return {
        "one seed": lambda: made_up(CLEAR, seeds=1),
        "epsilons": lambda: made_up(CLEAR, epsilons=(1.0, 3.0, 8.0)),
    }[request.param]()


@pytest.fixture(scope="module")
def page(comparison):
    return html.render(comparison)


@pytest.mark.soak
def test_the_page_needs_nothing_else_and_is_always_the_same(comparison, page):
    references = re.findall(r"(?:src|href|url)\s*[=(]\s*[\"']?([^\"')\s>]+)", page)
    assert all(reference.startswith("#") for reference in references)
    assert "<script" not in page
    assert page == html.render(comparison)
    assert "nan" not in re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL).lower().replace("finance", "")


@pytest.mark.soak
def test_odd_names_are_text_and_not_markup(tmp_path):
    odd = made_up({"dpsgd": {"<b>&'": 0.3, "$x_1$ [red]": 0.02}, "fair": {"<b>&'": 0.1, "$x_1$ [red]": 0.02}})
    page = html.render(odd)
    assert "<b>&'" not in page
    assert "&lt;b&gt;" in page
    console = Console(record=True, width=120, file=(tmp_path / "out").open("w"))
    print_comparison(odd, console)
    assert "$x_1$ [red]" in console.export_text()


def test_a_number_rounded_up_is_never_below_the_truth():
    for value in (3.00331, 2.9999999, 0.25, 1e-6, 9.9983e-7):
        assert value * (1 - 1e-9) <= float(upper(value)) <= value * 1.01
    assert upper(3.00331) == "3.004"
    assert upper(float("inf")) == "∞"


@pytest.mark.soak
def test_the_page_states_every_figure_and_the_guarantee(comparison, page):
    for row in summarise(comparison).overview:
        assert points(row.value) in page
        assert row.verdict in page
        if row.worst_group:
            assert points(row.gap.value) in page
    for promise in (
        "one training example",
        "Poisson sample",
        "1e-05",
        "does not cover",
        "without privacy",
        "A note on preparation.",
    ):
        assert promise in page
