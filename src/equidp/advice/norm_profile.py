"""Gradient norms before training: exact norms of public data, or noisy, charged norms of private data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from scipy.ndimage import binary_propagation
from torch import Tensor, nn
from torch.nn.functional import one_hot

from equidp._validate import check_number
from equidp.accounting import calibrate_noise
from equidp.data.dataset import GroupedDataset
from equidp.engines import checked_engine, dataset_norms
from equidp.engines.model import device_of
from equidp.errors import SettingError
from equidp.kernel.engine import LossFunction
from equidp.kernel.generators import owned_generators
from equidp.kernel.inputs import moved_to
from equidp.kernel.ledger import Ledger, MemoryLedger, StepEvent, kind_of
from equidp.kernel.noise import Randomness, SystemRandomness
from equidp.kernel.noisy_sum import private_sum

Spent = tuple[tuple[StepEvent, int], ...]
"""(event, count) pairs, as a ledger holds them."""
_EDGES = 1e-3 * 1.2 ** np.arange(1, 77)
"""Upper ends of the cells that count norms: 20% wide, from 0.001 to 1,000; one more counts longer norms."""
_TRUSTED = 4.5  # standard deviations: noise alone passes in one of 77 cells once in 4,000 profiles
_LINKED = 1.5  # standard deviations that are enough beside a trusted cell, which has its neighbours' tails
_CHUNK = 1024


@dataclass(frozen=True)
class NormProfile:
    """Counts of gradient norms.

    Attributes:
        counts: of gradient norms in cells that are 20% wide, [77]; counts that could be noise alone are 0:
            a single count far above the others would set the clipping bound.
        spent: entries that the profile spent; empty for public data.
    """

    counts: tuple[float, ...]
    spent: Spent = ()

    @property
    def is_usable(self) -> bool:
        """True where any count stands out from the noise."""
        return sum(self.counts) > 0

    def quantile(self, level: float) -> float:
        """Return a norm that about this share of the gradients does not exceed: the upper end of a cell.

        Raises:
            SettingError: a level outside (0, 1), or a profile that is noise alone.
        """
        check_number("(0, 1)", level=level)
        if not self.is_usable:
            raise SettingError(
                "the profile is noise alone; give it more epsilon, or a public dataset like yours.",
                field="epsilon",
            )
        below = np.cumsum(self.counts)
        cell = int(np.searchsorted(below, level * below[-1]))
        return float(_EDGES[min(cell, len(_EDGES) - 1)])


def public_profile(data: GroupedDataset, model: nn.Module, loss: LossFunction | None = None) -> NormProfile:
    """Return the profile of a public dataset, which costs nothing.

    Args:
        data: similar to the private data: same columns, classes and scale.
        model: with fresh weights.
        loss: of each example; None: cross entropy.
    """
    return NormProfile(_plain(_encode_norms(data, model, loss).sum(dim=0)))


def private_profile(
    data: GroupedDataset,
    model: nn.Module,
    *,
    epsilon: float,
    delta: float,
    loss: LossFunction | None = None,
    ledger: Ledger | None = None,
    randomness: Randomness | None = None,
) -> NormProfile:
    """Return the profile of private data, by one Gaussian mechanism of (epsilon, delta).

    An example's row is the one-hot cell of its norm. The noisy sum of all rows is all that is read.

    Args:
        data: the training data. Its size is public.
        model: with fresh weights.
        epsilon, delta: cost of the profile.
        loss: of each example; None: cross entropy.
        ledger: charged before the noise is drawn, such as `PrivacyBudget.ledger(MemoryLedger())`.
        randomness: of the noise, and of the model's own draws (dropout); None: the operating system's.

    Raises:
        SettingError, ModelError, BudgetError: before anything is spent.
    """
    noise = calibrate_noise(epsilon, delta, 1.0, 1)
    randomness = SystemRandomness(owned_generators(model, loss)) if randomness is None else randomness
    # Masks of a known generator would be dealt out by place: one row more would change all norms after it.
    with randomness.for_model(device_of(model)):
        rows = _encode_norms(data, model, loss)
    payment = (MemoryLedger() if ledger is None else ledger).pay("norm profile", noise)
    counts = private_sum(rows, bound=1.0, noise_multiplier=payment.draw(), randomness=randomness)
    trusted, linked = (counts >= times * noise for times in (_TRUSTED, _LINKED))
    clear = binary_propagation(trusted.numpy(), mask=linked.numpy())
    counts = torch.where(torch.from_numpy(clear), counts, 0.0)
    return NormProfile(_plain(counts), ((cast(StepEvent, kind_of(payment.event)), 1),))


def _encode_norms(data: GroupedDataset, model: nn.Module, loss: LossFunction | None) -> Tensor:
    """Return the cell of each norm, [n, cells], one-hot."""
    loss = data.training_loss(loss)
    # Sensitivity 1 needs rows that do not depend on other examples, as they would through BatchNorm.
    row = moved_to(data.one_row(), device_of(model))
    engine = checked_engine("ghost", model, loss, row, data.class_names)
    norms = dataset_norms(
        engine, data.inputs, data.trained_targets, chunk_size=_CHUNK, device=device_of(model)
    )
    norms = norms.cpu().double()
    cells = torch.bucketize(norms.nan_to_num(nan=math.inf, posinf=math.inf), torch.from_numpy(_EDGES))
    return one_hot(cells, len(_EDGES) + 1)


def _plain(numbers: Tensor) -> tuple[float, ...]:
    return tuple(numbers.double().tolist())
