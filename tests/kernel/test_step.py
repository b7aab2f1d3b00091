"""The private step holds its bound and its noise, whatever the policy does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from equidp.errors import PolicyError, SettingError
from equidp.kernel import step as step_module
from equidp.kernel.bounding import ROUNDING
from equidp.kernel.engine import Measured
from equidp.kernel.event import Event
from equidp.kernel.noise import Randomness, SeededRandomness, grid
from equidp.kernel.noisy_sum import private_sum
from equidp.kernel.policy import Policy, statistics_noise
from equidp.kernel.step import PrivateStep
from equidp.policies import DPSGD, DPSGDF, SGD, Naive
from equidp.policies.weights import sensitivity_of
from support.given_gradients import GivenGradients
from support.policies import DIMENSION, EXPECTED, GROUPS, POLICIES


class NoNoise(Randomness):
    """No randomness: what remains is the sum whose sensitivity is at stake, on the finest grid
    (`make_step`)."""

    def words(self, count: int) -> np.ndarray:
        raise AssertionError("the private step draws no words")

    def normal(self, count: int, device: torch.device | str = "cpu", deviation: float = 1.0) -> Tensor:
        return torch.zeros(count, dtype=torch.float64)


def make_step(
    policy: Policy,
    randomness: object,
    sigma: float | None = None,
    physical_batch_size: int | None = None,
) -> PrivateStep:
    if sigma is None:
        sigma = 1e-9 if isinstance(randomness, NoNoise) else 1.0
    parameter = torch.nn.Parameter(torch.zeros(DIMENSION))
    return PrivateStep(
        GivenGradients(parameter),
        policy,
        [parameter],
        event=Event(0.1, sigma, statistics_noise(policy, sigma)),
        expected_batch_size=EXPECTED,
        num_groups=GROUPS,
        randomness=randomness,
        physical_batch_size=physical_batch_size,
    )


def private_gradient(step: PrivateStep, gradients: Tensor, groups: Tensor) -> Tensor:
    (mean,) = step(gradients, torch.zeros(len(gradients)), groups)
    return mean


@contextmanager
def releases(*, switched: bool = False) -> Iterator[list[Tensor]]:
    """The noisy sums of statistics that steps release; `switched`: policies get the first of them every
    time."""
    seen: list[Tensor] = []

    def watched(*given: Any, **settings: Any) -> Tensor:
        seen.append(private_sum(*given, **settings))
        return (seen[0] if switched else seen[-1]).clone()

    with mock.patch.object(step_module, "private_sum", watched):
        yield seen


scales = st.sampled_from([0.0, 1e-30, 1e-8, 0.3, 1.0, 2.0, 40.0, 1e12, 1e30, math.inf, math.nan])
examples = st.lists(
    st.tuples(scales, st.integers(0, GROUPS - 1), st.integers(0, 1000)), min_size=0, max_size=6
)


def as_batch(rows: list[tuple[float, int, int]]) -> tuple[Tensor, Tensor]:
    directions = [torch.randn(DIMENSION, generator=torch.Generator().manual_seed(seed)) for *_, seed in rows]
    gradients = [
        scale * direction / direction.norm() for (scale, *_), direction in zip(rows, directions, strict=True)
    ]
    stacked = torch.stack(gradients) if rows else torch.empty(0, DIMENSION)
    return stacked, torch.tensor([group for _, group, _ in rows], dtype=torch.int64)


def nobody(size: int) -> Tensor:
    """All in group 0."""
    return torch.zeros(size, dtype=torch.int64)


@pytest.mark.parametrize("name", POLICIES)
@given(
    rows=examples,
    extra=st.tuples(scales, st.integers(0, GROUPS - 1), st.integers(0, 1000)),
    physical=st.sampled_from([None, 1, 2, 3]),
)
@settings(max_examples=20)
def test_one_example_moves_the_sum_by_at_most_the_sensitivity(name, rows, extra, physical):
    """|sum with i - sum without i| <= S given the same releases, for extreme norms and empty groups too.

    The statistics are switched to what the smaller batch released, as in the proof: only then are weights
    comparable. Two batches in a row: the second has a state that follows from releases, and all that rules
    tried to keep. 20 random pairs for each of 15 policies; benchmarks/neighbours.py tries 20,000.
    """
    with releases(switched=True):
        steps = [make_step(POLICIES[name], NoNoise(), physical_batch_size=physical) for _ in range(2)]
        for _ in range(2):
            sums, sensitivities = [], []
            for step, batch in zip(steps, (rows, [*rows, extra]), strict=True):
                sums.append(private_gradient(step, *as_batch(batch)).double() * EXPECTED)
                sensitivities.append(sensitivity_of(step.policy, step.state, step.num_groups))
            assert sensitivities[0] == sensitivities[1]
            assert torch.isfinite(sums[0]).all()
            assert torch.linalg.vector_norm(sums[1] - sums[0]) <= sensitivities[0] * (1 + 1e-4)


@pytest.mark.parametrize("name", [name for name, policy in POLICIES.items() if policy.statistics_ratio])
@given(
    rows=examples,
    extra=st.tuples(scales, st.integers(0, GROUPS - 1), st.integers(0, 1000)),
    physical=st.sampled_from([None, 1, 2]),
)
@settings(max_examples=25)
def test_one_example_moves_the_released_statistics_by_at_most_one(name, rows, extra, physical):
    """Rows of a policy that breaks the rules are brought to norm 1, and none depends on another example."""
    with releases() as sums:
        for batch in (rows, [*rows, extra]):
            private_gradient(
                make_step(POLICIES[name], NoNoise(), physical_batch_size=physical), *as_batch(batch)
            )
    assert torch.linalg.vector_norm(sums[1] - sums[0]) <= 1 + 1e-5


def test_the_gradient_is_divided_by_the_expected_batch_size():
    """Never by the realised one, which is private."""
    for size in (1, 3, 9):
        gradient = private_gradient(
            make_step(DPSGD(100.0), NoNoise()), torch.ones(size, DIMENSION), nobody(size)
        )
        torch.testing.assert_close(gradient, torch.full((DIMENSION,), size / EXPECTED))


@pytest.mark.parametrize("name", ["dpsgd", "naive"])
@pytest.mark.parametrize("physical", [None, 2])
def test_an_example_that_is_not_finite_contributes_nothing(name, physical):
    """Neither to the gradient nor to the statistics."""
    good = torch.randn(4, DIMENSION, generator=torch.Generator().manual_seed(0))
    bad = torch.tensor([[torch.nan] * DIMENSION, [torch.inf, 0, 0, 0], [1e30, 1e30, 1e30, 1e30]])
    mixed = torch.cat([good[:2], bad, good[2:]])
    results = []
    for batch in (good, mixed, bad):
        step = make_step(POLICIES[name], NoNoise(), physical_batch_size=physical)
        with releases() as released:
            results.append((private_gradient(step, batch, nobody(len(batch))), released))
    torch.testing.assert_close(*results[:2])
    assert results[2][0].tolist() == [0.0] * DIMENSION
    assert all(total.tolist() == [0.0] * GROUPS for total in results[2][1])


@pytest.mark.parametrize("name", POLICIES)
def test_an_empty_batch_releases_noise(name):
    step = make_step(POLICIES[name], SeededRandomness(0))
    gradient = private_gradient(step, torch.empty(0, DIMENSION), nobody(0))
    assert (gradient != 0).all()


@dataclass(frozen=True)
class LogNorms(Naive):
    """Its row of a norm that is 0 is no number."""

    def statistics(self, state: Any, norm: Tensor, group: Tensor) -> Tensor:
        return norm.sub(1).log()[None].expand(GROUPS)


def test_an_empty_batch_does_not_show_in_what_a_policy_makes_of_it():
    """Its made-up row is dropped, not multiplied by 0: the state would say that nobody was there."""
    step = make_step(LogNorms(1.0), SeededRandomness(0))
    private_gradient(step, torch.empty(0, DIMENSION), nobody(0))
    assert all(each.isfinite().all() for each in step.state)


@dataclass(frozen=True)
class SetBounds(DPSGDF):
    """Bounds of 1, 2 and 8, whatever is released."""

    def update(self, state: Any, released: Tensor) -> Any:
        return state._replace(bounds=torch.tensor([1.0, 2.0, 8.0]))


@pytest.mark.parametrize("group", [0, 2])
def test_the_sensitivity_covers_groups_that_are_not_in_the_batch(group):
    """Noise is scaled by the largest bound of all groups: by those in the batch, it would tell who is
    there."""
    step = make_step(SetBounds(), SeededRandomness(0), sigma=1.0)
    gradient = private_gradient(step, torch.zeros(2, DIMENSION), torch.full((2,), group))
    source = SeededRandomness(0)
    source.normal(2 * GROUPS)  # what the statistics took
    torch.testing.assert_close(
        gradient, (on_grid(scaled(8.0) * source.normal(DIMENSION), 8.0) / EXPECTED).float()
    )


@pytest.mark.parametrize("groups", [[0, 0, 1, 1], []], ids=["four examples", "empty sample"])
def test_statistics_are_the_samples_own_plus_noise_of_their_own_scale(groups):
    """sigma_s = 10 sigma for Naive. Of an empty sample noise alone: the made-up example that shapes it does
    not count."""
    step = make_step(Naive(1.0), SeededRandomness(2), sigma=0.7)
    with releases() as released:
        private_gradient(step, torch.ones(len(groups), DIMENSION), torch.tensor(groups, dtype=torch.int64))
    counts = torch.bincount(torch.tensor(groups, dtype=torch.int64), minlength=GROUPS)
    assert torch.equal(released[0], on_grid(counts + 7.0 * SeededRandomness(2).normal(GROUPS), 7.0))


def test_statistics_of_one_step_go_into_the_weights_of_the_same_step():
    """As Andrew et al. compose them: the gradient query reads the state after the statistics query of its
    sample."""
    step = make_step(Naive(1.0), NoNoise())
    gradient = private_gradient(step, torch.tensor([[3.0, 0, 0, 0]] * 4), torch.tensor([0, 0, 1, 1]))
    theta = EXPECTED / GROUPS / torch.tensor([2.0, 2.0, 1.0])
    torch.testing.assert_close(step.state.theta, theta)
    torch.testing.assert_close(float(gradient[0]) * EXPECTED, float(4 * theta[0]))


class GivenSums:
    """An engine whose weighted sum is what it was given, in as many parameters."""

    def __init__(self, parameters: list[torch.nn.Parameter], sums: list[Tensor | None]) -> None:
        self.parameters, self.sums = parameters, sums

    def __call__(self, inputs: Tensor, targets: Tensor) -> Measured:
        return Measured(torch.ones(len(inputs)), None, self._sums)

    def _sums(self, weights: Tensor) -> dict[torch.nn.Parameter, Tensor]:
        pairs = zip(self.parameters, self.sums, strict=True)
        return {parameter: total.double() for parameter, total in pairs if total is not None}


def noisy_means(sums: list[Tensor | None], like: list[Tensor], sigma: float = 0.7) -> list[Tensor]:
    step = make_step(DPSGD(1.0), SeededRandomness(6), sigma=sigma)
    step.parameters = [torch.nn.Parameter(torch.zeros_like(each)) for each in like]
    step.engine = GivenSums(step.parameters, sums)
    return step(torch.ones(1, 1), torch.zeros(1), nobody(1))


def scaled(deviation: float) -> float:
    """Noise covers what rounding adds to the sensitivity."""
    return deviation * (1 + ROUNDING)


def on_grid(values: Tensor, deviation: float) -> Tensor:
    return (values / grid(deviation)).round() * grid(deviation)


def test_each_parameter_gets_noise_of_its_own_also_without_a_gradient():
    """No two share draws, and one that the batch does not reach shows so little."""
    sizes = [3, 0, 7, 1]
    like = [torch.zeros(size) for size in sizes]
    means = noisy_means([None, torch.zeros(0), torch.full((7,), 0.25), None], like)
    total = torch.cat([torch.zeros(3), torch.full((7,), 0.25), torch.zeros(1)]).double()
    expected = on_grid(total + scaled(0.7) * SeededRandomness(6).normal(sum(sizes)), 0.7) / EXPECTED
    torch.testing.assert_close(torch.cat(means), expected.float())


class Failing(NoNoise):
    def normal(self, count: int, device: torch.device | str = "cpu", deviation: float = 1.0) -> Tensor:
        raise OSError("no entropy")


@pytest.mark.parametrize("name", ["dpsgd", "dpsgd-f"])
def test_a_step_that_fails_while_it_draws_noise_shows_no_sum(name):
    step = make_step(POLICIES[name], Failing(), sigma=1.0)
    with pytest.raises(OSError, match="no entropy"):
        private_gradient(step, torch.ones(2, DIMENSION), nobody(2))
    assert step.parameters[0].grad is None


@pytest.mark.parametrize("name", ["dpsgd", "dpsgd-f", "rogue"])
@given(rows=examples, physical=st.integers(1, 7))
@settings(max_examples=25)
def test_a_batch_in_parts_gives_what_it_gives_whole(name, rows, physical):
    whole = make_step(POLICIES[name], SeededRandomness(3))
    parts = make_step(POLICIES[name], SeededRandomness(3), physical_batch_size=physical)
    torch.testing.assert_close(
        private_gradient(parts, *as_batch(rows)), private_gradient(whole, *as_batch(rows))
    )
    torch.testing.assert_close(parts.state, whole.state, equal_nan=True)


@pytest.mark.parametrize("name", ["dpsgd", "naive"])
@pytest.mark.parametrize("physical", [1, 2, 3])
def test_the_engine_sees_no_more_than_a_physical_batch_and_everybody_once_a_query(name, physical):
    step = make_step(POLICIES[name], NoNoise(), physical_batch_size=physical)
    given, seen = GivenGradients(step.parameters[0]), []

    def engine(inputs: Tensor, targets: Tensor) -> Measured:
        seen.append(inputs[:, 0].tolist())
        return given(inputs, targets)

    step.engine = engine
    gradients = torch.arange(1.0, 6.0).reshape(5, 1) * torch.ones(1, DIMENSION)
    private_gradient(step, gradients, nobody(5))
    assert max(map(len, seen)) == physical
    assert sorted(value for part in seen for value in part) == sorted(
        gradients[:, 0].tolist() * (1 if name == "dpsgd" else 2)
    )


def test_plain_sgd_sums_everything_and_is_refused_with_noise():
    gradient = private_gradient(
        make_step(SGD(), NoNoise(), sigma=0.0), 1e6 * torch.ones(2, DIMENSION), nobody(2)
    )
    torch.testing.assert_close(gradient, torch.full((DIMENSION,), 2e6 / EXPECTED))
    with pytest.raises(PolicyError):
        make_step(SGD(), NoNoise())


def test_an_event_that_hides_the_statistics_is_refused():
    parameter = torch.nn.Parameter(torch.zeros(DIMENSION))
    with pytest.raises(SettingError):
        PrivateStep(
            GivenGradients(parameter),
            Naive(1.0),
            [parameter],
            event=Event(0.1, 1.0),
            expected_batch_size=EXPECTED,
            num_groups=GROUPS,
            randomness=NoNoise(),
        )


@pytest.mark.parametrize(("policy", "physical"), [("dpsgd-f", 2), ("overwriting", None)])  # weights of 1e6
def test_limits_lower_weights_and_never_raise_them(policy, physical):
    """Limits go to the example whose index they were asked for, past one that is not finite; above 1 they
    mean 1."""
    asked = {}

    def limits(indices: Tensor, norms: Tensor) -> Tensor:
        asked.update(zip(indices.tolist(), norms.tolist(), strict=True))
        return torch.tensor(
            [{10: 0.25, 11: 1.0, 12: 7.0, 13: math.nan, 14: -1.0}[index] for index in indices.tolist()]
        )

    gradients = torch.zeros(5, DIMENSION)
    gradients[range(5), [0, 1, 1, 2, 3]] = torch.tensor([40.0, math.nan, 40.0, 40.0, 40.0])
    step = make_step(POLICIES[policy], NoNoise(), physical_batch_size=physical)
    step.limits = limits
    (mean,) = step(gradients, torch.zeros(5), nobody(5), torch.arange(10, 15))
    assert set(asked) == {10, 11, 12, 13, 14}
    total = mean * EXPECTED
    whole = sensitivity_of(step.policy, step.state, step.num_groups)
    torch.testing.assert_close(total, torch.tensor([0.25 * whole, whole, 0.0, 0.0]))
