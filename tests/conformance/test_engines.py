"""Conformance of engines: each keeps the contract of `kernel.engine`; a new one needs a line in MAKERS."""

from __future__ import annotations

import copy
import weakref

import pytest
import torch
from torch import Tensor, nn

from equidp.engines import ENGINES, dataset_norms
from equidp.engines.functional import FunctionalEngine
from equidp.kernel.engine import LossFunction, Measured, Sums
from equidp.kernel.event import Event
from equidp.kernel.noise import SeededRandomness
from equidp.kernel.step import PrivateStep
from equidp.models import MODELS
from equidp.policies import SGD
from support.oracle import SumOfSquares, assert_exact, drawn, loss, single_gradients
from support.toy import make_trainer, toy


class OneByOne:
    """A user-defined engine: a forward and a backward pass for each example."""

    def __init__(self, model: nn.Module, loss: LossFunction) -> None:
        self.model, self.loss = model, loss

    def __call__(self, inputs: Tensor, targets: Tensor) -> Measured:
        torch.clear_autocast_cache()
        trained = [each for each in self.model.parameters() if each.requires_grad]
        rows = []
        for x, y in zip(inputs.split(1), targets.split(1), strict=True):
            alone = self.loss(self.model(x), y).sum()
            rows.append(torch.autograd.grad(alone, trained, allow_unused=True, materialize_grads=True))
        gradients = [torch.stack(each) for each in zip(*rows, strict=True)]
        norms = torch.cat([each.reshape(len(each), -1) for each in gradients], dim=1).norm(dim=1)
        finite = norms.isfinite()

        def sums(weights: Tensor) -> Sums:
            return {
                parameter: torch.einsum("b,b...->...", weights[finite].double(), each[finite].double())
                for parameter, each in zip(trained, gradients, strict=True)
            }

        return Measured(norms, None, sums)


MAKERS = {
    **ENGINES,
    "functional in chunks": lambda *given: FunctionalEngine(*given, chunk_size=2),
    "own": OneByOne,
}


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def assert_equal(sums: Sums, expected: Sums) -> None:
    assert list(sums) == list(expected)
    assert all(torch.equal(sums[each], expected[each]) for each in sums)


@pytest.mark.soak
def test_a_trainer_takes_it_and_trains_as_with_any_other():
    weights = []
    for make in MAKERS.values():
        torch.manual_seed(0)
        model = nn.Linear(5, 2)
        engine = make(model, toy().training_loss())
        weights.append(make_trainer(model=model, engine=engine, seed=1).fit().model.weight)
    for each in weights[1:]:
        torch.testing.assert_close(each, weights[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("engine", MAKERS)
def test_an_empty_sample_is_a_step_to_which_nobody_adds(engine):
    """The private step asks an engine for one example at least."""
    model = nn.Linear(4, 2)
    step = PrivateStep(
        MAKERS[engine](model, loss),
        SGD(),
        list(model.parameters()),
        event=Event(0.1, 0.0),
        expected_batch_size=4.0,
        num_groups=1,
        randomness=SeededRandomness(0),
    )
    nobody = torch.zeros(0, dtype=torch.int64)
    assert not any(mean.any() for mean in step(torch.randn(0, 4), nobody, nobody))


class Product(nn.Module):
    """A module without a rule, whose per-example gradients are too large to keep."""

    def __init__(self) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.rand(16, 16))

    def forward(self, values: Tensor) -> Tensor:
        return values @ self.factors


@pytest.mark.parametrize("engine", MAKERS)
def test_a_gradient_that_is_infinite_in_one_layer_adds_nothing_in_any(engine):
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), Product(), nn.Linear(16, 2))
    nn.init.zeros_(model[0].weight)
    inputs, targets = torch.rand(3, 6), torch.arange(3) % 2
    made = MAKERS[engine](model, loss)
    expected = made(inputs[:2], targets[:2]).sums(torch.ones(2))
    inputs[2] = 3e38
    measured = made(inputs, targets)
    assert measured.norms[2].isinf()
    for parameter, total in measured.sums(torch.tensor([1.0, 1.0, 1e3])).items():
        torch.testing.assert_close(total, expected[parameter], rtol=1e-5, atol=1e-6)


MODEL_SHAPES = {
    "logistic": (5,),
    "mlp": (7,),
    "additive": (7,),
    "prototypes": (7,),
    "lenet": (1, 16, 16),
    "small-cnn": (1, 8, 8),
    "tanh-cnn": (1, 9, 9),
    "resnet20": (3, 8, 8),
    "scatter-cnn": (9, 4, 5),
}


