"""The private step holds its bound, its noise and its ledger, whatever the policy does."""

from __future__ import annotations

import math
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import stats
from torch import Tensor

from equidp.engines import MeasuredBatch
from equidp.errors import PolicyError, SettingError
from equidp.kernel import step as mechanism
from equidp.kernel.bounding import capped_weights, rowwise
from equidp.kernel.engine import Measured
from equidp.kernel.ledger import Ledger, MemoryLedger, StepEvent
from equidp.kernel.noise import SeededRandomness, grid
from equidp.kernel.noisy_sum import private_sum
from equidp.kernel.step import PrivateStep
from equidp.policies import (
    DPSGD,
    DPSGDF,
    PSAC,
    SGD,
    Automatic,
    DPSGDFCode,
    Global,
    GlobalAdapt,
    Naive,
    Policy,
    Quantile,
)
from support.given_gradients import GivenGradients

GROUPS = 3
DIMENSION = 4
EXPECTED = 5.0


class NoNoise:
    """Randomness that is not: what remains is the sum whose sensitivity is at stake, on the finest grid
    (`make_step`)."""

    def uniform(self, count: int) -> np.ndarray:
        raise AssertionError("the private step draws no uniforms")

    def normal(self, count: int, device: torch.device | str = "cpu", deviation: float = 1.0) -> Tensor:
        return torch.zeros(count, dtype=torch.float64)


class Rogue(Policy):
    """Breaks every rule: huge rows and weights, both depend on the whole batch, raw norms kept and used as
    sensitivity."""

    statistics_ratio = 1.0

    def __init__(self) -> None:
        self.largest = 1.0

    def statistics(self, norms: Tensor, groups: Tensor) -> Tensor:
        self.largest = norms.max()
        return 1e6 * norms.unsqueeze(1) * torch.ones(1, 2)

    def weights(self, norms: Tensor, groups: Tensor) -> Tensor:
        self.largest = norms.sum()
        return 1e6 + norms.mean() * torch.ones_like(norms)

    @property
    def sensitivity(self) -> float:
        return float(self.largest)


class Overwriting(Policy):
    """Makes norms look small, for whoever reads them next."""

    def weights(self, norms: Tensor, groups: Tensor) -> Tensor:
        norms.mul_(1e-9)
        groups.zero_()
        return torch.full_like(norms, 1e6)

    @property
    def sensitivity(self) -> float:
        return 1.0


class Negative(Policy):
    """Gives NaN and negative weights."""

    def weights(self, norms: Tensor, groups: Tensor) -> Tensor:
        return torch.where(norms > 1, torch.nan, -1.0)

    @property
    def sensitivity(self) -> float:
        return 1.0


POLICIES = {
    "dpsgd": lambda: DPSGD(1.5),
    "dpsgd-f": lambda: DPSGDF(1.0, GROUPS),
    "dpsgd-f smooth": lambda: DPSGDF(1.0, GROUPS, smoothing=0.5),
    "dpsgd-f-code": lambda: DPSGDFCode(1.0, GROUPS),
    "naive": lambda: Naive(1.0, GROUPS),
    "global": lambda: Global(1.0, 3.0),
    "global-adapt": lambda: GlobalAdapt(1.0, initial_bound=3.0),
    "quantile": lambda: Quantile(1.0),
    "automatic": lambda: Automatic(1.0),
    "psac": lambda: PSAC(1.0),
    "rogue": Rogue,
    "negative": Negative,
    "overwriting": Overwriting,
}


def make_step(
    policy: Policy,
    randomness: object,
    sigma: float | None = None,
    ledger: Ledger | None = None,
    physical_batch_size: int | None = None,
) -> PrivateStep:
    if sigma is None:
        sigma = 1e-9 if isinstance(randomness, NoNoise) else 1.0
    parameter = torch.nn.Parameter(torch.zeros(DIMENSION))
    policy.prepare(noise_multiplier=sigma, expected_batch_size=EXPECTED)
    return PrivateStep(
        GivenGradients(parameter),
        policy,
        [parameter],
        event=StepEvent(0.1, sigma, policy.statistics_noise),
        expected_batch_size=EXPECTED,
        ledger=MemoryLedger() if ledger is None else ledger,
        randomness=randomness,
        physical_batch_size=physical_batch_size,
    )


def private_gradient(step: PrivateStep, gradients: Tensor, groups: Tensor) -> Tensor:
    step(gradients, torch.zeros(len(gradients)), groups)
    assert step.parameters[0].grad is not None
    return step.parameters[0].grad


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


