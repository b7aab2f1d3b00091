"""Each layer's rule equals single-example backward passes, whatever the shapes."""

from __future__ import annotations

import copy
import gc
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from equidp.engines import make_engine
from equidp.engines.layers import conv
from equidp.engines.layers.linear import LinearGradients
from equidp.engines.layers.rule import Call
from equidp.kernel.engine import Measured
from support.oracle import DEVICE, SumOfSquares, add_gradients, assert_exact, drawn, loss, single_gradients


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def calls_of(measured: Measured) -> list[Call]:
    """Calls that a batch measured by the ghost engine keeps for its weighted sum."""
    return measured.sums.__self__.calls


@given(
    groups=st.sampled_from([1, 2]),
    kernel=st.integers(2, 3),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 2),
    padding=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    bias=st.booleans(),
    memory_format=st.sampled_from([torch.contiguous_format, torch.channels_last]),
)
@settings(max_examples=25)
def test_convolutions_with_few_positions(groups, kernel, stride, dilation, padding, bias, memory_format):
    """Norms by products of positions, whatever the shapes, with windows that lie in the border altogether."""
    layer = nn.Conv2d(
        8, 6, kernel, stride=stride, dilation=dilation, padding=padding, groups=groups, bias=bias
    )
    model = nn.Sequential(layer, SumOfSquares()).double()
    with patch.object(conv, "_COST_IN_FLOAT64", 0.0):
        assert_exact(model, drawn(3, 8, 5, 6).to(memory_format=memory_format))


@pytest.mark.parametrize(("numbers", "channels"), [(1, (2, 3)), (40, (8, 8)), (1000, (64, 64))])
def test_layers_in_small_chunks(numbers, channels, monkeypatch):
    monkeypatch.setattr("equidp.engines.layers.sums._CHUNK", numbers)
    inputs, outputs = channels
    layers = nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(1, outputs), nn.Conv2d(outputs, 2, 3)
    assert_exact(nn.Sequential(*layers, SumOfSquares()), torch.randn(5, inputs, 4, 4), tolerance=1e-5)
    assert_exact(nn.Sequential(*layers, SumOfSquares()).double(), drawn(5, inputs, 4, 4))


def test_products_are_of_full_precision_and_what_was_set_is_set_again():
    """TF32 and bfloat16 products would make norms smaller than the vectors that are summed."""
    matmul = torch.backends.mkldnn.matmul
    before, seen = matmul.fp32_precision, []
    layer = nn.Linear(3, 2)
    engine = make_engine("ghost", nn.Sequential(layer, SumOfSquares()), loss)
    norms, weighted = LinearGradients.squared_norms, LinearGradients.weighted_gradients

    def noting(call, *given):
        seen.append(matmul.fp32_precision)
        return (weighted if given else norms)(call, *given)

    try:
        matmul.fp32_precision = "bf16"
        with (
            patch.object(LinearGradients, "squared_norms", noting),
            patch.object(LinearGradients, "weighted_gradients", noting),
        ):
            add_gradients(engine(torch.randn(2, 3), torch.tensor([0, 1])), torch.ones(2))
        assert seen == ["ieee", "ieee"]
        assert matmul.fp32_precision == "bf16"
    finally:
        matmul.fp32_precision = before


