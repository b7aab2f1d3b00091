"""What Esipova et al. conclude from their tables, judged by figures."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from equidp.data.dataset import ALL
from equidp.reproduction.esipova import ITEMS
from equidp.reproduction.item import COLUMNS, Found

(TABLE,) = (item for item in ITEMS if item.name == "esipova-table-4")
AS_PRINTED = {
    # accuracy of all, loss of all, privacy cost and excessive risk of men and of women
    "dpsgd": (0.79, 0.62, (0.11, 0.04), (0.43, 0.20)),
    "dpsgd-f-code": (0.84, 0.40, (0.03, 0.02), (0.10, 0.11)),
    "global": (0.85, 0.34, (0.02, 0.02), (0.03, 0.05)),
    "global-adapt": (0.87, 0.29, (0.00, 0.00), (0.01, 0.00)),
}


def verdicts(**changed) -> list[bool | None]:
    """Which of the four conclusions hold, with some methods' figures changed."""
    rows = []
    for method, figures in {**AS_PRINTED, **changed}.items():
        accuracy, loss, cost, risk = figures
        pairs = [(ALL, "accuracy", accuracy), (ALL, "loss", loss)]
        for group, *values in zip(("Male", "Female"), cost, risk, strict=True):
            pairs += zip([group] * 2, ("privacy_cost", "excessive_risk"), values, strict=True)
        rows += [("adult-esipova", method, *pair[:2], math.nan, 0, pair[2]) for pair in pairs]
    found = Found.of(pd.DataFrame(rows, columns=COLUMNS))
    return [claim.holds(found) for claim in TABLE.claims]


def test_the_paper_s_order_bears_out_its_conclusions():
    assert verdicts() == [True, True, True, True]


@pytest.mark.parametrize(
    ("dpsgd", "expected"),
    [
        ((0.86, 0.62, (0.11, 0.04), (0.43, 0.20)), [False, True, True, False]),  # accuracy
        ((0.79, 0.30, (0.11, 0.04), (0.43, 0.20)), [False, True, True, True]),  # loss
        ((0.79, 0.62, (0.11, 0.11), (0.43, 0.20)), [False, False, True, False]),  # gap in cost
        ((0.79, 0.62, (0.11, 0.04), (0.30, 0.30)), [False, False, True, False]),  # gap in risk
    ],
)
def test_each_quantity_counts(dpsgd, expected):
    assert verdicts(dpsgd=dpsgd) == expected


def test_a_gap_is_as_wide_to_either_side():
    assert verdicts(**{"global": (0.85, 0.34, (0.02, 0.10), (0.03, 0.05))})[0] is False


def test_a_figure_that_is_missing_tells_nothing():
    assert verdicts(**{"dpsgd-f-code": (math.nan, 0.40, (0.03, 0.02), (0.10, 0.11))})[2:] == [None, None]