@pytest.mark.parametrize("name", POLICIES)
@given(
    rows=examples,
    extra=st.tuples(scales, st.integers(0, GROUPS - 1), st.integers(0, 1000)),
    physical=st.sampled_from([None, 1, 2]),
)
def test_one_example_moves_the_sum_by_at_most_the_sensitivity(name, rows, extra, physical):
    """|sum with i - sum without i| <= S given the same releases, for extreme norms and empty groups too.

    The statistics are switched to what the smaller batch released, as in the proof: only then are weights
    comparable.
    """
    released: list[Tensor] = []
    sums, sensitivities = [], []
    for batch in (rows, [*rows, extra]):
        policy = POLICIES[name]()
        observe = policy.observe

        def observe_first_release(noisy: Tensor, observe=observe) -> None:
            released.append(noisy)
            observe(released[0])

        policy.observe = observe_first_release  # type: ignore[method-assign]
        step = make_step(policy, NoNoise(), physical_batch_size=physical)
        sums.append(private_gradient(step, *as_batch(batch)).double() * EXPECTED)
        sensitivities.append(policy.sensitivity)
    assert sensitivities[0] == sensitivities[1]
    assert torch.isfinite(sums[0]).all()
    assert torch.linalg.vector_norm(sums[1] - sums[0]) <= sensitivities[0] * (1 + 1e-4)


@given(rows=examples, extra=st.tuples(scales, st.integers(0, GROUPS - 1), st.integers(0, 1000)))
def test_one_example_moves_the_released_statistics_by_at_most_one(rows, extra):
    """Rows of a policy that breaks the rules are brought to norm 1, and none depends on another example."""
    sums = []
    for batch in (rows, [*rows, extra]):
        policy = Rogue()
        policy.observe = sums.append  # type: ignore[method-assign]
        private_gradient(make_step(policy, NoNoise()), *as_batch(batch))
    assert torch.linalg.vector_norm(sums[1] - sums[0]) <= 1 + 1e-5


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("own_parts", [True, False], ids=["parts of vmap", "vmap"])
@given(rows=st.lists(st.tuples(scales, st.integers(0, GROUPS - 1)), min_size=1, max_size=6))
def test_rows_are_those_of_each_example_alone(name, own_parts, rows):
    """Bit for bit, with the parts of torch.vmap that this PyTorch has, and with torch.vmap itself."""
    policy = POLICIES[name]()
    policy.prepare(noise_multiplier=1.0, expected_batch_size=EXPECTED)
    norms = torch.tensor([norm for norm, _ in rows])
    groups = torch.tensor([group for _, group in rows])
    rules = [policy.weights] if policy.statistics_ratio is None else [policy.weights, policy.statistics]
    parts = mechanism.vmap_increment_nesting
    assert parts is not None
    for rule in rules:
        with mock.patch.object(mechanism, "vmap_increment_nesting", parts if own_parts else None):
            together = rowwise(rule, norms, groups)
        alone = [rule(norms[at : at + 1], groups[at : at + 1]) for at in range(len(rows))]
        torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=0, equal_nan=True)


def test_share_limits_that_overwrite_norms_are_not_believed():
    step = make_step(Overwriting(), NoNoise())
    step.share_limits = lambda indices, norms: torch.ones_like(norms.mul_(1e-9))
    gradient = private_gradient(step, 100 * torch.ones(1, DIMENSION), torch.zeros(1, dtype=torch.int64))
    assert torch.linalg.vector_norm(gradient * EXPECTED) <= 1 + 1e-5


def test_state_from_raw_norms_does_not_reach_the_sensitivity():
    """What a policy remembers in statistics() or weights() is thrown away with the copy that remembered
    it."""
    policy = Rogue()
    step = make_step(policy, NoNoise())
    private_gradient(step, 100 * torch.ones(3, DIMENSION), torch.zeros(3, dtype=torch.int64))
    assert policy.largest == 1.0


def test_a_policy_with_python_branches_is_refused_before_noise():
    """A rule that cannot be asked example by example is an error that says how to write it."""

    class Branching(DPSGD):
        def weights(self, norms: Tensor, groups: Tensor) -> Tensor:
            return norms if norms.sum() > 0 else norms + 1

    step = make_step(Branching(1.0), NoNoise())
    with pytest.raises(PolicyError, match=r"torch\.where instead of if"):
        private_gradient(step, torch.ones(2, DIMENSION), torch.zeros(2, dtype=torch.int64))


def test_weights_are_capped_at_sensitivity_over_norm():
    weights = torch.tensor([5.0, 0.5, -1.0, torch.nan, torch.inf, 1e30])
    norms = torch.tensor([2.0, 2.0, 2.0, 2.0, 2.0, 0.0])
    capped = capped_weights(weights, norms, sensitivity=3.0)
    assert capped[:5].tolist() == [1.5, 0.5, 0.0, 0.0, 0.0]
    assert float(capped[5]) <= 3.0 / 1e-10 * (1 + 1e-6)


