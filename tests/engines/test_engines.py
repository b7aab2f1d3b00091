"""Norms and weighted sums of both engines equal single-example backward passes."""

from __future__ import annotations

import copy
import pickle
import weakref

import pytest
import torch
from torch import Tensor, nn

from equidp.engines import ENGINES, check_engine, check_model, dataset_norms, make_engine
from equidp.engines.functional import FunctionalEngine
from equidp.engines.layers import RULES, rule_for
from equidp.errors import ModelError, SettingError
from equidp.models import MODELS
from support.oracle import SumOfSquares, assert_exact, drawn, loss, single_gradients

MODEL_SHAPES = {
    "logistic": (5,),
    "mlp": (7,),
    "lenet": (1, 16, 16),
    "small-cnn": (1, 8, 8),
    "tanh-cnn": (1, 9, 9),
    "resnet20": (3, 8, 8),
    "noise-cnn": (1, 18, 19),
    "scatter-cnn": (9, 4, 5),
    "ws-cnn": (2, 8, 8),
    "deep-tanh-cnn": (2, 9, 8),
    "wrn16-4": (2, 8, 8),
}


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.mark.soak
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", MODELS)
def test_named_models(engine, name):
    shape = MODEL_SHAPES[name]
    assert_exact(MODELS[name](shape, 4).double(), drawn(5, *shape), engine=engine, classes=4)


@pytest.mark.parametrize("engine", ENGINES)
def test_float32_to_a_relative_1e_5(engine):
    assert_exact(
        MODELS["lenet"]((1, 16, 16), 4), torch.randn(5, 1, 16, 16), engine=engine, classes=4, tolerance=1e-5
    )


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


@pytest.mark.parametrize("engine", ENGINES)
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
        "transposed",
        "weight norm",
        "weight norm alone",
        "prelu",
        "transformer",
    ],
)
def test_structures(engine, model, inputs):
    assert_exact(copy.deepcopy(model).double(), inputs, engine=engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("frozen", ["0.weight", "0.bias", "2.weight"])
def test_frozen_parameters_are_left_out(engine, frozen):
    model = nn.Sequential(nn.Conv2d(1, 3, 2), nn.Flatten(), nn.Linear(27, 2)).double()
    model.get_parameter(frozen).requires_grad_(False)
    assert_exact(model, drawn(3, 1, 4, 4), engine=engine)
    assert model.get_parameter(frozen).grad is None
    assert not model.get_parameter(frozen).requires_grad


@pytest.mark.parametrize("engine", ENGINES)
def test_a_bad_example_spoils_its_own_norm_only(engine):
    model = MODELS["small-cnn"]((1, 8, 8), 3)
    inputs, targets = torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])
    clean = make_engine(engine, model, loss)(inputs, targets).norms
    inputs[1] = torch.nan
    inputs[3] = 3e38
    spoilt = make_engine(engine, model, loss)(inputs, targets).norms
    torch.testing.assert_close(spoilt[[0, 2]], clean[[0, 2]])
    assert not torch.isfinite(spoilt[[1, 3]]).any()


