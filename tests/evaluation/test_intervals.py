"""Intervals are the textbooks'."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from equidp.errors import SettingError
from equidp.evaluation.intervals import mean_interval, paired_interval, wilson
from support.errors import raises_field


def test_intervals_are_students_t():
    values = [1.0, 2.0, 4.0, 3.5]
    mean, low, high = mean_interval(values, 0.9)
    theirs = stats.ttest_1samp(values, 0).confidence_interval(0.9)
    assert (mean, low, high) == pytest.approx((np.mean(values), theirs.low, theirs.high))
    assert all(math.isnan(end) for end in mean_interval([1.0])[1:])
    assert all(math.isnan(end) for end in mean_interval([]))
    with raises_field(SettingError, "level", "1.5"):
        mean_interval(values, 1.5)


@pytest.mark.parametrize(("successes", "count"), [(0, 5), (5, 5), (3, 17), (960, 1000)])
def test_wilsons_interval_is_the_closed_form(successes, count):
    """Wilson 1927: centre (p + z^2 / 2n) / (1 + z^2 / n)."""
    z, share = 1.959963984540054, successes / count
    centre = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    expected = (share, max(0.0, centre - half), min(1.0, centre + half))
    assert wilson(successes, count, 0.95) == pytest.approx(expected, abs=1e-12)


def test_paired_intervals_cover_the_truth_about_as_often_as_they_say():
    generator = np.random.default_rng(0)
    shares = [0.05, 0.85, 0.10]  # worse, alike, better
    hits = 0
    for _ in range(1000):
        differences = generator.choice([-1.0, 0.0, 1.0], size=25, p=shares)
        _, low, high = paired_interval(differences, 0.95)
        hits += low <= 0.05 <= high
    assert 930 <= hits <= 990
