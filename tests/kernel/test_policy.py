"""A policy's settings are frozen and plain and its state is explicit: what could hide raw norms is
refused."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
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
    Setting,
    checked_state,
    copy_state,
)
from equidp.policies import DPSGD, METHODS
from equidp.policies.by_group import in_groups
from equidp.policies.checks import check_settings
from equidp.policies.weights import released_values
from support.errors import raises_field
from support.policies import POLICIES, Largest


class Inherits(DPSGD):
    """Frozen as its parent is."""


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


@dataclass(frozen=True)
class Fine(Plain):
    """Everything a method may have."""

    first: float = 1.0
    tries: int = 3
    kind: str = "a"
    fast: bool = True
    limit: float | None = None
    BOUNDS: ClassVar[tuple[float, ...]] = (1.0, 2.0)

    class State(NamedTuple):
        bound: Tensor

    @property
    def doubled(self) -> float:
        return 2 * self.first

    @staticmethod
    def static() -> None: ...

    @classmethod
    def made(cls) -> Fine:
        return cls()


@pytest.mark.parametrize(
    "policy",
    [
        *POLICIES.values(),
        *(method.policy() for method in METHODS.values()),
        *(Inherits(), Fine(), Fine(np.float64(2))),
    ],
    ids=lambda policy: type(policy).__name__,
)  # fmt: skip
def test_plain_settings_pass(policy):
    check_settings(policy)
    policy.init(Setting(2, 5.0, 1.0))
    assert repr(policy)
    assert hash(policy) == hash(replace(policy))
    assert pickle.loads(pickle.dumps(policy)) == copy.deepcopy(policy) == policy


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


@pytest.mark.parametrize("bound", [1.1e30, 1e39, float("inf")])
def test_a_sensitivity_that_no_weight_can_be_capped_by_is_refused(bound):
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


def test_a_method_without_statistics_says_so():
    for ask in (
        lambda: Fine().statistics(NoState(), torch.ones(()), torch.zeros(())),
        lambda: Fine().update(NoState(), torch.ones(1)),
    ):
        with pytest.raises(NotImplementedError):
            ask()


def test_a_bound_is_released_as_one_number_unless_groups_differ():
    assert released_values(Fine(), NoState(), 3)["clipping_bound"] == 1.0
    own = in_groups(DPSGD({"a": 1.0, "*": 0.5}), ("a", "b"))
    assert released_values(own, NoState(), 2)["clipping_bound"].tolist() == [1.0, 0.5]
