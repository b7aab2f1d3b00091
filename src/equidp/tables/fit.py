"""Encoders fitted to rows: by exact statistics, or by noisy ones that are one mechanism."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from equidp._extras import require_extra
from equidp.errors import DataWarning
from equidp.tables.encode import CELLS, Categories, Intervals, Numbers, TableEncoder, hash_texts
from equidp.tables.intervals import (
    BINNINGS,
    STANDARD,
    Binning,
    nearest_edges,
    public_edges,
    quantile_edges,
    resolutions,
)
from equidp.tables.labels import distinct_texts
from equidp.tables.release import Codes, Floats, Noisy, Release

with require_extra("tables"):
    import pandas as pd
    from sklearn.preprocessing import StandardScaler

Bools = npt.NDArray[np.bool_]
Fitted = Categories | Numbers | Intervals

_POWERS = np.ldexp(1.0, np.arange(-24, 61, 4))  # up to over `LARGEST_NUMBER`
_GRID: Floats = np.concatenate([-_POWERS[::-1], _POWERS])
_ROUNDS = ((0.2, 4), (0.3, 1), (0.5, 0))
"""Rounds of counts of numbers: share of each, and into how many times `cells` parts its cells are divided."""
_CELLS_TO_SCALE = 64
_LONGEST_TAIL = 4.0
"""Most mean lengths of a tail beyond the cells that stand out, in widths of the last of these."""
_STANDS_OUT = 6
"""Deviations of the noise in one cell that an interval of several cells holds at least, in rows."""


def fit_encoder(
    features: pd.DataFrame,
    train: Codes,
    bounds: Mapping[str, tuple[float, float]],
    missing: str,
    binning: Binning = BINNINGS[STANDARD],
    *,
    examples: int | None = None,
    standardised: bool = True,
    release: Release | None = None,
) -> TableEncoder:
    """Return an encoder of columns fitted to the rows `train`.

    Formal guarantee, with a release: one Gaussian mechanism, `release.event`, for tables that differ in one
    training row, added or removed. Its parts are counts of texts by cell (`private_texts`) and of numbers by
    cell (`count_numbers`); everything else follows from what they release. Each column without public bounds
    has the same share of it. n, names and types of columns, bounds, binning and the rule for missing values
    are public.

    | column, with a release | outcome |
    | --- | --- |
    | a text of few rows | its cell is kept hardly more often than an empty one |
    | no text stands out, or there are no rows | only the cell with the largest noisy count |
    | two texts with one cell | one input for both |
    | missing texts | a text of their own |
    | missing numbers, under "category" | always an input that marks them |
    | public bounds | they are used, and the column costs nothing |

    Args:
        features: all rows, floats and texts. Exact scales mark missing numbers if any row has one.
        train: index of each training row, or of one row of each person.
        bounds: column -> public range.
        missing: "refuse" or "category".
        binning: binning of the columns; public.
        examples: number of training examples, which weights of cut columns suit. None: one a row.
        standardised: scale to mean 0 and deviation 1. False: the range to [0, 1].
        release: charged, and not drawn from yet. None: exact statistics, which epsilon does not cover.

    >>> from equidp.kernel.noise import SeededRandomness
    >>> table = pd.DataFrame({"age": 20.0 + np.arange(3000) % 60, "job": ["cook", "clerk", "cook"] * 1000})
    >>> fit_encoder(table, np.arange(3000), {}, "refuse").columns[0].shift
    49.5
    >>> release = Release(10.0, SeededRandomness(0))
    >>> drawn = fit_encoder(table, np.arange(3000), {}, "refuse", release=release)
    >>> abs(drawn.columns[0].shift - 49.5) < 2, len(drawn.columns[1].values)
    (True, 2)
    """
    numbers = [name for name in features.columns if features[name].dtype == float]
    texts = [name for name in features.columns if name not in numbers]
    free = [name for name in numbers if name not in bounds]
    by_rule = binning.cuts or release is not None
    marked = {
        name: missing == "category" if by_rule else bool(features[name].isna().any()) for name in numbers
    }
    columns: dict[str, Fitted] = {
        name: _bounded_column(name, *bounds[name], binning, marked[name])
        for name in numbers
        if name in bounds
    }
    rows = features.take(train)
    if release is None:
        columns |= {name: _exact_texts(name, rows[name]) for name in texts}
        columns |= {
            name: _exact_numbers(name, rows[name], binning, standardised, marked[name]) for name in free
        }
    else:
        share = 1 / max(1, len(texts) + len(free))
        columns |= private_texts(rows[texts], release, share * len(texts))
        columns |= private_numbers(
            rows[free],
            release,
            share * len(free),
            binning,
            standardised=standardised,
            marked=by_rule and missing == "category",
        )
    weighted_for = (len(train) if examples is None else examples) if binning.cuts else None
    ordered = tuple(columns[name] for name in features.columns)
    return TableEncoder(ordered, missing, release is not None, examples=weighted_for)


def _bounded_column(
    name: str, low: float, high: float, binning: Binning, marked: bool
) -> Numbers | Intervals:
    """Return a column of numbers by its public range, without reading a row: cut, or scaled."""
    if binning.cuts:
        edges = resolutions([public_edges(low, high, count) for count in binning.intervals])
        return Intervals(name, edges, marked, public=True)
    return Numbers(name, low, high - low, low, high, 0.5, marked)


def _exact_texts(name: str, column: pd.Series) -> Categories:
    return Categories(name, tuple(sorted(set(distinct_texts(column)[1]))))


def _exact_numbers(
    name: str, column: pd.Series, binning: Binning, standardised: bool, marked: bool
) -> Numbers | Intervals:
    values = column.dropna().to_numpy(dtype=np.float64)
    if binning.cuts:
        return Intervals(name, resolutions(quantile_edges(values, binning.intervals)), marked)
    values = values if len(values) else np.zeros(1)
    if standardised:
        scaler = StandardScaler().fit(values.reshape(-1, 1))
        return Numbers(name, float(scaler.mean_[0]), float(scaler.scale_[0]), flagged=marked)
    low, high = float(values.min()), float(values.max())
    return Numbers(name, low, high - low, low, high, 0.5, marked, from_rows=True)


def private_texts(texts: pd.DataFrame, release: Release, share: float) -> dict[str, Categories]:
    """Return each column of texts with the cells whose noisy count stands out.

    Texts are counted in 65,536 public cells, by a hash. No list of texts is computed from the data, and no
    probability of failure adds to delta. Texts of cells that are not kept are "other": all zeros. In one
    release of ten, noise by itself makes a cell of some column stand out.
    """
    codes = [hash_texts(texts[name]) for name in texts.columns]
    stacked = np.stack(codes, axis=1) if codes else np.zeros((len(texts), 0), dtype=np.int64)
    kept, faint = _standing_out(release.counts(stacked, cells=CELLS, share=share), expected=0.1)
    _warn_of(texts.columns[faint])
    cells = (tuple(map(str, np.flatnonzero(each))) for each in kept)
    return {
        name: Categories(name, each, hashed=True) for name, each in zip(texts.columns, cells, strict=True)
    }


def private_numbers(
    columns: pd.DataFrame,
    release: Release,
    share: float,
    binning: Binning,
    *,
    standardised: bool,
    marked: bool,
) -> dict[str, Numbers | Intervals]:
    """Return each column of numbers, cut or scaled by what `count_numbers` shows of it and nothing else.

    Cut, its edges are at quantiles. Scaled, it is clipped to the range that holds all but what noise hides.
    """
    cells = 2 * binning.intervals[-1] if binning.cuts else _CELLS_TO_SCALE
    counted, faint = count_numbers(columns.to_numpy(dtype=np.float64), release, cells=cells, share=share)
    _warn_of(columns.columns[faint])
    made: dict[str, Numbers | Intervals] = {}
    for name, (edges, shares, noise) in zip(columns.columns, counted, strict=True):
        least = min(1 / cells, noise * math.sqrt(len(edges) + 1))
        if binning.cuts:
            inside = (shares > least) & (shares < 1 - least)
            least = _STANDS_OUT * noise
            found = [
                nearest_edges(edges[inside], shares[inside], count, least=least)
                for count in binning.intervals
            ]
            made[name] = Intervals(name, resolutions(found), marked)
            continue
        low, high, mean, deviation = _range_and_moments(edges, shares, least)
        shift, scale, fill = (mean, deviation, 0.0) if standardised else (low, high - low, 0.5)
        made[name] = Numbers(name, shift, scale, low, high, fill, marked)
    return made


def _range_and_moments(edges: Floats, shares: Floats, least: float) -> tuple[float, float, float, float]:
    """Return ends, mean and deviation of numbers by the shares of them below edges.

    A share of up to `least` beyond an end is clipped. A larger share, of counts hidden by noise, is assumed
    to fall like an exponential tail from the last cell. The range contains two mean lengths of the tail.
    """
    if len(edges) < 2:  # of numbers near 10^18, or of noise alone
        edges, shares = np.array([edges[0], edges[0] + abs(edges[0])]), np.array([0.0, 1.0])
    shares = shares.clip(0.0, 1.0)
    first = min(max(int(np.searchsorted(shares, least, side="right")) - 1, 0), len(edges) - 2)
    last = min(max(int(np.searchsorted(shares, 1 - least)), first + 1), len(edges) - 1)
    edges, parts = edges[first : last + 1], np.diff(shares[first : last + 1])
    below, above = shares[first], 1 - shares[last]
    for tail, end in ((below, 0), (above, -1)):
        width = float(np.diff(edges)[end])
        if tail > least:
            reach = 2 * width * min(_LONGEST_TAIL, tail / max(parts[end], 1e-12))
            edges = np.insert(edges, len(edges) if end else 0, edges[end] + (reach if end else -reach))
            parts = np.insert(parts, len(parts) if end else 0, tail)
        else:
            parts[end] += tail
    middles, widths = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    mean = float(parts @ middles)
    deviation = math.sqrt(parts @ ((middles - mean) ** 2 + widths**2 / 12))
    return float(edges[0]), float(edges[-1]), mean, deviation


Counted = tuple[Floats, Floats, float]
"""Rising edges between cells of a column, the estimated share of its numbers below each edge, and the
deviation of the noise in the share of one cell."""


def count_numbers(
    values: Floats, release: Release, *, cells: int, share: float
) -> tuple[list[Counted], Bools]:
    """Return noisy shares of each column's numbers below edges, which are dense where numbers are dense.

    There are three rounds of counts, with one row once in each column and round. The first, for a fifth of
    the share, counts by powers of 16, from 2^-24 to 2^60, of either sign. The next two, for three tenths and
    for a half, count by equal parts of the cells whose count stands out. The number of parts is proportional
    to the counts, but no part is so small that noise would hide it. The cells of a round follow only from the
    counts of the round before it, so all rounds are parts of `release`, of this share together.

    | column | outcome |
    | --- | --- |
    | one value in many rows | an edge on either side of it, and fewer edges than asked for |
    | all equal | edges on either side |
    | no values, or too few for the noise | edges of only noise, and finite |
    | missing values | counted separately, in their own cell |
    | few values in much noise | edges between which the shares are off by the deviation of the noise |

    Args:
        values: [n, columns], up to 10^18 in size; NaN are missing. n is public.
        release: paid for.
        cells: cells to count in, of a column, in the last round; four times as many in the one before.
            Public.
        share: share of the release, for all rounds together, or 0 without columns.

    Returns:
        For each column, edges, shares and noise; and [columns], a mask of columns with only noise.
    """
    if not values.shape[1]:
        return [], np.zeros(0, dtype=np.bool_)
    grids, faint = [_GRID] * values.shape[1], np.zeros(values.shape[1], dtype=np.bool_)
    for number, (part, times) in enumerate(_ROUNDS):
        counts = _count_between(grids, values, release, share * part)
        if times:
            kept, none = _standing_out(Noisy(counts.values[:, :-1], counts.deviation), expected=1e-3)
            faint = faint if number else none
            triples = zip(grids, counts.values, kept, strict=True)
            grids = [_divide_cells(*each, times * cells, 4 * counts.deviation) for each in triples]
    pairs = zip(grids, counts.values, strict=True)
    return [_shares_below(*pair, counts.deviation, len(values)) for pair in pairs], faint


def _count_between(grids: Sequence[Floats], values: Floats, release: Release, share: float) -> Noisy:
    """Count numbers between the edges of each column's grid, [columns, cells + 1]; missing ones come last.

    A grid with fewer cells has a count of -inf in those it lacks, so that none of them stands out.
    """
    cells = max(len(grid) for grid in grids) - 1
    pairs = zip(grids, values.T, strict=True)
    codes = [np.searchsorted(grid, column, side="right").clip(1, len(grid) - 1) - 1 for grid, column in pairs]
    coded = np.where(np.isnan(values), cells, np.stack(codes, axis=1))
    counts = release.counts(coded, cells=cells + 1, share=share)
    for row, grid in zip(counts.values, grids, strict=True):
        row[len(grid) - 1 : cells] = -math.inf
    return counts


def _divide_cells(grid: Floats, counts: Floats, kept: Bools, cells: int, least: float) -> Floats:
    """Return the grid with kept cells divided into parts, and neighbouring other cells joined.

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


