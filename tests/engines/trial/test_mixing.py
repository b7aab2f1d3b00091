"""Models that mix examples, or carry data from step to step, are found out by made-up batches alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import equidp
from equidp.engines import check_engine, check_model, made_up_examples, make_engine
from equidp.engines.model import exact_products
from equidp.errors import ModelError
from support.errors import raises_field

LOSS = nn.CrossEntropyLoss(reduction="none")
FLOATS, SEQUENCES = torch.zeros(1, 6), torch.zeros(1, 8, 6)
TOKENS = torch.zeros(1, 64, dtype=torch.int64)
CLASS = torch.tensor([1])


def tried(model: nn.Module, like: Tensor, loss=LOSS, targets: Tensor = CLASS) -> None:
    """What a Trainer does with a model before it spends anything."""
    few = made_up_examples(model, loss, like, targets, 2)
    check_model(model, loss, *few)
    check_engine(make_engine("ghost", model, loss), model, loss, *few)


class Layers(nn.Module):
    """Two layers; what happens in between is `between`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, values: Tensor) -> Tensor:
        return self.last(self.between(values, torch.tanh(self.first(values))))

    def between(self, values: Tensor, hidden: Tensor) -> Tensor:
        return hidden


class Trimmed(nn.Module):
    """Reads to the longest sequence of the batch only, and takes the mean over that."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(50, 16, padding_idx=0), nn.Linear(16, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        longest = max(1, int((tokens != 0).sum(dim=1).max()))
        return self.out(torch.tanh(self.words(tokens[:, :longest])).mean(dim=1))


class TrimmedNumbers(Layers):
    def forward(self, values: Tensor) -> Tensor:
        longest = max(1, int((values.abs().sum(dim=2) > 0).sum(dim=1).max()))
        return self.last(torch.tanh(self.first(values[:, :longest])).mean(dim=1))


class LargeBatches(Layers):
    def between(self, values: Tensor, hidden: Tensor) -> Tensor:
        return hidden - hidden.mean(dim=0) if len(values) > 16 else hidden


class RareValues(Layers):
    def between(self, values: Tensor, hidden: Tensor) -> Tensor:
        rare = (values[:, 0] > 1e3).any()
        return torch.where(rare, hidden - hidden.mean(dim=0, keepdim=True), hidden)


@pytest.mark.parametrize(
    ("model", "like"),
    [
        (Trimmed(), TOKENS),
        (TrimmedNumbers(), SEQUENCES),
        (LargeBatches(), FLOATS),
        (RareValues(), FLOATS),
    ],
    ids=["trimmed tokens", "trimmed numbers", "large batches", "rare values"],
)
def test_mixing_that_sixteen_ordinary_rows_do_not_show(model, like):
    with raises_field(ModelError, "outputs"):
        tried(model, like)


class Gated(Layers):
    """x + gate * f(x), where f mixes and the gate starts at 0 (ReZero), or next to it."""

    def __init__(self, gate: Tensor, *, opened: Callable[[Tensor], Tensor] = torch.tanh) -> None:
        super().__init__()
        self.gate, self.opened = nn.Parameter(gate), opened

    def between(self, values: Tensor, hidden: Tensor) -> Tensor:
        return hidden + self.opened(self.gate) * (hidden - hidden.mean(dim=0))


class ForgottenAxis(nn.Module):
    """Attention over the batch, behind a gate of 0."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.gate = nn.Embedding(20, 16), nn.Parameter(torch.zeros(()))
        self.attention, self.out = nn.MultiheadAttention(16, 2), nn.Linear(16, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        words = self.words(tokens)
        return self.out((words + self.gate * self.attention(words, words, words)[0]).mean(dim=1))


@pytest.mark.parametrize(
    ("model", "like"),
    [
        (Gated(torch.zeros(())), FLOATS),
        (Gated(torch.zeros(6)), FLOATS),
        (Gated(torch.tensor(1e-6)), FLOATS),
        (Gated(torch.tensor(-14.0), opened=torch.sigmoid), FLOATS),
        (ForgottenAxis(), TOKENS[:, :8]),
    ],
    ids=["ReZero", "zero scales", "nearly zero", "closed sigmoid", "attention"],
)
def test_mixing_behind_a_gate_that_training_will_open(model, like):
    before = {name: values.clone() for name, values in model.state_dict().items()}
    with raises_field(ModelError, "outputs"):
        tried(model, like)
    assert all(torch.equal(values, before[name]) for name, values in model.state_dict().items())


class Positive(Layers):
    """Fails where its scale is not 1."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def between(self, values: Tensor, hidden: Tensor) -> Tensor:
        if self.scale != 1:
            raise ValueError("the scale must be 1")
        return hidden * self.scale


def test_sound_gates_are_taken_and_stay_closed():
    class Residual(Layers):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.norm = nn.Parameter(torch.zeros(6)), nn.LayerNorm(6)

        def between(self, values: Tensor, hidden: Tensor) -> Tensor:
            return hidden + self.gate * self.norm(hidden)

    for model in (Residual(), Positive()):
        tried(model, FLOATS)
    assert not Residual().gate.any()


def test_a_model_that_writes_to_parameters_is_found_out_when_they_were_moved():
    class Writes(Layers):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.kept = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(6))

        def between(self, values: Tensor, hidden: Tensor) -> Tensor:
            if self.gate != 0:
                self.kept.data.copy_(values[0])
            return hidden + self.gate

    with raises_field(ModelError, "kept"):
        tried(Writes(), FLOATS)


def without_outliers(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = LOSS(outputs, targets)
    return torch.where(losses > 10 * losses.detach().mean(), 0 * losses, losses)


def cut(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = LOSS(outputs, targets)
    return losses.clamp(max=float(losses.mean() + 3 * losses.std(unbiased=False)))


def divided(outputs: Tensor, targets: Tensor) -> Tensor:
    return LOSS(outputs, targets) / len(outputs)


class Zeros(Layers):
    """Its outputs are all 0 at first."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)


@pytest.mark.parametrize("loss", [without_outliers, cut, divided])
@pytest.mark.parametrize("make", [Layers, Zeros, lambda: nn.Sequential(Layers(), nn.LayerNorm(2))])
def test_a_loss_that_mixes_examples_is_refused(loss, make):
    torch.manual_seed(0)
    model = make()
    with raises_field(ModelError, "losses"):
        tried(model, FLOATS, loss)


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (lambda outputs, targets: LOSS(outputs, targets).clamp(max=3.0), CLASS),
        (lambda outputs, targets: (outputs[:, 0] - targets) ** 2, CLASS.float()),
        (
            lambda outputs, targets: nn.functional.binary_cross_entropy(
                outputs.sigmoid()[:, 0], targets, reduction="none"
            ),
            CLASS.float(),
        ),
    ],
    ids=["cut at a number", "squares", "probabilities"],
)
def test_a_loss_of_one_example_each_is_taken(loss, targets):
    tried(Layers(), FLOATS, loss, targets)


