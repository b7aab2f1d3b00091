"""Items, their figures and what they are judged by."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from equidp.data.dataset import ALL
from equidp.errors import DataError
from papers.reproduction.item import COLUMNS, XU, Claim, Found, Item, Printed, Reason, Verdict
from papers.reproduction.page import tables
from papers.reproduction.plots import Points
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


def test_one_seed_has_no_standard_error():
    assert math.isnan(Found.of(rows(0.1)).table["error"].iloc[0])


def test_figures_that_are_not_finite_are_left_out():
    found = Found.of(pd.concat([rows(np.inf, 0.5), rows(np.nan, quantity="loss")]))
    assert found.mean(quantity="accuracy") == 0.5
    assert found.where(quantity="loss").empty


def test_points_of_a_curve_are_told_from_a_figure_without_a_point():
    found = Found.of(pd.concat([rows(0.1, at=1.0), rows(0.7, at=2.0), rows(0.9)]))
    assert found.mean(at=math.nan) == pytest.approx(0.9)
    assert found.mean(at=2.0) == pytest.approx(0.7)
    assert found.last(quantity="accuracy") in (0.7, 0.9)
    assert Found.of(pd.concat([rows(0.1, at=1.0), rows(0.7, at=2.0)])).last() == pytest.approx(0.7)


def test_a_result_comes_back_from_its_file_as_it_was(tmp_path):
    found = pd.concat([rows(0.1, 0.2, 0.4), rows(1.0, 2.0, at=3.0, quantity="loss")])
    result = judge_rows(found).result
    result.save(tmp_path / "r.json")
    again = Result.load(tmp_path / "r.json")
    pd.testing.assert_frame_equal(again.found.table, result.found.table, rtol=1e-5, check_dtype=False)
    assert {**vars(again), "found": 0} == {**vars(result), "found": 0}
    again.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "r.json").read_bytes()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"item": "x"}'])
def test_a_damaged_file_is_refused_by_name(tmp_path, content):
    (tmp_path / "r.json").write_text(content)
    with pytest.raises(DataError, match=r"r\.json"):
        Result.load(tmp_path / "r.json")


def test_a_figure_differs_beyond_two_standard_errors():
    found = rows(0.50, 0.52, 0.54)  # mean .52, standard error .0115
    near, far = (judge_rows(found, print_figure(value)) for value in (0.54, 0.55))
    assert near.state == "reproduced"
    assert far.state == "differs"
    (difference,) = far.differences
    assert difference.value == pytest.approx(-0.03)
    assert difference.low < -0.03 < difference.high
    assert difference.high - difference.low == pytest.approx(2 * 4.3027 * 0.02 / math.sqrt(3), rel=1e-3)


@pytest.mark.parametrize(("value", "differs"), [(0.504, False), (0.51, True)])
def test_one_seed_differs_beyond_half_a_point(value, differs):
    assert judge_rows(rows(0.5), print_figure(value)).differences[0].differs is differs


def test_what_was_not_found_is_no_difference():
    assert judge_rows(rows(0.5), print_figure(0.5, "loss")).differences == []


@pytest.mark.parametrize(
    ("held", "state"),
    [
        ((True,), "reproduced"),
        ((True, None), "reproduced"),
        ((None,), "measured"),  # inconclusive
        ((True, False), "differs"),
    ],
)
def test_a_conclusion_that_fails_is_a_difference(held, state):
    claims = tuple(Claim("so it is", lambda found, each=each: Verdict(each), "because") for each in held)
    made = judge_rows(rows(0.5), claims=claims)
    assert made.state == state
    assert made.reasons == (["because"] if False in held else [])


def test_figures_without_anything_to_agree_with_are_measured():
    assert judge_rows(rows(0.5)).state == "measured"


def test_what_agrees_on_some_of_the_data_is_reproduced_in_part():
    studies = tuple(SimpleNamespace(data=data) for data in ("d", "not run"))
    assert judge_rows(rows(0.5), print_figure(0.5), studies=studies[:1]).state == "reproduced"
    assert judge_rows(rows(0.5), print_figure(0.5), studies=studies).state == "in part"
    assert judge_rows(rows(0.5), print_figure(0.9), studies=studies).state == "differs"


def test_an_item_without_a_result_is_not_run():
    assert Judged(item(print_figure(0.5)), None).state == "not run"


def test_a_difference_has_its_reason_and_others_are_named_as_unexplained():
    reasons = (Reason("the data differs", group="b"), Reason("the loss differs", quantity="loss"))
    found = pd.concat([rows(0.5), rows(2.0, quantity="loss")])
    made = judge_rows(found, print_figure(0.9), print_figure(1.0, "loss"), reasons=reasons)
    assert made.reasons == ["the loss differs"]
    assert [each.printed.quantity for each in made.unexplained] == ["accuracy"]


def test_a_table_shows_found_beside_printed():
    made = judge_rows(rows(0.50, 0.52, 0.54), print_figure(0.9))
    (table,) = tables(made)
    assert table.rows == [("dpsgd", "0.5200 ± 0.0115 ≠ 0.9000")]
    assert table.caption == "Accuracy: d"


def test_a_table_keeps_a_sweep_and_leaves_curves_to_plots():
    swept = pd.concat([rows(0.9, method="sgd"), rows(0.1, at=1.0), rows(0.7, at=2.0)])
    (table,) = tables(judge_rows(swept))
    assert [row[:2] for row in table.rows] == [("sgd", ""), ("dpsgd", "1"), ("dpsgd", "2")]
    curve = pd.concat([rows(0.9), rows(0.1, at=1.0), rows(0.7, at=2.0)])
    (table,) = tables(judge_rows(curve))
    assert table.rows == [("dpsgd", "0.9000")]


def test_hours_grow_with_seeds():
    class Study:
        hours, data = 0.5, "digits"

    made = Item("xu-table-9", XU, "What it shows", (Study(),), seeds=4)
    assert made.hours() == 1.0
    assert made.hours(2) == 0.5
    assert made.sources() == ["digits"]


def test_data_that_was_not_run_is_named():
    class Study:
        hours, data, label = 1.0, "e", ""

    whole = Item("xu-table-9", XU, "What it shows", (Study(),))
    made = Judged(whole, Result.of(whole, rows(0.5), (0,), 1.0))
    assert made.not_run == ["e"]
    assert Judged(whole, None).not_run == []


def test_curves_that_nothing_shows_are_not_kept():
    names = ("accuracy", "loss", "final loss", "epsilon of an example", "norm")
    table = pd.DataFrame(
        [("digits", "dpsgd", ALL, name, at, 0, 0.5) for name in names for at in (math.nan, 1.0)],
        columns=COLUMNS,
    )
    shows = item(
        Printed("digits", "dpsgd", ALL, "loss", 0.5, 1.0),
        columns=("accuracy",), plots=(Points("Points", "final loss", "norm", "loss", "norm"),),
    )  # fmt: skip
    kept = shows.select_rows(table)
    assert set(kept[kept["at"].notna()]["quantity"]) == {"accuracy", "loss", "final loss", "norm"}
    assert set(kept[kept["at"].isna()]["quantity"]) == set(names)
