"""Processes that train together agree before anything is spent, and stop together."""

from __future__ import annotations

import torch

from support import several
from support.processes import together


def test_what_differs_is_named_in_every_process_before_anything_is_spent():
    expected = {
        "seed": "the processes disagree: seed is (False, 0) in process 0 and (False, 1) in process 1",
        "batch size": "the processes disagree: event is StepEvent",
        "data": "the processes disagree: data is '",
        "model": "the processes disagree: model is {'weight': (2, 5)} in process 0",
        "policy": "the processes disagree: policy is DPSGD(clipping_bound=1.0)",
        "examples": "3 processes for 2 examples",
    }
    for errors in together(3, several.disagreeing, list(expected)):
        for error, said in zip(errors, expected.values(), strict=True):
            assert error.startswith(f"SettingError: {said}"), error


def test_the_first_process_alone_has_a_ledger():
    (first,), (second,) = together(2, several.disagreeing, ["ledger"])
    assert first == ""
    assert second.startswith("SettingError: process 1 was given a ledger or a budget")


def test_all_begin_with_the_weights_of_the_first():
    (before, after), (other_before, other_after) = together(2, several.started_apart)
    assert not torch.equal(before, other_before)
    assert torch.equal(after, before)
    assert torch.equal(other_after, before)


def test_all_stop_at_the_step_where_the_first_is_asked_to():
    """The other is asked earlier, and waits for the first."""
    assert together(2, several.stopped) == [(9, "TrainingStopped"), (9, "ProcessError")]
