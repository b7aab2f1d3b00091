"""Verdicts on conclusions of Xu et al. from their tables and figures."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from equidp.data.dataset import ALL
from papers.reproduction.item import COLUMNS, Found, Verdict
from papers.reproduction.reproduce import ITEMS

EIGHTS_LOSE_MOST = "DPSGD costs eights the most of all classes of MNIST"
EQUAL = "DPSGD-F has equal costs of privacy on mnist: the gap of groups 2 and 8 is 0.05 at most"
LESS = "DPSGD-F loses less accuracy in all than DPSGD on mnist"
NARROWS = "DPSGD-F narrows the gap in cost between groups 2 and 8 of mnist that DPSGD has"


def judge_item(item: str, figures: dict[tuple, float]) -> dict[str, Verdict]:
    """Each conclusion with its verdict, from (method, group, quantity, at) -> figure of MNIST."""
    rows = [("mnist", *key, 0, value) for key, value in figures.items()]
    found = Found.of(pd.DataFrame(rows, columns=COLUMNS))
    return {claim.text: claim.judge(found) for claim in ITEMS[item].claims}


def changes(at: float = math.nan, **by_method: tuple[float, float, float]) -> dict[tuple, float]:
    """Change of accuracy of all, of twos and of eights."""
    return {
        (method.replace("_", "-"), group, "change", at): value
        for method, values in by_method.items()
        for group, value in zip((ALL, "2", "8"), values, strict=True)
    }


def test_table_1_as_printed_bears_out_its_conclusions():
    found = judge_item(
        "xu-table-1",
        changes(
            dpsgd=(-0.108, -0.071, -0.681),
            naive=(-0.15, -0.151, -0.151),
            dpsgd_f_code=(-0.029, -0.028, -0.043),
        ),
    )
    decided = {text: verdict for text, verdict in found.items() if verdict.holds is not None}
    assert {EIGHTS_LOSE_MOST, EQUAL, LESS, NARROWS} < set(decided)
    assert all(verdict.holds for verdict in decided.values())
    assert decided[NARROWS].figures == pytest.approx({"DPSGD-F": 0.015, "DPSGD": 0.61})


@pytest.mark.parametrize(
    ("fair", "failed"),
    [
        ((-0.029, -0.028, -0.080), {EQUAL}),
        ((-0.200, -0.028, -0.043), {LESS}),
        ((-0.029, 0.0, -0.700), {EQUAL, NARROWS}),
        ((-0.029, -0.700, 0.0), {EQUAL, NARROWS}),  # a gap is as wide to either side
    ],
)
def test_each_conclusion_of_table_1_is_judged_alone(fair, failed):
    found = judge_item("xu-table-1", changes(dpsgd=(-0.108, -0.071, -0.681), dpsgd_f_code=fair))
    assert {text for text, verdict in found.items() if verdict.holds is False} == failed


def test_another_class_may_lose_most():
    found = judge_item("xu-table-1", changes(dpsgd=(-0.1, -0.7, -0.6)))
    assert found[EIGHTS_LOSE_MOST] == Verdict(False, {"8": -0.6, "2": -0.7})


@pytest.mark.parametrize(
    ("twos", "eights", "holds"), [(1.1, 3.0, True), (2.6, 2.5, False), (1.1, 2.4, False)]
)
def test_the_bound_of_eights_is_judged_over_the_later_half(twos, eights, holds):
    bounds = {"2": (9.0, twos), "8": (0.0, eights)}
    figures = {
        ("dpsgd-f-code", group, "clipping_bound", at): value
        for group, values in bounds.items()
        for at, value in zip((1.0, 2.0), values, strict=True)
    }
    (verdict,) = judge_item("xu-figure-2", figures).values()
    assert verdict == Verdict(holds, {"8": eights, "2": twos})


@pytest.mark.parametrize(
    ("early", "late", "holds"),
    [(0.10, 0.04, [True, True]), (0.10, 0.06, [True, False]), (0.03, 0.04, [False, True])],
)
def test_a_gap_shrinks_with_epochs(early, late, holds):
    figures = changes(20.0, dpsgd_f_code=(0, 0, -early)) | changes(60.0, dpsgd_f_code=(0, 0, -late))
    found = judge_item("xu-figure-3a", figures)
    assert [verdict.holds for verdict in found.values()] == holds


@pytest.mark.parametrize(
    ("little", "much", "holds"),
    [(0.01, 0.04, [True, True]), (0.04, 0.01, [False, True]), (0.01, 0.06, [True, False])],
)
def test_a_gap_grows_with_noise_and_stays_small(little, much, holds):
    figures = changes(0.6, dpsgd_f_code=(0, 0, -little)) | changes(1.4, dpsgd_f_code=(0, 0, -much))
    grows, small = judge_item("xu-figure-3b", figures).values()
    assert [grows.holds, small.holds] == holds
    assert grows.figures == {"at 0.6": little, "at 1.4": much}
