"""An encoder of ranges, means, deviations, edges and categories released with noise, as one mechanism."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from equidp._extras import require_extra
from equidp.errors import DataWarning
from equidp.tables.encode import (
    CELLS,
    Categories,
    HashedCategories,
    Intervals,
    Numbers,
    TableEncoder,
    bounded_column,
    hash_texts,
)
from equidp.tables.intervals import BINNINGS, STANDARD, Binning, nearest_edges, resolutions
from equidp.tables.release import Codes, Floats, Noisy, Release

with require_extra("tables"):
    import pandas as pd

Bools = npt.NDArray[np.bool_]

_POWERS = np.ldexp(1.0, np.arange(-24, 61, 4))  # up to over `LARGEST_NUMBER`
_GRID: Floats = np.concatenate([-_POWERS[::-1], _POWERS])
_BINS = 32
_ROUNDS = (0.2, 0.3, 0.5)
"""Shares of the rounds of counts that edges of intervals follow from."""
_STANDS_OUT = 6
"""Deviations of the noise in one cell that an interval of several cells holds at least, in rows."""


def private_encoder(
    features: pd.DataFrame,
    bounds: Mapping[str, tuple[float, float]],
    missing: str,
    release: Release,
    binning: Binning = BINNINGS[STANDARD],
) -> TableEncoder:
    """Return an encoder of these rows from noisy statistics alone.

    Formal guarantee: one Gaussian mechanism, `release.event`, for tables that differ in one row, added or
    removed. Its parts are counts of texts by cell, and `private_numbers` or `private_intervals`; everything
    else follows from what they release. Each column has the same share of it. n, names and types of columns,
    bounds, binning and the rule for missing values are public.

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
        binning: of the columns; public.

    >>> from equidp.kernel.noise import SeededRandomness
    >>> table = pd.DataFrame({"age": 20.0 + np.arange(3000) % 60, "job": ["cook", "clerk", "cook"] * 1000})
    >>> encoder = private_encoder(table, {}, "refuse", Release(10.0, SeededRandomness(0)))
    >>> [round(encoder.columns[0].low), round(encoder.columns[0].high), len(encoder.columns[1].cells)]
    [16, 79, 2]
    """
    texts = [name for name in features.columns if features[name].dtype != float]
    free = [name for name in features.columns if name not in texts and name not in bounds]
    share, flagged = 1 / max(1, len(texts) + len(free)), missing == "category"
    made: dict[str, Categories | HashedCategories | Numbers | Intervals] = {
        name: bounded_column(name, span, binning, flagged=flagged) for name, span in bounds.items()
    }
    made |= _frequent(features[texts], release, share * len(texts))
    if binning.cuts:
        made |= private_intervals(features[free], release, binning, share=share * len(free), flagged=flagged)
    else:
        made |= private_numbers(features[free], release, share=share * len(free), flagged=flagged)
    columns = tuple(made[name] for name in features.columns)
    examples = len(features) if binning.cuts else None
    return TableEncoder(columns, missing, private=True, examples=examples)


def _warn_of(faint: pd.Index) -> None:
    """Warn of columns whose released statistics are noise alone."""
    if len(faint):
        warnings.warn(
            f"nothing stands out from the noise of private preprocessing in {', '.join(map(repr, faint))}: "
            "the model will learn little from them. Give public ranges where they hold numbers, drop "
            "columns that matter less, or raise --set privacy.preprocessing_share.",
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


def private_intervals(
    columns: pd.DataFrame,
    release: Release,
    binning: Binning,
    *,
    share: float,
    flagged: bool = False,
) -> dict[str, Intervals]:
    """Return the intervals of each column of numbers, at quantiles of its noisy counts.

    Formal guarantee: the counts of `private_counts_of_numbers` are all that is read of the rows, so this is a
    part of `release`, of this share.

    Args:
        columns: the training rows, floats; NaN where missing.
        release: paid for.
        binning: with the numbers of intervals; public.
        share: of the release; 0 without columns.
        flagged: an input for missing numbers, in each block.
    """
    finest = binning.intervals[-1]
    values = columns.to_numpy(dtype=np.float64)
    counted, faint = private_counts_of_numbers(values, release, cells=2 * finest, share=share)
    _warn_of(columns.columns[faint])
    made = {}
    for name, (edges, shares, noise) in zip(columns.columns, counted, strict=True):
        least = _STANDS_OUT * noise
        found = [nearest_edges(edges, shares, count, least=least) for count in binning.intervals]
        made[name] = Intervals(name, resolutions(found), flagged)
    return made


Counted = tuple[Floats, Floats, float]
"""Edges between cells of a column, rising, the estimated share of its numbers below each edge, and the
deviation of the noise in the share of one cell."""


def private_counts_of_numbers(
    values: Floats, release: Release, *, cells: int, share: float
) -> tuple[list[Counted], Bools]:
    """Return noisy shares of each column's numbers below edges that lie close where the numbers do.

    Three rounds of counts, one row once in each column and round: by powers of 16, from 2^-24 to 2^60, of
    either sign, for a fifth of the share; then by equal parts of the cells whose count stands out, as many as
    their counts in proportion, but none that noise would hide, for three tenths and for a half. The cells of
    a round follow from the counts of the round before it alone, so all rounds are parts of `release`, of this
    share together.

    | column | outcome |
    | --- | --- |
    | one value in many rows | an edge on either side of it, and fewer edges than asked for |
    | all equal | edges at most on either side, or none |
    | no values, or too few for the noise | edges of noise alone, and finite; or none |
    | missing values | counted apart, in a cell of their own |
    | few values in much noise | edges between which the shares are off by the deviation of the noise |

    Args:
        values: [n, columns], up to 10^18 in size; NaN are missing. n is public.
        release: paid for.
        cells: to count in, of a column, in the last round; four times as many in the one before. Public.
        share: of the release, for all rounds together; 0 without columns.

    Returns:
        For each column, edges, shares and noise; and [columns], a mask of columns of noise alone.
    """
    if not values.shape[1]:
        return [], np.zeros(0, dtype=np.bool_)
    grids, faint = [_GRID] * values.shape[1], np.zeros(values.shape[1], dtype=np.bool_)
    for number, (part, times) in enumerate(((_ROUNDS[0], 4), (_ROUNDS[1], 1))):
        counts = _count_between(grids, values, release, share * part)
        kept, none = _standing_out(Noisy(counts.values[:, :-1], counts.deviation), expected=1e-3)
        faint = none if number == 0 else faint
        triples = zip(grids, counts.values, kept, strict=True)
        least = 4 * counts.deviation
        grids = [_divide_cells(grid, each, heavy, times * cells, least) for grid, each, heavy in triples]
    counts = _count_between(grids, values, release, share * _ROUNDS[2])
    pairs = zip(grids, counts.values, strict=True)
    return [_shares_below(*pair, counts.deviation, len(values), 1 / cells) for pair in pairs], faint


def _count_between(grids: Sequence[Floats], values: Floats, release: Release, share: float) -> Noisy:
    """Count numbers between the edges of each column's grid, [columns, cells + 1]; missing ones come last.

    A grid with fewer cells has a count of -inf in those it lacks, so that none of them stands out.
    """
    cells = max(len(grid) for grid in grids) - 1
    pairs = zip(grids, values.T, strict=True)
    codes = [np.searchsorted(grid, column, side="right").clip(1, len(grid) - 1) - 1 for grid, column in pairs]
    counts = _count_cells(np.stack(codes, axis=1), values, cells, release, share)
    for row, grid in zip(counts.values, grids, strict=True):
        row[len(grid) - 1 : cells] = -math.inf
    return counts


def _divide_cells(grid: Floats, counts: Floats, kept: Bools, cells: int, least: float) -> Floats:
    """Return the grid with kept cells divided into parts, and others beside each other joined.

    Parts are as many as counts in proportion, `cells` in all, or of `least` rows each.
    """
    kept = kept[: len(grid) - 1]
    weights = np.where(kept, counts[: len(kept)].clip(min=0.0), 0.0)
    each = max(float(weights.sum()) / cells, least)
    parts = np.maximum(1, np.floor(weights / each)).astype(np.int64)
    edges = [grid[:1], grid[-1:]]
    for place in np.flatnonzero(kept):
        edges.append(np.linspace(grid[place], grid[place + 1], parts[place] + 1))
    return np.unique(np.concatenate(edges))


def _shares_below(grid: Floats, counts: Floats, deviation: float, rows: int, least: float) -> Counted:
    """Return inner edges of a grid, the share of a column's numbers below each, and the noise of a cell.

    All counts add up to n, which is public: what they lack is spread over them. Edges that hardly any number
    lies below, or above, by `least` or by the noise, are left out.
    """
    cells = counts[: len(grid) - 1]
    cells = cells + (rows - cells.sum() - counts[-1]) / (len(cells) + 1)
    total = max(float(cells.sum()), 1.0)
    below = cells.cumsum()[:-1]
    rising = (np.maximum.accumulate(below) + np.minimum.accumulate(below[::-1])[::-1]) / 2
    shares = rising / total
    least = min(least, deviation * math.sqrt(len(cells)) / total)
    inside = (shares > least) & (shares < 1 - least)
    return grid[1:-1][inside], shares[inside], deviation / total


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
    """Count values by cell, [columns, cells + 1]; missing values are in the last cell."""
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