def _shares_below(grid: Floats, counts: Floats, deviation: float, rows: int) -> Counted:
    """Return inner edges of a grid, the share of a column's numbers below each, and the noise of a cell.

    All counts add up to n, which is public: what they lack is spread over them.
    """
    cells = counts[: len(grid) - 1]
    cells = cells + (rows - cells.sum() - counts[-1]) / (len(cells) + 1)
    total = max(float(cells.sum()), 1.0)
    below = cells.cumsum()[:-1]
    rising = (np.maximum.accumulate(below) + np.minimum.accumulate(below[::-1])[::-1]) / 2
    return grid[1:-1], rising / total, deviation / total


def _standing_out(counts: Noisy, expected: float) -> tuple[Bools, Bools]:
    """Return masks of counts that noise hardly reaches, [columns, cells], and of columns without any.

    Columns without such counts keep their largest one. If all cells were empty, `expected` would stand out.
    """
    kept: Bools = counts.values > counts.deviation * float(ndtri(1 - expected / max(1, counts.values.size)))
    faint: Bools = ~np.any(kept, axis=1)
    kept[faint, counts.values[faint].argmax(axis=1)] = True
    return kept, faint


def _warn_of(faint: pd.Index) -> None:
    """Warn about columns whose released statistics are only noise."""
    if len(faint):
        warnings.warn(
            f"the released statistics of {', '.join(map(repr, faint))} are mostly noise, so the model will "
            "learn little from these columns. Give public ranges for numbers, drop less important columns, "
            "or raise --set privacy.preprocessing_share.",
            DataWarning,
            stacklevel=3,
        )