def test_the_gradient_is_divided_by_the_expected_batch_size():
    """Never by the realised one, which is private."""
    for size in (1, 3, 9):
        gradient = private_gradient(
            make_step(DPSGD(100.0), NoNoise()),
            torch.ones(size, DIMENSION),
            torch.zeros(size, dtype=torch.int64),
        )
        torch.testing.assert_close(gradient, torch.full((DIMENSION,), size / EXPECTED))


def test_an_example_that_is_not_finite_contributes_nothing():
    good = torch.randn(4, DIMENSION)
    bad = torch.tensor([[torch.nan] * DIMENSION, [torch.inf, 0, 0, 0], [1e30, 1e30, 1e30, 1e30]])
    groups = torch.zeros(7, dtype=torch.int64)
    expected = private_gradient(make_step(DPSGD(1.0), NoNoise()), good, groups[:4])
    mixed = torch.cat([good[:2], bad, good[2:]])
    torch.testing.assert_close(private_gradient(make_step(DPSGD(1.0), NoNoise()), mixed, groups), expected)
    only_bad = private_gradient(make_step(DPSGD(1.0), NoNoise()), bad, groups[:3])
    assert only_bad.tolist() == [0.0] * DIMENSION


def test_norms_whose_sum_overflows_are_finite_all_the_same():
    gradients = torch.zeros(3, DIMENSION)
    gradients[:, 0] = 3e38
    step = make_step(DPSGD(1.0), NoNoise())
    expected = torch.tensor([3.0, 0, 0, 0])[:DIMENSION] / EXPECTED
    given = GivenGradients(step.parameters[0])
    step.engine = lambda inputs, targets: MeasuredBatch(
        inputs.abs().amax(dim=1), given(inputs, targets).weighted_sum
    )
    torch.testing.assert_close(private_gradient(step, gradients, torch.zeros(3, dtype=torch.int64)), expected)


@pytest.mark.parametrize("name", ["dpsgd", "dpsgd-f", "dpsgd-f-code", "naive", "global-adapt", "quantile"])
def test_an_empty_batch_releases_noise_and_is_charged(name):
    ledger = MemoryLedger()
    step = make_step(POLICIES[name](), SeededRandomness(0), ledger=ledger)
    gradient = private_gradient(step, torch.empty(0, DIMENSION), torch.empty(0, dtype=torch.int64))
    assert (gradient != 0).all()
    assert ledger.steps == 1


@pytest.mark.parametrize("size", [0, 5])
@pytest.mark.parametrize("sigma", [0.5, 2.0])
def test_noise_is_normal_with_scale_sigma_times_sensitivity(size, sigma):
    """Kolmogorov-Smirnov against N(0, (sigma S / b)^2); false-alarm rate 1e-4 per case, seed fixed."""
    step = make_step(DPSGD(3.0), SeededRandomness(1), sigma=sigma)
    step.parameters[0].data = torch.zeros(DIMENSION)
    gradients, groups = torch.zeros(size, DIMENSION), torch.zeros(size, dtype=torch.int64)
    draws = torch.cat([private_gradient(step, gradients, groups) for _ in range(2000)]).numpy()
    assert stats.kstest(draws, "norm", args=(0, sigma * 3.0 / EXPECTED)).pvalue > 1e-4
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 4 / math.sqrt(len(draws))


@pytest.mark.parametrize("groups", [[0, 0, 1, 1], []], ids=["four examples", "nobody"])
def test_statistics_are_the_samples_own_plus_noise_of_their_own_scale(groups):
    """sigma_s = 10 sigma for Naive. Of an empty sample, noise alone: whoever is made up to shape it would be
    one example more."""
    policy = Naive(1.0, GROUPS)
    released: list[Tensor] = []
    policy.observe = released.append  # type: ignore[method-assign]
    step = make_step(policy, SeededRandomness(2), sigma=0.7)
    private_gradient(step, torch.ones(len(groups), DIMENSION), torch.tensor(groups, dtype=torch.int64))
    counts = torch.bincount(torch.tensor(groups, dtype=torch.int64), minlength=GROUPS)
    noisy = counts + 7.0 * SeededRandomness(2).normal(GROUPS)
    assert torch.equal(released[0], ((noisy / grid(7.0)).round() * grid(7.0)).float())


