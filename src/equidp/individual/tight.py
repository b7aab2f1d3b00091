"""Epsilons of many histories at once from their privacy loss distributions, by characteristic functions.

A history's privacy loss is a sum of independent losses, one per step. Its characteristic function is
therefore a product of powers of the few functions of the grid's shares. This needs one matrix product for all
examples, and then one inverse Fourier transform for each. (Characteristic functions for composition: Zhu et
al. 2022; here for histories that differ.)

Formal guarantee: every result is an upper bound on epsilon. Each error below can only raise it, or is
subtracted from delta before solving:

- Window: a history's loss leaves a window around its mean with probability at most 1e-4 delta (Chernoff).
  Mass that leaves it below counts as if it were above.
- Smoothing: each history is composed with one more Gaussian mechanism, with a noise multiplier so large that
  it adds about 0.1% to epsilon. Its characteristic function decays so fast that the frequencies left out
  weigh less than 1e-13. A history of many steps decays faster by itself. Frequencies beyond the last at
  which it is above 1e-16 are left out too, and weigh less than 1e-14 (the k-th weighs at most 2/k of its
  size).
- Rounding: at most 2^-46 a step.

Between two points of the transform's grid, delta is at most the chord in e^epsilon, since it is convex in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Complexes = npt.NDArray[np.complex128]

_ROOT = 32
_FREQUENCIES = _ROOT**2  # multiples 0, 1, ... of the window's fundamental frequency
_NEGLIGIBLE = (
    math.log(1e-16) - 1
)  # size of a frequency that is left out; 1 is more than single precision errs
_FEWEST = 32  # frequencies used; other numbers are powers of two
_FEWEST_POINTS = 256  # of the grid that delta is computed on; otherwise twice as many as frequencies
_SMOOTHING = 1 / 400  # standard deviation of the added mechanism's loss, in half windows
_TAIL_SHARE = 1e-4  # share of delta that may lie outside the window
_ROUNDING = 2.0**-46
_TRUNCATION = 1.1e-13
_PROFILE_DELTA = 1e-4  # decides the windows of whole profiles
_REACH = 12.0  # standard deviations of the Gaussians beyond which the mass is negligible
_TILTS = np.geomspace(0.05, 1e5, 60)  # exponents of Chernoff's bound
_FARTHEST_TILT = 28.0  # standard deviations; a farther tilted integral would leave its grid
_LARGEST_MEAN = 100.0
_BLOCK = 4096  # histories transformed at a time


def tight_epsilons(
    counts: npt.NDArray[np.uint32], means: Floats, sample_rate: float | Floats, delta: float
) -> Floats:
    """Return epsilon of each history of Poisson-subsampled Gaussian mechanisms, an upper bound, [n].

    Args:
        counts: how many steps each example spent at each mechanism, [n, mechanisms].
        means: 1 / noise multiplier of each mechanism, >= 0. Infinite: no noise.
        sample_rate: q in (0, 1], of all mechanisms or of each.
        delta: delta in (0, 1).

    Returns:
        The larger of both directions, one example added or removed. Infinite if delta is within the error
        bound above, or if a mechanism has almost no noise (mean above 100).
    """
    distinct, inverse = _distinct_rows(counts)
    epsilons = np.zeros(len(distinct))
    for removing in (True, False):
        for rows, window in _windows(distinct, means, sample_rate, removing, delta):
            epsilons[rows] = np.maximum(epsilons[rows], window.epsilons(delta))
    epsilons[_noiseless(distinct, means)] = np.inf
    return epsilons[inverse]


def _distinct_rows(counts: npt.NDArray[np.uint32]) -> tuple[npt.NDArray[np.uint32], Integers]:
    """Return the rows that differ, and which of them each row is.

    Sorts a hash of each row, twenty times faster than rows, and compares rows with what they were taken for.
    """
    multipliers = np.random.default_rng(0).integers(2**64, size=counts.shape[1], dtype=np.uint64) | 1
    hashes = counts.astype(np.uint64) @ multipliers
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    if not np.array_equal(counts[first[inverse]], counts):
        distinct, inverse = np.unique(counts, axis=0, return_inverse=True)
        return distinct, inverse.reshape(-1)
    return counts[first], inverse


def tight_profiles(
    counts: npt.NDArray[np.uint32], means: Floats, sample_rate: float | Floats, epsilons: Floats
) -> Floats:
    """Return delta of each history at each epsilon, an upper bound, [n, epsilons].

    Args:
        counts, means, sample_rate: as in `tight_epsilons`.
        epsilons: >= 0, [epsilons].

    Returns:
        The larger of both directions, or 1 if a mechanism has almost no noise (mean above 100).
    """
    deltas = np.zeros((len(counts), len(epsilons)))
    for removing in (True, False):
        for rows, window in _windows(counts, means, sample_rate, removing, _PROFILE_DELTA):
            deltas[rows] = np.maximum(deltas[rows], window.deltas_at(epsilons))
    deltas[_noiseless(counts, means)] = 1.0
    return deltas


def _noiseless(counts: npt.NDArray[np.uint32], means: Floats) -> npt.NDArray[np.bool_]:
    return np.asarray((counts[:, means > _LARGEST_MEAN] > 0).any(axis=1))


class _Window(NamedTuple):
    """Deltas of histories around their mean losses.

    Attributes:
        deltas: deltas at equidistant epsilons, from the mean loss - half to the mean loss + half, [n,
            points].
        centres: mean losses, [n].
        slack: how far the true delta may be above, [n].
        half: half the window's width.
    """

    deltas: Floats
    centres: Floats
    slack: Floats
    half: float

    def epsilons(self, delta: float) -> Floats:
        """Return epsilon of each history, [n], or infinite if delta is within the slack."""
        target = delta - self.slack
        found = np.maximum(self.centres + _find_crossings(self.deltas, target, self.half), 0.0)
        return np.where(target > 0, found, np.inf)

    def deltas_at(self, epsilons: Floats) -> Floats:
        """Return delta of each history at each epsilon, [n, epsilons]: chords in e^epsilon."""
        points = self.deltas.shape[1]
        step = 2 * self.half / points
        places = epsilons - self.centres[:, None] + self.half
        before = np.floor(places / step).clip(0, points - 2).astype(np.int64)
        share = np.expm1((places - before * step).clip(0.0, step)) / math.expm1(step)
        start, end = (np.take_along_axis(self.deltas, at, axis=1) for at in (before, before + 1))
        found = np.where(places < 0, 1.0, start + share * (end - start))
        return np.asarray(np.clip(found + self.slack[:, None], 0.0, 1.0))


def _windows(
    counts: npt.NDArray[np.uint32], means: Floats, sample_rate: float | Floats, removing: bool, delta: float
) -> Iterator[tuple[Integers, _Window]]:
    """Yield indices of histories, each once, and a window that contains all but a share of delta.

    Leaves out histories without a loss, and those with a mechanism of almost no noise.
    """
    used = (counts > 0).any(axis=0) & (means > 0) & (means <= _LARGEST_MEAN)
    rest = np.flatnonzero((counts[:, used] > 0).any(axis=1) & ~_noiseless(counts, means))
    if not len(rest):
        return
    counts, rates = counts[:, used], np.broadcast_to(sample_rate, means.shape)[used]
    mechanisms = [(float(mean), float(rate)) for mean, rate in zip(means[used], rates, strict=True)]
    scales = np.ceil(np.log2(_half_widths(counts[rest].astype(np.float64), mechanisms, removing, delta)))
    for scale in np.unique(scales):
        here = rest[scales == scale]
        some = np.flatnonzero((counts[here] > 0).any(axis=0))
        laws = [_characteristic(*mechanisms[k], removing, 2.0**scale) for k in some]
        averages, logs = np.array([average for average, _ in laws]), np.stack([log for _, log in laws])
        numbers = _numbers_of_frequencies(counts, here, some, logs)
        for number in np.unique(numbers):
            for block in _blocks(here[numbers == number]):
                spent = counts[np.ix_(block, some)].astype(np.float64)
                yield block, _make_window(spent, averages, logs[:, :number], 2.0**scale, delta)


def _numbers_of_frequencies(
    counts: npt.NDArray[np.uint32], rows: Integers, columns: Integers, logs: Complexes
) -> Integers:
    """Return how many frequencies of each of these histories weigh anything, up to a power of two."""
    sizes = logs.real.astype(np.float32)
    added = (_SMOOTHING * math.pi * np.arange(_FREQUENCIES, dtype=np.float32)) ** 2 / 2
    last = [
        _FREQUENCIES - ((spent @ sizes - added)[:, ::-1] > _NEGLIGIBLE).argmax(axis=1)
        for spent in (counts[np.ix_(block, columns)].astype(np.float32) for block in _blocks(rows))
    ]
    return np.asarray(np.maximum(2 ** np.ceil(np.log2(np.concatenate(last))).astype(np.int64), _FEWEST))


def _blocks(rows: Integers) -> Iterator[Integers]:
    return (rows[start : start + _BLOCK] for start in range(0, len(rows), _BLOCK))


def _half_widths(
    counts: Floats, mechanisms: list[tuple[float, float]], removing: bool, delta: float
) -> Floats:
    """Return half the width of each history's window around its mean loss, [n]."""
    bounds = []
    for cumulants in np.stack([_cumulants(*mechanism, removing) for mechanism in mechanisms], axis=1):
        finite = np.isfinite(cumulants)
        sums = counts @ np.where(finite, cumulants, 0.0) - math.log(_TAIL_SHARE * delta)
        if not finite.all():
            sums[counts @ (~finite).astype(np.float64) > 0] = np.inf
        bounds.append((sums / _TILTS).min(axis=1))
    # 5% more holds at least ten standard deviations of the added mechanism.
    return np.asarray(1.05 * np.maximum(*bounds))