@pytest.mark.soak
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", MODELS)
def test_named_models(engine, name):
    shape = MODEL_SHAPES[name]
    assert_exact(MODELS[name](shape, 4).double(), drawn(5, *shape), engine=MAKERS[engine], classes=4)


class OwnParameter(nn.Module):
    """A parameter of a module's own, and a child beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(5))
        self.child = nn.Linear(5, 4)

    def forward(self, values: Tensor) -> Tensor:
        return self.child(values * self.scale).sin()


class OwnNumber(nn.Module):
    """A parameter without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.child = nn.Parameter(torch.tensor(2.0)), nn.Linear(5, 2)

    def forward(self, values: Tensor) -> Tensor:
        return self.child(values) * self.scale


class Tied(nn.Module):
    """An embedding whose table is also the output layer's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 4)
        self.out = nn.Linear(4, 6, bias=False)
        self.out.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.table(tokens).mean(dim=1))


class Reused(nn.Module):
    """One layer called twice."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, values: Tensor) -> Tensor:
        return SumOfSquares()(self.layer(torch.tanh(self.layer(values))))


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, values: Tensor) -> Tensor:
        return self.used(values)


@pytest.mark.parametrize("engine", MAKERS)
@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (nn.Sequential(OwnParameter(), nn.ReLU(), nn.Linear(4, 2)), drawn(4, 5)),
        (OwnNumber(), drawn(4, 5)),
        (Tied(), torch.randint(0, 6, (4, 3))),
        (Reused(nn.Linear(5, 5)), drawn(4, 5)),
        (Reused(nn.Conv2d(2, 2, 3, padding=1)), drawn(4, 2, 5, 5)),
        (Unused(), drawn(4, 4)),
        (nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 2)), drawn(4, 4)),
        (
            nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Linear(2, 6), nn.ReLU(True), SumOfSquares()),
            drawn(4, 4),
        ),
        (
            nn.Sequential(
                nn.Conv1d(2, 3, 2), nn.ReLU(inplace=True), nn.ConvTranspose1d(3, 2, 2), SumOfSquares()
            ),
            drawn(4, 2, 6),
        ),
        (nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), nn.Linear(3, 2)), drawn(4, 4)),
        (nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 2, bias=False))), drawn(4, 4)),
        (nn.Sequential(nn.PReLU(), nn.Linear(4, 2)), drawn(4, 4)),
        (
            nn.Sequential(
                nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True), SumOfSquares()
            ),
            drawn(3, 5, 8),
        ),
    ],
    ids=[
        "own parameter",
        "own number",
        "tied",
        "reused linear",
        "reused conv",
        "unused",
        "in place",
        "in place at positions",
        "transposed",
        "weight norm",
        "weight norm alone",
        "prelu",
        "transformer",
    ],
)
def test_structures(engine, model, inputs):
    assert_exact(copy.deepcopy(model).double(), inputs, engine=MAKERS[engine])


@pytest.mark.parametrize("engine", MAKERS)
def test_a_bad_example_spoils_its_own_norm_only(engine):
    model = MODELS["small-cnn"]((1, 8, 8), 3)
    inputs, targets = torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])
    clean = MAKERS[engine](model, loss)(inputs, targets).norms
    inputs[1] = torch.nan
    inputs[3] = 3e38
    spoilt = MAKERS[engine](model, loss)(inputs, targets).norms
    torch.testing.assert_close(spoilt[[0, 2]], clean[[0, 2]])
    assert not torch.isfinite(spoilt[[1, 3]]).any()


@pytest.mark.parametrize("engine", MAKERS)
def test_norms_of_a_whole_dataset_in_chunks(engine):
    model = MODELS["small-cnn"]((1, 8, 8), 3).double()
    inputs, targets = drawn(7, 1, 8, 8), torch.arange(7) % 3
    norms = dataset_norms(MAKERS[engine](model, loss), inputs, targets, 3)
    torch.testing.assert_close(norms, single_gradients(model, inputs, targets).norm(dim=1))
    assert all(parameter.grad is None for parameter in model.parameters())


