"""Binnings of columns as inputs, and edges that cut a column of numbers into intervals."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from equidp.errors import SettingError

Floats = npt.NDArray[np.float64]

STANDARD, CUT = "standard", "cut"
_MOST_INTERVALS = 256
_DECADES = 1000.0
"""Ratio of a public range's ends from which its intervals have equal widths of the logarithm."""


@final
@dataclass(frozen=True)
class Binning:
    """Binning of a table's columns: numbers scaled, or cut into intervals.

    Attributes:
        name: "standard": numbers scaled to mean 0 and deviation 1, or from public bounds to [0, 1]. "cut":
            numbers one-hot over intervals and with a trend, and rows scaled to a norm of about 1.
        intervals: number of intervals of each resolution, rising, or () for "standard".

    >>> Binning.parse("cut"), Binning.parse("cut:8")
    (Binning(name='cut', intervals=(4, 16)), Binning(name='cut', intervals=(8,)))
    >>> str(Binning.parse("cut:4,16"))
    'cut:4,16'
    """

    name: str = STANDARD
    intervals: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str | None) -> Binning:
        """Return the binning of a text: standard, cut, or cut with intervals, such as cut:4,16.

        Raises:
            SettingError: another text, or intervals that a column cannot be cut into.
        """
        name, colon, counts = (STANDARD if text is None else text).partition(":")
        if name not in BINNINGS or (colon and name != CUT):
            raise SettingError(
                f"binning {text!r}; expected {STANDARD}, {CUT}, or {CUT} with its intervals, such as "
                f"{CUT}:4,16.",
                field="binning",
            )
        if not colon:
            return BINNINGS[name]
        try:
            intervals = tuple(map(int, counts.split(",")))
        except ValueError:
            intervals = ()
        rising = all(coarse < fine for coarse, fine in itertools.pairwise(intervals))
        if not (intervals and rising and intervals[0] >= 2 and intervals[-1] <= _MOST_INTERVALS):
            raise SettingError(
                f"binning {text!r}; expected rising numbers of intervals, each from 2 to "
                f"{_MOST_INTERVALS}, such as {CUT}:4,16.",
                field="binning",
            )
        return cls(name, intervals)

    @property
    def cuts(self) -> bool:
        """True if numbers are cut into intervals."""
        return bool(self.intervals)

    def __str__(self) -> str:
        return f"{self.name}:{','.join(map(str, self.intervals))}" if self.intervals else self.name


BINNINGS: dict[str, Binning] = {STANDARD: Binning(), CUT: Binning(CUT, (4, 16))}
"""Name -> binning; "cut" has its default numbers of intervals."""


def quantile_edges(values: Floats, intervals: Sequence[int]) -> tuple[tuple[float, ...], ...]:
    """Return edges between intervals that hold about equally many of the values, for each resolution.

    An edge is in the middle between two neighbouring values. A value that occurs often has its own interval,
    and the others are cut as if it were less frequent (`nearest_edges`). There are fewer intervals if there
    are fewer values. An interval contains its lower edge.

    Args:
        values: [n], finite; n may be 0.
        intervals: the most intervals of each resolution.

    >>> quantile_edges(np.array([0.0, 0.0, 0.0, 1.0, 2.0]), (2, 4))
    ((0.5,), (0.5, 1.5))
    """
    distinct, counts = np.unique(values, return_counts=True)
    shares = counts.cumsum()[:-1] / max(1, len(values))
    below, above = distinct[:-1], distinct[1:]
    middle = below / 2 + above / 2
    edges = np.where(middle > below, middle, above)
    return tuple(nearest_edges(edges, shares, count) for count in intervals)


def nearest_edges(edges: Floats, shares: Floats, intervals: int, *, least: float = 0.0) -> tuple[float, ...]:
    """Return the edges nearest to those between equal parts, each once.

    Values between two neighbouring edges cannot be cut. If they are more than a part, they count as one part,
    and the intervals that they would fill are left to other values. For example, a column that is zero in
    most rows is cut by its other values.

    An edge is left out if hardly any values are between it and the one below it: an eighth of a part, or less
    than `least`.

    Args:
        edges: [m], rising: the edges to choose among.
        shares: [m], of the values below each edge, rising.
        intervals: the most intervals.
        least: share that an interval holds at least, and that a part is at least; for shares with noise.

    >>> nearest_edges(np.arange(1.0, 8.0), np.array([0.86, 0.88, 0.9, 0.92, 0.94, 0.96, 0.98]), 4)
    (1.0, 3.0, 6.0)
    """
    if not len(edges):
        return ()
    between = np.diff(shares, prepend=0.0, append=1.0)
    part = max(_equal_part(between, intervals), least)
    reached = np.minimum(between, part).cumsum()
    below, wanted = reached[:-1], np.arange(1, intervals) / intervals * reached[-1]
    after = np.searchsorted(below, wanted).clip(0, len(below) - 1)
    before = (after - 1).clip(0)
    nearest = np.where(wanted - below[before] < below[after] - wanted, before, after)
    found: list[int] = []
    for place in np.unique(nearest).tolist():
        if not found or below[place] - below[found[-1]] >= max(part / 8, least):
            found.append(place)
    return tuple(edges[found].tolist())


def _equal_part(shares: Floats, intervals: int) -> float:
    """Return the share of each interval if none counts for more: sum(min(shares, it)) = intervals * it.

    With fewer shares than intervals, it is the smallest share.
    """
    falling = np.sort(shares[shares > 0])[::-1]
    rest = float(falling.sum())
    for larger, share in enumerate(falling[:intervals]):
        part = rest / (intervals - larger)
        if share <= part:
            return part
        rest -= float(share)
    return float(falling[-1])


def public_edges(low: float, high: float, intervals: int) -> tuple[float, ...]:
    """Return edges between equally wide intervals of a public range, or of its logarithm over three decades.

    A range from 0 on has the logarithm of 1 + x. Numbers outside the range are in the first or last interval.

    >>> public_edges(0, 100, 4)
    (25.0, 50.0, 75.0)
    >>> [round(edge) for edge in public_edges(1, 10_000, 4)]
    [10, 100, 1000]
    """
    parts = np.arange(1, intervals) / intervals
    if low > 0 and high / low >= _DECADES:
        edges = np.exp2(np.log2(low) + parts * (np.log2(high) - np.log2(low)))
    elif low == 0 and high >= _DECADES:
        edges = np.exp2(parts * np.log2(1 + high)) - 1
    else:
        edges = low * (1 - parts) + high * parts  # whose difference may be too large a number
    return tuple(np.unique(edges).tolist())


def resolutions(edges: Sequence[tuple[float, ...]]) -> tuple[tuple[float, ...], ...]:
    """Return the edges of each resolution, without resolutions that equal a coarser one."""
    return tuple(dict.fromkeys(edges))
