"""Verdicts on conclusions of Esipova et al. from their tables and figures."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from equidp.data.dataset import ALL
from papers.reproduction.item import COLUMNS, Found, Item
from papers.reproduction.page import based_on
from papers.reproduction.reproduce import ITEMS

TABLE = ITEMS["esipova-table-4"]
AS_PRINTED = {
    # accuracy of all, loss of all, privacy cost and excessive risk of men and of women
    "dpsgd": (0.79, 0.62, (0.11, 0.04), (0.43, 0.20)),
    "dpsgd-f-code": (0.84, 0.40, (0.05, 0.02), (0.10, 0.05)),
    "global": (0.85, 0.34, (0.03, 0.01), (0.03, 0.05)),
    "global-adapt": (0.87, 0.29, (0.00, 0.00), (0.01, 0.00)),
}
ADAPT = "Global-Adapt improves on {} in {}"


def verdicts(item: Item, rows: list[tuple]) -> dict[str, bool | None]:
    """Each conclusion, and whether it holds."""
    found = Found.of(pd.DataFrame(rows, columns=COLUMNS))
    return {claim.text: claim.judge(found).holds for claim in item.claims}


def rows_of(seed: int = 0, shift: float = 0.0, **changed) -> list[tuple]:
    """Figures of one seed, with those of some methods changed, and accuracies shifted."""
    rows = []
    for method, (accuracy, loss, cost, risk) in {**AS_PRINTED, **changed}.items():
        pairs = [(ALL, "accuracy", accuracy + shift), (ALL, "loss", loss)]
        for group, *values in zip(("Male", "Female"), cost, risk, strict=True):
            pairs += zip([group] * 2, ("privacy_cost", "excessive_risk"), values, strict=True)
        rows += [("adult-esipova", method, *pair[:2], math.nan, seed, pair[2]) for pair in pairs]
    return rows


def test_the_paper_s_order_bears_out_its_conclusions():
    found = verdicts(TABLE, rows_of())
    assert len(found) == 23
    assert set(found.values()) == {True}


@pytest.mark.parametrize(
    ("dpsgd", "quantity"),
    [
        ((0.88, 0.62, (0.11, 0.04), (0.43, 0.20)), "accuracy"),
        ((0.79, 0.20, (0.11, 0.04), (0.43, 0.20)), "loss"),
        ((0.79, 0.62, (0.11, 0.12), (0.43, 0.20)), "the gap in privacy cost"),
        ((0.79, 0.62, (0.11, 0.04), (0.30, 0.31)), "the gap in excessive risk"),
    ],
)
def test_each_quantity_is_judged_alone(dpsgd, quantity):
    found = verdicts(TABLE, rows_of(dpsgd=dpsgd))
    assert found[f"Global improves on DPSGD in {quantity}"] is False
    beaten = [text for text, held in found.items() if held is not True]
    assert all(" on DPSGD in " in text and text.endswith(quantity) for text in beaten), beaten


def test_a_gap_is_as_wide_to_either_side():
    found = verdicts(TABLE, rows_of(**{"global": (0.85, 0.34, (0.02, 0.12), (0.03, 0.05))}))
    assert found["Global improves on DPSGD in the gap in privacy cost"] is False
    assert found["Global improves on DPSGD-F, or is comparable, in the gap in privacy cost"] is False


def test_a_figure_that_is_missing_tells_nothing():
    found = verdicts(TABLE, rows_of(**{"dpsgd-f-code": (math.nan, 0.40, (0.05, 0.02), (0.10, 0.05))}))
    assert found[ADAPT.format("DPSGD-F", "accuracy")] is None
    assert found[ADAPT.format("DPSGD-F", "loss")] is True


def test_differences_within_two_standard_errors_tell_nothing():
    near = {"global": (0.868, 0.34, (0.03, 0.01), (0.03, 0.05))}
    apart = rows_of(0, 0.01, **near) + rows_of(1, -0.01, **near)  # two means with standard errors of .01
    together = rows_of(0, 0.0001, **near) + rows_of(1, -0.0001, **near)
    text = ADAPT.format("Global", "accuracy")
    assert verdicts(TABLE, apart)[text] is None
    assert verdicts(TABLE, together)[text] is True


@pytest.mark.soak
def test_what_is_within_two_standard_errors_is_comparable():
    near = {"global": (0.838, 0.34, (0.03, 0.01), (0.03, 0.05))}
    text = "Global improves on DPSGD-F, or is comparable, in accuracy"
    assert verdicts(TABLE, rows_of(0, 0.01, **near) + rows_of(1, -0.01, **near))[text] is True
    assert verdicts(TABLE, rows_of(0, 0.0001, **near) + rows_of(1, -0.0001, **near))[text] is False
    missing = {"global": (math.nan, 0.34, (0.03, 0.01), (0.03, 0.05))}
    assert verdicts(TABLE, rows_of(**missing))[text] is None


def test_a_verdict_shows_the_figures_that_it_rests_on():
    found = Found.of(pd.DataFrame(rows_of(), columns=COLUMNS))
    shown = {claim.text: based_on(claim.judge(found)) for claim in TABLE.claims}
    assert shown[ADAPT.format("DPSGD", "loss")] == " (Global-Adapt: 0.29, DPSGD: 0.62)"
    assert shown[ADAPT.format("DPSGD", "the gap in privacy cost")] == " (Global-Adapt: 0, DPSGD: 0.07)"


def terms(quantity: str, **by_method: tuple[float, float]) -> list[tuple]:
    """A term at the first step and later, the same for both groups."""
    return [
        ("adult-esipova", method, group, quantity, at, 0, value)
        for method, values in by_method.items()
        for group in ("Male", "Female")
        for at, value in zip((0.0, 5.0), values, strict=True)
    ]


def test_terms_are_judged_with_their_sign_and_without_the_first_step():
    terms_item = ITEMS["esipova-figure-4"]
    direction = terms("direction", dpsgd=(1, 0.3), **{"global": (1, 0.0), "global-adapt": (1, 0.09)})
    magnitude = terms("magnitude", dpsgd=(0, 0.1), **{"global": (9, 0.2), "global-adapt": (9, -0.5)})
    assert list(verdicts(terms_item, direction + magnitude).values()) == [True, False]
    magnitude = terms("magnitude", dpsgd=(9, 0.1), **{"global": (0, 0.2), "global-adapt": (0, 0.5)})
    assert list(verdicts(terms_item, magnitude).values()) == [None, True]


def test_noise_is_larger_under_both_global_methods_or_the_conclusion_fails():
    noise_item = ITEMS["esipova-figure-14"]
    larger = terms("noise", dpsgd=(0, 0.1), **{"global": (0, 0.2), "global-adapt": (0, 0.3)})
    assert list(verdicts(noise_item, larger).values()) == [True]
    one_alone = terms("noise", dpsgd=(0, 0.1), **{"global": (0, 0.05), "global-adapt": (0, 0.3)})
    assert list(verdicts(noise_item, one_alone).values()) == [False]
