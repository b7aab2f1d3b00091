"""Verdicts on the papers' conclusions at well-chosen settings, by figures."""

from __future__ import annotations

import pandas as pd
import pytest

from papers.reproduction.item import COLUMNS, Found, Verdict
from papers.reproduction.reproduce import ITEMS

(DIRECTION,) = ITEMS["beyond-direction"].claims


def judge_direction(adult: tuple[float, float], dutch: tuple[float, float] | None) -> Verdict:
    """From direction and magnitude on each dataset, the same for both groups."""
    rows = [
        (data, "dpsgd", group, quantity, at, 0, value)
        for data, values in (("adult", adult), ("dutch", dutch))
        if values is not None
        for group in ("Female", "Male")
        for quantity, value in zip(("direction", "magnitude"), values, strict=True)
        for at in (0.0, 1.0)
    ]
    return DIRECTION.judge(Found.of(pd.DataFrame(rows, columns=COLUMNS)))


@pytest.mark.parametrize(
    ("adult", "dutch", "holds"),
    [
        ((0.3, 0.1), (0.2, 0.1), True),
        ((0.3, 0.1), (0.2, 0.4), False),
        ((0.3, 0.1), (-0.2, -0.4), None),  # neither is a cost where the loss falls by direction
        ((0.3, 0.1), None, None),  # one dataset says nothing of both
    ],
)
def test_direction_is_compared_with_magnitude_where_it_is_a_cost(adult, dutch, holds):
    assert judge_direction(adult, dutch).holds is holds


def test_the_verdict_names_group_and_data():
    assert judge_direction((0.3, 0.1), (0.2, 0.1)).figures["magnitude of Male on dutch"] == 0.1
