"""Models and losses that make no sense are found out by trying them."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from equidp._provenance import weights_digest
from equidp.engines import check_engine, check_model, make_compatible, make_engine
from equidp.engines.trial.mixing import moved_parameters
from equidp.errors import ModelError
from support.errors import raises_field

LOSS = nn.CrossEntropyLoss(reduction="none")


class Centred(nn.Module):
    """Mixes examples without any layer whose name says so."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, values: Tensor) -> Tensor:
        return self.layer(values - values.mean(dim=0))


class BatchAttention(nn.Module):
    """Attention over the batch axis by mistake: batch_first is missing."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 1)
        self.out = nn.Linear(4, 2)

    def forward(self, values: Tensor) -> Tensor:
        return self.out(self.attention(values, values, values)[0].mean(dim=1))


class Counting(nn.Module):
    """Keeps a statistic of the data in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("total", torch.zeros(4))

    def forward(self, values: Tensor) -> Tensor:
        self.total += values.detach().sum(dim=tuple(range(values.dim() - 1)))
        return self.layer(values)


class SortedByLength(nn.Module):
    """Examples stand in another order before the last layer than in it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, values: Tensor) -> Tensor:
        order = values[:, 0].argsort()
        return self.last(torch.tanh(self.first(values[order]))[order.argsort()])


class FromItsFirstBatch(nn.Module):
    """ActNorm: a parameter that is set from data when the model first runs."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.layer, self.done = nn.Parameter(torch.zeros(4)), nn.Linear(4, 2), False

    def forward(self, values: Tensor) -> Tensor:
        if not self.done:
            self.shift.data.copy_(-values.mean(dim=0))
            self.done = True
        return self.layer(values + self.shift)


class WithTable(nn.Module):
    """Hands a table of five rows, the same for all examples, to a module with a parameter of its own."""

    class Adding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, values: Tensor, table: Tensor) -> Tensor:
            return values * self.scale + (table * self.scale).sum(dim=0)

    def __init__(self) -> None:
        super().__init__()
        self.adding, self.out = self.Adding(), nn.Linear(4, 2)

    def forward(self, values: Tensor) -> Tensor:
        return self.out(self.adding(values, torch.arange(20.0).view(5, 4) / 10))


def frozen() -> nn.Module:
    return nn.Linear(4, 2).requires_grad_(False)


@pytest.mark.parametrize(
    ("model", "field"),
    [
        (
            nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)),
            "1",
        ),
        (Centred(), "outputs"),
        (Counting(), "total"),
        (frozen(), "model"),
        (nn.Linear(4, 2).bfloat16(), "weight"),
        (nn.Linear(5, 2), "inputs"),
        (
            nn.Flatten(0).append(nn.Linear(16, 2))
            if hasattr(nn.Flatten, "append")
            else nn.Sequential(nn.Flatten(0), nn.Linear(16, 2)),
            "model",
        ),
    ],
    ids=["batchnorm", "centred", "buffer", "frozen", "bfloat16", "shape", "no batch"],
)
def test_models_that_cannot_be(model, field):
    with raises_field(ModelError, field):
        check_model(model, LOSS, torch.randn(4, 4), torch.tensor([0, 1, 0, 1]))


@pytest.mark.parametrize(
    ("model", "field"),
    [
        (
            nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)), nn.Linear(3, 2)),
            "0.parametrizations.weight.0._u",
        ),
        (torch.jit.script(nn.Linear(4, 2)), "model"),
        (
            nn.Sequential(torch.jit.trace(nn.Linear(4, 3), torch.zeros(1, 4)), nn.Linear(3, 2)),
            "0",
        ),
        (nn.Linear(4, 2, dtype=torch.complex64), "weight"),
    ],
    ids=["spectral norm", "scripted", "traced", "complex"],
)
def test_models_that_are_refused_for_the_reason_they_have(model, field):
    with raises_field(ModelError, field):
        check_model(model, LOSS, torch.randn(4, 4), torch.tensor([0, 1, 0, 1]))


