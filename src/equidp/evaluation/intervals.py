"""Intervals of shares, means and paired differences. Each is (value, low, high), and NaN of no examples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from equidp._validate import check_number

Floats = npt.NDArray[np.float64]
Interval = tuple[float, float, float]


def check_level(level: float) -> None:
    check_number("(0, 1)", ", such as 0.95", level=level)


def mean_interval(
    values: Sequence[float] | Floats | pd.Series,
    level: float = 0.95,
    within: tuple[float, float] = (-np.inf, np.inf),
) -> Interval:
    """Returns a mean and Student's t interval, cut to the range `within`; no interval for a single value.

    >>> mean_interval([1.0, 2.0, 3.0], within=(0.0, np.inf))
    (2.0, 0.0, 4.484...)
    """
    check_level(level)
    sample = np.asarray(values, dtype=float)
    if not len(sample):
        return np.nan, np.nan, np.nan
    mean = float(sample.mean())
    if len(sample) < 2:
        return mean, np.nan, np.nan
    half = float(stats.t.ppf((1 + level) / 2, len(sample) - 1) * sample.std(ddof=1) / np.sqrt(len(sample)))
    return mean, max(mean - half, within[0]), min(mean + half, within[1])


def wilson(successes: int, count: int, level: float) -> Interval:
    """Returns a share and Wilson's interval (1927), which holds for few examples too."""
    if not count:
        return np.nan, np.nan, np.nan
    ends = stats.binomtest(successes, count).proportion_ci(level, method="wilson")
    return successes / count, float(ends.low), float(ends.high)


def paired_interval(differences: Floats, level: float) -> Interval:
    """Returns a mean of differences of -1, 0 and 1 between two models, and Agresti and Min's interval (2005).

    It adds half an example to each of the four ways in which two models can be right or wrong, so that a few
    examples on which they agree do not look certain.
    """
    count = len(differences)
    if not count:
        return np.nan, np.nan, np.nan
    better, worse = ((differences == sign).sum() + 0.5 for sign in (1, -1))
    centre = (better - worse) / (count + 2)
    deviation = np.sqrt((better + worse) / (count + 2) - centre**2) / np.sqrt(count + 2)
    half = float(stats.norm.ppf((1 + level) / 2) * deviation)
    return float(differences.mean()), max(centre - half, -1.0), min(centre + half, 1.0)