def _make_window(counts: Floats, averages: Floats, logs: Complexes, half: float, delta: float) -> _Window:
    """Return the window of histories whose losses leave it with at most a share of delta."""
    smoothing = _SMOOTHING * half
    omega: Floats = np.arange(logs.shape[1], dtype=np.float64) * (math.pi / half)
    spectra = np.exp(counts @ logs - (smoothing * omega) ** 2 / 2)
    spectra[:, 1::2] *= -1.0  # shifts the origin to the window's start, -half
    slack = _TAIL_SHARE * delta + counts.sum(axis=1) * _ROUNDING + _TRUNCATION
    return _Window(_deltas(spectra, omega, half), counts @ averages + smoothing**2 / 2, slack, half)


def _deltas(spectra: Complexes, omega: Floats, half: float) -> Floats:
    """Return E max(0, 1 - e^(x - Y)) at equidistant x, from -half, of each spectrum's law of Y."""
    number = max(_FEWEST_POINTS, 2 * len(omega))
    points = np.arange(number) * (2 * half / number) - half
    left = np.exp(points - half)
    constant = (half - points) - (1 - left)  # the coefficient at frequency 0
    imaginary = 1j * omega[1:]
    coefficients = np.zeros((len(spectra), number // 2 + 1), dtype=np.complex128)
    coefficients[:, 1 : len(omega)] = spectra[:, 1:].conj() / (imaginary * (1 + imaginary)).conj()
    moving = np.fft.irfft(coefficients, n=number, axis=1) * number
    ends = 2 * np.stack(
        [(spectra[:, 1:] @ (1 / imaginary)).real, (spectra[:, 1:] @ (1 / (1 + imaginary))).real], axis=1
    )
    return np.asarray((constant + moving - ends[:, :1] + ends[:, 1:] * left) / (2 * half))


def _find_crossings(deltas: Floats, target: Floats, half: float) -> Floats:
    """Return the place on the grid of `_deltas` where each row falls to its target, [n]."""
    points = deltas.shape[1]
    falls = (deltas <= target[:, None]).argmax(axis=1)  # first place that is not above; 0: there is none
    above = np.where(falls > 0, falls - 1, np.where(deltas[:, 0] > target, points - 1, 0))
    after = np.minimum(above + 1, points - 1)
    rows = np.arange(len(deltas))
    high, low = deltas[rows, above], deltas[rows, after]
    share = np.divide(high - target, high - low, out=np.ones(len(deltas)), where=high > low).clip(0.0, 1.0)
    step = 2 * half / points
    return np.asarray(above * step - half + np.log1p(share * math.expm1(step)))


def _law(
    mean: float, sample_rate: float, removing: bool, width: float, points: int
) -> tuple[Floats, Floats, float]:
    """Return one step's losses and log probabilities at equidistant outputs, [points], and the mean loss."""
    outputs = np.linspace(-width, width + mean, points)
    logs, losses = -(outputs**2) / 2, mean * outputs - mean**2 / 2
    if sample_rate < 1:
        losses = np.logaddexp(math.log1p(-sample_rate), math.log(sample_rate) + losses)
    # Removing an example: log(P / Q) under P, the mixture; adding one: log(Q / P) under Q.
    logs, losses = (logs + losses, losses) if removing else (logs, -losses)
    logs -= logsumexp(logs)
    return losses, logs, float(np.exp(logs) @ losses)


@lru_cache(maxsize=1024)
def _cumulants(mean: float, sample_rate: float, removing: bool) -> Floats:
    """Return log E e^(+-tilt (loss - average)), [2, tilts], or infinite if it cannot be computed."""
    losses, logs, average = _law(mean, sample_rate, removing, 40.0, 4001)
    known = _TILTS * mean <= _FARTHEST_TILT
    cumulants = np.full((2, len(_TILTS)), np.inf)
    for row, sign in zip(cumulants, (1.0, -1.0), strict=True):
        row[known] = logsumexp(logs + sign * _TILTS[known, None] * (losses - average), axis=1)
    return cumulants


@lru_cache(maxsize=4096)
def _characteristic(mean: float, sample_rate: float, removing: bool, half: float) -> tuple[float, Complexes]:
    """Return one step's average loss, and log E e^(i omega (loss - average)), [frequencies]."""
    first = math.pi / half
    # With at most half an oscillation between two points, the trapezoidal rule's error is below rounding.
    points = math.ceil((2 * _REACH + mean) * (20.0 + _FREQUENCIES * first * mean) / math.pi) + 1
    losses, weights, average = _law(mean, sample_rate, removing, _REACH, points)
    fine = _powers(np.exp(1j * first * (losses - average)))
    coarse = _powers(np.exp(1j * first * _ROOT * (losses - average)))
    values = ((coarse * np.exp(weights)) @ fine.T).reshape(-1)
    values[0] = 1.0
    return average, np.log(np.where(values == 0, 1e-300, values))


def _powers(base: Complexes) -> Complexes:
    """Return powers 0 to `_ROOT` - 1 of each number, [powers, numbers]."""
    powers = np.ones((_ROOT, len(base)), dtype=np.complex128)
    done = 1
    while done < _ROOT:
        powers[done : 2 * done] = powers[:done] * base
        base, done = base * base, 2 * done
    return powers
