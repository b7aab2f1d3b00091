"""Family of the claimed mechanism with more or less noise."""

from __future__ import annotations

import math
from functools import cached_property, lru_cache
from typing import Any, final

import numpy as np
import numpy.typing as npt
from dp_accounting import get_epsilon_gaussian
from dp_accounting.pld import PLDAccountant
from scipy.special import ndtr, ndtri

from equidp.errors import SettingError
from equidp.kernel.epsilon import epsilon
from equidp.kernel.events import Entries, effective_noise_multiplier, run_event
from equidp.kernel.ledger import StepEvent

Floats = npt.NDArray[np.float64]

_LOSSES = np.concatenate([[0.0], np.geomspace(1e-3, 60.0, 250)])
"""Epsilons of the tangents that a trade-off curve is made of."""
_FAINT = 0.1


@final
class NoiseFamily:
    """Mechanisms that differ from the claimed mechanism in the scale of their noise alone.

    Lower bounds by a family assume that the mechanism is a member: Poisson samples at the claimed rates,
    Gaussian noise on gradients and statistics. A mechanism outside, such as one that releases a sum without
    noise, is judged by the member that it resembles.

    Trade-off curves are exact where every step takes all examples (one Gaussian mechanism), else from privacy
    loss distributions, rounded towards more loss, the worse of both directions.

    Args:
        entries: (event, number of steps) pairs of the claim.

    Raises:
        SettingError: no steps, or steps without noise, which claim no privacy.

    >>> family = NoiseFamily([(StepEvent(1.0, 1.0), 1)])
    >>> round(float(family.reach(1.0, 0.01)), 4)  # mu = 1
    0.0924
    """

    def __init__(self, entries: Entries) -> None:
        given = tuple(entries)
        self.entries = tuple((event, steps) for event, steps in given if isinstance(event, StepEvent))
        if len(self.entries) < len(given):
            raise SettingError("a private choice has no family of noises; audit a run without one.")
        if not self.entries or any(_sigma(event) == 0 for event, _ in self.entries):
            raise SettingError("steps without noise claim no privacy; there is nothing to audit.")

    @cached_property
    def mu(self) -> float | None:
        """mu of the family's Gaussian mechanism: sqrt(sum of 1 / sigma^2); None where steps sample."""
        if any(event.sample_rate != 1 for event, _ in self.entries):
            return None
        return math.sqrt(sum(steps / _sigma(event) ** 2 for event, steps in self.entries))

    def reach(self, scale: float, rate: float | Floats) -> Floats:
        """Return the largest true-positive rate of any test at a false-positive rate, under scaled noise."""
        rate = np.asarray(rate, dtype=np.float64)
        if self.mu is not None:
            return np.asarray(ndtr(ndtri(rate) + self.mu / scale))
        deltas, rates = _deltas(self._scale_entries(scale)), rate[..., np.newaxis]
        over = np.exp(_LOSSES) * rates + deltas
        under = 1 - np.exp(-_LOSSES) * np.maximum(0.0, 1 - deltas - rates)
        return np.asarray(np.minimum(np.minimum(over, under).min(axis=-1), 1.0))

    def least(self, scale: float, rate: float) -> float:
        """Return the least false-positive rate of any test at a true-positive rate, under scaled noise."""
        return 1 - float(self.reach(scale, 1 - rate))

    def epsilon(self, scale: float, delta: float) -> float:
        """Return epsilon under noise times `scale`."""
        if self.mu is not None:
            return float(get_epsilon_gaussian(scale / self.mu, delta))
        return epsilon(self._scale_entries(scale), delta)

    @property
    def precision(self) -> float:
        """Relative distance below which two scales count as equal."""
        return 5e-3 if self.mu is None else 1e-5

    @property
    def smallest(self) -> float:
        """Scale at which a step's noise is a tenth of its sensitivity, and epsilon too large to compute."""
        return _FAINT / min(_sigma(event) for event, _ in self.entries)

    def _scale_entries(self, scale: float) -> tuple[tuple[StepEvent, int], ...]:
        return tuple((_times(event, scale), steps) for event, steps in self.entries)


def _sigma(event: StepEvent) -> float:
    return effective_noise_multiplier(event.noise_multiplier, event.statistics_noise)


def _times(event: StepEvent, scale: float) -> StepEvent:
    statistics = event.statistics_noise
    return StepEvent(
        event.sample_rate, event.noise_multiplier * scale, None if statistics is None else statistics * scale
    )


@lru_cache(maxsize=256)
def _deltas(entries: tuple[tuple[StepEvent, int], ...]) -> Any:
    """Delta at each of `_LOSSES`."""
    width = 5e-3 * max(1.0, 0.25 * max(_sigma(event) ** -2 for event, _ in entries))
    accountant = PLDAccountant(value_discretization_interval=width)
    return np.asarray(accountant.compose(run_event(entries)).get_delta(_LOSSES), dtype=np.float64)