@given(sizes=st.lists(st.integers(0, 12), min_size=1, max_size=6))
def test_each_parameter_gets_noise_of_its_own(sizes):
    """However draws are cut up among parameters: no number is left bare, and none is used twice."""

    class Counting(NoNoise):
        drawn = 0

        def normal(self, count: int, device: torch.device | str = "cpu", deviation: float = 1.0) -> Tensor:
            assert count <= 5
            self.drawn += count
            return deviation * torch.arange(self.drawn - count + 1, self.drawn + 1, dtype=torch.float64)

    step = make_step(DPSGD(1.0), Counting(), sigma=1.0)
    step.parameters = [torch.nn.Parameter(torch.zeros(size)) for size in sizes]
    with mock.patch("equidp.kernel.noisy_sum._NOISE_BLOCK", 5):
        step._add_noise(1.0)
    noise = torch.cat([parameter.grad for parameter in step.parameters]) * EXPECTED
    assert_allclose(noise.numpy(), np.arange(1, sum(sizes) + 1), rtol=1e-6)


def step_with_sum(total: Tensor) -> tuple[PrivateStep, torch.nn.Parameter]:
    """A step of noise multiplier 0.7 whose engine is done: the sum waits in the gradient for its noise."""
    step = make_step(DPSGD(1.0), SeededRandomness(6), sigma=0.7)
    parameter = torch.nn.Parameter(torch.zeros_like(total))
    step.parameters, parameter.grad = [parameter], total.clone()
    return step, parameter


def mean_on_grid(sums: Tensor, deviation: float) -> Tensor:
    return (sums / grid(deviation)).round() * (grid(deviation) / EXPECTED)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_digits_below_the_noises_grid_are_gone(dtype):
    """They would tell which sum the noise was added to: of its values a computer reaches some and not others
    (Mironov, 2012)."""
    gradient = torch.randn(5000, generator=torch.Generator().manual_seed(0)).to(dtype)
    step, parameter = step_with_sum(gradient)
    step.expected_batch_size = 4.0  # which loses nothing
    step._add_noise(1.0)
    assert (4 * parameter.grad / grid(0.7) % 1 == 0).all()
    released = private_sum(torch.rand(9, 50), bound=3.0, noise_multiplier=2.0, randomness=SeededRandomness(0))
    assert (released / grid(6.0) % 1 == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_noise_is_added_in_float64_before_all_rounding(dtype):
    gradient = torch.randn(5000, generator=torch.Generator().manual_seed(0)).to(dtype)
    step, parameter = step_with_sum(gradient)
    step._add_noise(3.0)
    noise = SeededRandomness(6).normal(5000)
    assert torch.equal(parameter.grad, mean_on_grid(gradient.double() + 2.1 * noise, 2.1).to(dtype))


@pytest.mark.parametrize("gradient", [torch.ones(4, 6).t(), None], ids=["of a batch", "of nobody"])
def test_a_parameter_that_is_laid_out_otherwise_gets_its_noise(gradient):
    step = make_step(DPSGD(1.0), SeededRandomness(6), sigma=0.7)
    parameter = torch.nn.Parameter(torch.zeros(4, 6).t())
    step.parameters, parameter.grad = [parameter], gradient
    total = 0.0 if gradient is None else 1.0
    step._add_noise(1.0)
    noise = SeededRandomness(6).normal(24).reshape(6, 4)
    assert torch.equal(parameter.grad, mean_on_grid(total + 0.7 * noise, 0.7).float())


def test_the_ledger_is_charged_before_noise_is_drawn():
    """A step that dies while it draws noise is spent."""

    class Failing(NoNoise):
        def normal(self, count: int, device: torch.device | str = "cpu", deviation: float = 1.0) -> Tensor:
            raise OSError("no entropy")

    ledger = MemoryLedger()
    step = make_step(DPSGDF(1.0, GROUPS), Failing(), sigma=1.0, ledger=ledger)
    with pytest.raises(OSError, match="no entropy"):
        private_gradient(step, torch.ones(2, DIMENSION), torch.zeros(2, dtype=torch.int64))
    assert ledger.entries == ((StepEvent(0.1, 1.0, 10.0), 1),)


@pytest.mark.parametrize("name", POLICIES)
@given(rows=examples, physical=st.integers(1, 7))
def test_a_batch_in_parts_gives_what_it_gives_whole(name, rows, physical):
    policies = POLICIES[name](), POLICIES[name]()
    whole = private_gradient(make_step(policies[0], SeededRandomness(3)), *as_batch(rows))
    step = make_step(policies[1], SeededRandomness(3), physical_batch_size=physical)
    torch.testing.assert_close(private_gradient(step, *as_batch(rows)), whole)
    assert step.ledger.steps == 1
    assert policies[0].sensitivity == policies[1].sensitivity


@pytest.mark.parametrize("name", ["dpsgd", "naive"])
def test_a_part_that_fails_leaves_no_sum_behind(name):
    """And is spent: a sample that may be drawn again until it succeeds is no Poisson sample."""

    class FailsLater(GivenGradients):
        def __call__(self, inputs: Tensor, targets: Tensor) -> Measured:
            if (inputs == 7).any():
                raise RuntimeError("out of memory")
            return super().__call__(inputs, targets)

    step = make_step(POLICIES[name](), SeededRandomness(0), physical_batch_size=2)
    step.engine = FailsLater(step.parameters[0])
    gradients = torch.cat([torch.ones(2, DIMENSION), torch.full((1, DIMENSION), 7.0)])
    with pytest.raises(RuntimeError, match="out of memory"):
        private_gradient(step, gradients, torch.zeros(3, dtype=torch.int64))
    assert step.parameters[0].grad is None
    assert step.ledger.steps == 1


@pytest.mark.parametrize("size", [0, -1, 1.5])
def test_a_physical_batch_of_no_size_is_refused(size):
    with pytest.raises(SettingError, match="physical_batch_size"):
        make_step(DPSGD(1.0), NoNoise(), physical_batch_size=size)


def test_plain_sgd_sums_everything_and_is_refused_with_noise():
    gradient = private_gradient(
        make_step(SGD(), NoNoise(), sigma=0.0),
        1e6 * torch.ones(2, DIMENSION),
        torch.zeros(2, dtype=torch.int64),
    )
    torch.testing.assert_close(gradient, torch.full((DIMENSION,), 2e6 / EXPECTED))
    with pytest.raises(PolicyError, match="sensitivity inf"):
        private_gradient(
            make_step(SGD(), NoNoise()), torch.ones(1, DIMENSION), torch.zeros(1, dtype=torch.int64)
        )


def test_an_event_that_hides_the_statistics_is_refused():
    policy = Naive(1.0, GROUPS)
    policy.prepare(noise_multiplier=1.0, expected_batch_size=EXPECTED)
    parameter = torch.nn.Parameter(torch.zeros(DIMENSION))
    with pytest.raises(SettingError, match="statistics noise None"):
        PrivateStep(
            GivenGradients(parameter),
            policy,
            [parameter],
            event=StepEvent(0.1, 1.0),
            expected_batch_size=EXPECTED,
            ledger=MemoryLedger(),
            randomness=NoNoise(),
        )


def test_private_sum_bounds_each_row():
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.5], [torch.nan, 0.0], [torch.inf, 0.0]])
    total = private_sum(rows, bound=1.0, noise_multiplier=1e-9, randomness=NoNoise())
    torch.testing.assert_close(total, torch.tensor([0.6, 1.3], dtype=torch.float64))


