"""A study of what individual epsilons cost to compute (Yu et al. 2023, Table 1), with made-up norms."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import final

import numpy as np
import pandas as pd
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant

from equidp.data.dataset import ALL
from equidp.individual.epsilons import individual_epsilons
from equidp.individual.histories import Histories
from equidp.kernel.ledger import StepEvent
from papers.reproduction.item import COLUMNS, Request

_TIMED = 20
"""Computations without rounding that are timed; all are as long."""
_DELTA = 1e-5


@final
@dataclass(frozen=True)
class AccountingCosts:
    """Renyi divergences that the epsilons of all examples take, and their time, rounded and not.

    Attributes:
        hours: about how long one seed takes on one core.
        examples: n; of CIFAR-10.
        passes: times that all norms are taken; these give the paper's ten million computations.
        steps: between two passes.
        batch_size, noise_multiplier: of a step.
        data: none is read.
        label: what rows call it.
    """

    hours: float = 0.002
    examples: int = 50_000
    passes: int = 200
    steps: int = 12
    batch_size: int = 4096
    noise_multiplier: float = 3.0
    data: str = ""
    label: str = "CIFAR-10's size"

    def shorten(self) -> AccountingCosts:
        """Return this study: it takes a minute."""
        return self

    def rows(self, request: Request) -> tuple[pd.DataFrame, float]:
        """Measures both; returns a row per figure and seed, `COLUMNS`, and seconds."""
        began = time.perf_counter()
        rows = [
            (self.label, method, ALL, quantity, np.nan, seed, value)
            for seed in request.seeds
            for method, figures in (
                ("rounded", self._measure_rounded(seed)),
                ("not rounded", self._measure_exact(seed)),
            )
            for quantity, value in figures.items()
        ]
        return pd.DataFrame(rows, columns=COLUMNS), time.perf_counter() - began

    def _shares(self, randomness: np.random.Generator) -> np.ndarray:
        return np.minimum(randomness.lognormal(-0.5, 0.6, self.examples), 1.0)

    def _measure_rounded(self, seed: int) -> dict[str, float]:
        histories, randomness, taken = Histories(self.examples), np.random.default_rng(seed), 0.0
        for _ in range(self.passes):
            shares = self._shares(randomness)
            began = time.perf_counter()
            histories.add(histories.cells(shares), self.steps)
            taken += time.perf_counter() - began
        began = time.perf_counter()
        noise = self.noise_multiplier * (1 + seed / 1000)  # divergences of the seed before are remembered
        event = StepEvent(self.batch_size / self.examples, noise)
        individual_epsilons(histories, event, _DELTA, "rdp")
        seconds = taken + time.perf_counter() - began
        return {"computations": float(len(histories.shares) - 1), "seconds": seconds}

    def _measure_exact(self, seed: int) -> dict[str, float]:
        shares = self._shares(np.random.default_rng(seed))[:_TIMED]
        began = time.perf_counter()
        for share in shares:
            gaussian = GaussianDpEvent(float(self.noise_multiplier / share))
            RdpAccountant().compose(PoissonSampledDpEvent(self.batch_size / self.examples, gaussian))
        each = (time.perf_counter() - began) / len(shares)
        computations = float(self.examples * self.passes)
        return {"computations": computations, "seconds": computations * each}
