"""A policy's settings are frozen and plain and its state is explicit: what could hide raw norms is
refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from equidp.errors import PolicyError
from equidp.kernel.bounding import (
    LARGEST_SENSITIVITY,
    SMALLEST_SENSITIVITY,
    checked_sensitivity,
)
from equidp.kernel.policy import (
    NoState,
    Policy,
    checked_state,
    copy_state,
)
from equidp.policies import DPSGD
from equidp.policies.checks import check_settings
from support.errors import raises_field
from support.policies import Largest


class Plain(Policy):
    def weight(self, state: Any, norm: Tensor, group: Tensor) -> Tensor:
        return norm

    def sensitivity(self, state: Any) -> float:
        return 1.0


@dataclass(frozen=True)
class Given(Plain):
    largest: float

    def sensitivity(self, state: Any) -> float:
        return self.largest


@dataclass
class Mutable(Plain):
    clipping_bound: float = 1.0


@dataclass(frozen=True)
class ListField(Plain):
    kept: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class TensorField(Plain):
    kept: Any = field(default_factory=lambda: torch.zeros(2))


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ("dpsgd", "policy"),
        (DPSGD, "policy"),
        (Plain(), "policy"),
        (Mutable(), "policy"),
        (ListField(), "kept"),
        (TensorField(), "kept"),
    ],
)
def test_what_could_hold_state_is_refused(policy, field):
    with raises_field(PolicyError, field):
        check_settings(policy)


class Mixed(NamedTuple):
    bound: Tensor
    name: str


@pytest.mark.parametrize(
    "state", [None, torch.ones(1), (torch.ones(1),), {"bound": torch.ones(1)}, Mixed(torch.ones(1), "a")]
)
def test_a_state_that_is_no_named_tuple_of_tensors_is_refused(state):
    with pytest.raises(PolicyError):
        checked_state(DPSGD(), state)


@pytest.mark.parametrize(
    ("bound", "expected"),
    [(1e-44, SMALLEST_SENSITIVITY), (1e-29, 1e-29), (1.0, 1.0), (LARGEST_SENSITIVITY,) * 2],
)
def test_a_sensitivity_is_one_that_weights_can_be_capped_by(bound, expected):
    """A bound that follows gradients of 0 falls without end; noise is then that of the smallest."""
    assert checked_sensitivity(Given(bound), NoState(), 1.0) == expected


@pytest.mark.parametrize("bound", [1.1e30, float("inf"), float("nan"), 0.0, -1.0])
def test_a_sensitivity_that_noise_cannot_be_scaled_to_is_refused(bound):
    with raises_field(PolicyError, "sensitivity"):
        checked_sensitivity(Given(bound), NoState(), 1.0)


def test_copies_of_a_state_are_its_own_and_have_no_graph():
    state = Largest(torch.ones(2, requires_grad=True))
    checked_state(DPSGD(), state)
    checked_state(DPSGD(), NoState())
    copy = copy_state(state)
    assert type(copy) is Largest
    assert not copy.largest.requires_grad
    copy.largest.zero_()
    assert state.largest.tolist() == [1, 1]
    assert copy_state(state, "meta").largest.device.type == "meta"
    assert copy_state(NoState()) == NoState()
