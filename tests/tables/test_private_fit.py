"""Private preprocessing: what it keeps of the data, and what it leaves out."""

import numpy as np
import pandas as pd
import pytest

from equidp.errors import DataWarning
from equidp.kernel.noise import SeededRandomness
from equidp.tables.encode import Numbers
from equidp.tables.fit import fit_encoder
from equidp.tables.release import Release

N = 20_000


def drawn(table, *, sigma=10.0, seed=0, bounds=None, missing="refuse", **options):
    release = Release(sigma, SeededRandomness(seed))
    return fit_encoder(table, np.arange(len(table)), bounds or {}, missing, release=release, **options)


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": rng.integers(17, 90, N).astype(float),
            "year": 1990 + 15 * rng.standard_normal(N),
            "stamp": 1.6e9 + 1e7 * rng.random(N),
            "debt": -np.exp(8 + rng.standard_normal(N)),
            "share": 1e-4 * rng.random(N),
            "smoker": (rng.random(N) < 0.1).astype(float),
            "job": rng.choice(["cook", "clerk", "judge", "pilot"], N, p=[0.6, 0.3, 0.099, 0.001]),
        }
    )


def test_numbers_are_scaled_to_about_mean_zero_and_deviation_one_whatever_their_size(people):
    numbers = people.drop(columns="job")
    encoded = drawn(numbers).encode(numbers).numpy()
    assert np.abs(encoded.mean(axis=0)).max() < 0.15
    assert (np.abs(encoded.std(axis=0) - 1) < 0.25).all()


def test_one_extreme_value_is_clipped(people):
    extreme = people[["age"]].copy()
    extreme.loc[0, "age"] = 1e18
    column = drawn(extreme).columns[0]
    assert column.high < 150


def test_frequent_texts_have_an_input_each_and_rare_ones_none(people):
    column = drawn(people[["job"]]).columns[0]
    assert column.knows(pd.Series(["cook", "clerk", "judge", "pilot", "priest"])).tolist() == [
        *[True] * 3,
        *[False] * 2,
    ]
    assert len(column.values) == 3


def test_a_text_that_one_row_has_is_kept_no_more_often_than_chance_allows():
    table = pd.DataFrame({"job": ["cook"] * 500})
    # With one row in it, a cell stands out of 65,536 with probability 4e-6 a draw: of 40 draws, 2e-4.
    strange = pd.concat([table, pd.DataFrame({"job": ["astronaut"]})], ignore_index=True)
    assert not any(
        drawn(strange, sigma=5.0, seed=seed).columns[0].knows(pd.Series(["astronaut"]))[0]
        for seed in range(40)
    )


def test_missing_numbers_always_have_their_mark_and_missing_texts_are_a_text(people):
    whole = people[["age", "job"]]
    known = whole.index % 3 > 0
    holes = whole.assign(age=whole["age"].where(known), job=whole["job"].astype(object).where(known, None))
    for table in (whole, holes):
        encoder = drawn(table, missing="category")
        assert encoder.columns[0].flagged
    marks = encoder.encode(holes)[:, 0].bool().numpy()
    assert (marks == holes["age"].isna()).all()
    assert encoder.columns[1].knows(pd.Series([None], dtype=object))[0]
    # Missing numbers count neither towards the mean nor towards the deviation.
    assert encoder.columns[0].shift == pytest.approx(holes["age"].mean(), abs=1.5)


def test_public_bounds_are_used_and_leave_the_noise_to_other_columns(people):
    bounded = drawn(people[["age", "year"]], bounds={"age": (0.0, 120.0)})
    assert bounded.columns[0] == Numbers("age", 0.0, 120.0, 0.0, 120.0, 0.5)
    assert bounded.columns[1] == drawn(people[["year"]]).columns[0]


@pytest.mark.parametrize("rows", [0, 1, 12])
def test_too_few_rows_give_an_encoder_of_noise_with_finite_inputs_and_a_warning(people, rows):
    with pytest.warns(DataWarning, match=r"released statistics of 'job'"):
        encoder = drawn(people.iloc[:rows])
    encoded = encoder.encode(people)
    assert np.isfinite(encoded.numpy()).all()
    assert encoded.shape[1] == len(people.columns)
