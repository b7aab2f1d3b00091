"""Noisy counts and quantiles of all rows at once: one Gaussian mechanism, spent in parts.

A run pays for one, and draws it, by an `equidp.Release`.
"""

from __future__ import annotations

import math
from typing import NamedTuple, final

import numpy as np
import numpy.typing as npt
import torch

from equidp._validate import check_number, check_whole
from equidp.errors import DataError, SettingError
from equidp.kernel.event import Event
from equidp.kernel.noise import Randomness
from equidp.kernel.noisy_sum import add_noise

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

_HALVINGS = 16


class Noisy(NamedTuple):
    """Released numbers, and the standard deviation of the noise in each of them."""

    values: Floats
    deviation: float


@final
class Release:
    """One Gaussian mechanism on all rows, in parts. Each part takes a share of it.

    Formal guarantee: for two tables that differ in one row, added or removed, all parts together are
    dominated by one Gaussian mechanism of noise multiplier sigma, without sampling: `event`. This also holds
    if results of earlier parts choose later ones. If one row moves the result of a part of share w by at most
    S (L2), the part has noise of standard deviation S sigma / sqrt(w). It is a Gaussian mechanism of mu =
    sqrt(w) / sigma. mu adds up in squares (Dong, Roth and Su 2022, corollary 3.3), and the shares add up to
    at most 1.

    | case | outcome |
    | --- | --- |
    | no rows | only noise, of the same size |
    | a code outside the cells, such as -1 | counts nowhere |
    | shares of more than 1 together | SettingError before anything is read |
    | no columns | an empty result, which takes no share |

    Args:
        noise_multiplier: sigma, > 0 and finite.
        randomness: source of the noise.

    >>> from equidp.kernel.noise import SeededRandomness
    >>> release = Release(0.1, SeededRandomness(0))
    >>> release.counts(np.array([[0], [1], [1]]), cells=2, share=0.5).values.round()
    array([[1., 2.]])
    """

    def __init__(self, noise_multiplier: float, randomness: Randomness) -> None:
        check_number("(0, inf)", noise_multiplier=noise_multiplier)
        self.event = Event(1.0, noise_multiplier)
        self._randomness = randomness
        self._left = 1.0

    def counts(self, codes: Codes, *, cells: int, share: float) -> Noisy:
        """Count rows by cell, for several columns at once.

        One row counts in at most one cell of each column: S is the root of the number of columns.

        Args:
            codes: [n, columns], each row's cell in each column.
            cells: cells of each column; public.
            share: share of the mechanism, in (0, 1].

        Returns:
            [columns, cells], and the deviation of the noise.
        """
        columns = codes.shape[1]
        if not columns:
            return Noisy(np.zeros((0, cells)), 0.0)
        deviation = self._multiplier(share) * math.sqrt(columns)
        inside = (codes >= 0) & (codes < cells)
        places = (codes + cells * np.arange(columns))[inside]
        counts = torch.from_numpy(np.bincount(places, minlength=columns * cells).astype(np.float64))
        add_noise([counts], deviation, self._randomness, 1.0)
        return Noisy(counts.numpy().reshape(columns, cells), deviation)

    def _multiplier(self, share: float) -> float:
        """Take a share, and return the noise multiplier of a part that has it."""
        check_number("(0, 1]", share=share)
        if share > self._left + 1e-9:
            raise SettingError(f"share={share:g}, but only {self._left:g} of this release is left.")
        self._left -= share
        return self.event.noise / math.sqrt(share)


def private_counts(codes: Codes, cells: int, *, noise_multiplier: float, randomness: Randomness) -> Floats:
    """Counts of each class or group with noise, at least 0.

    Formal guarantee: one row, added or removed, changes one count by 1, so this is a Gaussian mechanism of
    this noise multiplier, without sampling. Charge `Event(1.0, noise_multiplier)` before; n is public,
    and so is the number of cells.

    Args:
        codes: [n], in [0, cells). Others count nowhere.
        cells: number of classes or groups, also those that no row is in.
        noise_multiplier: standard deviation of the noise, > 0.
        randomness: source of the noise.

    Returns:
        [cells].

    Raises:
        DataError: codes of more than one dimension: one row would count several times.

    >>> from equidp.kernel.noise import SeededRandomness
    >>> codes = np.repeat([0, 1], [900, 100])
    >>> private_counts(codes, 2, noise_multiplier=5.0, randomness=SeededRandomness(0)).round()
    array([895., 104.])
    """
    check_whole(1, cells=cells)
    _check_one_each("codes", codes)
    release = Release(noise_multiplier, randomness)
    released = release.counts(codes.reshape(-1, 1), cells=cells, share=1.0)
    counts: Floats = released.values[0].clip(min=0.0)
    return counts


def private_quantile(
    values: Floats,
    quantile: float,
    *,
    low: float,
    high: float,
    noise_multiplier: float,
    randomness: Randomness,
) -> float:
    """A number above about this share of the values, such as a threshold on a model's scores.

    It halves the range 16 times, by noisy counts of values up to the middle. Each count is off by noise of
    standard deviation 4 sigma. This is the number of rows by which the share is off.

    Formal guarantee: one row, added or removed, changes each count by at most 1. All counts together are
    therefore a Gaussian mechanism of this noise multiplier, without sampling. Charge `Event(1.0,
    noise_multiplier)` before. A model that computed the values must also be charged for.

    | case | outcome |
    | --- | --- |
    | values outside [low, high], infinite | count as below or above everything |
    | NaN | counts as above everything |
    | no values | a number that only noise decides |

    Args:
        values: [n]; n is public.
        quantile: quantile in (0, 1).
        low, high: public range.
        noise_multiplier: sigma of all counts together, > 0.
        randomness: source of the noise.

    Raises:
        SettingError: a number outside its range.
        DataError: values of more than one dimension: one row would count several times.

    >>> from equidp.kernel.noise import SeededRandomness
    >>> scores = np.linspace(0.0, 1.0, 10_001)
    >>> given = {"low": 0.0, "high": 1.0, "noise_multiplier": 5.0, "randomness": SeededRandomness(0)}
    >>> round(private_quantile(scores, 0.9, **given), 2)
    0.9
    """
    check_number("(0, 1)", quantile=quantile)
    if not (low < high and math.isfinite(high - low)):
        raise SettingError(f"low={low:g} and high={high:g}; expected finite numbers, low < high.")
    _check_one_each("values", values)
    release = Release(noise_multiplier, randomness)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        below = np.where(values <= middle, 0, -1).reshape(-1, 1)
        count = release.counts(below, cells=1, share=1 / _HALVINGS).values[0, 0]
        low, high = (low, middle) if count >= quantile * len(values) else (middle, high)
    return (low + high) / 2


def _check_one_each(name: str, numbers: npt.NDArray[np.generic]) -> None:
    """Raise unless each row has one number, as the sensitivity of a single count takes for granted."""
    if numbers.ndim != 1:
        raise DataError(
            f"{name} has shape {list(numbers.shape)}; expected one number for each row, [n].", field=name
        )
