"""A private step whose examples have labels of their own: the label alone decides rate, bound and row."""

from __future__ import annotations

import pytest
import torch

from equidp.errors import SettingError
from equidp.kernel.ledger import GroupedStepEvent, GroupShare, MemoryLedger
from equidp.kernel.noise import SeededRandomness
from equidp.kernel.step import PrivateStep
from equidp.policies import DPSGD, DPSGDF
from support.errors import raises_field
from support.given_gradients import GivenGradients, loop_over

EVENT = GroupedStepEvent(
    1.0, 1e-6, by_group=(GroupShare("level 1", 1.0, 0.25, 0.25), GroupShare("level 3", 1.0))
)
"""Steps with next to no noise; label 0 has a quarter of both bounds."""


def make_step(event=EVENT, policy=None, *, own_labels=True, num_groups=3, **given):
    parameter = torch.nn.Parameter(torch.zeros(4))
    return PrivateStep(
        GivenGradients(parameter), policy or DPSGD(1.0), [parameter], event=event, expected_batch_size=1.0,
        num_groups=num_groups, ledger=MemoryLedger(), randomness=SeededRandomness(0), own_labels=own_labels,
        **given,
    )  # fmt: skip


def lengths(step, labels, groups):
    """Length of the sum of long gradients of these examples, along one axis each."""
    count = len(labels)
    step(100 * torch.eye(4)[:count], torch.zeros(count), torch.tensor(groups), labels=torch.tensor(labels))
    return [round(float(each), 3) for each in step.parameters[0].grad[:count]]


@pytest.mark.parametrize("parts", [None, 1])
def test_a_gradient_is_bounded_by_the_label_whatever_the_group(parts):
    step = make_step(physical_batch_size=parts)
    assert lengths(step, [0, 1, 1, 0], [2, 0, 1, 1]) == [0.25, 1.0, 1.0, 0.25]
    assert lengths(step, [1, 0], [0, 1]) == [1.0, 0.25]
    assert step.ledger.steps == 2


def test_a_row_of_statistics_is_bounded_by_the_label_whatever_the_group():
    """Of four examples in group 2 whose gradients are long, two have a quarter of the row."""
    policy = DPSGDF(1.0, smoothing=0.0)
    event = GroupedStepEvent(1.0, 1e-6, policy.statistics_ratio * 1e-6, EVENT.by_group)
    step, seen = make_step(event, policy), []
    update = type(policy).update

    class Noted(DPSGDF):
        def update(self, state, released):
            seen.append(released)
            return update(self, state, released)

    step = make_step(event, Noted(1.0, smoothing=0.0))
    lengths(step, [0, 1, 1, 0], [2, 2, 2, 2])
    assert sorted(round(float(each), 2) for each in seen[0])[-1] == 2.5


def test_an_example_is_drawn_and_bounded_by_its_label_in_a_loop():
    """Its group may change meanwhile: it decides nothing of what the example pays."""
    event = GroupedStepEvent(
        1.0, 1e-6, by_group=(GroupShare("level 0", 0.0), GroupShare("level 1", 1.0, 0.25), EVENT.by_group[1])
    )
    step, labels, groups = make_step(event), torch.tensor([2, 0, 1, 2]), torch.tensor([0, 0, 2, 1])
    loop = loop_over(step, 100 * torch.eye(4), labels, steps=2, groups=groups)
    for batch in loop.batches():
        assert batch.indices.tolist() == [0, 2, 3]
        loop.take(batch)
        found = [round(float(each), 3) for each in step.parameters[0].grad]
        assert found == [1.0, 0.0, 0.25, 1.0]
        groups += 1
        groups %= 3
        labels += 1  # the loop has a copy
    assert step.ledger.steps == 2


@pytest.mark.parametrize(
    "labels",
    [None, torch.tensor([0]), torch.tensor([0, 2]), torch.tensor([-1, 0]), torch.tensor([True, False])],
)
def test_labels_that_no_share_is_of_are_refused_before_anything_is_spent(labels):
    step = make_step()
    with raises_field(SettingError, "labels"):
        step(torch.eye(4)[:2], torch.zeros(2), torch.tensor([0, 1]), labels=labels)
    assert step.ledger.steps == 0


def test_labels_beside_groups_with_shares_are_refused():
    step = make_step(own_labels=False, num_groups=2)
    with raises_field(SettingError, "labels"):
        step(torch.eye(4)[:2], torch.zeros(2), torch.tensor([0, 1]), labels=torch.tensor([1, 1]))
    assert step.ledger.steps == 0
    with raises_field(SettingError, "by_group"):
        make_step(own_labels=False, num_groups=3)