@pytest.mark.parametrize("loss", [LOSS, nn.functional.cross_entropy])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int16])
def test_targets_of_a_type_that_the_loss_does_not_take_are_named(loss, dtype):
    def each(outputs: Tensor, targets: Tensor) -> Tensor:
        return loss(outputs, targets) if loss is LOSS else loss(outputs, targets, reduction="none")

    with raises_field(ModelError, "targets", dtype, "torch.int64"):
        check_model(nn.Linear(4, 2), each, torch.randn(4, 4), torch.tensor([0, 1, 0, 1]).to(dtype))
    binary = nn.BCEWithLogitsLoss(reduction="none")
    one = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    with raises_field(ModelError, "targets"):
        check_model(one, binary, torch.randn(4, 4), torch.tensor([0, 1, 0, 1]))


def test_attention_over_the_batch_is_found_out():
    with raises_field(ModelError, "outputs"):
        check_model(BatchAttention(), LOSS, torch.randn(4, 3, 4), torch.tensor([0, 1, 0, 1]))


@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="sum"), lambda outputs, targets: outputs]
)
def test_losses_that_are_not_one_per_example(loss):
    with raises_field(ModelError, "loss", "CrossEntropyLoss"):
        check_model(nn.Linear(4, 2), loss, torch.randn(4, 4), torch.tensor([0, 1, 0, 1]))


def test_a_loss_that_does_not_fit_the_targets():
    with raises_field(ModelError, "loss"):
        check_model(nn.Linear(4, 2), LOSS, torch.randn(4, 4), torch.tensor([0, 1, 0, 7]))


@pytest.mark.soak
def test_good_models_pass_and_are_left_as_they_were():
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.LayerNorm(8), nn.Linear(8, 2)).eval()
    state = torch.get_rng_state()
    for batch in (1, 2, 5):
        check_model(
            model,
            LOSS,
            torch.randn(batch, 4, generator=torch.Generator()),
            torch.zeros(batch, dtype=torch.int64),
        )
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module.training for module in model.modules())


def test_buffers_are_restored_when_a_model_is_refused():
    model = Counting()
    with pytest.raises(ModelError):
        check_model(model, LOSS, torch.randn(4, 4), torch.tensor([0, 1, 0, 1]))
    assert model.total.tolist() == [0.0] * 4


def test_make_compatible_replaces_batchnorm_and_says_so():
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3),
        nn.BatchNorm2d(12),
        nn.Sequential(nn.BatchNorm2d(12, affine=False)),
        nn.Flatten(),
        nn.Linear(12 * 16, 2),
    )
    fixed, changes = make_compatible(model)
    assert len(changes) == 2
    assert changes[0].startswith("1: BatchNorm2d(12) became GroupNorm")
    assert isinstance(model[1], nn.BatchNorm2d)
    check_model(fixed, LOSS, torch.randn(4, 1, 6, 6), torch.tensor([0, 1, 0, 1]))


@pytest.mark.parametrize("affine", [True, False])
def test_make_compatible_keeps_the_statistics_of_frozen_batchnorm(affine):
    """A pretrained network computes what it did, in training mode too; nothing of its norms is trained."""
    torch.manual_seed(0)
    norms = [nn.BatchNorm2d(4, affine=affine), nn.BatchNorm1d(4, affine=affine)]
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), norms[0], nn.Flatten(2), norms[1], nn.Flatten(), nn.Linear(64, 2)
    )
    for _ in range(20):
        model(3 * torch.randn(16, 1, 6, 6) + 50)
    for norm in norms:
        norm.requires_grad_(False).eval()
        if affine:
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)
    inputs = 3 * torch.randn(5, 1, 6, 6) + 50
    expected = model.eval()(inputs)
    fixed, changes = make_compatible(model)
    torch.testing.assert_close(fixed.train()(inputs), expected, rtol=1e-6, atol=1e-6)
    assert changes[1] == "3: BatchNorm1d(4) became FixedNorm(4), with the statistics it had."
    assert {name.split(".")[0] for name, _ in fixed.named_parameters()} == {"0", "5"}
    check_model(fixed, LOSS, torch.randn(4, 1, 6, 6), torch.tensor([0, 1, 0, 1]))


class Borrowed(nn.Module):
    """Uses a layer's parameter without calling the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return linear(self.words(tokens).mean(dim=1), self.words.weight)


class Sideways(nn.Module):
    """Shows a layer its examples in the second dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, values: Tensor) -> Tensor:
        return self.layer(values.transpose(0, 1)).transpose(0, 1)[:, -1]