@pytest.mark.parametrize("policy", ["dpsgd", "dpsgd-f"])
@pytest.mark.parametrize("physical", [None, 2])
def test_share_limits_lower_weights_and_never_raise_them(policy, physical):
    """Limits go to the example whose index they were asked for, past one whose gradient is not finite; above
    1 they mean 1."""
    asked = {}

    def limits(indices: Tensor, norms: Tensor) -> Tensor:
        asked.update(zip(indices.tolist(), norms.tolist(), strict=True))
        return torch.tensor(
            [{10: 0.25, 12: 7.0, 13: math.nan, 14: -1.0}[index] for index in indices.tolist()]
        )

    gradients = torch.zeros(5, DIMENSION)
    gradients[range(5), [0, 1, 1, 2, 3]] = torch.tensor([40.0, math.nan, 40.0, 40.0, 40.0])
    step = make_step(POLICIES[policy](), NoNoise(), physical_batch_size=physical)
    step.share_limits = limits
    step(gradients, torch.zeros(5), torch.zeros(5, dtype=torch.int64), torch.arange(10, 15))
    assert set(asked) == {10, 12, 13, 14}
    assert set(asked.values()) == {40.0}
    total = step.parameters[0].grad * EXPECTED
    whole = step.policy.sensitivity
    torch.testing.assert_close(total, torch.tensor([0.25 * whole, whole, 0.0, 0.0]))


def test_share_limits_of_a_wrong_shape_are_refused():
    step = make_step(Overwriting(), NoNoise())
    step.share_limits = lambda indices, norms: torch.ones(1)
    with pytest.raises(PolicyError, match="share limits have shape"):
        private_gradient(step, torch.ones(3, DIMENSION), torch.zeros(3, dtype=torch.int64))
    assert step.parameters[0].grad is None
