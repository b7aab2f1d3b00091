"""Rows that two datasets share are found, and coincidences of tables with few values are not."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, strategies as st

import equidp
from equidp.data.shared_rows import RowDigests
from equidp.errors import DataWarning
from support.toy import toy


def digests(*inputs):
    return RowDigests.of(inputs)


def drawn(n, seed, values=0):
    """Measurements, or numbers of few values."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, 4, generator=generator)
    return rows if not values else (rows * values).round()


@given(share=st.floats(0.1, 1.0), n=st.integers(20, 400), m=st.integers(20, 400), seed=st.integers(0, 9))
def test_measurements_that_were_trained_on_are_counted(share, n, m, seed):
    whole = drawn(n, seed)
    taken = whole[torch.randperm(n)[: min(n, round(share * m))]]
    part = torch.cat([taken, drawn(m - len(taken), seed + 100)])[torch.randperm(m)]
    found = digests(part).count_shared(digests(whole))
    if len(taken) / m > 0.75:  # chance is estimated, roughly from few rows
        assert found == len(taken)
    assert found in {0, len(taken)}


@given(
    n=st.integers(1, 3000),
    m=st.integers(1, 1000),
    values=st.sampled_from([0, 0.3, 1, 3, 8]),
    seed=st.integers(0, 99),
)
def test_rows_drawn_apart_share_nothing(n, m, values, seed):
    assert digests(drawn(m, seed, values)).count_shared(digests(drawn(n, seed + 100, values))) == 0


@given(values=st.sampled_from([0.3, 1, 3]), seed=st.integers(0, 9))
def test_the_same_rows_in_another_order_are_shared_however_often_they_repeat(values, seed):
    rows = drawn(200, seed, values)
    assert digests(rows[torch.randperm(200)]).count_shared(digests(rows)) == 200


def test_copies_are_found_among_rows_that_coincide_by_chance():
    """Half of the rows have few values, and coincide; of the others, some were trained on."""
    whole = torch.cat([drawn(200, 0, values=0.5), drawn(200, 1)])
    few, new = drawn(50, 2, values=0.5), drawn(50, 3)
    assert digests(torch.cat([few, new])).count_shared(digests(whole)) == 0
    assert digests(torch.cat([few, whole[-30:], new[:20]])).count_shared(digests(whole)) >= 30


def test_a_common_row_is_no_copy():
    """Empty forms, say: one among the training rows, and many of another site's test rows."""
    test = torch.cat([torch.zeros(60, 4), drawn(40, 1)])
    assert digests(test).count_shared(digests(torch.cat([torch.zeros(1, 4), drawn(300, 2)]))) == 0


def test_a_split_warns_of_test_rows_that_are_training_rows():
    data = toy(400)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        equidp.DataSplit(data.subset(torch.arange(300)), data.subset(torch.arange(300, 400)))
    with pytest.warns(DataWarning, match="^40 of 100 test rows are training rows too"):
        equidp.DataSplit(data.subset(torch.arange(300)), data.subset(torch.arange(260, 360)))