@pytest.mark.parametrize(
    ("model", "inputs"),
    [(Borrowed(), torch.randint(0, 5, (4, 3))), (Sideways(), torch.randn(4, 4, 3))],
    ids=["borrowed", "sideways"],
)
def test_gradients_that_the_fast_engine_would_get_wrong_are_found_out(model, inputs):
    targets = torch.tensor([0, 1, 0, 1])
    check_model(model, LOSS, inputs, targets)
    with raises_field(ModelError, "gradients"):
        check_engine(make_engine("ghost", model, LOSS), model, LOSS, inputs, targets)
    check_engine(make_engine("functional", model, LOSS), model, LOSS, inputs, targets)


class BorrowedInPart(nn.Module):
    """Uses a layer's parameter without calling the layer, in a part of the outputs that hardly counts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.small = nn.Linear(4, 2), nn.Linear(4, 2, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        return self.first(values) + 1e-3 * (self.small(values) + linear(values.flip(1), self.small.weight))


def test_a_wrong_gradient_of_one_parameter_is_found_out_beside_longer_ones():
    model, inputs, targets = BorrowedInPart(), torch.randn(4, 4), torch.tensor([0, 1, 0, 1])
    with raises_field(ModelError, "gradients"):
        check_engine(make_engine("ghost", model, LOSS), model, LOSS, inputs, targets)
    check_engine(make_engine("functional", model, LOSS), model, LOSS, inputs, targets)


def test_trying_an_engine_leaves_the_model_as_it_was():
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2))
    model[0].weight.grad = torch.ones(3, 4)
    model[1].eval()
    state = torch.get_rng_state()
    before = pickle.dumps(model)
    inputs, targets = (
        torch.randn(4, 4, generator=torch.Generator().manual_seed(0)),
        torch.tensor([0, 1, 0, 1]),
    )
    check_engine(make_engine("ghost", model, LOSS), model, LOSS, inputs, targets)
    assert pickle.dumps(model) == before
    assert torch.equal(model[0].weight.grad, torch.ones(3, 4))
    assert model[0].bias.grad is None
    assert torch.equal(torch.get_rng_state(), state)


def test_examples_that_change_places_are_found_out():
    """The norms are of rows of several examples then, and bound none of them."""
    model, inputs = SortedByLength(), torch.randn(16, 4)
    targets = torch.zeros(16, dtype=torch.int64)
    with raises_field(ModelError, "gradients"):
        check_engine(make_engine("ghost", model, LOSS), model, LOSS, inputs, targets)


def test_a_parameter_that_the_model_writes_to_is_refused_and_set_back():
    model = FromItsFirstBatch()
    with raises_field(ModelError, "shift"):
        check_model(model, LOSS, torch.randn(4, 4), torch.zeros(4, dtype=torch.int64))
    assert torch.equal(model.shift, torch.zeros(4))


@pytest.mark.parametrize("tried", [5, 6, 9])
def test_a_table_of_as_many_rows_as_there_are_examples_is_not_taken_apart(tried):
    model = WithTable()
    engine = make_engine("ghost", model, LOSS)
    check_engine(engine, model, LOSS, torch.randn(tried, 4), torch.zeros(tried, dtype=torch.int64))
    inputs, targets = torch.randn(5, 4), torch.zeros(5, dtype=torch.int64)
    expected = make_engine("functional", model, LOSS)(inputs, targets).norms
    torch.testing.assert_close(engine(inputs, targets).norms, expected)


class Flipped(nn.Module):
    """Two examples at a time change places, and change back."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2, bias=False)
        nn.init.zeros_(self.layer.weight)

    def forward(self, values: Tensor) -> Tensor:
        return self.layer(values.flip(0)).flip(0)


def test_weights_that_go_to_other_examples_are_found_out_where_all_norms_are_equal():
    model, inputs = Flipped(), torch.eye(4)
    with raises_field(ModelError, "gradients"):
        check_engine(
            make_engine("ghost", model, LOSS), model, LOSS, inputs, torch.zeros(4, dtype=torch.int64)
        )


