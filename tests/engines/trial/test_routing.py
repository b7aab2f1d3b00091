"""Models in which examples change places, leave, or are put together: refused, or measured exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import equidp
from equidp.engines import checked_engine
from equidp.errors import DataError, DataWarning, ModelError
from support.errors import raises_field
from support.oracle import assert_exact, loss

WORDS, LENGTH = 30, 12
TOKENS, NUMBERS = torch.zeros(1, LENGTH, dtype=torch.int64), torch.zeros(1, 6)


class Model(nn.Module):
    """Some layers, and a forward pass."""

    def __init__(self, run: Callable[..., Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        return self.run(self, *inputs, **named)


def of_text(run: Callable[..., Tensor]) -> Model:
    torch.manual_seed(0)
    return Model(
        run,
        words=nn.Embedding(WORDS, 8, padding_idx=0),
        reader=nn.LSTM(8, 16, batch_first=True),
        middle=nn.Linear(8, 16),
        out=nn.Linear(16, 2),
    )


def of_numbers(run: Callable[..., Tensor]) -> Model:
    torch.manual_seed(0)
    return Model(run, first=nn.Linear(6, 16), middle=nn.Linear(16, 16), out=nn.Linear(16, 2))


def lengths_of(tokens: Tensor) -> Tensor:
    return (tokens != 0).sum(dim=1).clamp(min=1)


def read(model: Any, tokens: Tensor) -> Tensor:
    return torch.tanh(model.middle(model.words(tokens))).mean(dim=1)


def grouped(first: Tensor) -> Tensor:
    """The examples for which something holds, then the others."""
    return torch.cat([first.nonzero()[:, 0], (~first).nonzero()[:, 0]])


def sorted_by_length(m, tokens):
    lengths, order = lengths_of(tokens).sort(descending=True)
    packed = pack_padded_sequence(m.words(tokens[order]), lengths, batch_first=True)
    return m.out(m.reader(packed)[1][0][-1][order.argsort()])


def sorted_from_the_shortest(m, tokens):
    order = lengths_of(tokens).argsort(stable=True)
    return m.out(read(m, tokens[order])[order.argsort()])


def sorted_unless_it_is(m, tokens):
    lengths = lengths_of(tokens)
    order = torch.arange(len(tokens))
    if not (lengths[:-1] >= lengths[1:]).all():
        order = lengths.argsort(descending=True, stable=True)
    return m.out(read(m, tokens[order])[order.argsort()])


def must_be_sorted(m, tokens):
    return m.out(
        m.reader(pack_padded_sequence(m.words(tokens), lengths_of(tokens), batch_first=True))[1][0][-1]
    )


def valid_tokens_alone(m, tokens):
    valid = tokens != 0
    hidden = torch.zeros(*tokens.shape, 16)
    hidden[valid] = torch.tanh(m.middle(m.words(tokens[valid])))
    return m.out(hidden.mean(dim=1))


def valid_tokens_alone_if_any_are_not(m, tokens):
    return m.out(read(m, tokens)) if (tokens != 0).all() else valid_tokens_alone(m, tokens)


def texts_alone(m, tokens):
    some = (tokens != 0).any(dim=1)
    hidden = torch.zeros(len(tokens), 16)
    if some.any():
        hidden = hidden.index_copy(0, some.nonzero()[:, 0], read(m, tokens[some]))
    return m.out(hidden)


def each_text_once(m, tokens):
    texts, places = tokens.unique(dim=0, return_inverse=True)
    return m.out(read(m, texts)[places])


def each_text_once_if_two_are_the_same(m, tokens):
    same = len(tokens.unique(dim=0)) < len(tokens)
    return each_text_once(m, tokens) if same else m.out(read(m, tokens))


def each_word_once(m, tokens):
    words, places = tokens.unique(return_inverse=True)
    return m.out(torch.tanh(m.middle(m.words(words)))[places].mean(dim=1))


def buckets(m, tokens):
    lengths, outputs = lengths_of(tokens), torch.zeros(len(tokens), 2)
    for low, high in ((1, 4), (5, 8), (9, LENGTH)):
        own = ((lengths >= low) & (lengths <= high)).nonzero()[:, 0]
        if len(own):
            outputs = outputs.index_copy(0, own, m.out(read(m, tokens[own])))
    return outputs


def long_texts_first(m, tokens):
    order = grouped(lengths_of(tokens) > 6)
    return m.out(read(m, tokens[order])[order.argsort()])


def padded_before_first(m, tokens):
    order = grouped(tokens[:, 0] == 0)
    return m.out(read(m, tokens[order])[order.argsort()])


def nested(m, tokens):
    rows = [m.words(each[: int(length)]) for each, length in zip(tokens, lengths_of(tokens), strict=True)]
    hidden = torch.tanh(m.middle(torch.nested.nested_tensor(rows, layout=torch.jagged)))
    return m.out(torch.nested.to_padded_tensor(hidden, 0.0).mean(dim=1))


def sorted_by_score(m, x):
    order = m.first(x)[:, 0].argsort()
    return m.out(m.middle(torch.tanh(m.first(x))[order]).relu()[order.argsort()])


def best_half(m, x):
    hidden = torch.tanh(m.first(x))
    best = hidden[:, 0].topk(max(1, len(x) // 2)).indices
    return m.out(hidden.index_add(0, best, m.middle(hidden[best])))


def experts(m, x):
    hidden = torch.tanh(m.first(x))
    which, outputs = hidden[:, :2].argmax(dim=1), torch.zeros_like(hidden)
    for number, expert in enumerate((m.middle, m.middle)):
        outputs[which == number] = (number + 1) * expert(hidden[which == number])
    return m.out(outputs)


def in_the_order_of_experts(m, x):
    hidden = torch.tanh(m.first(x))
    order = hidden[:, :2].argmax(dim=1).argsort(stable=True)
    return m.out(m.middle(hidden[order]).relu()[order.argsort()])


def until_all_are_done(m, x):
    hidden = torch.tanh(m.first(x))
    for _ in range(5):
        if (hidden[:, 0] > 0.3).all():
            break
        hidden = torch.tanh(m.middle(hidden) + 0.3)
    return m.out(hidden)


def until_each_is_done(m, x):
    hidden, left = torch.tanh(m.first(x)), torch.arange(len(x))
    for _ in range(3):
        left = left[hidden[left, 0] < 0.5]
        if len(left):
            hidden = hidden.index_copy(0, left, torch.tanh(m.middle(hidden[left]) + 0.2))
    return m.out(hidden)


def huge_first(m, x):
    order = grouped(x.abs().amax(dim=1) > 1e3)
    return m.out(m.middle(torch.tanh(m.first(x))[order]).relu()[order.argsort()])


def zeros_first(m, x):
    order = grouped((x == 0).all(dim=1))
    return m.out(m.middle(torch.tanh(m.first(x))[order]).relu()[order.argsort()])


def without_missing(m, x):
    known = (~x.isnan().any(dim=1)).nonzero()[:, 0]
    hidden = torch.zeros(len(x), 16)
    return m.out(hidden.index_copy(0, known, torch.tanh(m.first(x[known]))))


def missing_first(m, x):
    order = grouped(x.isnan().any(dim=1))
    return m.out(torch.tanh(m.first(x.nan_to_num()[order]))[order.argsort()])


def turned_in_large_batches(m, x):
    hidden = torch.tanh(m.first(x))
    turned = m.middle(hidden.flip(0)).relu().flip(0)
    return m.out(turned if len(x) > 48 else m.middle(hidden).relu())


def in_any_order_beside_dropout(m, x):
    hidden = nn.functional.dropout(torch.tanh(m.first(x)), 0.2, m.training)
    order = torch.randperm(len(x)) if m.training else torch.arange(len(x))
    return m.out(m.middle(hidden[order]).relu()[order.argsort()])


def neighbours_change_places(m, x):
    order = x[:, 0].argsort()
    other, even = order.clone(), len(x) // 2 * 2
    other[0:even:2], other[1:even:2] = order[1:even:2], order[0:even:2]
    places = torch.empty_like(order).index_copy(0, order, other)
    return m.out(m.middle(torch.tanh(m.first(x))[places]).relu()[places.argsort()])


TEXTS = [
    sorted_by_length, sorted_from_the_shortest, sorted_unless_it_is, must_be_sorted, valid_tokens_alone,
    valid_tokens_alone_if_any_are_not, texts_alone, each_text_once, each_text_once_if_two_are_the_same,
    each_word_once, buckets, long_texts_first, padded_before_first, nested,
]  # fmt: skip
ROWS = [
    sorted_by_score, best_half, experts, in_the_order_of_experts, until_all_are_done, until_each_is_done,
    huge_first, zeros_first, without_missing, missing_first, turned_in_large_batches,
    in_any_order_beside_dropout, neighbours_change_places,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::equidp.errors.DataWarning")
@pytest.mark.parametrize("run", [*TEXTS, *ROWS])
def test_models_whose_examples_change_places_or_leave_are_refused(run):
    model, like = (of_text(run), TOKENS) if run in TEXTS else (of_numbers(run), NUMBERS)
    with pytest.raises(ModelError):
        checked_engine("ghost", model, loss, (like, torch.tensor([1])), ("no", "yes"))


def packed(m, tokens):
    lengths = lengths_of(tokens)
    packed = pack_padded_sequence(m.words(tokens), lengths, batch_first=True, enforce_sorted=False)
    return m.out(m.reader(packed)[1][0][-1])


def last_valid(m, tokens):
    return m.out(m.reader(m.words(tokens))[0][torch.arange(len(tokens)), lengths_of(tokens) - 1])


def trimmed_alike(m, tokens):
    lengths = lengths_of(tokens)
    longest = int(lengths.max())
    valid = (torch.arange(longest) < lengths[:, None]).unsqueeze(2)
    hidden = torch.tanh(m.middle(m.words(tokens[:, :longest]))) * valid
    return m.out(hidden.sum(dim=1) / lengths[:, None])


def experts_of_every_example(m, x):
    hidden = torch.tanh(m.first(x))
    first = (hidden[:, :1] > 0).to(hidden)
    return m.out(first * m.middle(hidden) + (1 - first) * hidden)


@pytest.mark.parametrize("run", [packed, last_valid, trimmed_alike, experts_of_every_example])
def test_models_that_keep_examples_apart_are_taken_and_exact(run):
    tokens = made_up_texts()
    if run is experts_of_every_example:
        model, inputs = of_numbers(run), torch.randn(9, 6, dtype=torch.float64)
    else:
        model, inputs = of_text(run), tokens
    checked_engine("ghost", model, loss, (inputs[:1].to(NUMBERS) if inputs.is_floating_point() else TOKENS,
                                          torch.tensor([1])), ("no", "yes"))  # fmt: skip
    assert_exact(model.double(), inputs, tolerance=1e-7)


def made_up_texts() -> Tensor:
    lengths = torch.tensor([5, 12, 0, 3, 7, 12, 1, 0, 9])
    tokens = torch.randint(1, WORDS, (9, LENGTH), generator=torch.Generator().manual_seed(1))
    return tokens * (torch.arange(LENGTH) < lengths[:, None])


@pytest.mark.soak
def test_no_engine_is_named_that_refuses_a_model_too():
    row = NUMBERS, torch.tensor([1])
    for name, other in (("ghost", "functional"), ("functional", "ghost")):
        with raises_field(ModelError, "model") as refused:
            checked_engine(name, of_numbers(experts), loss, row, ("no", "yes"))
        assert f"engine={other!r}" not in str(refused.value)
    with raises_field(ModelError, "engine", "'functional'"):
        checked_engine("ghost", of_numbers(sorted_by_place), loss, row, ("no", "yes"))


def sorted_by_place(m, x):
    return m.out(m.middle(torch.tanh(m.first(x)).flip(0)).flip(0))


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::equidp.errors.DataWarning")
def test_training_ends_with_the_error_of_a_text_that_the_model_fails_on():
    def fails_on_empty(m, tokens):
        lengths = (tokens != 0).sum(dim=1)
        packed = pack_padded_sequence(m.words(tokens), lengths, batch_first=True, enforce_sorted=False)
        return m.out(m.reader(packed)[1][0][-1])

    trainer = trainer_of(of_text(fails_on_empty), made_up_texts().repeat(4, 1), steps=4, batch_size=30)
    with pytest.raises(RuntimeError, match="Length of all samples has to be greater than 0"):
        trainer.fit()
    assert trainer.steps_done == 1


def test_rows_that_will_end_training_are_named_before_training():
    def fails_on_empty(m, tokens):
        if not (tokens != 0).any(dim=1).all():
            raise ValueError("an empty text")
        return m.out(read(m, tokens))

    with pytest.warns(DataWarning, match="nothing but padding.*an empty text"):
        trainer_of(of_text(fails_on_empty), made_up_texts())


def trainer_of(model: nn.Module, inputs: Any, steps: int = 2, batch_size: int = 4, **settings: Any):
    count = len(inputs) if isinstance(inputs, Tensor) else len(next(iter(inputs.values())))
    data = equidp.GroupedDataset(
        inputs, torch.arange(count) % 2, torch.arange(count) % 2, ("a", "b"), ("no", "yes")
    )
    return equidp.Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        data,
        policy=equidp.DPSGD(),
        batch_size=batch_size,
        steps=steps,
        noise_multiplier=1.0,
        delta=1e-3,
        **settings,
    )


def ends_with_a_mark(m, tokens):
    if not ((tokens == 2).sum(dim=1) == 1).all():
        raise ValueError("each text must hold one end mark")
    return m.out(read(m, tokens))


def marked_texts(count: int) -> Tensor:
    tokens = torch.randint(3, WORDS, (count, LENGTH), generator=torch.Generator().manual_seed(count))
    tokens[torch.arange(count), torch.arange(count) % LENGTH] = 2
    return tokens


@pytest.mark.soak
def test_public_examples_are_tried_where_the_model_cannot_read_what_is_made_up():
    with raises_field(ModelError, "inputs"):
        trainer_of(of_text(ends_with_a_mark), marked_texts(20))
    examples = marked_texts(8), torch.arange(8) % 2
    trainer_of(of_text(ends_with_a_mark), marked_texts(20), examples=examples).fit()

    def mixing(m, tokens):
        return ends_with_a_mark(m, tokens) - read(m, tokens).mean()

    def changing(m, tokens):
        order = tokens[:, 0].argsort()
        return ends_with_a_mark(m, tokens[order])[order.argsort()] + m.out(read(m, tokens))

    def picking(m, tokens):
        ends_with_a_mark(m, tokens)
        hidden, some = torch.zeros(len(tokens), 16), tokens[:, 0] > 15
        return m.out(hidden.index_copy(0, some.nonzero()[:, 0], read(m, tokens[some])))

    for run in (mixing, changing, picking):
        with pytest.raises(ModelError, match=r"changes with the other|differ from|first dimension"):
            trainer_of(of_text(run), marked_texts(20), examples=examples)


def test_public_examples_must_be_like_the_data_and_not_of_it():
    data = marked_texts(20)
    for examples, field in (
        (marked_texts(4), "examples"),
        ((marked_texts(4)[:, :5], torch.zeros(4, dtype=torch.int64)), "examples"),
        ((marked_texts(4), torch.zeros(4)), "examples"),
        ((marked_texts(4), torch.zeros(3, dtype=torch.int64)), "examples"),
        ((marked_texts(1), torch.zeros(1, dtype=torch.int64)), "examples"),
        ((data[:4], torch.zeros(4, dtype=torch.int64)), "examples"),
    ):
        with raises_field(DataError, field):
            trainer_of(of_text(ends_with_a_mark), data, examples=examples)


def packed_by_length(m, tokens, lengths):
    packed = pack_padded_sequence(m.words(tokens), lengths, batch_first=True, enforce_sorted=False)
    return m.out(m.reader(packed)[1][0][-1])


def last_by_length(m, tokens, lengths):
    return m.out(m.reader(m.words(tokens))[0][torch.arange(len(tokens)), lengths - 1])


def of_two_lengths(m, tokens, lengths, others):
    return packed_by_length(m, tokens, lengths) + last_by_length(m, tokens, others)


def shifted(m, tokens, lengths):
    """Read a table at a number that is not the input itself."""
    return m.out(read(m, tokens) * m.words(lengths + 4).sum(dim=1, keepdim=True))


@pytest.mark.soak
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("run", [packed_by_length, last_by_length, of_two_lengths, shifted])
def test_whole_numbers_that_no_table_reads_are_tried_as_large_as_the_model_takes_them(run, dtype):
    model, tokens = of_text(run), made_up_texts()
    names = ["lengths", "others"] if run is of_two_lengths else ["lengths"]
    inputs = {"tokens": tokens, **dict.fromkeys(names, lengths_of(tokens).to(dtype))}
    if dtype == torch.int32 and run is not packed_by_length:
        inputs["lengths"] = inputs["lengths"].long()
    trainer_of(model, inputs, batch_size=3).fit()
    assert_exact(model.double(), inputs, tolerance=1e-7)
    trainer_of(of_text(run), inputs, batch_size=3)
    if run is not of_two_lengths:
        with pytest.raises(ModelError):
            trainer_of(of_text(lambda m, tokens, lengths: mixed(run, m, tokens, lengths)), inputs)


def mixed(run, m, tokens, lengths):
    return run(m, tokens, lengths) * (lengths / lengths.max().clamp(min=1))[:, None]


class OpensLater(nn.Module):
    """Sorts by a score that is learnt, once the score of the public rows' first number is large enough."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.out = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        order = x[:, 0].argsort() if self.first.weight.norm() > 50 else torch.arange(len(x))
        return self.out(self.middle(hidden[order]).relu()[order.argsort()])


