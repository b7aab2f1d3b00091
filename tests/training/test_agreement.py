"""Processes that train together agree before anything is spent, and stop together."""

from __future__ import annotations

import pytest
import torch

from support import several
from support.processes import together


@pytest.mark.soak
def test_what_differs_is_named_in_every_process_before_anything_is_spent():
    """Of training data, only that it differs: a digest would confirm guesses."""
    expected = {
        "seed": "the processes disagree: seed is (False, 0) in process 0 and (False, 1) in process 1",
        "batch size": "the processes disagree: event is StepEvent",
        "data": "the processes disagree: data is its own in process 0 and its own in process 1",
        "model": "the processes disagree: model is {'weight': ((2, 5), 'torch.float32', True)} in process 0",
        "policy": "the processes disagree: policy is DPSGD(clipping_bound=1.0)",
        "learning rate": "the processes disagree: optimizer is ('SGD', \"[{'lr': 0.1,",
        "frozen": "the processes disagree: model is {",
        "schedule": "the processes disagree: scheduler is 'linear' in process 0 and 'cosine' in process 1",
        "average": "the processes disagree: average is WeightAverage(kind='ema', share=0.125) in process 0",
        "loss": "the processes disagree: loss is 'hinge' in process 0 and 'CrossEntropyLoss()' in process 1",
        "order": "the processes disagree: data is its own",
        "ledger": "the processes disagree: a ledger or budget (the first process alone has one) is False",
        "examples": "3 processes for 2 examples",
    }
    for errors in together(3, several.disagreeing, list(expected)):
        for error, said in zip(errors, expected.values(), strict=True):
            assert error.startswith(f"SettingError: {said}"), error


@pytest.mark.soak
def test_another_process_that_gives_a_ledger_later_is_refused_too():
    for error in together(2, several.attaching_elsewhere):
        assert error.startswith("SettingError: the processes disagree: a ledger or budget"), error


@pytest.mark.soak
def test_processes_go_on_with_the_ledger_that_the_first_gives_later():
    assert together(2, several.attaching_on_first) == [(2, 4, True), (2, 4, True)]


@pytest.mark.soak
def test_data_of_any_type_is_compared():
    assert together(2, several.disagreeing, ["data of 16 bits"]) == [[""], [""]]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("callback", "OSError: the disk"),
        ("optimizer", "KeyboardInterrupt"),
        ("skip", "SettingError: a sample"),
    ],
)
def test_a_process_that_fails_outside_a_step_stops_the_others_and_cannot_go_on_alone(where, error):
    """As in a notebook, where it lives on: a Trainer of its own would spend outside the first's ledger."""
    (first, _), (second, afterwards) = together(2, several.failing_elsewhere, where)
    assert first.startswith("ProcessError: another process of this training ended")
    assert second.startswith(error)
    assert afterwards.startswith("SettingError: this process left its group after a failure")


@pytest.mark.soak
def test_all_begin_with_the_weights_of_the_first():
    (before, after), (other_before, other_after) = together(2, several.started_apart)
    assert not torch.equal(before, other_before)
    assert torch.equal(after, before)
    assert torch.equal(other_after, before)


@pytest.mark.soak
def test_all_stop_at_the_step_where_the_first_is_asked_to():
    assert together(2, several.stopped, (9, 40)) == [(9, "TrainingStopped"), (9, "ProcessError")]


@pytest.mark.soak
def test_another_process_that_is_asked_to_stop_tells_the_first():
    """In its next step, so that all stop after that one."""
    assert together(2, several.stopped, (40, 4)) == [(5, "TrainingStopped"), (5, "ProcessError")]


@pytest.mark.soak
@pytest.mark.parametrize(("rank", "taken"), [(0, (4, 4)), (1, (8, 0))])
def test_the_first_ends_the_run_of_all_without_an_error(rank, taken):
    """Released figures are alike in all, so that another need not decide."""
    assert together(2, several.ended, rank) == [taken, taken]
