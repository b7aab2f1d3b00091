"""Releases of all rows: what one row moves, how much noise there is, what is refused."""

import numpy as np
import pytest

from equidp.errors import DataError, SettingError
from equidp.kernel.noise import SeededRandomness
from equidp.tables.release import Release, private_counts, private_quantile
from support.errors import raises_field

SIGMA = 3.0


def distance(one, other):
    """How far one row moves a part without its noise, in standard deviations of the noise."""
    return np.linalg.norm(one.values - other.values) / one.deviation


def part(rows, share):
    """A part of a release whose noise is always the same."""
    return Release(SIGMA, SeededRandomness(1)).counts(rows.astype(np.int64), cells=7, share=share)


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_one_row_moves_a_part_by_no_more_than_its_share_allows(share):
    rng = np.random.default_rng(0)
    rows = rng.integers(-1, 7, (50, 4)).astype(float)
    for extreme in ([6, 6, 6, 6], [-1, 9, 3, 2], [1e18, -1e18, 0, 0], [0, 0, 0, 0]):
        more = np.concatenate([rows, [extreme]])
        moved = distance(part(rows, share), part(more, share))
        assert moved <= np.sqrt(share) / SIGMA + 0.004  # results are rounded to the grid of their noise


def test_noise_is_as_large_as_the_share_asks_for():
    # 7,000 draws: their deviation is off by over 5% with probability 3e-9.
    released = part(np.zeros((3, 1000)), 0.25)
    exact = np.zeros(released.values.shape)
    exact[:, 0] = 3
    assert released.deviation == pytest.approx(2 * SIGMA * np.sqrt(1000))
    assert np.std(released.values - exact) == pytest.approx(released.deviation, rel=0.05)


def test_more_than_the_whole_release_is_refused_before_anything_is_read():
    release = Release(SIGMA, SeededRandomness(0))
    release.counts(np.zeros((1, 1), dtype=np.int64), cells=1, share=0.75)
    with raises_field(SettingError, "share", "0.25"):
        release.counts(np.zeros((1, 1), dtype=np.int64), cells=1, share=0.5)


def test_shares_that_add_up_to_one_are_not_refused_for_their_rounding():
    release = Release(SIGMA, SeededRandomness(0))
    for _ in range(10):
        release.counts(np.zeros((1, 1), dtype=np.int64), cells=1, share=0.1)


def test_counts_are_near_the_truth_and_never_negative():
    counts = private_counts(
        np.repeat([0, 2], [1000, 5]), 4, noise_multiplier=4.0, randomness=SeededRandomness(2)
    )
    assert (counts >= 0).all()
    # Five deviations: a false alarm in one of four million seeds.
    assert np.abs(counts - [1000, 0, 5, 0]).max() < 20


@pytest.mark.parametrize("quantile", [0.05, 0.5, 0.93])
def test_the_share_below_a_quantile_is_off_by_no_more_than_its_noise(quantile):
    values = np.random.default_rng(0).beta(1, 9, 20_000)
    found = private_quantile(
        values, quantile, low=0.0, high=1.0, noise_multiplier=10.0, randomness=SeededRandomness(3)
    )
    # Each of 16 counts is off by over 5 deviations (200 rows) with probability 6e-7.
    assert abs((values <= found).mean() - quantile) < 200 / 20_000 + 2**-15


def test_a_quantile_takes_scores_that_are_no_numbers():
    given = {"low": 0.0, "high": 1.0, "noise_multiplier": 0.1, "randomness": SeededRandomness(0)}
    values = np.array([np.nan, np.inf, -np.inf, 0.2, 0.3])
    assert 0.2 <= private_quantile(values, 0.5, **given) <= 0.301


@pytest.mark.parametrize(
    "wrong",
    [
        {"noise_multiplier": 0.0},
        {"noise_multiplier": float("nan")},
        {"low": 1.0},
        {"high": float("inf")},
        {"quantile": 1.0},
    ],
)
def test_a_quantile_refuses_settings_that_mean_nothing(wrong):
    given = {"quantile": 0.5, "low": 0.0, "high": 1.0, "noise_multiplier": 1.0} | wrong
    with pytest.raises(SettingError):
        private_quantile(np.zeros(3), given.pop("quantile"), randomness=SeededRandomness(0), **given)


def test_a_row_that_would_count_several_times_is_refused():
    given = {"noise_multiplier": 1.0, "randomness": SeededRandomness(0)}
    with raises_field(DataError, "codes"):
        private_counts(np.zeros((3, 8), dtype=np.int64), 1, **given)
    with raises_field(DataError, "values"):
        private_quantile(np.zeros((3, 8)), 0.5, low=0.0, high=1.0, **given)