@pytest.mark.parametrize("size", [1e-3, 1e-2, 1.0])
@pytest.mark.parametrize("layer", ["linear", "embedding"])
def test_norms_are_not_understated_where_terms_cancel(layer, size):
    """Output gradients nearly cancel over positions: a norm of 0 in float32 must not hide what is left."""

    class Difference(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            return (1e4 * (values[:, 0] - (1 + size * 1e-3) * values[:, 1])).sum(dim=1)

    if layer == "linear":
        model, inputs = (
            nn.Sequential(nn.Linear(64, 64, bias=False), Difference()),
            torch.randn(8, 1, 64).repeat(1, 2, 1),
        )
        row_norms = inputs[:, 0].norm(dim=1)
    else:
        model, inputs = nn.Sequential(nn.Embedding(3, 64), Difference()), torch.zeros(8, 2, dtype=torch.int64)
        row_norms = torch.ones(8)
    # One output gradient is 1e4 everywhere, the other -1e4 (1 + size / 1000): 64 differences are left.
    true = 1e4 * size * 1e-3 * 8 * row_norms
    norms = make_engine("ghost", model, lambda outputs, targets: outputs)(inputs, torch.zeros(8)).norms
    assert (norms >= 0.99 * true).all()


def test_a_batch_in_chunks_equals_one_chunk_with_the_same_dropout():
    model = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 2)).double()
    inputs, targets = drawn(7, 6), torch.arange(7) % 2
    engine = FunctionalEngine(model, loss, chunk_size=3)
    torch.manual_seed(1)
    norms = engine(inputs, targets).norms
    gradients = []
    for index in range(7):
        torch.manual_seed(1)
        measured = engine(inputs, targets)
        model.zero_grad()
        measured.weighted_sum(torch.eye(7, dtype=torch.float64)[index])
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]).norm())
    torch.testing.assert_close(torch.stack(gradients), norms)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("chunk_size", [1, 3, 100])
def test_norms_of_a_whole_dataset_in_chunks(engine, chunk_size):
    model = MODELS["small-cnn"]((1, 8, 8), 3).double()
    inputs, targets = drawn(7, 1, 8, 8), torch.arange(7) % 3
    norms = dataset_norms(make_engine(engine, model, loss), inputs, targets, chunk_size)
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


def gradients_of(model: nn.Module) -> list[Tensor]:
    """Copies of all gradients, which are removed from the model."""
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    return gradients


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


class First(nn.Module):
    def forward(self, values: tuple[Tensor, ...]) -> Tensor:
        return values[0]


@pytest.mark.parametrize(
    "make",
    [*ENGINES.values(), lambda *given: FunctionalEngine(*given, chunk_size=2)],
    ids=[*ENGINES, "chunks"],
)
@pytest.mark.parametrize("name", INDEPENDENCE)
def test_measured_batches_do_not_disturb_each_other(make, name):
    """Measuring and summing another batch between norms and sum leaves p.grad equal to the digit."""
    model, shape = INDEPENDENCE[name]()
    engine = make(model, loss)
    batches = [(torch.randn(size, *shape), torch.arange(size) % 2) for size in (5, 7)]
    weights = [torch.rand(5), torch.rand(7)]
    engine(*batches[0]), engine(*batches[1])  # an engine may learn the shapes of arguments from two sizes
    alone = []
    for seed, batch, each in zip((1, 2), batches, weights, strict=True):
        torch.manual_seed(seed)
        measured = engine(*batch)
        measured.weighted_sum(each)
        alone.append((measured.norms, gradients_of(model)))
    torch.manual_seed(1)
    first = engine(*batches[0])
    torch.manual_seed(2)
    second = engine(*batches[1])
    second.weighted_sum(weights[1])
    of_second = gradients_of(model)
    first.weighted_sum(weights[0])
    for measured, gradients, expected in (
        (first, gradients_of(model), alone[0]),
        (second, of_second, alone[1]),
    ):
        assert torch.equal(measured.norms, expected[0])
        assert all(map(torch.equal, gradients, expected[1]))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_batch_is_summed_once(engine):
    model = nn.Linear(4, 2)
    measured = make_engine(engine, model, loss)(torch.randn(3, 4), torch.tensor([0, 1, 0]))
    measured.weighted_sum(torch.ones(3))
    before = gradients_of(model)
    with pytest.raises(RuntimeError, match=r"taken before.*measure the batch again"):
        measured.weighted_sum(torch.ones(3))
    assert before
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("engine", ENGINES)
def test_changing_the_norms_does_not_change_the_sum(engine):
    """The functional engine in chunks holds what it computes again to the norms that it measured."""
    model, inputs, targets = nn.Linear(4, 2), torch.randn(5, 4), torch.arange(5) % 2
    for make in (ENGINES[engine], lambda *given: FunctionalEngine(*given, chunk_size=2)):
        make(model, loss)(inputs, targets).weighted_sum(torch.ones(5))
        expected = gradients_of(model)
        measured = make(model, loss)(inputs, targets)
        measured.norms.zero_()
        measured.weighted_sum(torch.ones(5))
        assert all(map(torch.equal, gradients_of(model), expected))