class Recalling(nn.Module):
    """A parameter of the module's own and dropout: both are run again for the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.layer = nn.Parameter(torch.randn(6)), nn.Linear(6, 6)
        self.dropout = nn.Dropout(0.4)

    def forward(self, values: Tensor) -> Tensor:
        return self.dropout(self.layer(values + self.shift))


class First(nn.Module):
    def forward(self, values: tuple[Tensor, ...]) -> Tensor:
        return values[0]


INDEPENDENCE = {
    "linear": lambda: (nn.Linear(6, 2), (6,)),
    "conv": lambda: (MODELS["small-cnn"]((1, 8, 8), 2), (1, 8, 8)),
    "reused": lambda: (Reused(nn.Linear(5, 5)), (5,)),
    "fallback": lambda: (nn.Sequential(Recalling(), nn.Linear(6, 2)), (6,)),
    "recurrent": lambda: (nn.Sequential(nn.RNN(3, 4, batch_first=True), First(), nn.Flatten()), (5, 3)),
    "transformer": lambda: (
        nn.Sequential(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), SumOfSquares()),
        (5, 8),
    ),
}


@pytest.mark.parametrize("engine", MAKERS)
@pytest.mark.parametrize("name", INDEPENDENCE)
def test_measured_batches_do_not_disturb_each_other(engine, name):
    """Measuring and summing another batch between norms and sum leaves sums equal to the digit."""
    model, shape = INDEPENDENCE[name]()
    engine = MAKERS[engine](model, loss)
    batches = [(torch.randn(size, *shape), torch.arange(size) % 2) for size in (5, 7)]
    weights = [torch.rand(5), torch.rand(7)]
    engine(*batches[0]), engine(*batches[1])  # an engine may learn the shapes of arguments from two sizes
    alone = []
    for seed, batch, each in zip((1, 2), batches, weights, strict=True):
        torch.manual_seed(seed)
        measured = engine(*batch)
        alone.append((measured.norms, measured.sums(each)))
    torch.manual_seed(1)
    first = engine(*batches[0])
    torch.manual_seed(2)
    second = engine(*batches[1])
    of_second = second.sums(weights[1])
    of_first = first.sums(weights[0])
    for measured, sums, expected in ((first, of_first, alone[0]), (second, of_second, alone[1])):
        assert torch.equal(measured.norms, expected[0])
        assert_equal(sums, expected[1])


@pytest.mark.parametrize("engine", MAKERS)
def test_an_engine_keeps_nothing_of_a_batch(engine):
    """What a batch holds goes with the measured value, summed or not."""
    made, inputs = MAKERS[engine](nn.Linear(4, 2), loss), torch.randn(3, 4)
    reference = weakref.ref(inputs)
    measured = made(inputs, torch.tensor([0, 1, 0]))
    del inputs, measured
    assert reference() is None


@pytest.mark.parametrize("engine", MAKERS)
@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (MODELS["lenet"]((1, 16, 16), 4), torch.randn(4, 1, 16, 16)),
        (nn.Sequential(OwnParameter(), nn.Tanh(), nn.Linear(4, 2)), torch.randn(4, 5)),
        (
            nn.Sequential(
                nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True), SumOfSquares()
            ),
            torch.randn(4, 5, 8),
        ),
    ],
    ids=["lenet", "own parameter", "transformer"],
)
def test_norms_are_float32_and_sums_float64_under_autocast(engine, model, inputs):
    targets = torch.tensor([0, 1, 0, 1])
    model.zero_grad()
    made = MAKERS[engine](model, loss)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        oracle = single_gradients(model, inputs, targets)
        measured = made(inputs, targets)
        sums = measured.sums(torch.ones(4))
    norms = measured.norms
    assert norms.dtype == torch.float32
    total = torch.cat([sums[p].flatten() for p in model.parameters()])
    size = oracle.norm(dim=1).max()
    assert (norms - oracle.norm(dim=1)).abs().max() < 0.05 * size
    assert (total - oracle.double().sum(dim=0)).norm() < 0.05 * size * 4


@pytest.mark.parametrize("engine", MAKERS)
def test_weights_cast_once_are_not_used_again_after_they_changed(engine):
    """Autocast keeps its copies of parameters until it ends, and a whole training run may be inside one."""
    model = nn.Linear(5, 2)
    inputs, targets = torch.randn(4, 5), torch.tensor([0, 1, 0, 1])
    made = MAKERS[engine](model, loss)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made(inputs, targets)
        with torch.no_grad():
            model.weight.mul_(-3.0)
        again = made(inputs, targets).norms
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(again, MAKERS[engine](model, loss)(inputs, targets).norms)
