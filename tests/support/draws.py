"""The noise and the samples of a Trainer's steps, and tests that they are as claimed.

All tests of one recording together raise a false alarm in at most one of 10^6 recordings (Bonferroni). Not
seen: noise of a parameter that is a sum of others' noise, and noise that is repeated in part or in another
order of parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from scipy import stats
from scipy.spatial.distance import cdist
from torch import nn

import equidp
from equidp.kernel.engine import Measured
from equidp.kernel.noise import SeededRandomness

ALARM = 1e-6
"""Largest probability of any alarm without a fault."""
_TENSOR = 8
"""Fewest numbers that are tested together in a step: the grid of noise gives a few numbers 0 too often."""


@dataclass
class Draws:
    """Noise in units of the claimed deviation, [steps, parameters], parameters of each tensor, members of
    samples, [steps, examples], and the rate that each example is drawn at, [examples]."""

    noise: np.ndarray
    sizes: list[int]
    members: np.ndarray
    rates: np.ndarray


def record(groups: torch.Tensor, steps: int = 300, rate: float = 0.5, **settings: Any) -> Draws:
    """Take steps on examples without gradients, of these groups, [n]: what they release is their noise."""
    model, n = nn.Linear(5, 2), len(groups)
    parameters = list(model.parameters())
    noise, members = [], np.zeros((steps, n), dtype=bool)

    class Silent:
        made_up = True

        def __call__(self, inputs: torch.Tensor, targets: torch.Tensor) -> Measured:
            members[len(noise), inputs[:, 0]] = True
            zeros = {each: torch.zeros_like(each).double() for each in parameters}
            return Measured(torch.zeros(len(inputs)), None, lambda weights: zeros)

    class Noted(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> None:
            noise.append(torch.cat([each.grad.flatten() for each in parameters]).double().numpy())

    numbers = torch.arange(n)
    names = tuple(str(group) for group in range(int(groups.max()) + 1))
    trainer = equidp.Trainer(
        model,
        Noted(parameters, {"lr": 0.0}),
        equidp.GroupedDataset(numbers[:, None], 0 * numbers, groups, names, ("no", "yes")),
        method=equidp.DPSGD(1.0),
        batch_size=rate * n,
        sample_rate=rate,
        steps=steps,
        noise_multiplier=2.0,
        delta=1e-4,
        engine=Silent(),
        seed=SeededRandomness(0),
        **settings,
    )
    trainer.fit()
    of_group = np.array([settings.get("rates", {}).get(name, 1.0) for name in names])
    scale = trainer.expected_batch_size / 2.0
    return Draws(
        np.stack(noise) * scale, [each.numel() for each in parameters], members, rate * of_group[groups]
    )


def alarms(draws: Draws) -> list[str]:
    """Names of the tests that the draws fail, the least likely first."""
    found = [(min(1.0, float(np.min(p)) * np.size(p)), name) for name, p in chances(draws)]
    return [name for chance, name in sorted(found) if chance <= ALARM / len(found)]


def chances(draws: Draws) -> Iterator[tuple[str, np.ndarray]]:
    """Name of each test, and how likely what was seen is without a fault, of each thing that it looks at."""
    noise, members, rates = draws.noise, draws.members, draws.rates
    steps, ends = len(noise), np.cumsum([0, *draws.sizes])
    tensors = [noise[:, start:stop] for start, stop in pairwise(ends)]
    large = [each for each in tensors if each.shape[1] >= _TENSOR]
    yield "variance of the noise of a parameter", stats.chi2.cdf((noise**2).sum(axis=0), steps)
    whole = [stats.chi2.cdf((each**2).sum(), each.size) for each in tensors]
    yield "variance of the noise of a tensor", np.array(whole)
    by_step = [stats.chi2.cdf((each**2).sum(axis=1), each.shape[1]) for each in large]
    yield "variance of the noise of a tensor in a step", np.array(by_step)
    sums = [stats.chi2.cdf((each.sum(axis=1) ** 2).sum() / each.shape[1], steps) for each in large]
    yield "variance of the sum of a tensor's noise", np.array(sums)
    yield "mean of the noise of a parameter", _two_sided(noise.sum(axis=0) / steps**0.5)
    again = any(_has_twins(each) for each in tensors if each.shape[1] >= 4)
    yield "noise that comes again in another step", np.array([0.0 if again else 1.0])
    upper = np.triu_indices(noise.shape[1], 1)
    varied = noise + 1e-9 * np.random.default_rng(0).standard_normal(noise.shape)  # where there is none
    together = np.corrcoef(varied.T)[upper].clip(-1 + 1e-12, 1 - 1e-12)
    scores = together * np.sqrt((steps - 2) / (1 - together**2))
    yield "noise of two parameters", 2 * stats.t.sf(np.abs(scores), steps - 2)
    yield "shape of the noise", np.array([stats.kstest(noise.ravel(), "norm").pvalue])

    counts, drawn = members.sum(axis=0), (rates > 0) & (rates < 1)
    low, high = stats.binom.cdf(counts, steps, rates), stats.binom.sf(counts - 1, steps, rates)
    yield "rate of sampling", np.minimum(1.0, 2 * np.minimum(low, high))
    squares = ((members.sum(axis=1) - rates.sum()) ** 2).sum() / (rates * (1 - rates)).sum()
    low, high = stats.chi2.cdf(squares, steps), stats.chi2.sf(squares, steps)
    yield "sizes of samples", np.minimum(1.0, 2 * np.minimum(low, high))
    again = len(np.unique(members[:, drawn], axis=0)) < steps
    yield "samples that come again", np.array([0.0 if again else 1.0])
    upper = np.triu_indices(int(drawn.sum()), 1)
    one, other = (counts[drawn][place] for place in upper)
    both = (members[:, drawn].T.astype(int) @ members[:, drawn].astype(int))[upper]
    low, high = stats.hypergeom.cdf(both, steps, one, other), stats.hypergeom.sf(both - 1, steps, one, other)
    yield "two examples in samples", np.minimum(1.0, 2 * np.minimum(low, high))


def _two_sided(scores: np.ndarray) -> np.ndarray:
    return np.asarray(2 * stats.norm.sf(np.abs(scores)))


def _has_twins(rows: np.ndarray) -> bool:
    """True where two rows are equal, up to sign, within rounding."""
    return any((np.triu(cdist(rows, sign * rows) < 1e-4, 1)).any() for sign in (1, -1))
