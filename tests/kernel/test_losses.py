"""Where a policy reads losses, too, one example moves gradients and statistics by their bounds alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from equidp.engines import MeasuredBatch
from equidp.errors import PolicyError, SettingError
from equidp.kernel.bounding import example_rows, example_weights, made_up_numbers, measured_numbers
from equidp.kernel.engine import Measured
from equidp.kernel.ledger import MemoryLedger, StepEvent
from equidp.kernel.noise import SeededRandomness
from equidp.kernel.policy import Policy, Setting, check_settings
from equidp.kernel.step import PrivateStep
from equidp.policies import DPSGD, GroupDRO
from support.errors import raises_field
from support.given_gradients import GivenGradients
from support.policies import RogueLosses

GROUPS, EXPECTED = 2, 4.0
WILD = (0.0, 1.0, -3.0, 1e-30, 1e30, -1e30, 3e38, float("inf"), float("-inf"), float("nan"))


class Released(NamedTuple):
    """Everything that was released so far."""

    sums: Tensor


@dataclass(frozen=True)
class Reads(Policy):
    """Rows of norm 1 or more and weights of S or more that follow from losses; keeps what is released."""

    clipping_bound: float = 0.7
    statistics_ratio: float = 1.0
    loss_readers: ClassVar[tuple[str, ...]] = ("statistics", "weight")

    def init(self, setting: Setting) -> Released:
        return Released(torch.zeros(2))

    def statistics(self, state: Released, norm: Tensor, group: Tensor, loss: Tensor) -> Tensor:  # type: ignore[override]
        return torch.stack([loss, 5 - loss])

    def update(self, state: Released, released: Tensor) -> Released:
        return Released(released)

    def weight(self, state: Released, norm: Tensor, group: Tensor, loss: Tensor) -> Tensor:  # type: ignore[override]
        return loss

    def sensitivity(self, state: Released) -> float:
        return self.clipping_bound


def step_of(policy: Policy, part: int | None = None, engine: Any = None) -> PrivateStep:
    """A step without noise, so that all that one example moves is seen."""
    parameter = torch.nn.Parameter(torch.zeros(3))
    return PrivateStep(
        GivenGradients(parameter) if engine is None else engine,
        policy,
        [parameter],
        event=StepEvent(0.1, 0.0, None if policy.statistics_ratio is None else 0.0),
        expected_batch_size=EXPECTED,
        num_groups=GROUPS,
        ledger=MemoryLedger(),
        randomness=SeededRandomness(0),
        physical_batch_size=part,
    )


def taken(step: PrivateStep, gradients: Tensor, losses: Tensor, groups: Tensor) -> Tensor:
    """The exact sum of weighted gradients, [3]."""
    step(gradients, losses, groups)
    return EXPECTED * step.parameters[0].grad.double()


EXAMPLES = st.lists(
    st.tuples(
        st.lists(st.sampled_from((0.0, 1.0, -2.0, 1e4, 1e-12, float("nan"))), min_size=3, max_size=3),
        st.sampled_from(WILD),
        st.integers(0, GROUPS - 1),
    ),
    min_size=1,
    max_size=6,
)


@given(EXAMPLES, st.sampled_from([None, 1, 2]))
def test_one_example_moves_gradients_by_s_and_statistics_by_1_whatever_its_loss(batch, part):
    """Rows and weights of the policy are losses themselves: infinite, NaN, negative or huge.

    Fails where rows are not scaled to norm 1, weights not capped, or a loss that is no number is let in.
    """
    gradients, losses, groups = (torch.tensor(column) for column in zip(*batch, strict=True))
    steps = [step_of(Reads(), part) for _ in range(2)]
    with_it = taken(steps[0], gradients, losses, groups)
    without = taken(steps[1], gradients[1:], losses[1:], groups[1:])
    assert torch.linalg.vector_norm(with_it - without) <= 0.7 * (1 + 1e-4)
    rows = [step.state.sums.double() for step in steps]
    assert torch.linalg.vector_norm(rows[0] - rows[1]) <= 1 + 1e-4


@given(EXAMPLES, st.sampled_from([None, 1, 2]))
def test_one_example_moves_the_statistics_of_group_dro_by_1_and_given_them_its_sum_by_c(batch, part):
    gradients, losses, groups = (torch.tensor(column) for column in zip(*batch, strict=True))
    policy = GroupDRO(0.7, smoothing=0.0, group_learning_rate=3.0)
    steps = [step_of(policy, part) for _ in range(2)]
    taken(steps[0], gradients, losses, groups)
    taken(steps[1], gradients[1:], losses[1:], groups[1:])
    rows = [step.state.sums.double() / 2**0.5 for step in steps]
    assert torch.linalg.vector_norm(rows[0] - rows[1]) <= 1 + 1e-4
    same = step_of(StateFixed(0.7), part), step_of(StateFixed(0.7), part)
    with_it = taken(same[0], gradients, losses, groups)
    without = taken(same[1], gradients[1:], losses[1:], groups[1:])
    assert torch.linalg.vector_norm(with_it - without) <= 0.7 * (1 + 1e-4)


@dataclass(frozen=True)
class StateFixed(GroupDRO):
    """Group-DRO under a state that is given, as in the proof: what was released is the same."""

    def init(self, setting: Setting) -> Any:
        state = super().init(setting)
        return state._replace(shares=torch.tensor([0.2, 0.8]), sums=torch.tensor([[9.0, 12.0], [1.0, 3.0]]))

    def update(self, state: Any, released: Tensor) -> Any:
        return state


@pytest.mark.parametrize("policy", [Reads(), GroupDRO(0.7, smoothing=0.0)], ids=["reads", "group-dro"])
@pytest.mark.parametrize("part", [None, 1])
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_an_example_whose_loss_is_no_number_leaves_the_batch(bad, part, policy):
    """Its gradient is finite; the batch is charged and the others are as without it."""
    gradients, losses = torch.randn(4, 3), torch.tensor([0.2, bad, 0.9, 0.4])
    others, groups = torch.tensor([0, 2, 3]), torch.zeros(4, dtype=torch.int64)
    steps = [step_of(policy, part) for _ in range(2)]
    found = taken(steps[0], gradients, losses, groups)
    torch.testing.assert_close(found, taken(steps[1], gradients[others], losses[others], groups[others]))
    torch.testing.assert_close(steps[0].state.sums, steps[1].state.sums)
    assert found.any()
    assert steps[0].ledger.steps == 1


def test_a_policy_that_reads_no_losses_is_not_concerned_by_them():
    gradients, groups = torch.randn(4, 3), torch.zeros(4, dtype=torch.int64)
    found = [
        taken(step_of(DPSGD(0.7)), gradients, losses, groups)
        for losses in torch.tensor([[1.0] * 4, [torch.nan] * 4])
    ]
    assert torch.equal(*found)


def test_each_rule_sees_the_loss_of_its_own_example():
    norms, groups, losses = torch.ones(3), torch.tensor([0, 1, 0]), torch.tensor([0.5, 0.25, 4.0])
    policy = Reads()
    state = policy.init(Setting(GROUPS, EXPECTED, 1.0))
    assert torch.equal(example_weights(policy, state, norms, groups, (losses,)), losses)
    assert torch.equal(example_rows(policy, state, norms, groups, (losses,))[:, 0], losses)


def test_rules_that_are_not_readers_get_no_loss():
    """Group-DRO's weight takes norm and group alone."""
    policy, norms, groups = GroupDRO(), torch.ones(2), torch.tensor([0, 1])
    state = policy.init(Setting(GROUPS, EXPECTED, 1.0))
    torch.testing.assert_close(example_weights(policy, state, norms, groups, (norms,)), norms)
    with pytest.raises(PolicyError):
        example_rows(policy, state, norms, groups)


