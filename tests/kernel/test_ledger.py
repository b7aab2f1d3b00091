"""The ledger counts every step and forgets none."""

from __future__ import annotations

import pytest

from equidp.errors import SettingError
from equidp.kernel.ledger import MemoryLedger, StepEvent


def test_equal_neighbours_are_counted_together_in_order():
    ledger = MemoryLedger()
    first, second = StepEvent(0.1, 1.0), StepEvent(0.1, 1.0, 10.0)
    for event in (first, first, second, first):
        ledger.spend(event)
    assert ledger.entries == ((first, 2), (second, 1), (first, 1))
    assert ledger.steps == 4
    assert MemoryLedger(ledger.entries).steps == 4


@pytest.mark.parametrize(
    "settings", [(0.0, 1.0), (1.1, 1.0), (0.1, -1.0), (0.1, float("nan")), (0.1, 1.0, -2.0)]
)
def test_events_that_cannot_be_are_refused(settings):
    with pytest.raises(SettingError, match="expected"):
        StepEvent(*settings)
