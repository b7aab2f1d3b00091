"""Audits of people: what a person of several rows can be told apart by is what epsilon says, and no more."""

from __future__ import annotations

import pytest
from torch import nn

import equidp
from equidp.data.people import by_person
from support.faults import noise_halved
from support.toy import toy


def people(n: int = 60) -> equidp.GroupedDataset:
    """n people, of whom the first half have three rows and the others one."""
    return by_person(toy(2 * n), [*range(n), *range(n // 2), *range(n // 2)], most_rows=3)


def wide(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(*shape, 16), nn.Tanh(), nn.Linear(16, classes))


PLAN = equidp.Plan(model=wide, batch_size=60)


@pytest.mark.soak
def test_a_step_on_people_is_audited_and_halved_noise_is_found(monkeypatch):
    """Seeds are fixed; see test_faults on what chance does."""
    sound = equidp.audit_step(people(), plan=PLAN, runs=300, secure=False)
    assert 0 < sound.bound < sound.claimed == pytest.approx(4.0, rel=1e-3)
    assert sound.procedure == "one step on people of up to 3 rows"
    noise_halved(monkeypatch)
    assert equidp.audit_step(people(), plan=PLAN, runs=300, secure=False).exceeds
