"""Gradient norms before training: of public data, or of private data with noise, charged."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from equidp._validate import check_number
from equidp.accounting import calibrate_noise
from equidp.data.dataset import GroupedDataset
from equidp.engines import check_engine, check_model, dataset_norms, make_engine
from equidp.errors import SettingError
from equidp.kernel.ledger import Ledger, MemoryLedger, StepEvent
from equidp.kernel.noise import Randomness, SystemRandomness
from equidp.kernel.noisy_sum import private_sum

_EDGES = 1e-3 * 1.2 ** np.arange(1, 77)
"""Upper ends of the cells that norms are counted in: 20% wide, from 0.001 to 1,000; the last cell holds what is longer."""
_TRUSTED = 3.0
"""Counts below so many standard deviations of their noise are taken for none."""
_CHUNK = 1024


@dataclass(frozen=True)
class NormProfile:
    """How long gradients are, and how large groups are.

    Attributes:
        counts: of gradient norms in cells that are 20% wide, [77]; what noise alone could be is set to 0.
        group_shares: of the examples, [K], in [0, 1].
        spent: what it cost; nothing for public data.
    """

    counts: tuple[float, ...]
    group_shares: tuple[float, ...]
    spent: tuple[tuple[StepEvent, int], ...] = ()

    @property
    def is_usable(self) -> bool:
        """Whether any count stands out from the noise."""
        return sum(self.counts) > 0

    def quantile(self, level: float) -> float:
        """A norm that about this share of the gradients does not exceed: the upper end of a cell."""
        check_number("(0, 1)", level=level)
        if not self.is_usable:
            raise SettingError(
                "the profile is noise alone; give it more epsilon, or a public dataset like yours."
            )
        below = np.cumsum(self.counts)
        cell = int(np.searchsorted(below, level * below[-1]))
        return float(_EDGES[min(cell, len(_EDGES) - 1)])


def public_profile(data: GroupedDataset, model: nn.Module) -> NormProfile:
    """The profile of a public dataset, which costs nothing.

    Args:
        data: like the private data: same columns, classes and scale.
        model: with fresh weights; cross-entropy loss.
    """
    norms, groups = _counted(data, model)
    return NormProfile(_plain(norms.sum(dim=0)), _plain(groups.double().mean(dim=0)))


def private_profile(
    data: GroupedDataset,
    model: nn.Module,
    *,
    epsilon: float,
    delta: float,
    ledger: Ledger | None = None,
    randomness: Randomness | None = None,
) -> NormProfile:
    """The profile of private data, with noise: one Gaussian mechanism.

    An example's row is its norm's cell and its group, each one-hot, scaled to norm 1 together; the noisy sum of all rows is all
    that is read of the data.

    Args:
        data: the training data. Its size and the number of groups are public.
        model: with fresh weights; cross-entropy loss.
        epsilon, delta: what it may cost.
        ledger: is charged before the noise is drawn; such as `PrivacyBudget.ledger(MemoryLedger())`.
        randomness: of the noise; None: the operating system's.

    Raises:
        SettingError, ModelError, BudgetError: before anything is spent.
    """
    event = StepEvent(1.0, calibrate_noise(epsilon, delta, 1.0, 1))
    norms, groups = _counted(data, model)
    (MemoryLedger() if ledger is None else ledger).spend(event)
    released = math.sqrt(2) * private_sum(
        torch.cat([norms, groups], dim=1) / math.sqrt(2),
        bound=1.0,
        noise_multiplier=event.noise_multiplier,
        randomness=SystemRandomness() if randomness is None else randomness,
    )
    deviation = math.sqrt(2) * event.noise_multiplier
    counts, sizes = released[: norms.shape[1]], released[norms.shape[1] :]
    counts = torch.where(counts >= _TRUSTED * deviation, counts, 0.0)
    return NormProfile(_plain(counts), _plain((sizes / len(data)).clamp(0.0, 1.0)), ((event, 1),))


def _counted(data: GroupedDataset, model: nn.Module) -> tuple[Tensor, Tensor]:
    """Cell of each norm, [n, cells], and group of each example, [n, K], one-hot."""
    loss = nn.CrossEntropyLoss(reduction="none")
    engine = make_engine("ghost", model, loss)
    # An example's row must not depend on others, as it would through BatchNorm.
    check_model(model, loss, data.inputs[:4], data.targets[:4])
    check_engine(engine, model, loss, data.inputs[:4], data.targets[:4])
    norms = dataset_norms(engine, data.inputs, data.targets, chunk_size=_CHUNK).double().cpu()
    cells = torch.bucketize(norms.nan_to_num(nan=math.inf, posinf=math.inf), torch.from_numpy(_EDGES))
    return one_hot(cells, len(_EDGES) + 1), one_hot(data.groups.cpu(), data.num_groups)


def _plain(numbers: Tensor) -> tuple[float, ...]:
    values: npt.NDArray[np.float64] = numbers.double().numpy()
    return tuple(float(value) for value in values)