def test_mixing_in_some_passes_only_is_found_out():
    class Sometimes(nn.Linear):
        def forward(self, values: Tensor) -> Tensor:
            mixed = 0.5 * values + 0.5 * values.roll(1, 0)
            return super().forward(mixed if self.training and torch.rand(1) < 0.4 else values)

    with raises_field(ModelError, "outputs"):
        check_model(Sometimes(4, 2), LOSS, torch.randn(6, 4), torch.arange(6) % 2)


def test_a_buffer_that_a_forward_pass_makes_is_refused():
    class Makes(nn.Linear):
        def forward(self, values: Tensor) -> Tensor:
            self.register_buffer("seen", values.mean())
            return super().forward(values)

    with raises_field(ModelError, "seen"):
        check_model(Makes(4, 2), LOSS, torch.randn(6, 4), torch.arange(6) % 2)


class Encoded(nn.Module):
    """An encoder as torch makes it, normalised after each part."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, activation="gelu")
        self.out = nn.Linear(8, 2)

    def forward(self, values: Tensor) -> Tensor:
        return self.out(self.encoder(values).mean(1))


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["ghost", "functional"])
def test_huge_rows_whose_gradients_are_a_matter_of_rounding_refuse_nobody(kind):
    """They saturate an attention, and its gradient is noise in the last digits, the same in norm and sum."""
    inputs, targets = torch.randn(4, 5, 8), torch.tensor([0, 1, 0, 1])
    for seed in range(6):
        torch.manual_seed(seed)
        model = Encoded()
        engine = make_engine(kind, model, LOSS)
        check_engine(engine, model, LOSS, inputs, targets)
        huge = engine(1e6 * inputs, targets)
        huge.weighted_sum(torch.tensor([0.0, 0.3, 0.0, 0.0]))
        moved = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm()
        torch.testing.assert_close(moved, 0.3 * huge.norms[1].float(), rtol=1e-4, atol=0.0)


class WrongWhereHuge(nn.Module):
    """Huge rows meet the parameter outside of its layer, and an attention that they saturate."""

    def __init__(self) -> None:
        super().__init__()
        self.encoded, self.layer = Encoded(), nn.Linear(8, 2, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        mean = values.mean(1).tanh()
        huge = (values.abs().amax((1, 2)) > 1e3).to(values).unsqueeze(1)
        return self.encoded(values) + self.layer(mean) + huge * (mean @ self.layer.weight.t())


@pytest.mark.soak
def test_a_wrong_gradient_of_huge_rows_is_found_out_beside_one_of_rounding():
    inputs, targets = torch.randn(4, 5, 8), torch.tensor([0, 1, 0, 1])
    for seed in range(6):
        torch.manual_seed(seed)
        model = WrongWhereHuge()
        with raises_field(ModelError, "gradients"):
            check_engine(make_engine("ghost", model, LOSS), model, LOSS, inputs, targets)


class SortedBehindAGate(nn.Module):
    """Frequencies up to a million make gradients a matter of rounding, and a gate hides changed places."""

    def __init__(self) -> None:
        super().__init__()
        self.frequencies, self.middle, self.head = nn.Linear(2, 16), nn.Linear(16, 16), nn.Linear(16, 2)
        self.inner, self.gate = nn.Linear(16, 16), nn.Linear(16, 2)
        with torch.no_grad():
            self.frequencies.weight.copy_(torch.logspace(0, 6, 16)[:, None] * torch.tensor([1.0, 0.7]))
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    def forward(self, values: Tensor) -> Tensor:
        hidden = self.middle(3 * self.frequencies(values).sin()).relu()
        order = values[:, 0].argsort(descending=True, stable=True)
        return self.head(hidden) + self.gate(self.inner(hidden[order])[order.argsort()].tanh())


@pytest.mark.soak
def test_a_matter_of_rounding_excuses_no_ordinary_row():
    for seed in range(6):
        torch.manual_seed(seed)
        model, inputs = SortedBehindAGate(), torch.randn(4, 2).sort(dim=0).values
        with raises_field(ModelError, "gradients"):
            check_engine(make_engine("ghost", model, LOSS), model, LOSS, inputs, torch.tensor([0, 1, 0, 1]))


class Centred(nn.Module):
    """Subtracts the batch's mean, behind a gate that is closed at first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.gate = nn.Linear(4, 8), nn.Linear(8, 2)
        nn.init.zeros_(self.gate.weight)

    def forward(self, values: Tensor) -> Tensor:
        hidden = self.layer(values)
        return self.gate(hidden - hidden.mean(0))


