"""Epsilons of many histories at once from their privacy loss distributions, by characteristic functions.

A history's privacy loss is a sum of independent losses, one a step, so its characteristic function is a product of powers of the
few that its grid values have: one matrix product for all examples, then one inverse transform for each. (Characteristic functions
for composition: Zhu et al. 2022; here for histories that differ between examples.)

Everything is an upper bound. Added to delta, which is lowered by as much before it is solved for:

- A history's loss is taken on a window around its mean that it leaves with probability at most 1e-4 delta (Chernoff's bound). What
  leaves it below is counted as if it were above.
- Each history is composed with one more Gaussian mechanism, of a noise multiplier so large that it adds about 0.1% to epsilon. Its
  characteristic function falls so fast that the frequencies left out weigh less than 1e-13.
- Rounding: at most 2^-46 a step.

Between two points of the transform's grid, delta is at most the chord in e^epsilon, since it is convex there.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

Floats = npt.NDArray[np.float64]
Complexes = npt.NDArray[np.complex128]

_ROOT = 32
_FREQUENCIES = _ROOT**2  # frequencies 0, 1, ... of the window's length
_POINTS = 2 * _FREQUENCIES  # of the grid that delta is worked out on
_SMOOTHING = 1 / 400  # standard deviation of the added mechanism's loss, in half windows
_LEAVES = 1e-4  # share of delta that the window's tails may have
_ROUNDING = 2.0**-46
_TRUNCATION = 1e-13
_REACH = 12.0  # standard deviations of the Gaussians beyond which there is no mass to speak of
_TILTS = np.geomspace(0.05, 1e5, 60)  # exponents of Chernoff's bound
_FARTHEST_TILT = (
    28.0  # in standard deviations; a tilted integral beyond would leave the range it is worked out on
)
_LARGEST_MEAN = 100.0
_BLOCK = 4096  # histories transformed at a time


def tight_epsilons(counts: npt.NDArray[np.uint32], means: Floats, sample_rate: float, delta: float) -> Floats:
    """Epsilon of each history of Poisson-subsampled Gaussian mechanisms, an upper bound, [n].

    Args:
        counts: how many steps each example spent at each mechanism, [n, mechanisms].
        means: 1 / noise multiplier of each mechanism, >= 0; infinite: no noise.
        sample_rate: q in (0, 1].
        delta: in (0, 1).

    Returns:
        The larger of both directions, one example added or removed; infinite where delta is within the error bound above, or where
        a mechanism has next to no noise.
    """
    distinct, places = np.unique(counts, axis=0, return_inverse=True)
    used = (distinct > 0).any(axis=0) & (means > 0)
    epsilons = np.zeros(len(distinct))
    if used.any():
        for removing in (True, False):
            part = _one_direction(distinct[:, used], tuple(means[used]), sample_rate, removing, delta)
            epsilons = np.maximum(epsilons, part)
    inverse: Floats = epsilons[places.reshape(-1)]
    return inverse


def _one_direction(
    counts: npt.NDArray[np.uint32], means: tuple[float, ...], sample_rate: float, removing: bool, delta: float
) -> Floats:
    epsilons = np.zeros(len(counts))
    hopeless = np.asarray(means) > _LARGEST_MEAN
    epsilons[(counts[:, hopeless] > 0).any(axis=1)] = np.inf
    counts, means = counts[:, ~hopeless], tuple(np.asarray(means)[~hopeless])
    rest = np.flatnonzero((counts > 0).any(axis=1) & (epsilons == 0))
    if not len(rest):
        return epsilons
    widths = _half_widths(counts[rest].astype(np.float64), means, sample_rate, removing, delta)
    scales = np.ceil(np.log2(widths))
    for scale in np.unique(scales):
        here = rest[scales == scale]
        used = np.flatnonzero((counts[here] > 0).any(axis=0))
        laws = [_characteristic(means[k], sample_rate, removing, 2.0**scale) for k in used]
        averages, logs = np.array([average for average, _ in laws]), np.stack([log for _, log in laws])
        for start in range(0, len(here), _BLOCK):
            block = here[start : start + _BLOCK]
            epsilons[block] = _on_window(
                counts[np.ix_(block, used)].astype(np.float64), averages, logs, 2.0**scale, delta
            )
    return epsilons


def _half_widths(
    counts: Floats, means: tuple[float, ...], sample_rate: float, removing: bool, delta: float
) -> Floats:
    """How far from its mean a history's loss gets, either way, but for `_LEAVES` of delta; [n]."""
    bounds = []
    for cumulants in np.stack([_cumulants(mean, sample_rate, removing) for mean in means], axis=1):
        finite = np.isfinite(cumulants)
        sums = counts @ np.where(finite, cumulants, 0.0) - math.log(_LEAVES * delta)
        sums[counts @ (~finite).astype(np.float64) > 0] = np.inf
        bounds.append((sums / _TILTS).min(axis=1))
    # A little more, for the added mechanism: ten of its standard deviations or more.
    widest: Floats = 1.05 * np.maximum(*bounds)
    return widest


