"""The audit's proof of power: it catches faults of the kernel that are planted here, and none without.

Caught: the lower bound exceeds the claim. Without a fault that happens in one of 20 audits at most, and more
rarely in fact: both rates would have to be off, each by 2 standard errors. All seeds are fixed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import equidp
from support import faults


class Planted(NamedTuple):
    """A fault, how to look for it, and with how many runs it is found."""

    plant: faults.Plant
    runs: int
    settings: dict[str, Any]


def _alike(n: int, groups: int = 2) -> equidp.GroupedDataset:
    """Examples that are all the same, so that their gradients add up; the last of three groups is empty."""
    names = ("a", "b", "c")[:groups]
    return equidp.GroupedDataset(
        torch.ones(n, 3), torch.zeros(n, dtype=torch.int64), torch.arange(n) % 2, names, ("no", "yes")
    )


def _plan(batch_size: int) -> equidp.Plan:
    return equidp.Plan(lambda shape, classes: nn.Linear(shape[0], classes), batch_size=batch_size)


ONE_STEP = {"train": _alike(24), "plan": _plan(24)}
TWO_STEPS = {"train": _alike(24), "plan": _plan(12), "sample_rate": 0.5, "steps": 2}
FAULTS = {
    "noise halved": Planted(faults.noise_halved, 200, ONE_STEP),
    "sensitivity over the groups present": Planted(
        faults.sensitivity_over_groups_present,
        100,
        {"train": _alike(120, groups=3), "plan": _plan(120), "method": "naive"},
    ),
    "division by the realised batch size": Planted(faults.division_by_the_realised_batch_size, 200, ONE_STEP),
    "a sample used twice": Planted(faults.sample_used_twice, 800, ONE_STEP),
    "statistics without noise": Planted(
        faults.statistics_without_noise, 100, {**ONE_STEP, "method": "dpsgd-f"}
    ),
    "weights that depend on others": Planted(faults.weights_that_depend_on_others, 100, ONE_STEP),
    "noise repeated after a resume": Planted(faults.noise_repeated_after_a_resume, 100, TWO_STEPS),
    "batches that are not Poisson samples": Planted(
        faults.batches_that_are_not_poisson_samples, 400, {**TWO_STEPS, "epsilon": 20.0}
    ),
}
SLOW = ("noise repeated after a resume", "batches that are not Poisson samples", "a sample used twice")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak if name in SLOW else ()) for name in FAULTS]
)
def test_the_audit_catches(name, monkeypatch):
    plant, runs, settings = FAULTS[name]
    sound = equidp.audit_step(runs=runs, secure=False, **settings)
    assert not sound.exceeds, sound.table()
    plant(monkeypatch)
    faulty = equidp.audit_step(runs=runs, secure=False, **settings)
    assert faulty.exceeds, faulty.table()
