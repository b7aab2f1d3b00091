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
from torch import Tensor, nn

from equidp.errors import PolicyError
from equidp.kernel.policy import (
    LARGEST_SENSITIVITY,
    SMALLEST_SENSITIVITY,
    NoState,
    Policy,
    Setting,
    check_settings,
    check_unchanged,
    checked_sensitivity,
    checked_state,
    copy_state,
    on_device,
    snapshot_attributes,
)
from equidp.policies import DPSGD, METHODS
from support.errors import raises_field
from support.policies import POLICIES, Keeps, Largest


class Inherits(DPSGD):
    """Frozen as its parent is."""


class Plain(Policy):
    def weight(self, state: Any, norm: Tensor, group: Tensor) -> Tensor:
        return norm

    def sensitivity(self, state: Any) -> float:
        return 1.0


@dataclass(frozen=True)
class Given(Plain):
    bound: float

    def sensitivity(self, state: Any) -> float:
        return self.bound


@dataclass
class Mutable(Plain):
    clipping_bound: float = 1.0


@dataclass(frozen=True)
class ListField(Plain):
    kept: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class TensorField(Plain):
    kept: Any = field(default_factory=lambda: torch.zeros(2))


@dataclass(frozen=True)
class ClassList(Plain):
    kept: ClassVar[list[Tensor]] = []


@dataclass(frozen=True)
class ClassTensor(Plain):
    kept: ClassVar[Tensor] = torch.zeros(2)


@dataclass(frozen=True)
class ClassModule(Plain):
    kept: ClassVar[nn.Module] = nn.Identity()


@dataclass(frozen=True)
class InheritedList(ClassList):
    pass


@dataclass(frozen=True)
class Stray(Plain):
    def __post_init__(self) -> None:
        object.__setattr__(self, "largest", 0.0)


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ("dpsgd", "policy"),
        (DPSGD, "policy"),
        (Plain(), "policy"),
        (Mutable(), "policy"),
        (ListField(), "kept"),
        (TensorField(), "kept"),
        (ClassList(), "kept"),
        (InheritedList(), "kept"),
        (ClassTensor(), "kept"),
        (ClassModule(), "kept"),
        (Stray(), "policy"),
    ],
)
def test_what_could_hold_state_is_refused(policy, field):
    with raises_field(PolicyError, field):
        check_settings(policy)


@dataclass(frozen=True)
class Fine(Plain):
    """Everything a method may have."""

    bound: float = 1.0
    tries: int = 3
    kind: str = "a"
    fast: bool = True
    limit: float | None = None
    BOUNDS: ClassVar[tuple[float, ...]] = (1.0, 2.0)

    class State(NamedTuple):
        bound: Tensor

    @property
    def doubled(self) -> float:
        return 2 * self.bound

    @staticmethod
    def static() -> None: ...

    @classmethod
    def made(cls) -> Fine:
        return cls()


@dataclass(frozen=True, slots=True)
class Slotted(Plain):
    clipping_bound: float = 1.0


@pytest.mark.parametrize(
    "policy",
    [
        *POLICIES.values(),
        *(method.policy() for method in METHODS.values()),
        *(Inherits(), Fine(), Fine(np.float64(2))),
    ],
    ids=lambda policy: type(policy).__name__,
)  # fmt: skip
def test_plain_settings_pass_and_using_them_changes_nothing(policy):
    check_settings(policy)
    before = snapshot_attributes(policy)
    policy.init(Setting(2, 5.0, 1.0))
    assert repr(policy)
    assert hash(policy) == hash(replace(policy))
    # Pickling and annotations write to the class, without a rule's doing.
    assert pickle.loads(pickle.dumps(policy)) == copy.deepcopy(policy) == policy
    assert [owner.__annotations__ for owner in type(policy).__mro__ if owner is not object]
    check_unchanged(policy, before)


@pytest.mark.parametrize("where", ["object", "field", "class"])
def test_what_a_rule_writes_to_the_policy_or_its_class_is_noticed(where, monkeypatch):
    monkeypatch.setattr(Keeps, "kept", None)
    policy = Keeps(f"{where} in weight")
    before = snapshot_attributes(policy)
    check_unchanged(policy, before)
    policy.weight(NoState(), torch.ones(()), torch.zeros(()))
    with raises_field(PolicyError, "settings"):
        check_unchanged(policy, before)


def test_an_attribute_that_goes_is_noticed_also_where_it_was_none(monkeypatch):
    monkeypatch.setattr(Keeps, "kept", None)
    before = snapshot_attributes(Keeps("object in weight"))
    monkeypatch.delattr(Keeps, "kept")
    with raises_field(PolicyError, "settings"):
        check_unchanged(Keeps("object in weight"), before)


class Number(float):
    """A number that could hold more than itself."""


@dataclass(frozen=True)
class Memory(Plain):
    __slots__ = ("memory",)


@dataclass(frozen=True)
class InTuple(Plain):
    seen: ClassVar[tuple[list[int], ...]] = ([],)


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        (Slotted(), "policy"),
        (Memory(), "memory"),
        (InTuple(), "seen"),
        (Fine(Number(1.0)), "bound"),
    ],
)
def test_hidden_places_for_state_are_refused(policy, field):
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
    assert on_device(state, torch.device("meta")).largest.device.type == "meta"
    assert copy_state(NoState()) == NoState()


def test_a_method_without_statistics_says_so():
    for ask in (
        lambda: Fine().statistics(NoState(), torch.ones(()), torch.zeros(())),
        lambda: Fine().update(NoState(), torch.ones(1)),
    ):
        with pytest.raises(NotImplementedError):
            ask()


def test_a_policy_releases_its_sensitivity_as_its_bound_unless_it_says_otherwise():
    assert Fine().released(NoState())["clipping_bound"] == 1.0
