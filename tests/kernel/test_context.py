"""Where a policy changes losses, too, one example moves gradients and statistics by their bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from equidp.engines import make_engine
from equidp.errors import SettingError
from equidp.kernel.bounding import example_context
from equidp.kernel.event import Event
from equidp.kernel.noise import SeededRandomness
from equidp.kernel.policy import Policy, Setting
from equidp.kernel.step import PrivateStep
from equidp.policies import DPSGD
from papers.reproduction.fairlens import FairLens
from support.errors import raises_field
from support.given_gradients import GivenGradients

CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")
BOUND, EXPECTED = 0.7, 4.0
WILD = (*(0.0, 1.0, -1.0, 1e-3, 30.0, -1e4, 1e18), float("inf"), float("nan"))


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def step_of(policy=None, engine: Any = "functional", part=None, earlier=None) -> PrivateStep:
    """A step without noise, so that all that one example moves is seen; `earlier`: released sums, [3, 2]."""
    subject = model()
    policy = FairLens(BOUND, smoothing=0.0) if policy is None else policy
    noise = None if policy.statistics_ratio is None else 0.0
    step = PrivateStep(
        make_engine(engine, subject, CROSS_ENTROPY, policy) if isinstance(engine, str) else engine,
        policy,
        list(subject.parameters()),
        event=Event(0.1, 0.0, noise),
        expected_batch_size=EXPECTED,
        num_groups=2,
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
    gradients = torch.cat([each.flatten() for each in step(inputs, targets, groups)])
    return EXPECTED * gradients.double(), step.state.sums.flatten().double() / 3**0.5


EARLIER = st.lists(st.sampled_from((0.0, 1.0, -2.0, 0.3, 40.0, 1e6)), min_size=6, max_size=6)
EXAMPLES = st.lists(
    st.tuples(st.lists(st.sampled_from(WILD), min_size=3, max_size=3), st.integers(0, 1), st.integers(0, 1)),
    min_size=1,
    max_size=6,
)


@pytest.mark.soak
@settings(max_examples=20)
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
def test_contexts_are_those_from_before_the_batch_however_it_is_divided(part):
    """Fails where a part that is measured after the statistics has the context that follows from them."""
    earlier = torch.tensor([[2.0, 3.0], [0.1, 0.9], [0.5, 1.4]])
    whole, parts = (taken(step_of(part=size, earlier=earlier), *batch_of()) for size in (None, part))
    torch.testing.assert_close(whole, parts)
    other = taken(step_of(earlier=torch.zeros(3, 2)), *batch_of())
    assert not torch.allclose(whole[0], other[0])  # the context shows in the sum


def test_an_example_whose_changed_gradient_is_not_finite_leaves_the_batch():
    inputs, targets, groups = batch_of()
    broken = inputs.clone()
    broken[4] = torch.nan
    others = [place for place in range(9) if place != 4]
    earlier = torch.tensor([[2.0, 3.0], [0.1, 0.9], [0.5, 1.4]])
    found = taken(step_of(earlier=earlier), broken, targets, groups)
    torch.testing.assert_close(
        found, taken(step_of(earlier=earlier), inputs[others], targets[others], groups[others])
    )


def test_an_engine_without_the_objective_is_refused_before_anything_is_spent():
    subject = model()
    for engine in (
        make_engine("ghost", subject, CROSS_ENTROPY),
        make_engine("functional", subject, CROSS_ENTROPY),
        GivenGradients(nn.Parameter(torch.zeros(3))),
    ):
        with raises_field(SettingError, "engine"):
            step_of(engine=engine)


class _Along(NamedTuple):
    direction: Tensor


@dataclass(frozen=True)
class _Changes(DPSGD):
    """Adds to a loss its slope along the last private gradient, by a factor of the example's group."""

    loss_terms: ClassVar[int] = 1

    def init(self, setting: Setting) -> _Along:
        return _Along(torch.zeros(setting.num_parameters))

    def context(self, state: _Along, group: Tensor) -> tuple[Tensor, ...]:
        return 1.0 + group, state.direction

    def objective(self, loss, parameters, context):
        factor, direction = context
        own, (value, _) = torch.func.grad_and_value(loss, has_aux=True)(parameters)
        slope = torch.cat([each.flatten() for each in own.values()]) @ direction
        return value + factor * slope, slope.unsqueeze(0)

    def after_gradient(self, state: _Along, gradient: Tensor) -> _Along:
        return _Along(gradient)


def changed(**rules: Any) -> Policy:
    return type("Rogue", (_Changes,), rules)()


def test_a_context_cannot_change_the_state():
    def writes(self, state, group):
        state.direction.fill_(7.0)
        return torch.ones(()), state.direction

    step = step_of(changed(context=writes))
    example_context(step.policy, step.state, torch.arange(2))
    assert not step.state.direction.any()


def _mean_of_groups(self, state, group):
    """As a rule would mix examples that saw all of them: here it sees one group alone."""
    return group.double().mean(), state.direction


def test_a_context_that_averages_over_the_batch_sees_one_example():
    policy = changed(context=_mean_of_groups)
    state = policy.init(Setting(2, 4.0, 1.0, 26))
    assert example_context(policy, state, torch.tensor([1, 0, 0]))[0].tolist() == [1.0, 0.0, 0.0]


def test_the_state_of_the_weights_is_from_before_the_policy_saw_the_gradient():
    step = step_of(_Changes())
    first = step.state
    step(*batch_of())
    assert step.weights_state is first
    second = step.state
    step(*batch_of())
    assert step.weights_state is second is not step.state


def test_statistics_of_an_example_see_the_terms_of_its_own_loss():
    after = []

    @dataclass(frozen=True)
    class Sums(_Changes):
        statistics_ratio: float = 10.0

        def statistics(self, state, norm, group, *terms):
            return terms[0].clamp(-1, 1)[None] * (1 + group) / 2

        def update(self, state, released):
            return _Along(state.direction + released)

        def after_gradient(self, state, gradient):
            after.append(state.direction - 1)
            return state

    step = step_of(Sums())
    step.restore({"direction": torch.ones(26)})
    inputs, targets, groups = batch_of()
    engine = make_engine("functional", model(), CROSS_ENTROPY, Sums())
    terms = engine(inputs, targets, *example_context(Sums(), step.state, groups)).terms
    step(inputs, targets, groups)
    rows = terms[:, 0].clamp(-1, 1) * (1 + groups) / 2
    torch.testing.assert_close(after[0], rows.sum().expand(26))
