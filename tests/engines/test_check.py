"""Models that mix examples are stopped, before anything is spent or in a charged step; sound ones train."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import TensorDataset

import equidp
from equidp.engines import check_rows
from equidp.engines.functional import FunctionalEngine
from equidp.engines.ghost import GhostEngine
from equidp.errors import DataError, ModelError
from equidp.evaluation.predictions import predict
from equidp.models import MODELS
from support.errors import raises_field

ROWS, TIME, WORDS = 48, 12, 40
LOSS = nn.CrossEntropyLoss(reduction="none")
TARGETS = torch.arange(ROWS) % 2


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def trainer(model: nn.Module, inputs: Any, targets: Any = TARGETS, loss: Any = LOSS, **settings: Any) -> Any:
    rows = inputs if isinstance(inputs, list) else TensorDataset(inputs, targets)
    return equidp.Trainer(
        model,
        torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.01),
        rows,
        method=equidp.DPSGD(),
        loss=loss,
        **{
            "batch_size": 16,
            "steps": 2,
            "noise_multiplier": 1.0,
            "delta": 1e-3,
            "seed": 1,
            **settings,
        },
    )


class Of(nn.Module):
    """A model of a function of it, its inputs, and modules and parameters of its own."""

    def __init__(self, compute: Callable[..., Any], **parts: nn.Module | Tensor) -> None:
        super().__init__()
        self.compute = compute
        for name, part in parts.items():
            setattr(self, name, part if isinstance(part, nn.Module) else nn.Parameter(part))

    def forward(self, *inputs: Tensor) -> Any:
        return self.compute(self, *inputs)


def lengths_of(tokens: Tensor) -> Tensor:
    return (tokens != 0).sum(dim=1).clamp(min=1)


def words(pad: int = 0) -> Tensor:
    lengths = torch.randint(1, TIME + 1, (ROWS,))
    return torch.where(torch.arange(TIME) < lengths[:, None], torch.randint(2, WORDS - 1, (ROWS, TIME)), pad)


def packed(model: Any, tokens: Tensor) -> Tensor:
    values = pack_padded_sequence(
        model.words(tokens), lengths_of(tokens), batch_first=True, enforce_sorted=False
    )
    return model.out(model.rnn(values)[1][0][-1])


def sorted_and_packed(model: Any, tokens: Tensor) -> Tensor:
    lengths, order = (tokens != model.pad).sum(dim=1).sort(descending=True)
    values = pack_padded_sequence(model.words(tokens[order]), lengths, batch_first=True)
    return model.out(model.rnn(values)[1][0][-1][order.argsort()])


def texts(compute: Callable[..., Any], pad: int = 0) -> nn.Module:
    model = Of(
        compute, words=nn.Embedding(WORDS, 8), rnn=nn.LSTM(8, 8, batch_first=True), out=nn.Linear(8, 2)
    )
    model.pad = pad
    return model


def with_class_token(model: Any, values: Tensor) -> Tensor:
    tokens = torch.cat([model.first.expand(len(values), -1, -1), model.patches(values)], dim=1)
    return model.out(model.block(tokens + model.places(torch.arange(9).expand(len(values), -1)))[:, 0])


def variational(model: Any, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    mean, log_var = model.encoder(values).chunk(2, dim=1)
    drawn = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
    return model.decoder(drawn), mean, log_var


def variational_loss(outputs: Any, targets: Tensor) -> Tensor:
    made, mean, log_var = outputs
    apart = 0.5 * (mean.square() + log_var.exp() - log_var - 1).sum(dim=1)
    return (made - targets).square().sum(dim=1) + apart


def frozen_norm() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    model[1].eval().requires_grad_(False)
    return model


def numbers(*shape: int) -> Tensor:
    return torch.randn(ROWS, *shape)


SOUND: dict[str, Callable[[], tuple[Any, ...]]] = {
    "bag of words": lambda: (nn.Sequential(nn.EmbeddingBag(WORDS, 8), nn.Linear(8, 2)), words()),
    "vision transformer": lambda: (
        Of(with_class_token, first=torch.randn(1, 1, 16), patches=nn.Linear(12, 16),
           places=nn.Embedding(9, 16), out=nn.Linear(16, 2),
           block=nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)), numbers(8, 12)),
    "variational autoencoder": lambda: (
        Of(variational, encoder=nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)),
           decoder=nn.Linear(2, 6)), data := numbers(6), data, variational_loss),
    "dropout in evaluation too": lambda: (
        Of(lambda own, x: own.out(nn.functional.dropout(torch.relu(own.first(x)), 0.5, training=True)),
           first=nn.Linear(6, 8), out=nn.Linear(8, 2)), numbers(6)),
    "frozen batch normalisation": lambda: (frozen_norm(), numbers(6)),
    "bytes": lambda: (
        Of(lambda own, x: own.out(x.flatten(1).float() / 255), out=nn.Linear(48, 2)),
        torch.randint(0, 256, (ROWS, 3, 4, 4), dtype=torch.uint8)),
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_sound_models_of_tutorials_train(name):
    model, inputs, *rest = SOUND[name]()
    made = trainer(model, inputs, *rest)
    run = made.fit()
    assert run.facts.steps == 2


def centred(values: Tensor) -> Tensor:
    return values - values.mean(dim=0)


def two_layers(between: Callable[[Tensor], Tensor]) -> nn.Module:
    return Of(
        lambda own, x: own.out(torch.relu(between(own.first(x)))),
        first=nn.Linear(6, 8),
        out=nn.Linear(8, 2),
    )


def gated(own: Any, values: Tensor) -> Tensor:
    hidden = own.first(values)
    return own.out(hidden + own.gate * centred(hidden))


def rare(own: Any, values: Tensor) -> Tensor:
    """Mixes only where a value is larger than those that are made up are."""
    hidden = own.first(values)
    return own.out(centred(hidden) if (values > 1000).any() else hidden)


class Running(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, values: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(values.detach().mean(dim=0), alpha=0.1)
        return self.layer(values - self.mean)


def shifted(own: Any, values: Tensor) -> Tensor:
    own.before, before = values.detach(), getattr(own, "before", values)
    return own.out(values + before.mean(dim=0))


MIXING: dict[str, Callable[[], tuple[Any, ...]]] = {
    "batch normalisation": lambda: (
        nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)), numbers(6)),
    "sorted and packed, padded by the last word": lambda: (
        texts(sorted_and_packed, WORDS - 1), words(WORDS - 1)),
    "pairs": lambda: (two_layers(lambda h: h + 0.1 * h[torch.arange(len(h)) ^ 1 % len(h)]), numbers(6)),
    "rank in the batch": lambda: (
        two_layers(lambda h: h * h.detach()[:, :1].argsort(0).argsort(0) / len(h)), numbers(6)),
    "a closed gate": lambda: (
        Of(gated, first=nn.Linear(6, 8), out=nn.Linear(8, 2), gate=torch.zeros(())), numbers(6)),
    "running mean": lambda: (Running(), numbers(6)),
    "the batch before": lambda: (Of(shifted, out=nn.Linear(6, 2)), numbers(6)),
    "trimmed to the longest": lambda: (
        Of(lambda own, x: own.out(own.words(x[:, : int(lengths_of(x).max())]).mean(1)), out=nn.Linear(8, 2),
           words=nn.Embedding(WORDS, 8)), words()),
    "a loss divided by the batch": lambda: (
        nn.Linear(6, 2), numbers(6), TARGETS, lambda out, y: LOSS(out, y) / len(out)),
    "a loss that averages": lambda: (nn.Linear(6, 2), numbers(6), TARGETS, nn.CrossEntropyLoss()),
    "a table that bounds its rows": lambda: (
        nn.Sequential(nn.Embedding(WORDS, 8, max_norm=1.0), nn.Flatten(), nn.Linear(8 * TIME, 2)), words()),
}  # fmt: skip


@pytest.mark.parametrize("name", MIXING)
def test_models_that_mix_are_refused_before_anything_is_spent(name):
    model, inputs, *rest = MIXING[name]()
    ledger = equidp.Ledger()
    with pytest.raises(ModelError):
        trainer(model, inputs, *rest, ledger=ledger)
    assert not ledger.entries()


def test_what_only_rows_of_the_data_show_stops_a_charged_step():
    model, inputs = Of(rare, first=nn.Linear(6, 8), out=nn.Linear(8, 2)), 2000 * numbers(6)
    ledger = equidp.Ledger()
    made, before = trainer(model, inputs, ledger=ledger), model.first.weight.clone()
    with pytest.raises(ModelError, match="on rows of the sample"):
        made.fit()
    assert [count for _, count in ledger.entries()] == [1]
    assert torch.equal(model.first.weight, before)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_tokens_without_a_row_in_a_table_are_refused_before_anything_is_spent():
    tokens = words()
    tokens[7, 3] = WORDS
    ledger = equidp.Ledger()
    with raises_field(DataError, "inputs", "place 7"):
        trainer(texts(packed), tokens, ledger=ledger)
    assert not ledger.entries()


def test_frozen_normalisation_stays_frozen_while_a_run_trains_and_predicts():
    model = frozen_norm()
    before = {name: each.clone() for name, each in model.named_buffers()}
    made = trainer(model, numbers(6))
    while made.step():
        assert not model[1].training
        assert model[0].training
        predict(model, numbers(6))
    assert all(torch.equal(each, before[name]) for name, each in model.named_buffers())


@pytest.mark.soak
def test_units_at_the_kink_of_relu_are_no_fault():
    """Eight examples together are rounded otherwise than each alone, which switches a unit now and then."""
    model = MODELS["resnet20"]((3, 32, 32), 10)
    inputs, targets = torch.randn(8, 3, 32, 32), torch.arange(8)
    for engine in (GhostEngine(model, LOSS), FunctionalEngine(model, LOSS)):
        check_rows(engine, model, LOSS, inputs, targets)


def test_rows_that_a_model_is_sure_of_are_no_fault():
    """Gradients of 1e-17 and of 1e-7 are rounding."""
    for scale in (4, 9, 40):
        model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
        inputs = scale * torch.rand(8, 3, 8, 8)
        with torch.no_grad():
            model[1].weight.add_(torch.tensor([[1.0], [-1.0]]) * inputs.mean(0).flatten() / 20)
        targets = torch.zeros(8, dtype=torch.int64)
        for engine in (GhostEngine(model, LOSS), FunctionalEngine(model, LOSS)):
            check_rows(engine, model, LOSS, inputs, targets)
