"""Columns cut into intervals: each number has one place in each block, and rows a norm of 1 in the mean."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings, strategies as st

from equidp.errors import SettingError
from equidp.kernel.noise import SeededRandomness
from equidp.tables.encode import Intervals, TableEncoder
from equidp.tables.fit import fit_encoder
from equidp.tables.intervals import Binning, public_edges, quantile_edges
from equidp.tables.release import Release
from support.errors import raises_field

CUT = Binning.parse("cut")
NUMBERS = st.lists(
    st.one_of(st.floats(-1e18, 1e18), st.integers(-3, 3).map(float), st.just(math.nan)),
    min_size=1,
    max_size=60,
)
TEXTS = st.lists(st.sampled_from(["cook", "clerk", None]), min_size=60, max_size=60)


def table_of(numbers, texts) -> pd.DataFrame:
    job = pd.Series(texts[: len(numbers)], dtype=object)
    return pd.DataFrame({"x": np.array(numbers, dtype=float), "job": job})


def fitted(table, train=None, bounds=None, missing="category", binning=CUT) -> TableEncoder:
    rows = np.arange(len(table)) if train is None else train
    return fit_encoder(table, rows, bounds or {}, missing, binning)


def released(table, sigma=5.0, seed=0, bounds=None) -> TableEncoder:
    release = Release(sigma, SeededRandomness(seed))
    return fit_encoder(table, np.arange(len(table)), bounds or {}, "category", CUT, release=release)


def cut_at_quantiles(numbers, flagged) -> Intervals:
    return fitted(
        pd.DataFrame({"x": numbers}, dtype=float), missing="category" if flagged else "refuse"
    ).columns[0]


@pytest.mark.soak
@given(NUMBERS, TEXTS, NUMBERS)
def test_rows_have_norm_1_but_for_their_trend_and_for_texts_without_a_place(numbers, texts, further):
    table = table_of(numbers, texts)
    encoder = fitted(table)
    column = encoder.columns[0]
    of_text = encoder.scales[column.width].astype(float) ** 2
    of_trend = encoder.scales[column.width - 1].astype(float) ** 2 if len(column.trend) else 0.0

    def expected(numbers, without_place):
        trend = column.encode(pd.Series(numbers))[:, -1].astype(float) if len(column.trend) else np.zeros(1)
        squares = 1 + of_trend * (trend**2 - 1) - without_place * of_text
        return torch.tensor(np.broadcast_to(np.sqrt(squares), len(numbers)).copy())

    norms = encoder.encode(table).double().norm(dim=1)
    assert (norms < math.sqrt(3)).all()
    torch.testing.assert_close(norms, expected(numbers, 0), rtol=1e-5, atol=1e-6)
    strange = encoder.encode(table_of(further, ["priest"] * 60)).double().norm(dim=1)
    torch.testing.assert_close(strange, expected(further, 1), rtol=1e-5, atol=1e-6)


def test_the_more_examples_the_more_fine_intervals_weigh_beside_the_trend_up_to_a_limit():
    numbers = np.arange(64.0)
    table = table_of(numbers, ["cook", "clerk"] * 32)

    def squares(examples):
        scales = replace(fitted(table, missing="refuse"), examples=examples).scales.astype(float) ** 2
        return scales[[0, 4, -1]] / scales[20]  # coarse, fine, and of texts, beside the trend's

    few, more, many = (squares(examples) for examples in (200, 1_600, 10**6))
    np.testing.assert_allclose(few, [200 / (10 * 4 * 4), 200 / (10 * 16 * 4), 200 / (10 * 2 * 4)], rtol=1e-5)
    np.testing.assert_allclose(more, [3, 1_600 / (10 * 16 * 4), 3], rtol=1e-5)
    np.testing.assert_allclose(many, [3, 3, 3], rtol=1e-5)
    np.testing.assert_allclose(squares(20), [20 / 160, 20 / 640, 1], rtol=1e-5)  # texts have no trend


@given(NUMBERS, st.booleans())
def test_a_trend_rises_by_equal_steps_with_the_finest_intervals(numbers, flagged):
    numbers = [each for each in numbers if flagged or not math.isnan(each)] or [0.0]
    column = cut_at_quantiles(numbers, flagged)
    edges = column.edges[-1]
    assert (len(column.trend) > 0) == (len(edges) > 1)
    assert column.width == sum(len(each) + 1 + flagged for each in column.edges) + (len(column.trend) > 0)
    if len(column.trend):
        lowest = pd.Series([-math.inf, *edges, math.nan])
        trend = column.encode(lowest)[:, -1].astype(float)
        assert trend[-1] == 0
        assert np.diff(trend[:-1]) == pytest.approx(np.diff(trend[:2])[0])
        assert trend[:-1].mean() == pytest.approx(0, abs=1e-6)
        assert (trend[:-1] ** 2).mean() == pytest.approx(1)


@given(NUMBERS, st.floats(-1e18, 1e18))
def test_each_number_is_in_one_interval_of_each_resolution_between_its_edges(numbers, new):
    column = cut_at_quantiles(numbers, True)
    table = pd.Series([new, *numbers])
    encoded = column.encode(table)
    widths = [len(edges) + 2 for edges in column.edges]
    blocks = np.split(encoded[:, : sum(widths)], np.cumsum(widths)[:-1], axis=1)
    for block, edges in zip(blocks, column.edges, strict=True):
        assert list(edges) == sorted(set(edges))
        assert (block.sum(axis=1) == 1).all()
        for value, place in zip(table, block.argmax(axis=1), strict=True):
            ends = [-math.inf, *edges, math.inf]
            if math.isnan(value):
                assert place == len(edges) + 1
            else:
                assert ends[place] <= value < ends[place + 1]


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::equidp.errors.DataWarning")
@settings(deadline=None, max_examples=30)
@given(NUMBERS, TEXTS)
def test_a_saved_encoder_gives_the_same_inputs(numbers, texts):
    table = table_of(numbers, texts)
    for encoder in (fitted(table), fitted(table, bounds={"x": (-1.0, 1.0)}), released(table)):
        again = TableEncoder.from_json(encoder.to_json())
        assert again == encoder
        assert torch.equal(again.encode(table), encoder.encode(table))


@given(
    st.lists(st.floats(1e-4, 1e4), min_size=1, max_size=60),
    st.integers(3, 20),
    st.sampled_from([0.4, 0.7, 0.95]),
)
def test_a_value_in_most_rows_leaves_the_other_intervals_to_other_values(numbers, intervals, most):
    distinct = np.unique(numbers)
    often = np.repeat(0.0, int(most / (1 - most) * 100 * len(distinct)))
    edges = np.array(quantile_edges(np.r_[often, np.repeat(distinct, 100)], (intervals,))[0])
    assert len(edges) >= min(intervals, len(distinct) + 1) - 2
    assert 0 < edges[0] < distinct[0]
    held = np.bincount(np.searchsorted(edges, distinct, side="right"), minlength=len(edges) + 1)[1:]
    assert held.max() <= 2 * math.ceil(len(distinct) / (intervals - 1))


def test_edges_of_few_whole_numbers_lie_between_them():
    assert quantile_edges(np.repeat([1.0, 2.0, 5.0], [50, 30, 20]), (16,)) == ((1.5, 3.5),)
    assert quantile_edges(np.full(9, 7.0), (4,)) == ((),)
    assert quantile_edges(np.array([]), (4,)) == ((),)
    low, high = 1.0, math.nextafter(1.0, 2.0)
    assert quantile_edges(np.array([low, high]), (4,)) == ((high,),)


def test_resolutions_that_are_the_same_are_one_block():
    table = pd.DataFrame({"smoker": np.arange(100) % 2.0, "x": np.arange(100.0)})
    assert [column.blocks for column in fitted(table).columns] == [(3,), (5, 17)]


def test_public_ranges_are_cut_evenly_and_by_their_logarithm_over_three_decades():
    assert public_edges(0, 80, 4) == (20, 40, 60)
    assert public_edges(-1e6, 1e6, 2) == (0,)
    assert np.allclose(public_edges(0.01, 100, 4), [0.1, 1, 10])
    assert np.allclose(public_edges(0, 9999, 4), [9, 99, 999])
    assert np.isfinite(public_edges(-1e308, 1e308, 16)).all()


def test_edges_of_public_ranges_follow_from_nothing_else_and_cost_nothing():
    rng = np.random.default_rng(0)
    tables = [pd.DataFrame({"x": rng.exponential(size=size)}) for size in (50, 500)]
    exact, other = (fitted(table, bounds={"x": (0, 10)}) for table in tables)
    assert exact.columns == other.columns
    assert exact.notes() == ()
    column = released(tables[0], bounds={"x": (0, 10)}).columns[0]
    assert column == exact.columns[0]
    assert "x" in fitted(tables[0]).notes()[0]


def test_an_input_for_missing_numbers_follows_from_the_rule_and_not_from_the_rows():
    table = pd.DataFrame({"x": np.arange(30.0)})
    column = fitted(table).columns[0]
    assert column.marks_missing
    assert not fitted(table, missing="refuse").columns[0].marks_missing
    assert fitted(table.assign(x=np.nan)).encode(table).shape == (30, 2)


def test_edges_come_from_training_rows_alone():
    table = pd.DataFrame({"x": np.r_[np.arange(100.0), np.full(50, 1e6)]})
    rows = np.arange(100)
    assert fitted(table, rows).columns == fitted(table.iloc[:100], rows).columns


def test_released_edges_are_near_quantiles_whatever_the_size_of_numbers():
    rng, n = np.random.default_rng(0), 20_000
    table = pd.DataFrame(
        {
            "normal": rng.standard_normal(n),
            "age": rng.integers(17, 90, n).astype(float),
            "debt": -np.exp(8 + 2 * rng.standard_normal(n)),
            "small": 1e-4 * rng.random(n),
            "stamp": 1.6e9 + 1e7 * rng.random(n),
        }
    )
    encoder = released(table, sigma=10.0)
    for column in encoder.columns:
        places = np.searchsorted(column.edges[-1], table[column.name], side="right")
        shares = np.bincount(places) / n
        assert 8 <= len(shares) <= 16, column.name
        assert shares.max() < 0.14, (column.name, shares)
    assert encoder.notes() == TableEncoder((), "refuse", private=True).notes()


def test_far_codes_for_missing_numbers_are_not_known():
    column = fitted(pd.DataFrame({"x": np.arange(100.0)})).columns[0]
    assert column.knows(pd.Series([-999.0, 50.0, 120.0, np.nan])).tolist() == [False, True, True, True]


@pytest.mark.parametrize("text", ["cuts", "latin-1", "standard:4", "cut:1", "cut:16,4", "cut:x", "cut:999"])
def test_other_encodings_are_refused(text):
    with raises_field(SettingError, "binning", text):
        Binning.parse(text)