def test_an_engine_keeps_nothing_of_a_batch():
    """What a batch holds goes with the measured value, summed or not."""
    for name in ENGINES:
        engine = make_engine(name, nn.Linear(4, 2), loss)
        inputs = torch.randn(3, 4)
        reference = weakref.ref(inputs)
        measured = engine(inputs, torch.tensor([0, 1, 0]))
        del inputs, measured
        assert reference() is None


@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_are_added_to_what_is_there(engine):
    model = nn.Linear(3, 2).double()
    made = make_engine(engine, model, loss)
    inputs, targets = drawn(4, 3), torch.zeros(4, dtype=torch.int64)
    for _ in range(2):
        made(inputs, targets).weighted_sum(torch.ones(4, dtype=torch.float64))
    twice = model.weight.grad.clone()
    model.zero_grad()
    made(inputs, targets).weighted_sum(torch.ones(4, dtype=torch.float64))
    torch.testing.assert_close(twice, 2 * model.weight.grad)


def test_the_model_is_left_without_trace():
    model = MODELS["small-cnn"]((1, 8, 8), 3)
    before = pickle.dumps(model)
    engine = make_engine("ghost", model, loss)
    engine(torch.randn(2, 1, 8, 8), torch.tensor([0, 1]))
    assert pickle.dumps(model) == before
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    copy.deepcopy(model)
    with pytest.raises(RuntimeError):
        engine(torch.randn(2, 5), torch.tensor([0, 1]))
    assert pickle.dumps(model) == before
    assert torch.backends.mha.get_fastpath_enabled()


def test_inputs_that_require_a_gradient_change_nothing():
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    inputs, targets = drawn(3, 4), torch.tensor([0, 1, 0])
    engine = make_engine("ghost", model, loss)
    torch.testing.assert_close(
        engine(inputs.clone().requires_grad_(), targets).norms,
        single_gradients(model, inputs, targets).norm(dim=1),
    )


def test_a_mean_loss_is_refused():
    engine = make_engine("ghost", nn.Linear(3, 2), nn.CrossEntropyLoss())
    with pytest.raises(ModelError, match="reduction='none'"):
        engine(torch.randn(4, 3), torch.zeros(4, dtype=torch.int64))


class Across(nn.Module):
    """A parameter of its own, and an output whose first dimension is not the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, values: Tensor) -> Tensor:
        return (values * self.scale).T


class Sideways(nn.Module):
    """Shows a layer its examples in another dimension than the first."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, values: Tensor) -> Tensor:
        return self.layer(values.transpose(0, 1)).transpose(0, 1).sum(dim=1)


def test_an_output_that_does_not_lead_with_the_batch_is_refused():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.across = Across()

        def forward(self, values: Tensor) -> Tensor:
            return self.across(values).T

    with pytest.raises(ModelError, match="Across has outputs whose first dimension is not the batch"):
        make_engine("ghost", Model(), loss)(torch.randn(4, 3), torch.zeros(4, dtype=torch.int64))


def test_a_layer_that_reads_examples_in_another_dimension_is_refused():
    engine = make_engine("ghost", Sideways(nn.Linear(3, 2)), loss)
    with pytest.raises(ModelError, match="Linear reads a tensor whose first dimension is not the batch"):
        engine(torch.randn(4, 5, 3), torch.zeros(4, dtype=torch.int64))


def test_an_overridden_layer_does_not_get_the_layers_rule():
    class Doubled(nn.Linear):
        def forward(self, values: Tensor) -> Tensor:
            return 2 * super().forward(values)

    assert rule_for(Doubled(3, 2)) is None
    assert rule_for(nn.Linear(3, 2)) is RULES[nn.Linear]
    assert_exact(nn.Sequential(Doubled(3, 2), nn.Linear(2, 2)).double(), drawn(4, 3))