def _on_window(counts: Floats, averages: Floats, logs: Complexes, half: float, delta: float) -> Floats:
    """Epsilon of each history whose loss stays within `half` of its mean; [n]."""
    smoothing = _SMOOTHING * half
    omega: Floats = np.arange(_FREQUENCIES, dtype=np.float64) * (math.pi / half)
    spectra = np.exp(counts @ logs - (smoothing * omega) ** 2 / 2)
    spectra[:, 1::2] *= -1.0  # the window begins at -half
    deltas = _deltas(spectra, omega, half)
    target = delta * (1 - _LEAVES) - counts.sum(axis=1) * _ROUNDING - _TRUNCATION
    centres = counts @ averages + smoothing**2 / 2
    return np.where(target > 0, np.maximum(centres + _solved(deltas, target, half), 0.0), np.inf)


def _deltas(spectra: Complexes, omega: Floats, half: float) -> Floats:
    """E (1 - e^(x - Y))_+ at `_POINTS` values of x from -half on, for the law of Y that each row of Fourier coefficients has."""
    points = np.arange(_POINTS) * (2 * half / _POINTS) - half
    left = np.exp(points - half)
    flat = (half - points) - (1 - left)  # the coefficient at frequency 0
    turning = 1j * omega[1:]
    coefficients = np.zeros((len(spectra), _FREQUENCIES + 1), dtype=np.complex128)
    coefficients[:, 1:-1] = spectra[:, 1:] / (turning * (1 + turning))
    moving = np.fft.irfft(coefficients.conj(), n=_POINTS, axis=1) * _POINTS
    ends = 2 * np.stack(
        [(spectra[:, 1:] @ (1 / turning)).real, (spectra[:, 1:] @ (1 / (1 + turning))).real], axis=1
    )
    result: Floats = (flat + moving - ends[:, :1] + ends[:, 1:] * left) / (2 * half)
    return result


def _solved(deltas: Floats, target: Floats, half: float) -> Floats:
    """Where each row, on the grid of `_deltas`, comes down to its target."""
    above = np.maximum((deltas > target[:, None]).cumprod(axis=1).sum(axis=1) - 1, 0)
    after = np.minimum(above + 1, _POINTS - 1)
    rows = np.arange(len(deltas))
    high, low = deltas[rows, above], deltas[rows, after]
    share = np.divide(high - target, high - low, out=np.ones(len(deltas)), where=high > low).clip(0.0, 1.0)
    step = 2 * half / _POINTS
    solved: Floats = above * step - half + np.log1p(share * math.expm1(step))
    return solved


def _losses(mean: float, sample_rate: float, width: float, points: int) -> tuple[Floats, Floats]:
    """A standard Gaussian's log densities, up to a constant, and the losses, at equidistant points, [points]."""
    places = np.linspace(-width, width + mean, points)
    densities = -(places**2) / 2
    exponents = mean * places - mean**2 / 2
    if sample_rate == 1:
        return densities, exponents
    return densities, np.logaddexp(math.log1p(-sample_rate), math.log(sample_rate) + exponents)


def _law(
    mean: float, sample_rate: float, removing: bool, width: float, points: int
) -> tuple[Floats, Floats, float]:
    """One step's losses, their log probabilities, and the mean loss."""
    densities, losses = _losses(mean, sample_rate, width, points)
    # Removing an example: log(P / Q) under P, the mixture; adding one: log(Q / P) under Q.
    logs, losses = (densities + losses, losses) if removing else (densities, -losses)
    logs -= logsumexp(logs)
    return losses, logs, float(np.exp(logs) @ losses)


@lru_cache(maxsize=1024)
def _cumulants(mean: float, sample_rate: float, removing: bool) -> Floats:
    """log E e^(tilt (loss - average)) for every tilt, upwards and downwards, [2, tilts]; infinite where it is not known."""
    losses, logs, average = _law(mean, sample_rate, removing, 40.0, 4001)
    known = _TILTS * mean <= _FARTHEST_TILT
    cumulants = np.full((2, len(_TILTS)), np.inf)
    for row, sign in zip(cumulants, (1.0, -1.0), strict=True):
        row[known] = logsumexp(logs + sign * _TILTS[known, None] * (losses - average), axis=1)
    return cumulants


@lru_cache(maxsize=4096)
def _characteristic(mean: float, sample_rate: float, removing: bool, half: float) -> tuple[float, Complexes]:
    """One step's average loss, and log E e^(i omega (loss - average)), [frequencies]."""
    first = math.pi / half
    # The integrand turns by at most half a circle between two points: the trapezoidal rule's error is then below rounding.
    points = math.ceil((2 * _REACH + mean) * (20.0 + _FREQUENCIES * first * mean) / math.pi) + 1
    losses, weights, average = _law(mean, sample_rate, removing, _REACH, points)
    fine = _powers(np.exp(1j * first * (losses - average)))
    coarse = _powers(np.exp(1j * first * _ROOT * (losses - average)))
    values = ((coarse * np.exp(weights)) @ fine.T).reshape(-1)
    values[0] = 1.0
    return average, np.log(np.where(values == 0, 1e-300, values))


def _powers(base: Complexes) -> Complexes:
    """Powers 0 to `_ROOT` - 1 of each number, [powers, numbers]."""
    powers = np.ones((_ROOT, len(base)), dtype=np.complex128)
    done = 1
    while done < _ROOT:
        powers[done : 2 * done] = powers[:done] * base
        base, done = base * base, 2 * done
    return powers