class Counts(Layers):
    """Counts its passes, and keeps the last activations to look at: neither carries data to the next step."""

    def __init__(self) -> None:
        super().__init__()
        self.passes, self.settings = 0, {"names": ["a"]}

    def between(self, values: Tensor, hidden: Tensor) -> Tensor:
        self.passes += 1
        self.settings["last"] = hidden.detach()
        return hidden


def test_counters_and_what_the_next_pass_overwrites_are_taken():
    tried(Counts(), FLOATS)


def test_a_loss_that_holds_modules_which_stay_as_they_are_is_taken():
    teacher, model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval(), Layers()
    tried(model, FLOATS, lambda outputs, targets: LOSS(outputs, targets) + teacher(outputs).square().sum(1))


class Logarithm(Layers):
    """Takes numbers above 0 only: others give no number."""

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values.log())


class Codes(nn.Module):
    """Reads a category's number from a column of floating-point numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(3, 4), nn.Linear(4, 2)

    def forward(self, values: Tensor) -> Tensor:
        return self.out(self.table(values[:, 0].long()))


class Packed(nn.Module):
    """Fails on an empty sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.reader = nn.Embedding(50, 6, padding_idx=0), nn.GRU(6, 2, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        lengths = (tokens != 0).sum(dim=1)
        packed = pack_padded_sequence(self.words(tokens), lengths, batch_first=True, enforce_sorted=False)
        return self.reader(packed)[1][0]


class Checks(Layers):
    """Refuses what it takes to be mistakes."""

    def forward(self, values: Tensor) -> Tensor:
        if (values.abs() > 50).any():
            raise ValueError("inputs must be scaled")
        return super().forward(values)


class OneHot(nn.Module):
    """Whole numbers without a table of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 2)

    def forward(self, codes: Tensor) -> Tensor:
        return self.out(nn.functional.one_hot(codes[:, 0], 4).float())


@pytest.mark.parametrize(
    ("model", "like"),
    [
        (Logarithm(), FLOATS),
        (Codes(), FLOATS),
        (Packed(), TOKENS),
        (Checks(), FLOATS),
        (OneHot(), TOKENS),
        (nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(256, 2)), TOKENS.int()),
        (nn.Sequential(nn.Flatten(), nn.LayerNorm(6), nn.Linear(6, 2)), FLOATS),
        (
            nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Flatten(), nn.Linear(128, 2)),
            torch.zeros(1, 3, 6, 6),
        ),
        (nn.Sequential(nn.Linear(6, 9), nn.Dropout(0.5), nn.ReLU(), nn.Linear(9, 2)), FLOATS),
    ],
    ids=[
        "logarithm",
        "codes",
        "packed",
        "checks",
        "one hot",
        "tokens",
        "layer norm",
        "group norm",
        "dropout",
    ],
)
def test_sound_models_that_cannot_take_extremes_are_taken(model, like):
    torch.manual_seed(0)
    tried(model, like)


def test_made_up_targets_are_of_the_kind_that_is_asked_for():
    model = nn.Linear(6, 3)
    for targets, classes, expected in (
        (CLASS, 3, {0, 1, 2}),
        (CLASS, None, {0, 1, 2}),
        (CLASS.float(), 2, {0.0, 1.0}),
        (CLASS.bool(), None, {False, True}),
    ):
        _, made = made_up_examples(model, LOSS, FLOATS, targets, classes)
        assert made.dtype == targets.dtype
        assert set(made.tolist()) == expected
    _, made = made_up_examples(model, nn.MSELoss(reduction="none"), FLOATS, torch.zeros(1, 3))
    assert made.shape == (16, 3)


class Watching(Layers):
    """Notes every row that it is run on."""

    def between(self, values: Tensor, hidden: Tensor) -> Tensor:
        ROWS.extend(values.detach().clone())
        return hidden


ROWS: list[Tensor] = []


class Numbered(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor, int, int]:
        return torch.full((6,), 100.0 + index), index % 2, 0


@pytest.mark.parametrize("in_memory", [True, False])
def test_no_row_of_the_data_is_tried(in_memory):
    """Whether a model is accepted must not tell about anybody."""
    ROWS.clear()
    model, data = Watching(), Numbered()
    if in_memory:
        inputs = torch.stack([data[index][0] for index in range(40)])
        targets = torch.arange(40) % 2
        data = equidp.GroupedDataset(inputs, targets, torch.zeros_like(targets), ("a",), ("no", "yes"))
    trainer = equidp.Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        data,
        policy=equidp.DPSGD(),
        batch_size=20,
        steps=1,
        noise_multiplier=1.0,
        delta=1e-3,
    )
    assert len(ROWS) > 40
    assert not any(100.0 <= float(row.min()) == float(row.max()) <= 140.0 for row in ROWS)
    ROWS.clear()
    trainer.fit()
    assert all(100.0 <= float(row.min()) == float(row.max()) <= 140.0 for row in ROWS)


@pytest.mark.parametrize(
    ("model", "like", "loss", "field"),
    [
        (
            nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Flatten(), nn.Linear(256, 2)),
            TOKENS,
            LOSS,
            "0",
        ),
        (nn.Linear(6, 2), FLOATS, lambda *given: (LOSS(*given), given), "loss"),
    ],
    ids=["sparse", "tuple"],
)
def test_what_cannot_be_trained_is_said_clearly(model, like, loss, field):
    with raises_field(ModelError, field):
        tried(model, like, loss)


class Positions(nn.Module):
    """Adds a table of positions, read once for all examples or once for each."""

    def __init__(self, *, each: bool) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(50, 8), nn.Embedding(64, 8)
        self.out, self.each = nn.Linear(8, 2), each

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1])
        if self.each:
            positions = positions.expand(len(tokens), -1)
        return self.out((self.words(tokens) + self.positions(positions)).tanh().mean(dim=1))


def test_a_table_of_positions_is_told_how_to_be_read():
    tried(Positions(each=True), TOKENS)
    with raises_field(ModelError, "engine"):
        tried(Positions(each=False), TOKENS)
    model = Positions(each=False)
    few = made_up_examples(model, LOSS, TOKENS, CLASS, 2)
    check_engine(make_engine("functional", model, LOSS), model, LOSS, *few)


class Years(Layers):
    """Refuses what are no years, which made-up numbers are not."""

    def forward(self, values: Tensor) -> Tensor:
        if (values < 1900).any():
            raise ValueError("no years")
        return super().forward(values)


def signs(outputs: Tensor, targets: Tensor) -> Tensor:
    if (targets.abs() != 1).any():
        raise AssertionError
    return (1 - outputs[:, 0] * targets).relu()


@pytest.mark.parametrize("names", [(), ("no", "yes")])
@pytest.mark.parametrize(
    ("model", "loss", "field"),
    [
        (Years(), LOSS, "inputs"),
        (Layers(), signs, "loss"),
        (Layers(), lambda outputs, targets: {}["loss"], "loss"),
    ],
    ids=["model", "assertion without a message", "another error"],
)
def test_any_error_of_a_model_or_loss_is_put_in_words(model, loss, field, names):
    few = made_up_examples(model, loss, FLOATS, CLASS, 2)
    with raises_field(ModelError, field):
        check_model(model, loss, *few, names)


@pytest.mark.parametrize("kind", ["matmul", "conv", "rnn"])
def test_a_model_is_tried_in_full_float32_and_what_was_set_is_set_again(kind):
    """TF32, CUDA's default for convolutions and recurrent layers, rounds as coarsely as some models mix."""
    setting, seen = getattr(torch.backends.mkldnn, kind), []

    class Noting(nn.Linear):
        def forward(self, values):
            seen.append(setting.fp32_precision)
            return super().forward(values)

    before = setting.fp32_precision
    try:
        setting.fp32_precision = "bf16"
        check_model(Noting(3, 2), LOSS, torch.randn(16, 3), torch.arange(16) % 2)
        assert set(seen) == {"ieee"}
        assert setting.fp32_precision == "bf16"
    finally:
        setting.fp32_precision = before


@pytest.mark.parametrize("kind", ["convolutions", "recurrent layers", "products"])
def test_products_of_float32_on_cuda_are_exact_where_they_have_to_be(kind):
    """PyTorch's settings can be read and set without a GPU."""
    setting = {
        "convolutions": torch.backends.cudnn.conv,
        "recurrent layers": torch.backends.cudnn.rnn,
        "products": torch.backends.cuda.matmul,
    }[kind]
    before = setting.fp32_precision
    try:
        setting.fp32_precision = "tf32"
        with exact_products(torch.device("cuda")):
            assert setting.fp32_precision == "ieee"
        assert setting.fp32_precision == "tf32"
    finally:
        setting.fp32_precision = before
