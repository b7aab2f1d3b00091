"""Examples on which the model or the loss fails: they count for nothing, and training goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equidp.engines import make_engine
from equidp.engines.failures import measure_despite_failures
from equidp.engines.functional import FunctionalEngine
from equidp.engines.measurement import MeasuredBatch
from equidp.kernel.bounding import example_context
from equidp.kernel.ledger import MemoryLedger, StepEvent
from equidp.kernel.noise import SeededRandomness
from equidp.kernel.policy import Setting
from equidp.kernel.step import PrivateStep
from equidp.policies import FairLens
from support.oracle import loss, single_gradients


class Model(nn.Module):
    """Two layers, and a forward pass."""

    def __init__(self, run: Callable[..., Tensor]) -> None:
        super().__init__()
        self.run, self.first, self.out = run, nn.Linear(6, 16), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def of_numbers(run: Callable[..., Tensor]) -> Model:
    torch.manual_seed(0)
    return Model(run)


def picky(m, x):
    """Fail on rows whose first number is above 3, and on two unlike rows that are above 2."""
    if (x[:, 0] > 3).any():
        raise ValueError("too large")
    large = x[:, 0] > 2
    if len(x[large].unique(dim=0)) > 1:
        raise ValueError("unlike")
    return m.out(torch.tanh(m.first(x)))


def test_an_example_on_which_the_model_fails_counts_for_nothing():
    """The others have the norms and the sum that they have without it."""
    model = of_numbers(picky).double()
    inputs, targets = torch.rand(6, 6, dtype=torch.float64), torch.arange(6) % 2
    inputs[[1, 4], 0] = 3.5
    left = torch.tensor([0, 2, 3, 5])
    oracle = single_gradients(model, inputs[left], targets[left])
    measured, weights = make_engine("ghost", model, loss)(inputs, targets), torch.linspace(0.1, 1, 6).double()
    assert measured.norms[[1, 4]].isinf().all()
    torch.testing.assert_close(measured.norms[left], oracle.norm(dim=1))
    assert_sum(model, measured, weights, weights[left] @ oracle)


def assert_sum(model: nn.Module, measured: Any, weights: Tensor, expected: Tensor) -> None:
    model.zero_grad()
    measured.weighted_sum(weights)
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in model.parameters()]
    torch.testing.assert_close(torch.cat([each.flatten() for each in gradients]), expected)


def test_a_batch_that_fails_although_its_examples_do_not_is_measured_one_by_one():
    model = of_numbers(picky).double()
    inputs, targets = torch.rand(5, 6, dtype=torch.float64), torch.arange(5) % 2
    inputs[[0, 3], 0] = 2.5
    inputs[2, 0] = 3.5
    engine = make_engine("ghost", model, loss)
    engine.public = inputs[:1], targets[:1]
    left = torch.tensor([0, 1, 3, 4])
    oracle = single_gradients(model, inputs[left], targets[left])
    measured, weights = engine(inputs, targets), torch.linspace(0.1, 1, 5).double()
    torch.testing.assert_close(measured.norms[left], oracle.norm(dim=1))
    assert_sum(model, measured, weights, weights[left] @ oracle)


def test_a_model_that_fails_on_a_public_example_ends_in_its_error():
    """What it fails by are its parameters, which are released; no private example decides it."""
    model = of_numbers(picky).double()
    engine = make_engine("ghost", model, loss)
    inputs, targets = torch.rand(4, 6, dtype=torch.float64), torch.arange(4) % 2
    engine.public = inputs[:1] + 4, targets[:1]
    inputs[2, 0] = 3.5
    with pytest.raises(ValueError, match="too large"):
        engine(inputs, targets)


def detached_if_large(m, x):
    outputs = m.out(torch.tanh(m.first(x)))
    return outputs.detach() if (x[:, 0] > 5).all() else outputs


class FailsBackwardIfLarge(torch.autograd.Function):
    """Fails on the way back where a number is above 5."""

    @staticmethod
    def forward(context: Any, values: Tensor, x: Tensor) -> Tensor:
        context.save_for_backward(x)
        return values.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        if (context.saved_tensors[0] > 5).any():
            raise ValueError("too large on the way back")
        return gradient, None


def fails_backward_if_large(m, x):
    return FailsBackwardIfLarge.apply(m.out(torch.tanh(m.first(x))), x)


@pytest.mark.parametrize("run", [detached_if_large, fails_backward_if_large])
@pytest.mark.parametrize("count", [1, 4])
def test_an_example_whose_backward_pass_fails_counts_for_nothing(run, count):
    model = of_numbers(run).double()
    inputs, targets = torch.rand(count, 6, dtype=torch.float64), torch.arange(count) % 2
    engine = make_engine("ghost", model, loss)
    engine.public = inputs[:1].clone(), targets[:1]
    inputs[0, 0] = 6.0
    if run is detached_if_large and count > 1:
        inputs[:, 0] = 6.0
    measured = engine(inputs, targets)
    failing = (inputs > 5).any(dim=1)
    assert measured.norms[failing].isinf().all()
    assert measured.norms[~failing].isfinite().all()
    oracle = single_gradients(model, inputs[~failing], targets[~failing]) if (~failing).any() else None
    expected = torch.zeros(146).double() if oracle is None else oracle.sum(dim=0)
    assert_sum(model, measured, torch.ones(count).double(), expected)


def fails_together(measure: Callable[..., MeasuredBatch]) -> Callable[..., MeasuredBatch]:
    """A measurement that takes one example at most."""

    def measure_batch(inputs: Tensor, targets: Tensor, *context: Tensor) -> MeasuredBatch:
        if len(targets) > 1:
            raise ValueError("more than one")
        return measure(inputs, targets, *context)

    return measure_batch


def test_an_infinite_gradient_measured_alone_adds_nothing_whatever_its_weight():
    model = of_numbers(lambda m, x: m.out(m.first(x))).double()
    inputs, targets = torch.rand(4, 6, dtype=torch.float64), torch.arange(4) % 2
    inputs[1, 0], inputs[2, 0] = torch.inf, torch.nan
    left, public = torch.tensor([0, 3]), (inputs[:1], targets[:1])
    engine = make_engine("ghost", model, loss)
    measured = measure_despite_failures(
        fails_together(engine.measure_together), model, loss, (inputs, targets), public=public
    )
    assert not measured.norms[[1, 2]].isfinite().any()
    oracle = single_gradients(model, inputs[left], targets[left])
    assert_sum(model, measured, torch.ones(4).double(), oracle.sum(dim=0))


def test_a_gradient_that_fails_or_is_infinite_the_second_time_adds_nothing():
    passes = []

    def run(m: Any, x: Tensor) -> Tensor:
        outputs = m.out(torch.tanh(m.first(x)))
        if x[0, 0] > 2:
            passes.append(len(x))
            if len(passes) > 2:  # after the trial alone and the norm
                if x[0, 0] > 3:
                    raise ValueError("not again")
                return outputs * torch.inf
        return outputs

    model = of_numbers(run).double()
    for large in (2.5, 3.5):
        passes.clear()
        inputs, targets = torch.rand(3, 6, dtype=torch.float64), torch.arange(3) % 2
        inputs[1, 0] = large
        measured = measure_despite_failures(
            fails_together(lambda *batch: None),
            model,
            loss,
            (inputs, targets),
            public=(inputs[:1], targets[:1]),
        )
        assert measured.norms.isfinite().all()
        oracle = single_gradients(model, inputs[[0, 2]], targets[[0, 2]])
        assert_sum(model, measured, torch.ones(3).double(), oracle.sum(dim=0))


def test_random_numbers_that_differ_are_said_of_the_others_too():
    model = of_numbers(picky)
    inputs, targets = torch.rand(4, 6), torch.arange(4) % 2
    inputs[1, 0] = 3.5

    def measure_batch(inputs: Tensor, targets: Tensor) -> MeasuredBatch:
        norms = loss(model(inputs), targets)
        return MeasuredBatch(norms, lambda weights: {}, redraw_mask=inputs[:, 0] == 0.5)

    inputs[3, 0] = 0.5
    measured = measure_despite_failures(measure_batch, model, loss, (inputs, targets))
    assert measured.redraw_mask is not None
    assert measured.redraw_mask.tolist() == [False, False, False, True]


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(10, 4), nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.words(tokens).mean(dim=1))


TOKENS = torch.tensor([[1, 2, 3], [4, 5, 99], [6, 7, 8], [9, 0, 99]])
FAIRLENS = FairLens(1.0, smoothing=0.0)


def of_tokens(public: bool = True) -> FunctionalEngine:
    torch.manual_seed(0)
    engine = make_engine("functional", Words(), loss, FAIRLENS)
    engine.public = (TOKENS[:1], torch.tensor([0])) if public else None
    assert isinstance(engine, FunctionalEngine)
    return engine


@pytest.mark.parametrize("places", [[1], [1, 3], [0, 1, 2, 3]])
@pytest.mark.parametrize("part", [None, 1])
def test_a_step_that_changes_losses_goes_on_where_examples_fail(places, part):
    """Also where all examples of a sample do. The others are measured as without them."""
    found = []
    for kept in (places, [place for place in places if place % 2 == 0]):
        engine = of_tokens()
        step = PrivateStep(
            engine,
            FAIRLENS,
            list(engine.model.parameters()),
            event=StepEvent(0.1, 0.0, 0.0),
            expected_batch_size=4.0,
            num_groups=2,
            ledger=MemoryLedger(),
            randomness=SeededRandomness(0),
            physical_batch_size=part,
        )
        groups = torch.tensor(kept, dtype=torch.int64) % 2
        step(TOKENS[kept], torch.zeros(len(kept), dtype=torch.int64), groups)
        found.append([*(each.grad for each in step.parameters), step.state.sums])
    torch.testing.assert_close(*found)


def test_a_batch_with_a_context_that_fails_together_is_measured_one_by_one():
    engine = of_tokens()
    targets, groups = torch.tensor([0, 1, 1, 0]), torch.tensor([0, 1, 1, 0])
    state = FAIRLENS.init(Setting(2, 4.0, 1.0, 50))
    context = example_context(FAIRLENS, state, groups)
    measured = measure_despite_failures(
        fails_together(engine.measure_together),
        engine.model,
        loss,
        (TOKENS, targets),
        *context,
        public=engine.public,
    )
    kept = torch.tensor([0, 2])
    expected = engine.measure_together(TOKENS[kept], targets[kept], *(each[kept] for each in context))
    assert measured.norms[[1, 3]].isinf().all()
    torch.testing.assert_close(measured.norms[kept], expected.norms)
    assert measured.terms is not None
    torch.testing.assert_close(measured.terms[kept], expected.terms)
    weights = torch.tensor([0.5, 1.0, 2.0, 3.0])
    sums = measured.sum_gradients(weights)
    for parameter, total in expected.sum_gradients(weights[kept]).items():
        torch.testing.assert_close(sums[parameter], total, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("places", [[1, 3], [1]])
def test_without_a_trial_a_batch_without_a_running_example_ends_in_its_error(places):
    with pytest.raises(IndexError):
        of_tokens(public=False)(TOKENS[places], torch.zeros(len(places), dtype=torch.int64))


def test_lack_of_memory_is_raised_whichever_example_causes_it():
    def run(m: Any, x: Tensor) -> Tensor:
        if (x[:, 0] > 3).any():
            raise torch.OutOfMemoryError
        return m.out(torch.tanh(m.first(x)))

    engine = make_engine("ghost", of_numbers(run), loss)
    inputs = torch.rand(3, 6)
    engine.public = inputs[:1].clone(), torch.tensor([0])
    inputs[1, 0] = 4.0
    with pytest.raises(torch.OutOfMemoryError):
        engine(inputs, torch.arange(3) % 2)
