"""What privacy each example had: the share of the sensitivity it used in every step, and what that adds up to (Yu et al.)."""

from __future__ import annotations

import math
import tempfile
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from equidp.accounting.epsilon import checked_delta, renyi_divergences
from equidp.errors import SettingError
from equidp.ledger import StepEvent

Floats = npt.NDArray[np.float64]

_CHUNK = 2**16  # examples whose divergences are held at a time


class Histories:
    """How many steps each example spent at each value of a grid of shares of the sensitivity.

    An example's share z = weight * norm / S of one step is in [0, 1]; it is rounded up to a multiple of the grid's width, so that
    what follows is an upper bound for the shares that were given.

    Args:
        num_examples: n.
        grid: width r of the grid, in (0, 1].
        memory_limit: bytes; a table larger than this is kept in a temporary file.

    Attributes:
        shares: the grid's values, [cells], from 0 to 1.
        counts: steps of each example at each of them, [n, cells].
    """

    def __init__(self, num_examples: int, grid: float = 0.01, *, memory_limit: int = 2**30) -> None:
        if not 0 < grid <= 1:
            raise SettingError(f"grid={grid}; expected a width in (0, 1], such as 0.01.")
        self.grid = grid
        cells = math.ceil(1 / grid - 1e-9)
        self.shares: Floats = np.minimum(np.arange(cells + 1) * grid, 1.0)
        shape = (num_examples, cells + 1)
        if 4 * math.prod(shape) <= memory_limit:
            self.counts = np.zeros(shape, dtype=np.uint32)
        else:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 -- lives as long as the table does
            self.counts = np.memmap(self._file, dtype=np.uint32, mode="w+", shape=shape)

    def cells(self, shares: Floats) -> npt.NDArray[np.int64]:
        """Cell of each share [n], rounded up; a share that is not a number counts as 1."""
        bounded = np.nan_to_num(shares, nan=1.0, posinf=1.0).clip(0.0, 1.0)
        return np.searchsorted(self.shares, bounded)

    def add(self, cells: npt.NDArray[np.int64], steps: int = 1) -> None:
        """Records `steps` steps at these cells, [n]."""
        self.counts[np.arange(len(cells)), cells] += np.uint32(steps)


def own_noise_multiplier(event: StepEvent, share: float) -> float:
    """(share^2 / sigma^2 + 1 / sigma_s^2)^(-1/2): noise beside what an example contributes that uses this share of the sensitivity.

    Its row of statistics, where any are read, counts in full.
    """
    statistics = 0.0 if event.statistics_noise is None else event.statistics_noise**-2
    inverse = share**2 / event.noise_multiplier**2 + statistics
    return inverse**-0.5 if inverse else math.inf


def individual_epsilons(histories: Histories, event: StepEvent, delta: float) -> Floats:
    """Epsilon of each example over the steps in its history, by Renyi accounting, [n].

    Args:
        histories: of a run whose steps were all `event`.
        event: what one step is for an example that uses all of the sensitivity.
        delta: in (0, 1).

    Returns:
        min over orders of the conversion that dp_accounting uses (Canonne et al. 2020, Proposition 12), of the summed divergences.
    """
    orders, table = _divergence_table(event, tuple(histories.shares))
    checked_delta(delta)
    return np.concatenate(
        [
            _converted(orders, _summed(histories.counts[start : start + _CHUNK], table), delta)
            for start in range(0, len(histories.counts), _CHUNK)
        ]
    )


@lru_cache(maxsize=16)
def _divergence_table(event: StepEvent, shares: tuple[float, ...]) -> tuple[Floats, Floats]:
    """Orders [orders], and one step's Renyi divergence for each share, [cells, orders]."""
    orders, _ = renyi_divergences(event)
    rows = []
    for share in shares:
        noise = own_noise_multiplier(event, share)
        spent = not math.isinf(noise)
        rows.append(
            renyi_divergences(StepEvent(event.sample_rate, noise))[1] if spent else np.zeros_like(orders)
        )
    return orders, np.stack(rows)


def _summed(counts: npt.NDArray[np.uint32], table: Floats) -> Floats:
    """[n, orders]; a divergence that is infinite counts only where it occurred."""
    finite = np.isfinite(table)
    sums = counts.astype(np.float64) @ np.where(finite, table, 0.0)
    if not finite.all():
        sums[(counts.astype(np.float64) @ (~finite).astype(np.float64)) > 0] = np.inf
    return sums


def _converted(orders: Floats, divergences: Floats, delta: float) -> Floats:
    """Epsilon [n] from divergences [n, orders], as dp_accounting.rdp.compute_epsilon does it for one example."""
    with np.errstate(invalid="ignore"):
        epsilons = divergences + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    epsilons = np.where(orders > 1.01, epsilons, np.inf)
    epsilons = np.where(delta**2 + np.expm1(-divergences) > 0, 0.0, epsilons)
    smallest: Floats = epsilons.min(axis=1).clip(min=0.0)
    return smallest