@pytest.mark.soak
def test_a_model_that_training_turns_into_one_that_mixes_is_found_on_public_examples_alone():
    torch.manual_seed(0)
    model = OpensLater()
    trainer = trainer_of(model, torch.randn(40, 6), steps=150, batch_size=2)
    with torch.no_grad():
        model.first.weight.mul_(100)
    with raises_field(ModelError, "gradients", "100"):
        trainer.fit()
    assert trainer.steps_done == 100
    torch.manual_seed(0)
    trainer_of(OpensLater(), torch.randn(40, 6), steps=150, batch_size=2).fit()


class LimitedTogether(torch.autograd.Function):
    """Limits the gradient of a whole batch on its way back."""

    @staticmethod
    def forward(context: Any, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return gradient * (50 / gradient.norm()).clamp(max=1.0)


def limited_by_a_hook(self: Any, x: Tensor) -> Tensor:
    middle = torch.relu(self.first(x))
    if middle.requires_grad:
        middle.register_hook(lambda gradient: gradient * (100 / gradient.norm()).clamp(max=1.0))
    return self.last(middle)


def one_left_over(self: Any, x: Tensor) -> Tensor:
    middle = torch.relu(self.first(x))
    if len(x) % 2 and len(x) > 8:
        middle = middle + 0.3 * middle.roll(1, 0)
    return self.last(middle)


def full_experts(self: Any, x: Tensor) -> Tensor:
    """Four experts, each of which takes at most 93% of a batch."""
    middle = torch.relu(self.first(x))
    shares = self.gate(middle).softmax(dim=1)
    out = middle
    for number, expert in enumerate((self.a, self.b, self.c, self.d)):
        chosen = shares.argmax(dim=1) == number
        chosen = chosen & (chosen.cumsum(0) <= max(8, round(0.93 * len(x))))
        out = out + torch.where(chosen[:, None], expert(middle) * shares[:, number, None], 0.0)
    return self.last(out)


@pytest.mark.parametrize(
    "run",
    [
        lambda self, x: self.last(LimitedTogether.apply(torch.relu(self.first(x)))),
        limited_by_a_hook,
        one_left_over,
        full_experts,
    ],
)
def test_mixing_in_large_gradients_odd_batches_and_full_experts_is_refused(run):
    torch.manual_seed(0)
    experts = {name: nn.Linear(16, 16) for name in "abcd"} if run is full_experts else {}
    gate = {"gate": nn.Linear(16, 4)} if experts else {}
    model = Model(run, first=nn.Linear(10, 16), last=nn.Linear(16, 3), **gate, **experts)
    row = torch.zeros(1, 10), torch.tensor([0])
    with pytest.raises(ModelError):
        checked_engine("ghost", model, loss, row, ("a", "b", "c"))


def test_a_limit_on_each_examples_gradient_is_taken():
    def run(self: Any, x: Tensor) -> Tensor:
        middle = torch.relu(self.first(x))
        if middle.requires_grad:
            middle.register_hook(lambda each: each * (1 / each.norm(dim=1, keepdim=True)).clamp(max=1.0))
        return self.last(middle)

    model = Model(run, first=nn.Linear(10, 16), last=nn.Linear(16, 3))
    checked_engine("ghost", model, loss, (torch.zeros(1, 10), torch.tensor([0])), ("a", "b", "c"))


class DrawnAnswers:
    """A loss that draws an answer in each call."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        drawn = torch.distributions.Categorical(logits=outputs.detach()).sample()
        return nn.functional.cross_entropy(outputs, drawn, reduction="none") * (drawn == targets)


@pytest.mark.parametrize("name", ["ghost", "functional"])
def test_a_loss_that_draws_random_numbers_is_named_as_the_reason(name):
    row = torch.zeros(1, 10), torch.tensor([0])
    with raises_field(ModelError, "loss"):
        checked_engine(name, nn.Linear(10, 3), DrawnAnswers(), row, ("a", "b", "c"))
