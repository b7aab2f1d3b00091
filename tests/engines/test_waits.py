"""Where a private step waits for its device: each of these reads empties the queue of a GPU."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from equidp.engines import make_engine
from equidp.kernel.event import Event
from equidp.kernel.noise import SeededRandomness
from equidp.kernel.step import PrivateStep
from equidp.models import MODELS
from equidp.policies import DPSGD
from support.oracle import loss

WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "item"}
"""Operations whose result the CPU needs: float(x), bool(x), x.tolist(), x[mask], torch.equal, `if x`."""


class Waits(TorchDispatchMode):
    """Counts the operations that wait; masks as indices count as `nonzero`."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        name = function.overloadpacket.__name__
        if name in ("index", "index_put_", "index_put"):
            masks = [each for each in arguments[1] if each is not None and each.dtype == torch.bool]
            name = "nonzero" if masks else name
        self.counts.update({name} & WAITING)
        return function(*arguments, **(keywords or {}))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.block(self.table(tokens)).mean(dim=1))


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        pytest.param(MODELS["mlp"]((6,), 3), torch.randn(12, 6), id="mlp"),
        pytest.param(MODELS["small-cnn"]((1, 8, 8), 3), torch.randn(12, 1, 8, 8), id="cnn"),
        pytest.param(Transformer(), torch.randint(0, 20, (12, 5)), id="transformer"),
    ],
)
@pytest.mark.parametrize("parts", [1, 3])
def test_a_step_waits_once_a_part_and_once_a_draw_of_noise(model, inputs, parts):
    """For each part, whether all norms are finite: else sums leave out examples, and to do so without asking
    would copy the inputs and gradients of every layer. For each 2^16 numbers (2^22 on a GPU), which draws of
    noise are in the tails, to which the exact quantile alone applies. Nothing else asks."""
    step = PrivateStep(
        make_engine("ghost", model, loss),
        DPSGD(1.0),
        list(model.parameters()),
        event=Event(0.1, 1.0),
        expected_batch_size=12.0,
        num_groups=1,
        randomness=SeededRandomness(0),
        physical_batch_size=12 // parts,
    )
    with Waits() as waits:
        step(inputs, torch.arange(12) % 3, torch.zeros(12, dtype=torch.int64))
    draws = math.ceil(sum(each.numel() for each in step.parameters) / 2**16)
    assert waits.counts == {"_local_scalar_dense": parts, "nonzero": draws}