def test_an_unknown_engine_and_a_bad_chunk_are_refused():
    with pytest.raises(SettingError, match="Did you mean 'ghost'"):
        make_engine("gost", nn.Linear(1, 1), loss)
    with pytest.raises(SettingError, match="chunk_size=0"):
        FunctionalEngine(nn.Linear(1, 1), loss, chunk_size=0)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (MODELS["lenet"]((1, 16, 16), 4), torch.randn(4, 1, 16, 16)),
        (MODELS["small-cnn"]((3, 8, 8), 4), torch.randn(4, 3, 8, 8)),
        (nn.Sequential(OwnParameter(), nn.ReLU(), nn.Linear(4, 2)), torch.randn(4, 5)),
        (
            nn.Sequential(
                nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True), SumOfSquares()
            ),
            torch.randn(4, 5, 8),
        ),
    ],
    ids=["lenet", "small-cnn", "own parameter", "transformer"],
)
def test_norms_and_sums_are_float32_under_autocast(engine, model, inputs):
    targets = torch.tensor([0, 1, 0, 1])
    model.zero_grad()
    made = make_engine(engine, model, loss)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        oracle = single_gradients(model, inputs, targets)
        measured = made(inputs, targets)
        measured.weighted_sum(torch.ones(4))
    norms = measured.norms
    assert norms.dtype == torch.float32
    total = torch.cat([p.grad.flatten() for p in model.parameters()])
    size = oracle.norm(dim=1).max()
    assert (norms - oracle.norm(dim=1)).abs().max() < 0.05 * size
    assert (total - oracle.sum(dim=0)).norm() < 0.05 * size * 4


def test_sums_under_autocast_have_the_norms_that_were_measured():
    """A bound on norms is worthless if the sum is of other vectors."""
    model = MODELS["lenet"]((1, 16, 16), 4)
    inputs, targets = torch.randn(3, 1, 16, 16), torch.tensor([0, 1, 2])
    engine = make_engine("ghost", model, loss)
    for index in range(3):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            measured = engine(inputs, targets)
            model.zero_grad()
            measured.weighted_sum(torch.eye(3)[index])
        alone = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
        torch.testing.assert_close(alone, measured.norms[index], rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_weights_cast_once_are_not_used_again_after_they_changed(engine):
    """Autocast keeps its copies of parameters until it ends, and a whole training run may be inside one."""
    model = nn.Linear(5, 2)
    inputs, targets = torch.randn(4, 5), torch.tensor([0, 1, 0, 1])
    made = make_engine(engine, model, loss)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made(inputs, targets)
        with torch.no_grad():
            model.weight.mul_(-3.0)
        again = made(inputs, targets).norms
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(again, make_engine(engine, model, loss)(inputs, targets).norms)


@pytest.mark.parametrize(
    "change", [Tensor.relu_, lambda values: values.mul_(3.0), lambda values: values.add_(values.detach())]
)
def test_outputs_at_several_positions_may_be_changed_in_place(change):
    """A Linear layer's output there is a view, whose history a change in place rewrites."""

    class Changed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, values: Tensor) -> Tensor:
            return self.second(change(self.first(values))).mean(dim=1)

    assert_exact(Changed().double(), drawn(5, 6, 3))


def test_a_module_that_runs_differently_twice_adds_no_more_than_its_norms():
    """Python's own random numbers differ between the run for norms and the run for the sum."""

    class Fickle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.runs = nn.Parameter(torch.ones(4)), 0

        def forward(self, values: Tensor) -> Tensor:
            self.runs += 1
            return values * self.scale * (1.0 if self.runs < 3 else 50.0)

    model = nn.Sequential(Fickle(), SumOfSquares())
    engine = make_engine("ghost", model, loss)
    measured = engine(torch.randn(3, 4), torch.tensor([0, 1, 0]))
    norms = measured.norms
    measured.weighted_sum(torch.tensor([1.0, 0.0, 0.0]))
    assert model[0].scale.grad.norm() <= norms[0] * (1 + 1e-5)


