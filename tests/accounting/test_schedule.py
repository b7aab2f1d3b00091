"""Epochs end where n examples more were drawn in expectation."""

from __future__ import annotations

import pytest

from equidp.accounting.schedule import Schedule, checked_schedule


@pytest.mark.parametrize("num_examples", [10, 300, 54_649])
@pytest.mark.parametrize("batch_size", [1, 3, 10])
def test_a_run_of_so_many_epochs_ends_as_many(num_examples, batch_size):
    """Also where floats make steps * rate a little less than a whole number."""
    schedule = checked_schedule(num_examples, batch_size, epochs=3)
    ends = [step for step in range(1, schedule.steps + 1) if schedule.ends_epoch(step)]
    assert len(ends) == 3
    assert ends[-1] == schedule.steps


def test_the_last_step_ends_an_epoch_that_is_not_whole():
    schedule = Schedule(0.1, 25)
    assert [step for step in range(1, 26) if schedule.ends_epoch(step)] == [10, 20, 25]
