"""Intervals of shares, means and paired differences. Each is (value, low, high), and NaN of no examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from equidp._validate import check_number

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.95
"""Default level of intervals."""

Floats = npt.NDArray[np.float64]
Interval = tuple[float, float, float]
FEWEST_OF_A_CLASS = 5
"""Examples of the rarer class that an interval of a ranking or a loss needs."""


def check_level(level: float) -> None:
    """Raise a SettingError unless the level of an interval, such as 0.95, is in (0, 1)."""
    check_number("(0, 1)", ", such as 0.95", level=level)


def mean_interval(
    values: Sequence[float] | Floats | pd.Series,
    level: float = 0.95,
    within: tuple[float, float] = (-np.inf, np.inf),
    freedom: int | None = None,
) -> Interval:
    """Return a mean and Student's t interval, cut to the range `within`; no interval for a single value.

    `freedom` are the degrees of freedom. None: one less than there are values.

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
    quantile = stats.t.ppf((1 + level) / 2, len(sample) - 1 if freedom is None else freedom)
    half = float(quantile * sample.std(ddof=1) / np.sqrt(len(sample)))
    return mean, max(mean - half, within[0]), min(mean + half, within[1])


def wilson(successes: int, count: int, level: float) -> Interval:
    """Return a share and Wilson's interval (1927), which holds for few examples too."""
    if not count:
        return np.nan, np.nan, np.nan
    low, high = stats.binomtest(successes, count).proportion_ci(level, "wilson")
    return successes / count, float(low), float(high)


def paired_interval(differences: Floats, level: float) -> Interval:
    """Return a mean of differences of -1, 0 and 1 between two models, and Agresti and Min's interval (2005).

    It adds half an example to each of the four cases of two models being correct or wrong. Then a few
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


def mean_of_shares(shares: Sequence[Interval]) -> tuple[float, float]:
    """Return the ends of an interval of the mean of independent shares, from the interval of each.

    Zou and Donner (2008): distances to the ends add up as their squares.

    >>> mean_of_shares([(0.5, 0.3, 0.7), (0.5, 0.3, 0.7)])
    (0.35..., 0.64...)
    """
    value, low, high = np.asarray(shares).T
    below, above = (np.sqrt(((value - end) ** 2).sum()) / len(value) for end in (low, high))
    return max(float(value.mean() - below), 0.0), min(float(value.mean() + above), 1.0)


def auc_interval(hits: npt.NDArray[np.int64], scores: Floats, level: float) -> Interval:
    """Return the area under the ROC curve and its interval.

    DeLong et al.'s variance (1988), on the scale of log odds, with Student's quantile of the rarer class.
    Without a spread, as of a perfect ranking, Wilson's of the rarer class, which knows that few are few.

    Args:
        hits: 1 for positive examples and 0 for others, [n], with at least two of each.
        scores: scores of the examples, [n]; ties count half.
        level: level of the interval.
    """
    ranks = stats.rankdata(scores)
    parts = []
    for members in (hits == 1, hits == 0):
        below = ranks[members] - stats.rankdata(scores[members])  # how many of the other class are lower
        parts.append(below / (len(hits) - members.sum()))
    area, rarer = float(parts[0].mean()), min(map(len, parts))
    error = np.sqrt(sum(part.var(ddof=1) / len(part) for part in parts))
    if not 0 < area < 1 or not error:
        _, low, high = wilson(round(area * rarer), rarer, level)
        return area, min(low, area), max(high, area)
    half = special.stdtrit(rarer - 1, (1 + level) / 2) * error / (area * (1 - area))
    low, high = special.expit(special.logit(area) + np.array([-half, half]))
    return area, float(low), float(high)
