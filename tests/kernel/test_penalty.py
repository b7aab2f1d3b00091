"""With penalties, too, one example moves gradients and statistics by their bounds, given earlier releases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from equidp.engines import make_engine
from equidp.errors import PolicyError
from equidp.kernel.engine import Penalty
from equidp.kernel.ledger import MemoryLedger, StepEvent
from equidp.kernel.noise import SeededRandomness
from equidp.kernel.penalty import measure, penalty_of, state_after
from equidp.kernel.policy import Policy, Setting
from equidp.kernel.step import PrivateStep
from equidp.policies import DPSGD, FairLens
from support.given_gradients import GivenGradients

CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")
BOUND, EXPECTED = 0.7, 4.0
WILD = (*(0.0, 1.0, -1.0, 1e-3, 30.0, -1e4, 1e18), float("inf"), float("nan"))


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def step_of(policy=None, engine="functional", part=None, earlier=None) -> PrivateStep:
    """A step without noise, so that all that one example moves is seen; `earlier`: released sums, [3, 2]."""
    subject = model()
    policy = FairLens(BOUND, smoothing=0.0) if policy is None else policy
    noise = None if policy.statistics_ratio is None else 0.0
    step = PrivateStep(
        make_engine(engine, subject, CROSS_ENTROPY),
        policy,
        list(subject.parameters()),
        event=StepEvent(0.1, 0.0, noise),
        expected_batch_size=EXPECTED,
        num_groups=2,
        ledger=MemoryLedger(),
        randomness=SeededRandomness(0),
        physical_batch_size=part,
    )
    if earlier is not None:
        along = torch.randn(len(step.state.direction), generator=torch.Generator().manual_seed(2))
        direction = nn.functional.normalize(along, dim=0)
        step.restore(step.state._replace(sums=earlier, direction=direction)._asdict())
    return step


def taken(step: PrivateStep, inputs: Tensor, targets: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """The exact sum of clipped gradients, and that of the rows."""
    step(inputs, targets, groups)
    gradients = torch.cat([each.grad.flatten() for each in step.parameters])
    return EXPECTED * gradients.double(), step.state.sums.flatten().double() / 3**0.5


EARLIER = st.lists(st.sampled_from((0.0, 1.0, -2.0, 0.3, 40.0, 1e6)), min_size=6, max_size=6)
EXAMPLES = st.lists(
    st.tuples(st.lists(st.sampled_from(WILD), min_size=3, max_size=3), st.integers(0, 1), st.integers(0, 1)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=40, deadline=None)
@given(EXAMPLES, EARLIER, st.sampled_from([None, 1, 2]))
def test_one_example_moves_gradients_by_c_and_statistics_by_1_given_what_was_released(batch, earlier, part):
    """Also where features are infinite or NaN, a group is absent, the batch is empty, or in several parts."""
    inputs, targets, groups = (torch.tensor(column) for column in zip(*batch, strict=True))
    sums = torch.tensor(earlier).reshape(3, 2)
    with_it = taken(step_of(part=part, earlier=sums), inputs, targets, groups)
    without = taken(step_of(part=part, earlier=sums), inputs[1:], targets[1:], groups[1:])
    assert torch.linalg.vector_norm(with_it[0] - without[0]) <= BOUND * (1 + 1e-4)
    assert torch.linalg.vector_norm(with_it[1] - without[1]) <= 1 + 1e-4


def batch_of(count: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(count, 3, generator=generator)
    return inputs, torch.arange(count) % 2, torch.arange(count) // 2 % 2


@pytest.mark.parametrize("part", [1, 4])
def test_penalties_are_those_from_before_the_batch_however_it_is_divided(part):
    """Fails where a part that is measured after the statistics takes the penalties that follow from them."""
    earlier = torch.tensor([[2.0, 3.0], [0.1, 0.9], [0.5, 1.4]])
    whole, parts = (taken(step_of(part=size, earlier=earlier), *batch_of()) for size in (None, part))
    torch.testing.assert_close(whole, parts)
    other = taken(step_of(earlier=torch.zeros(3, 2)), *batch_of())
    assert not torch.allclose(whole[0], other[0])  # penalties show in the sum


def test_the_policy_sees_the_private_gradient_that_the_optimizer_sees():
    step = step_of()
    assert not step.state.direction.any()
    step(*batch_of())
    released = torch.cat([each.grad.flatten() for each in step.parameters])
    torch.testing.assert_close(step.state.direction, released / released.norm())


def test_an_empty_batch_is_a_step_like_any_other():
    step = step_of()
    step(torch.empty(0, 3), torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    assert step.ledger.steps == 1
    assert not step.state.sums.any()
    assert not step.state.direction.any()


def test_an_example_whose_penalised_gradient_is_not_finite_leaves_the_batch():
    inputs, targets, groups = batch_of()
    broken = inputs.clone()
    broken[4] = torch.nan
    others = [place for place in range(9) if place != 4]
    earlier = torch.tensor([[2.0, 3.0], [0.1, 0.9], [0.5, 1.4]])
    found = taken(step_of(earlier=earlier), broken, targets, groups)
    torch.testing.assert_close(
        found, taken(step_of(earlier=earlier), inputs[others], targets[others], groups[others])
    )


def test_an_engine_without_penalties_is_refused_and_leaves_no_sum():
    step = step_of(engine="ghost")
    with pytest.raises(PolicyError, match="GhostEngine cannot add penalties to losses; make the engine by"):
        step(*batch_of())
    assert all(each.grad is None for each in step.parameters)


def test_a_group_beyond_those_of_the_penalty_is_refused():
    subject = model()
    penalty = Penalty(torch.zeros(2, 2), torch.zeros(26))
    engine = make_engine("functional", subject, CROSS_ENTROPY)
    inputs, targets, groups = batch_of()
    with pytest.raises(PolicyError, match="penalties for 2 groups, and an example of group 3"):
        measure(engine, penalty, inputs, targets, groups.clamp_min(3))


def test_policies_without_penalties_are_asked_for_none():
    policy = DPSGD()
    assert penalty_of(policy, policy.init(Setting(2, 4.0, 1.0))) is None
    assert state_after(policy, (state := policy.init(Setting(2, 4.0, 1.0))), [torch.ones(3)]) is state
    engine = GivenGradients(nn.Parameter(torch.zeros(3)))
    assert measure(engine, None, torch.ones(2, 3), torch.zeros(2), torch.zeros(2)).terms is None


@dataclass(frozen=True)
class _Writes(FairLens):
    """Writes to the state that it is given."""

    def penalty(self, state):
        state.sums.fill_(7.0)
        return Penalty(torch.zeros(2, 2), state.direction)


def test_a_penalty_cannot_change_the_state():
    step = step_of(_Writes(BOUND))
    penalty_of(step.policy, step.state)
    assert step.state.sums.isnan().all()


def test_each_example_is_measured_under_the_factors_of_its_own_group():
    class Engine:
        def penalised(self, inputs, targets, factors, direction):
            self.factors = factors

    engine, penalty = Engine(), Penalty(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.zeros(5))
    measure(engine, penalty, torch.zeros(3, 3), torch.zeros(3), torch.tensor([1, 0, 1]))
    assert engine.factors.tolist() == [[3.0, 4.0], [1.0, 2.0], [3.0, 4.0]]


class _Along(NamedTuple):
    direction: Tensor


@dataclass(frozen=True)
class _Penalises(DPSGD):
    penalises: ClassVar[bool] = True

    def init(self, setting: Setting) -> _Along:
        return _Along(torch.zeros(setting.num_parameters))

    def penalty(self, state: _Along) -> Penalty:
        return Penalty(torch.ones(2, 2), state.direction)

    def after_gradient(self, state: _Along, gradient: Tensor) -> _Along:
        return _Along(gradient)


def _wrong(**rules: Any) -> Policy:
    return type("Wrong", (_Penalises,), rules)()


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (_wrong(penalty=lambda self, state: Penalty(torch.ones(2), state.direction)), r"factors \[2\]"),
        (_wrong(penalty=lambda self, state: Penalty(torch.ones(2, 3), state.direction)), r"factors \[2, 3\]"),
        (_wrong(penalty=lambda self, state: Penalty(torch.ones(2, 2), torch.ones(3))), r"direction \[3\]"),
        (_wrong(penalty=lambda self, state: Penalty(torch.ones(1, 2), state.direction)), "for 1 groups"),
        (_wrong(penalty=lambda self, state: None), "expected a Penalty"),
        (_wrong(penalty=Policy.penalty), "adds nothing to losses"),
        (_wrong(after_gradient=Policy.after_gradient), "adds nothing to losses"),
        (_wrong(after_gradient=lambda self, state, gradient: gradient), "expected a NamedTuple"),
        (_wrong(after_gradient=lambda self, state, gradient: _Along(gradient[:1])), "changes the shapes"),
        (_wrong(statistics_ratio=10.0, statistics=lambda self, state, norm, group: norm), "one example at"),
    ],
)
def test_penalties_that_cannot_be_added_are_refused_before_anything_is_spent(policy, message):
    step = step_of(policy)
    with pytest.raises(PolicyError, match=message):
        step.rehearse(torch.arange(2))
    assert step.ledger.steps == 0


def test_a_penalty_of_ones_own_is_rehearsed_and_trains():
    step = step_of(_Penalises())
    step.rehearse(torch.arange(2))
    step(*batch_of())
    assert step.state.direction.any()
