"""Inputs of several tensors: an example takes part with all that it has, or not at all."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from equidp.kernel.engine import Measured
from equidp.kernel.event import Event
from equidp.kernel.inputs import moved_to, tensors
from equidp.kernel.noise import SeededRandomness
from equidp.kernel.step import PrivateStep
from equidp.policies import DPSGD

N = 8
PLACES = torch.arange(N)
INPUTS = {"ids": PLACES, "pair": (PLACES + 100, PLACES.float().unsqueeze(1))}


class Watched:
    """An engine that keeps what it is given."""

    def __init__(self) -> None:
        self.seen: list[tuple[Tensor, ...]] = []

    def __call__(self, inputs, targets) -> Measured:
        self.seen.append(tensors((inputs, targets)))
        return Measured(torch.ones(len(targets)), None, lambda weights: {})


def make_step(engine: Watched, size: int | None = None) -> PrivateStep:
    return PrivateStep(
        engine,
        DPSGD(),
        [nn.Parameter(torch.zeros(1))],
        event=Event(0.5, 1.0),
        expected_batch_size=4.0,
        num_groups=1,
        randomness=SeededRandomness(0),
        physical_batch_size=size,
    )


@pytest.mark.parametrize("size", [None, 3])
def test_examples_are_split_with_all_their_tensors(size):
    """One tensor left behind would give an example another's mask, and its gradient two examples' data."""
    engine = Watched()
    make_step(engine, size)(INPUTS, 10 * PLACES, torch.zeros(N, dtype=torch.int64))
    for ids, first, second, targets in engine.seen:
        assert torch.equal(first, ids + 100)
        assert torch.equal(second, ids.float().unsqueeze(1))
        assert torch.equal(targets, 10 * ids)
    assert torch.cat([seen[0] for seen in engine.seen]).tolist() == list(range(N))
    assert all(size is None or len(seen[0]) <= size for seen in engine.seen)


@pytest.mark.parametrize(("device", "ahead"), [("cuda", True), ("mps", False), ("cpu", False)])
def test_only_cuda_is_copied_to_without_waiting(monkeypatch, device, ahead):
    """MPS may read memory that was freed in the meantime (pytorch/pytorch#189690)."""
    asked = []
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *given, **how: asked.append((*given, how)))
    moved_to((torch.ones(1),), device)
    assert asked == [(device, {"non_blocking": ahead})]
