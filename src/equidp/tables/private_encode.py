"""An encoder whose ranges, means, deviations and categories are released with noise, as one mechanism."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import ndtri

from equidp.errors import DataWarning
from equidp.tables.encode import CELLS, Categories, HashedCategories, Numbers, TableEncoder, hash_texts
from equidp.tables.release import Codes, Floats, Noisy, Release

Bools = npt.NDArray[np.bool_]

_POWERS = np.ldexp(1.0, np.arange(-24, 61, 4))  # up to over `LARGEST_NUMBER`
_GRID: Floats = np.concatenate([-_POWERS[::-1], _POWERS])
_BINS = 32


def private_encoder(
    features: pd.DataFrame, bounds: Mapping[str, tuple[float, float]], missing: str, release: Release
) -> TableEncoder:
    """Return an encoder of these rows from noisy statistics alone.

    Formal guarantee: one Gaussian mechanism, `release.event`, for tables that differ in one row, added or
    removed. Its parts are counts of texts by cell, and `private_numbers`; everything else follows from what
    they release. Each column has the same share of it. n, names and types of columns, bounds and the rule for
    missing values are public.

    Texts are counted in 65,536 public cells, by a hash, so no list of texts is read off the data and no
    probability of failure adds to delta. A cell is kept whose count stands out from all cells' noise. Texts
    of other cells are "other": all zeros.

    | column | outcome |
    | --- | --- |
    | a text of few rows | its cell is kept hardly more often than an empty one |
    | no text stands out, or there are no rows | the cell with the largest noisy count alone |
    | two texts with one cell | one input for both |
    | missing texts | a text of their own |
    | missing numbers, under "category" | always an input that marks them |
    | public bounds | they are used, and the column costs nothing |

    Args:
        features: the training rows, [n, columns]: float or text.
        bounds: column -> public range.
        missing: "refuse" or "category".
        release: charged, and not drawn from yet.

    >>> from equidp.kernel.noise import SeededRandomness
    >>> table = pd.DataFrame({"age": 20.0 + np.arange(3000) % 60, "job": ["cook", "clerk", "cook"] * 1000})
    >>> encoder = private_encoder(table, {}, "refuse", Release(10.0, SeededRandomness(0)))
    >>> [round(encoder.columns[0].low), round(encoder.columns[0].high), len(encoder.columns[1].cells)]
    [16, 79, 2]
    """
    texts = [name for name in features.columns if features[name].dtype != float]
    free = [name for name in features.columns if name not in texts and name not in bounds]
    share, flagged = 1 / max(1, len(texts) + len(free)), missing == "category"
    made: dict[str, Categories | HashedCategories | Numbers] = {
        name: Numbers.scaled_by_bounds(name, *span, flagged=flagged) for name, span in bounds.items()
    }
    made |= _frequent(features[texts], release, share * len(texts))
    made |= private_numbers(features[free], release, share=share * len(free), flagged=flagged)
    return TableEncoder(tuple(made[name] for name in features.columns), missing, private=True)


def _warn_of(faint: pd.Index) -> None:
    """Warn of columns whose released statistics are noise alone."""
    if len(faint):
        warnings.warn(
            f"nothing stands out from the noise of private preprocessing in {', '.join(map(repr, faint))}: "
            "the model will learn little from them. Give public --bounds where they hold numbers, drop "
            "columns that matter less, or raise --preprocessing-share.",
            DataWarning,
            stacklevel=3,
        )


def _frequent(texts: pd.DataFrame, release: Release, share: float) -> dict[str, HashedCategories]:
    """Return each column with the cells whose noisy count stands out.

    Noise alone makes a cell of all the columns' stand out in one release of ten.
    """
    codes = [hash_texts(texts[name]) for name in texts.columns]
    stacked = np.stack(codes, axis=1) if codes else np.zeros((len(texts), 0), dtype=np.int64)
    kept, faint = _standing_out(release.counts(stacked, cells=CELLS, share=share), expected=0.1)
    _warn_of(texts.columns[faint])
    cells = (tuple(np.flatnonzero(each).tolist()) for each in kept)
    return {name: HashedCategories(name, each) for name, each in zip(texts.columns, cells, strict=True)}


def private_numbers(
    columns: pd.DataFrame,
    release: Release,
    *,
    share: float,
    standardised: bool = True,
    flagged: bool = False,
) -> dict[str, Numbers]:
    """Return clipping and scaling of each column of numbers.

    Three quarters of the share go to ranges and one to scales, if there are scales.

    Args:
        columns: the training rows, floats; NaN where missing.
        release: paid for.
        share: of the release; 0 without columns.
        standardised: scale to mean 0 and deviation 1; False: scale the range to [0, 1], which costs no more.
        flagged: mark missing numbers.
    """
    values = columns.to_numpy(dtype=np.float64)
    ranges, faint = private_ranges(values, release, share=share * (0.75 if standardised else 1.0))
    _warn_of(columns.columns[faint])
    made = {
        name: Numbers.scaled_by_bounds(name, float(low), float(high), flagged=flagged)
        for name, (low, high) in zip(columns.columns, ranges, strict=True)
    }
    if standardised:
        scales = zip(made, _means_and_deviations(values, ranges, release, share / 4), strict=True)
        made |= {name: replace(made[name], shift=m, scale=d, fill=0.0) for name, (m, d) in scales}
    return made


def private_ranges(values: Floats, release: Release, *, share: float) -> tuple[Floats, Bools]:
    """Return a range of each column that holds most of its values, and a mask of ranges from noise alone.

    Three parts of equal share: counts by powers of 16, from 2^-24 to 2^60, of either sign; then twice counts
    in 32 equal bins of the range so far. One row counts once in each column, in each part.

    | column | range |
    | --- | --- |
    | few extreme values | left out: numbers are clipped to the range |
    | ends that noise hides | about three deviations of noise, in rows, are clipped at either end |
    | all equal | three thousandths of the way between the powers of 16 around it, or wider |
    | no values, or too few for the noise | of noise alone, and finite |

    Args:
        values: [n, columns], up to 10^18 in size; NaN are counted apart.
        release: paid for.
        share: of the release, for all parts together; 0 without columns.

    Returns:
        [columns, 2], low < high; and [columns].
    """
    if not values.shape[1]:
        return np.zeros((0, 2)), np.zeros(0, dtype=np.bool_)
    cells = len(_GRID) - 1
    codes = np.searchsorted(_GRID, values, side="right").clip(1, cells) - 1
    counts = _count_cells(codes, values, cells, release, share / 3)
    kept, faint = _standing_out(Noisy(counts.values[:, :cells], counts.deviation), expected=1e-3)
    found = [np.flatnonzero(each) for each in kept]
    ranges = np.array([(_GRID[each[0]], _GRID[each[-1] + 1]) for each in found])
    for wider in (0, 1):
        low, width = ranges[:, 0], np.diff(ranges, axis=1)[:, 0]
        bins = np.nan_to_num((values - low) / width * _BINS).clip(0, _BINS - 1).astype(np.int64)
        counts = _count_cells(bins, values, _BINS, release, share / 3)
        narrowed = zip(ranges, counts.values, strict=True)
        ranges = np.array([_narrow_range(*each, counts.deviation, len(values), wider) for each in narrowed])
    return ranges, faint


def _count_cells(codes: Codes, values: Floats, cells: int, release: Release, share: float) -> Noisy:
    """Counts values by cell, [columns, cells + 1]; missing values are in the last cell."""
    return release.counts(np.where(np.isnan(values), cells, codes), cells=cells + 1, share=share)


def _narrow_range(
    span: Floats, counts: Floats, deviation: float, rows: int, wider: int
) -> tuple[float, float]:
    """Return the range without bins at its ends that hold no more rows than noise does, but for `wider`.

    The number of rows up to a bin is known from the bins up to it, and from all other cells and n, which is
    public: the mean of both, weighted by their variances.
    """
    before, others = np.arange(1, _BINS + 1), len(counts) - np.arange(1, _BINS + 1)
    noise = 3 * deviation * np.sqrt(before * others / len(counts))
    ends = []
    for bins in (counts[:_BINS], counts[:_BINS][::-1]):
        below = bins.cumsum()
        rest = rows - counts.sum() + below
        known = (below * others + rest * before) / len(counts)
        ends.append(int(np.argmax(np.append((known > noise) | (bins > 4 * deviation), True))))
    low, high = ends[0], _BINS - ends[1]
    if low >= high:
        return float(span[0]), float(span[1])
    edges = np.linspace(span[0], span[1], _BINS + 1)
    return float(edges[max(0, low - wider)]), float(edges[min(_BINS, high + wider)])


def _means_and_deviations(
    values: Floats, ranges: Floats, release: Release, share: float
) -> list[tuple[float, float]]:
    """Return mean and deviation of each column, clipped to its range.

    One row adds (1, u, u^2) for each column, u in [-1, 1] its place in the range; its norm is at most the
    root of three times the number of columns. A deviation that noise hides is the smallest that shows.
    """
    if not len(ranges):
        return []
    middle, half = ranges.mean(axis=1), np.diff(ranges, axis=1)[:, 0] / 2
    places = ((values - middle) / half).clip(-1, 1)
    known = ~np.isnan(places)
    places = np.nan_to_num(places)
    rows = np.concatenate([known.astype(np.float64), places, places**2], axis=1)
    sums = release.sums(rows, bound=math.sqrt(3 * len(ranges)), share=share)
    number, first, second = sums.values.reshape(3, -1)
    number = np.maximum(number, 4 * sums.deviation)
    mean = (first / number).clip(-1, 1)
    least = np.maximum(3 * sums.deviation / number, 2.0**-12)
    deviation = np.sqrt((second / number - mean**2).clip(least, 1.0))
    return [(float(m), float(d)) for m, d in zip(middle + half * mean, half * deviation, strict=True)]


def _standing_out(counts: Noisy, expected: float) -> tuple[Bools, Bools]:
    """Return masks of counts that noise alone hardly reaches, [columns, cells], and of columns without any.

    Columns without such counts keep their largest one. If all cells were empty, `expected` would stand out.
    """
    kept: Bools = counts.values > counts.deviation * float(ndtri(1 - expected / max(1, counts.values.size)))
    faint: Bools = ~np.any(kept, axis=1)
    kept[faint, counts.values[faint].argmax(axis=1)] = True
    return kept, faint