def test_autocasts_copies_of_parameters_neither_hide_a_closed_gate_nor_refuse_anyone():
    inputs, targets = torch.randn(4, 4), torch.tensor([0, 1, 0, 1])
    with torch.autocast("cpu", torch.bfloat16):
        for kind in ("ghost", "functional"):
            plain = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
            check_engine(make_engine(kind, plain, LOSS), plain, LOSS, inputs, targets)
        with pytest.raises(ModelError):
            check_model(Centred(), LOSS, inputs, targets)


def test_a_closed_gate_opens_to_both_sides():
    gate = nn.Linear(100, 1)
    nn.init.zeros_(gate.weight)
    with torch.no_grad(), moved_parameters(gate):
        assert 20 < int((gate.weight > 0).sum()) < 80
    assert not gate.weight.any()


class OnAGraph(nn.Module):
    """Reads neighbours by a sparse buffer, which it may change with the data."""

    def __init__(self, layout: torch.layout, *, writes: bool) -> None:
        super().__init__()
        self.layer, self.writes = nn.Linear(4, 2), writes
        self.register_buffer("neighbours", (torch.eye(3) + torch.eye(3).roll(1, 0)).to_sparse(layout=layout))

    def forward(self, values: Tensor) -> Tensor:
        if self.writes:
            self.neighbours = (self.neighbours * (1 + values.sum())).detach()
        return self.layer(torch.stack([torch.sparse.mm(self.neighbours, each) for each in values])).mean(
            dim=1
        )


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_buffers_are_compared_by_their_values(layout):
    inputs, targets = torch.randn(8, 3, 4), torch.arange(8) % 2
    model = OnAGraph(layout, writes=False)
    check_model(model, LOSS, inputs, targets)
    check_engine(make_engine("ghost", model, LOSS), model, LOSS, inputs, targets)
    with raises_field(ModelError, "neighbours"):
        check_model(OnAGraph(layout, writes=True), LOSS, inputs, targets)
    before = weights_digest(model)
    assert weights_digest(OnAGraph(layout, writes=True)) != before
    model.neighbours = model.neighbours * 2
    assert weights_digest(model) != before


class DrawsItself(nn.Module):
    """Leaves a layer out for some examples, in training mode alone or always."""

    def __init__(self, *, always: bool) -> None:
        super().__init__()
        self.first, self.last, self.always = nn.Linear(4, 8), nn.Linear(8, 2), always

    def forward(self, values: Tensor) -> Tensor:
        kept = torch.rand(len(values), 1) < 0.9 if self.training or self.always else 1.0
        return self.last(kept * torch.tanh(self.first(values)))


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["ghost", "functional"])
def test_models_that_draw_random_numbers_of_their_own_are_taken_or_refused_for_that(kind):
    inputs, targets = torch.randn(16, 4), torch.arange(16) % 2
    for seed in range(6):
        torch.manual_seed(seed)
        model = DrawsItself(always=False)
        check_engine(make_engine(kind, model, LOSS), model, LOSS, inputs, targets)
        model = DrawsItself(always=True)
        with raises_field(ModelError, "randomness"):
            check_engine(make_engine(kind, model, LOSS), model, LOSS, inputs, targets)


class _OwnMeasured:
    """What `kernel.engine.Measured` promises, and no more."""

    def __init__(self, measured) -> None:
        self.norms, self.terms = measured.norms, None
        self._measured = measured

    def sum_gradients(self, weights: Tensor):
        return self._measured.sum_gradients(weights)


def test_an_engine_of_ones_own_is_checked_by_what_the_protocol_promises():
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 2))
    inner = make_engine("functional", model, LOSS)
    inputs, targets = torch.randn(6, 4), torch.arange(6) % 2
    check_engine(lambda x, y: _OwnMeasured(inner(x, y)), model, LOSS, inputs, targets)


def test_make_compatible_takes_a_module():
    with raises_field(ModelError, "model"):
        make_compatible(nn.BatchNorm1d)