class Reader(nn.Module):
    """A recurrent layer, read by outputs, last states or both; batch first, second, or packed by length."""

    def __init__(self, layer: nn.Module, *, read: str, packed: bool = False, started: bool = False) -> None:
        super().__init__()
        self.layer, self.read, self.packed, self.started = layer, read, packed, started
        self.first = nn.Linear(3, 3)

    def forward(self, values: Tensor) -> Tensor:
        inputs = self.first(values)
        lengths = 1 + (values[:, 0, 0].abs() * 100).long() % values.shape[1]
        if not self.layer.batch_first:
            inputs = inputs.transpose(0, 1)
        if self.packed:
            inputs = pack_padded_sequence(
                inputs, lengths, batch_first=self.layer.batch_first, enforce_sorted=False
            )
        outputs, state = self.layer(inputs, self._start(values)) if self.started else self.layer(inputs)
        if isinstance(outputs, PackedSequence):
            outputs, _ = pad_packed_sequence(
                outputs, batch_first=self.layer.batch_first, total_length=values.shape[1]
            )
        if not self.layer.batch_first:
            outputs = outputs.transpose(0, 1)
        states = torch.cat(
            [each.transpose(0, 1).flatten(1) for each in (state if isinstance(state, tuple) else (state,))], 1
        )
        read = {"outputs": [outputs.flatten(1)], "states": [states], "both": [outputs.flatten(1), states]}[
            self.read
        ]
        return SumOfSquares()(torch.cat(read, dim=1))

    def _start(self, values: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        layer = self.layer
        count = layer.num_layers * (2 if layer.bidirectional else 1)
        share = values.mean(dim=(1, 2))[None, :, None]
        hidden = share.expand(count, -1, layer.proj_size or layer.hidden_size).contiguous()
        if not isinstance(layer, nn.LSTM):
            return hidden
        return hidden, 2 * share.expand(count, -1, layer.hidden_size).contiguous()


@pytest.mark.parametrize(
    ("layer", "how"),
    [
        (nn.RNN(3, 4, num_layers=2, nonlinearity="relu", bias=False), {"read": "states", "started": True}),
        (nn.LSTM(3, 4, proj_size=1, bidirectional=True, batch_first=True), {"read": "both", "packed": True}),
        (nn.LSTM(3, 4, num_layers=2), {"read": "outputs", "packed": True, "started": True}),
        (nn.GRU(3, 2, bidirectional=True), {"read": "both", "packed": True, "started": True}),
    ],
    ids=["rnn", "projected lstm", "lstm", "gru"],
)
def test_recurrent_layers(layer, how):
    """Time first, packed by length, with initial states and projections."""
    assert_exact(Reader(copy.deepcopy(layer), **how).double(), drawn(4, 5, 3))


class CrossAttention(nn.Module):
    """Attention of three positions to four others behind a mask."""

    def __init__(self, masked: str, **settings) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(8, 2, **settings)
        self.masked = masked

    def forward(self, values: Tensor) -> Tensor:
        layer, padding = self.layer, torch.arange(4).expand(len(values), 4) > (values[:, :1, 0] > 0)
        blocked = torch.triu(torch.ones(3, 4), 1).bool()
        by_head = values[:, None, :1, :4] * torch.tensor([1.0, 3.0])[:, None, None]
        masks = {
            "padding": {"key_padding_mask": padding},
            "numbers": {"key_padding_mask": -3.0 * padding, "attn_mask": -2.0 * blocked.double()},
            "by head": {"attn_mask": by_head.expand(-1, -1, 3, -1).flatten(0, 1), "need_weights": False},
        }[self.masked]
        given = [values[:, :3], values[:, 3:, : layer.kdim], values[:, 3:, : layer.vdim]]
        if not layer.batch_first:
            given = [each.transpose(0, 1) for each in given]
        read, weights = layer(*given, **masks)
        read = read if layer.batch_first else read.transpose(0, 1)
        shown = [each.flatten(1) for each in (read, weights) if each is not None]
        return SumOfSquares()(torch.cat(shown, dim=1))


@pytest.mark.filterwarnings("ignore:Support for mismatched")
@pytest.mark.parametrize(
    ("masked", "settings"),
    [
        ("padding", {"kdim": 3, "vdim": 5, "batch_first": True}),
        ("numbers", {"kdim": 3, "vdim": 5, "bias": False}),
        ("by head", {}),
    ],
)
def test_attention(masked, settings):
    assert_exact(CrossAttention(masked, **settings).double(), drawn(4, 7, 8))


@pytest.mark.parametrize("seed", range(3))
def test_dropout_between_recurrent_layers_is_that_of_the_pass_itself(seed):
    model = Reader(nn.LSTM(3, 4, num_layers=3, dropout=0.5), read="outputs").double()
    inputs, targets = drawn(3, 4, 3), torch.tensor([0, 1, 0])
    engine = make_engine("ghost", model, loss)
    torch.manual_seed(seed)
    norms = engine(inputs, targets).norms
    rows = []
    for index in range(3):
        torch.manual_seed(seed)
        measured = engine(inputs, targets)
        model.zero_grad()
        add_gradients(measured, torch.eye(3, dtype=torch.float64)[index])
        rows.append(torch.cat([p.grad.flatten() for p in model.parameters()]).norm())
    torch.testing.assert_close(torch.stack(rows), norms)
    assert not torch.allclose(norms, single_gradients(model.eval(), inputs, targets).norm(dim=1))


class Checkpointed(nn.Module):
    """Forgets what its layers computed and computes it again on the way back."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*layers)

    def forward(self, values: Tensor) -> Tensor:
        return checkpoint(self.inner, values, use_reentrant=False)


@pytest.mark.parametrize(
    ("layers", "shape"),
    [
        ((nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU()), (4, 5, 5)),
        ((nn.Linear(4, 4), nn.TransformerEncoderLayer(4, 2, 6, 0.0, batch_first=True)), (3, 4)),
        ((Reader(nn.LSTM(3, 4, batch_first=True), read="outputs"),), (4, 3)),
    ],
    ids=["group norm", "transformer", "lstm"],
)
def test_activation_checkpointing(layers, shape):
    model = nn.Sequential(nn.Linear(shape[-1], shape[-1]), Checkpointed(*layers), SumOfSquares()).double()
    assert_exact(model, drawn(3, *shape))
    engine = make_engine("ghost", model, loss)
    calls = calls_of(engine(drawn(3, *shape).to(DEVICE), torch.tensor([0, 1, 0], device=DEVICE)))
    assert len({(id(each.module), *each.parameters) for each in calls}) == len(calls)


class Scale(nn.Module):
    """A module without a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, values: Tensor) -> Tensor:
        return values * self.scale


@pytest.mark.soak
def test_a_step_leaves_nothing_for_the_garbage_collector():
    """Tensors in a reference cycle pile up over steps until a collection: hundreds of megabytes."""
    models = (
        Reader(nn.LSTM(3, 4, batch_first=True), read="both"),
        nn.Sequential(nn.TransformerEncoderLayer(3, 1, 8, dropout=0.0, batch_first=True), SumOfSquares()),
        nn.Sequential(Scale(), nn.Linear(3, 6), nn.GroupNorm(1, 5), SumOfSquares()),
    )
    engines = [make_engine("ghost", model, loss) for model in models]

    def step() -> None:
        for model, engine in zip(models, engines, strict=True):
            measured = engine(torch.randn(2, 5, 3), torch.zeros(2).long())
            add_gradients(measured, torch.ones_like(measured.norms))
            model.zero_grad()

    step()  # what is made once
    gc.collect()
    gc.disable()
    try:
        before = len(_living_tensors())
        step()
        assert len(_living_tensors()) == before
    finally:
        gc.enable()


def _living_tensors() -> list[Tensor]:
    return [each for each in gc.get_objects() if issubclass(type(each), Tensor)]