class OwnAndDropout(nn.Module):
    """A parameter of a module's own, and dropout in the module: a small ViT's first lines."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.randn(6))
        self.first, self.dropout, self.second = nn.Linear(6, 8), nn.Dropout(0.4), nn.Linear(8, 2)

    def forward(self, values: Tensor) -> Tensor:
        return self.second(self.dropout(torch.tanh(self.first(values + self.shift))))


def test_a_module_that_is_run_again_drops_out_what_it_did():
    """Norms, sum and the gradients that they are of belong to one mask, that of the pass itself."""
    model, inputs, targets = OwnAndDropout().double(), drawn(9, 6), torch.arange(9) % 2
    torch.manual_seed(3)
    losses = loss(model(inputs), targets)
    parameters = list(model.parameters())
    rows = [torch.autograd.grad(each, parameters, retain_graph=True) for each in losses]
    oracle = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
    engine = make_engine("ghost", model, loss)
    torch.manual_seed(3)
    measured = engine(inputs, targets)
    norms = measured.norms
    torch.rand(7)  # drawn in between
    weights = torch.linspace(0.3, 2.0, 9, dtype=torch.float64)
    measured.weighted_sum(weights)
    total = torch.cat([parameter.grad.flatten() for parameter in parameters])
    torch.testing.assert_close(norms, oracle.norm(dim=1), rtol=1e-10, atol=0)
    torch.testing.assert_close(total, weights @ oracle, rtol=1e-10, atol=1e-14)


class Shuffled(nn.Module):
    """Draws its dropout in another order than one example at a time would."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.randn(6))
        self.out = nn.Linear(6, 2)

    def forward(self, values: Tensor) -> Tensor:
        return self.out(nn.functional.dropout((values + self.shift).T.contiguous(), 0.4, self.training).T)


def test_a_module_that_cannot_drop_out_the_same_again_is_refused_when_it_is_tried():
    model, inputs, targets = Shuffled(), torch.randn(9, 6), torch.arange(9) % 2
    with pytest.raises(ModelError, match="draws random numbers"):
        check_engine(make_engine("ghost", model, loss), model, loss, inputs, targets)
    check_engine(make_engine("functional", model, loss), model, loss, inputs, targets)


@pytest.mark.parametrize("seed", range(5))
def test_a_little_dropout_in_another_order_is_found_out_too(seed):
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(6))
            self.body, self.out = nn.LSTM(6, 8, num_layers=2, dropout=0.1, batch_first=True), nn.Linear(8, 2)

        def forward(self, values: Tensor) -> Tensor:
            return self.out(self.body(values + self.shift)[0][:, -1])

    torch.manual_seed(seed)
    model, inputs, targets = Reads(), torch.randn(16, 5, 6), torch.arange(16) % 2
    with pytest.raises(ModelError, match="draws random numbers"):
        check_engine(make_engine("ghost", model, loss), model, loss, inputs, targets)


def test_examples_that_cannot_be_drawn_again_contribute_nothing_and_stop_nothing():
    """A run that ended because of one example would reveal it."""
    model, inputs = OwnAndDropout(), torch.randn(5, 6)
    inputs[2] = 3e38
    engine = make_engine("ghost", model, lambda outputs, targets: outputs.sum(dim=1))
    norms = engine(inputs, torch.zeros(5)).norms
    assert (norms[[0, 1, 3, 4]] > 0).all()
    assert torch.isfinite(norms).all()
    shuffled = make_engine("ghost", Shuffled(), loss)
    measured = shuffled(torch.randn(5, 6), torch.arange(5) % 2)
    norms = measured.norms
    measured.weighted_sum(torch.ones(5))
    total = torch.cat([parameter.grad.flatten() for parameter in shuffled.model.parameters()])
    assert total.norm() <= norms.sum() * (1 + 1e-5)


def test_what_follows_may_change_a_random_modules_outputs_in_place():
    model, inputs, targets = (
        nn.Sequential(OwnAndDropout(), nn.ReLU(inplace=True)),
        torch.randn(9, 6),
        torch.arange(9) % 2,
    )
    check_engine(make_engine("ghost", model, loss), model, loss, inputs, targets)