def test_what_a_rule_writes_to_a_loss_reaches_no_other_rule():
    losses = torch.tensor([0.5, 2.0])
    examples = torch.ones(2), torch.tensor([0, 1]), (losses,)
    for compute in (example_rows, example_weights):
        compute(RogueLosses(), RogueLosses().init(Setting(GROUPS, EXPECTED, 1.0)), *examples)
    assert losses.tolist() == [0.5, 2.0]


class Without:
    """An engine that does not measure losses."""

    def __call__(self, inputs: Tensor, targets: Tensor) -> Measured:
        return MeasuredBatch(torch.ones(len(inputs)), lambda weights: {})


def test_an_engine_that_does_not_measure_losses_is_refused_before_anything_is_spent():
    step_of(DPSGD(), engine=Without())
    with raises_field(SettingError, "engine"):
        step_of(GroupDRO(), engine=Without())


def test_an_engine_that_says_so_and_gives_none_leaves_no_sum():
    engine = Without()
    engine.measures_losses = True  # type: ignore[attr-defined]
    step = step_of(GroupDRO(), engine=engine)
    with raises_field(SettingError, "engine"):
        step(torch.ones(2, 3), torch.ones(2), torch.tensor([0, 1]))
    assert step.parameters[0].grad is None


def test_a_sample_of_which_no_example_can_be_measured_is_an_empty_one():
    """An engine then has no losses, and the ledger was charged."""
    measured = MeasuredBatch(torch.full((2,), torch.inf), lambda weights: {})
    norms, numbers = measured_numbers(GroupDRO(), measured)
    assert not torch.isfinite(norms).any()
    assert [each.tolist() for each in numbers] == [[0.0, 0.0]]
    assert measured_numbers(DPSGD(), measured)[1] == made_up_numbers(DPSGD(), norms) == ()


def test_steps_of_policies_that_read_no_losses_ask_for_none():
    class Unread:
        """A measured batch whose losses must not be touched."""

        norms = torch.ones(2)

        @property
        def losses(self) -> Tensor:
            raise AssertionError

        terms = losses

    assert measured_numbers(DPSGD(), Unread())[1] == ()  # type: ignore[arg-type]


@pytest.mark.parametrize("readers", ["weight", ("weigth",), ("update",), ("statistics", 1), None])
def test_readers_that_are_no_rules_are_refused(readers):
    with raises_field(PolicyError, "loss_readers"):
        check_settings(type("Wrong", (DPSGD,), {"loss_readers": readers})())


def _keeps(self, state, norm, group, loss):
    type(self).seen = loss
    return torch.ones(2)


@pytest.mark.parametrize(
    "rules",
    [
        {"weight": lambda self, state, norm, group, loss: loss if loss > 1 else norm},
        {"weight": lambda self, state, norm, group: norm},
        {"statistics": lambda self, state, norm, group, loss: torch.ones(int(loss))},
        {"statistics": _keeps},
        {"weight": _keeps},
    ],
)
def test_a_rogue_that_mixes_or_keeps_losses_is_refused_and_leaves_no_sum(rules):
    step = step_of(type("Rogue", (Reads,), rules)())
    with pytest.raises(PolicyError):
        step(torch.ones(2, 3), torch.tensor([1.0, 2.0]), torch.tensor([0, 1]))
    assert step.parameters[0].grad is None
