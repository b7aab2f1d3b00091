"""The audit's proof of power: it catches faults of the kernel that are planted here, and none without.

Caught: the lower bound exceeds the claim. Without a fault that happens in one of 20 audits at most, and more
rarely in fact: both rates would have to be off, each by 2 standard errors. All seeds are fixed.
"""

from __future__ import annotations

import pytest

import equidp
from support.faults import FAULTS

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
