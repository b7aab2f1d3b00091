"""Items, their figures and what they are judged by."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from papers.reproduction.item import COLUMNS, XU, Found, Item, Printed, Reason
from papers.reproduction.result import Judged, Result


def rows(
    *values: float, quantity: str = "accuracy", at: float = math.nan, method: str = "dpsgd"
) -> pd.DataFrame:
    """Figures of group a on data d, one for each seed."""
    facts = [("d", method, "a", quantity, at, seed, value) for seed, value in enumerate(values)]
    return pd.DataFrame(facts, columns=COLUMNS)


def item(*printed: Printed, **changes: object) -> Item:
    return Item("xu-table-9", XU, "What it shows", **{"studies": (), "printed": printed, **changes})


def judge_rows(found: pd.DataFrame, *printed: Printed, **changes: object) -> Judged:
    made = item(*printed, **changes)
    return Judged(made, Result.of(made, found, (0, 1, 2), 7200.0))


def print_figure(value: float, quantity: str = "accuracy") -> Printed:
    return Printed("d", "dpsgd", "a", quantity, value)


def test_means_and_standard_errors_are_over_seeds():
    found = Found.of(rows(0.1, 0.2, 0.3))
    (row,) = found.table.to_dict("records")
    assert row["mean"] == pytest.approx(0.2)
    assert row["error"] == pytest.approx(0.1 / math.sqrt(3))
    assert row["seeds"] == 3
    assert found.mean(group="a") == pytest.approx(0.2)
    assert math.isnan(found.mean(group="b"))


def test_a_result_comes_back_from_its_file_as_it_was(tmp_path):
    found = pd.concat([rows(0.1, 0.2, 0.4), rows(1.0, 2.0, at=3.0, quantity="loss")])
    result = judge_rows(found).result
    result.save(tmp_path / "r.json")
    again = Result.load(tmp_path / "r.json")
    pd.testing.assert_frame_equal(again.found.table, result.found.table, rtol=1e-5, check_dtype=False)
    assert {**vars(again), "found": 0} == {**vars(result), "found": 0}
    again.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "r.json").read_bytes()


def test_a_figure_differs_beyond_two_standard_errors():
    found = rows(0.50, 0.52, 0.54)  # mean .52, standard error .0115
    near, far = (judge_rows(found, print_figure(value)) for value in (0.54, 0.55))
    assert near.state == "reproduced"
    assert far.state == "differs"
    (difference,) = far.differences
    assert difference.value == pytest.approx(-0.03)
    assert difference.low < -0.03 < difference.high
    assert difference.high - difference.low == pytest.approx(2 * 4.3027 * 0.02 / math.sqrt(3), rel=1e-3)


def test_a_difference_has_its_reason_and_others_are_named_as_unexplained():
    reasons = (Reason("the data differs", group="b"), Reason("the loss differs", quantity="loss"))
    found = pd.concat([rows(0.5), rows(2.0, quantity="loss")])
    made = judge_rows(found, print_figure(0.9), print_figure(1.0, "loss"), reasons=reasons)
    assert made.reasons == ["the loss differs"]
    assert [each.printed.quantity for each in made.unexplained] == ["accuracy"]