def test_chunks_that_run_differently_twice_add_no_more_than_their_norms():
    """The functional engine computes long batches again; Python's own random numbers are others then."""
    draws = iter([0.1] * 3 + [50.0, float("nan"), 50.0])

    class Fickle(nn.Linear):
        def forward(self, values: Tensor) -> Tensor:
            return super().forward(values) * next(draws)

    engine = FunctionalEngine(Fickle(4, 2), loss, chunk_size=1)
    measured = engine(torch.randn(3, 4), torch.tensor([0, 1, 0]))
    norms = measured.norms
    measured.weighted_sum(torch.ones(3))
    total = torch.cat([parameter.grad.flatten() for parameter in engine.model.parameters()])
    assert 0 < total.norm() <= (norms[0] + norms[2]) * (1 + 1e-5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("own", [False, True])
def test_a_transformer_with_padding_and_its_usual_settings_can_be_trained(engine, own):
    """In evaluation mode torch would take a shortcut through nested tensors that lets no gradient pass."""

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(9, 8)
            layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0 if own else 0.1, batch_first=True)
            self.body, self.out = nn.TransformerEncoder(layer, 2), nn.Linear(8, 2)
            self.shift = nn.Parameter(torch.zeros(8), requires_grad=own)

        def forward(self, tokens: Tensor) -> Tensor:
            read = self.body(self.words(tokens) + self.shift, src_key_padding_mask=tokens == 0)
            return self.out(read.mean(dim=1))

    tokens = torch.randint(1, 9, (6, 5))
    tokens[:3, 3:] = 0
    model, targets = Reader(), torch.arange(6) % 2
    check_model(model, loss, tokens, targets)
    check_engine(make_engine(engine, model, loss), model, loss, tokens, targets)
    assert torch.backends.mha.get_fastpath_enabled()


class InLists(nn.Module):
    """Parameters in lists and dictionaries of its own, of a child, and in a module that is never called."""

    class Shifts(nn.Module):
        """Has no forward pass; the module around it reads its parameters."""

        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.randn(4))
            self.scales = nn.ParameterDict({"a": torch.randn(4)})

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.nested = nn.ModuleDict({"all": nn.ModuleList([nn.ParameterList([torch.randn(4)])])})

        def forward(self, values: Tensor) -> Tensor:
            return torch.tanh(self.layer(values) * self.nested["all"][0][0])

    def __init__(self, *, of_child: bool) -> None:
        super().__init__()
        self.child, self.last = self.Scaled(), nn.Linear(4, 2)
        self.layers = nn.ModuleList([nn.Linear(5, 4)])
        if not of_child:
            self.weights, self.shifts = nn.ParameterList([torch.randn(4, 4)]), self.Shifts()

    def forward(self, values: Tensor) -> Tensor:
        hidden = torch.tanh(self.layers[0](values))
        if hasattr(self, "weights"):
            hidden = hidden @ self.weights[0] * self.shifts.scales["a"] + self.shifts.shift
        return self.last(self.child(hidden))


@pytest.mark.parametrize("engine", ["ghost", "functional"])
@pytest.mark.parametrize("of_child", [True, False])
def test_parameters_in_lists_and_dictionaries(engine, of_child):
    torch.manual_seed(0)
    model = InLists(of_child=of_child).double()
    assert_exact(model, drawn(6, 5), engine=engine)
    model.layers.requires_grad_(False)
    assert_exact(model, drawn(6, 5), engine=engine)


@pytest.mark.parametrize("engine", ["ghost", "functional"])
def test_a_model_of_a_list_of_parameters_alone(engine):
    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList([torch.randn(5, 4), torch.randn(4, 2)])

        def forward(self, values: Tensor) -> Tensor:
            return torch.tanh(values @ self.weights[0]) @ self.weights[1]

    assert_exact(Alone().double(), drawn(6, 5), engine=engine)
