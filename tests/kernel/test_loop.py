"""A Poisson sample is used once and complete, or charged anyway; the optimizer sees private gradients
alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from equidp.errors import BudgetError, ModelError, PrivacyWarning, SettingError
from equidp.kernel.ledger import MemoryLedger, StepEvent
from equidp.kernel.loop import Batch, PrivateLoop
from equidp.kernel.noise import SeededRandomness, SystemRandomness
from equidp.kernel.step import PrivateStep
from equidp.policies import DPSGD
from support.errors import raises_field
from support.given_gradients import GivenGradients

N, RATE, D = 40, 0.25, 3
EVENT = StepEvent(RATE, 1e-9)


class Model(nn.Module):
    """Parameters that the step's noise covers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(D))


def load(samples: Iterable[Tensor]) -> Iterator[Batch]:
    """Examples whose gradients are known: the i-th has i in its second place."""
    for sample in samples:
        inputs = torch.stack([torch.ones(len(sample)), sample.float(), torch.zeros(len(sample))], dim=1)
        yield Batch(inputs, torch.zeros(len(sample)), torch.zeros(len(sample), dtype=torch.int64), sample)


def make_loop(
    *,
    steps: int = 5,
    rate: float = RATE,
    seed: int = 0,
    ledger: MemoryLedger | None = None,
    load: Callable[[Iterable[Tensor]], Iterator[Batch]] = load,
    extra: tuple[nn.Parameter, ...] = (),
) -> PrivateLoop:
    model = Model()
    event = StepEvent(rate, 1e-9)
    step = PrivateStep(
        GivenGradients(model.weight),
        DPSGD(1e6),
        list(model.parameters()),
        event=event,
        expected_batch_size=rate * N,
        num_groups=1,
        ledger=MemoryLedger() if ledger is None else ledger,
        randomness=SeededRandomness(seed),
    )
    optimizer = torch.optim.SGD([*model.parameters(), *extra], lr=1.0)
    return PrivateLoop(step, model, optimizer, num_examples=N, steps=steps, load=load)


def test_each_sample_moves_the_parameters_by_its_private_gradient_and_is_charged_once():
    """Noise of 1e-3 beside gradients of 1: only the sum over the sample, over b, can have moved the weight
    so."""
    loop = make_loop()
    for taken, batch in enumerate(loop.batches(), 1):
        before = loop.model.weight.detach().clone()
        loop.take(batch)
        moved = before - loop.model.weight.detach()
        torch.testing.assert_close(moved, batch.inputs.sum(dim=0) / (RATE * N), rtol=0, atol=0.01)
        assert loop.steps_done == taken
    assert loop.private_step.ledger.entries == ((EVENT, 5),)
    assert list(loop.batches()) == []


@pytest.mark.soak
def test_samples_are_drawn_at_the_rate_that_the_event_charges():
    """Each example on its own: mean and variance of the sizes within 5 standard errors, false alarm below
    1e-5."""
    loop = make_loop(steps=2000)
    sizes = torch.tensor([float(len(batch.indices)) for batch in loop.batches() if loop.take(batch) is None])
    variance = N * RATE * (1 - RATE)
    assert len(sizes) == 2000
    assert abs(sizes.mean() - N * RATE) < 5 * (variance / 2000) ** 0.5
    assert abs(sizes.var() - variance) < 5 * variance * (2 / 2000) ** 0.5


def test_an_empty_sample_is_a_step_like_any_other():
    loop = make_loop(steps=40, rate=0.02)
    sizes = []
    for batch in loop.batches():
        sizes.append(len(batch.indices))
        loop.take(batch)
    assert 0 in sizes
    assert loop.steps_done == 40


@pytest.mark.parametrize("error", [OSError("cannot be read"), SystemExit(3), MemoryError()], ids=repr)
def test_a_sample_that_fails_to_load_is_charged(error):
    """The failure tells that some example was drawn; uncharged, it could be drawn again until it succeeds."""

    def fails(samples: Iterable[Tensor]) -> Iterator[Batch]:
        for at, batch in enumerate(load(samples)):
            if at == 1:
                raise error
            yield batch

    loop = make_loop(load=fails)
    batches = loop.batches()
    loop.take(next(batches))
    with pytest.raises(type(error)):
        next(batches)
    assert loop.steps_done == 2


def taken_where(loop: PrivateLoop, chosen: Callable[[Batch], bool]) -> int:
    """Step on the chosen samples alone, then ask for more; return how many those are."""
    taken = [loop.take(batch) for batch in loop.batches() if chosen(batch)]
    assert list(loop.batches()) == []
    return len(taken)


def test_a_sample_that_is_skipped_is_charged():
    """Uncharged, a loop could step on the samples that hold example 7 and claim that they were random."""
    loop = make_loop(steps=200)
    with pytest.warns(PrivacyWarning, match="not given to step"):
        taken = taken_where(loop, lambda batch: 7 in batch.indices)
    assert 0 < taken < 200
    assert loop.steps_done == 200


def test_empty_samples_that_are_skipped_are_charged():
    """The number of steps charged would tell how many examples there are otherwise."""
    loop = make_loop(steps=60, rate=0.02)
    with pytest.warns(PrivacyWarning, match="also an empty one"):
        assert taken_where(loop, lambda batch: len(batch.inputs) > 0) < 60
    assert loop.steps_done == 60


def test_drawing_again_from_the_start_charges_and_ends_the_iterator_before():
    loop = make_loop()
    before = loop.batches()
    next(before)
    with pytest.warns(PrivacyWarning, match="its step is charged"):
        again = loop.batches()
    assert loop.steps_done == 1
    loop.take(next(again))
    with pytest.raises(SettingError):
        next(before)
    assert loop.steps_done == 2
    for batch in again:
        loop.take(batch)
    assert loop.steps_done == 5


def test_a_sample_can_be_taken_after_its_iterator_is_gone():
    loop = make_loop()
    for _ in range(5):
        loop.take(next(loop.batches()))
    assert loop.steps_done == 5


@pytest.mark.parametrize("secure", [True, False])
def test_what_a_dataset_draws_while_it_loads_is_the_systems_or_the_callers(secure):
    """Augmentations in order of place would tie one example's to whether another one is there."""
    drawn = []

    def augmented(samples: Iterable[Tensor]) -> Iterator[Batch]:
        for batch in load(samples):
            drawn.append(torch.rand(4))
            yield batch

    for _ in range(2):
        torch.manual_seed(0)
        loop = make_loop(load=augmented)
        if secure:
            loop.private_step.randomness = SystemRandomness()
        next(loop.batches())
    assert torch.equal(*drawn) is not secure


def test_an_interrupt_while_loading_is_charged():
    """Uncharged, samples could be drawn until one is liked."""

    def interrupted(samples: Iterable[Tensor]) -> Iterator[Batch]:
        raise KeyboardInterrupt
        yield

    loop = make_loop(load=interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(loop.batches())
    assert loop.steps_done == 1


def test_an_interrupt_on_the_way_to_the_step_is_charged(monkeypatch):
    loop = make_loop()

    def interrupted(_: Batch) -> Batch:
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "on_device", interrupted)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            loop.take(next(loop.batches()))
    assert loop.steps_done == 3


def test_samples_that_other_loops_draw_on_one_ledger_are_charged():
    """A new loop for each try could choose among samples otherwise."""
    ledger = MemoryLedger()
    for _ in range(4):
        next(make_loop(ledger=ledger).batches())
    assert ledger.entries == ((EVENT, 4),)


def test_loops_that_draw_in_turn_on_one_ledger_spend_one_plan():
    """Each counted the steps that were left when it began."""
    ledger = MemoryLedger()
    loops = [make_loop(ledger=ledger, steps=5) for _ in range(2)]
    samples = [loop.batches() for loop in loops]
    for _ in range(5):
        for loop, drawn in zip(loops, samples, strict=True):
            if (batch := next(drawn, None)) is not None:
                loop.take(batch)
    assert ledger.entries == ((EVENT, 5),)


def test_the_last_sample_before_a_break_is_charged():
    loop = make_loop()
    for taken, batch in enumerate(loop.batches()):
        if taken == 3:
            break
        loop.take(batch)
    assert loop.steps_done == 4


def test_a_ledger_that_cannot_record_stops_before_a_sample_is_drawn(monkeypatch):
    loop = make_loop()
    drawn = []
    monkeypatch.setattr(loop, "_load", lambda samples: map(drawn.append, samples))
    monkeypatch.setattr(loop.private_step.ledger, "spend", Mock(side_effect=BudgetError("full")))
    with pytest.raises(BudgetError):
        next(loop.batches())
    assert drawn == []


def test_a_sample_that_finds_no_room_on_the_device_is_charged(monkeypatch):
    """Whether it does tells how large it is."""
    loop = make_loop()
    batch = next(loop.batches())

    def full(_: Batch) -> Batch:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(loop, "on_device", full)
    with pytest.raises(torch.OutOfMemoryError):
        loop.take(batch)
    assert loop.steps_done == 1


def test_a_step_takes_the_last_sample_once():
    """Epsilon holds for Poisson samples: of a batch of one's own, or one taken again, it would say far too
    little."""
    loop = make_loop()
    batches = loop.batches()
    first = next(batches)
    with pytest.warns(PrivacyWarning, match="its step is charged"):
        second = next(batches)
    own = Batch(*(part[:1] for part in next(load([torch.arange(len(second.indices))]))))
    subset = Batch(*(part[1:] for part in second))
    for batch in (own, first, subset, second._replace(indices=second.indices.flip(0))):
        with raises_field(SettingError, "batch"):
            loop.take(batch)
    assert loop.steps_done == 2
    loop.take(second)
    with raises_field(SettingError, "batch"):
        loop.take(second)
    assert loop.steps_done == 2


@pytest.mark.parametrize("part", ["inputs", "targets", "groups"])
@pytest.mark.parametrize("change", [lambda part: part.repeat_interleave(2, dim=0), lambda part: part[1:]])
def test_parts_of_another_length_are_refused(part, change):
    loop = make_loop()
    batch = next(loop.batches())
    with raises_field(SettingError, "batch"):
        loop.take(batch._replace(**{part: change(getattr(batch, part))}))
    loop.take(batch)
    assert loop.steps_done == 1


def _centred(batch: Batch) -> Batch:
    return batch._replace(inputs=batch.inputs - batch.inputs.mean(0))


def _mixed_in_place(batch: Batch) -> Batch:
    batch.inputs.lerp_(batch.inputs.flip(0), 0.3)
    return batch


@pytest.mark.parametrize(
    "change",
    [
        lambda batch: batch._replace(inputs=0.7 * batch.inputs + 0.3 * batch.inputs.flip(0)),
        _centred,
        _mixed_in_place,
        lambda batch: batch._replace(inputs=batch.inputs.flip(0)),
        lambda batch: batch._replace(inputs=batch.inputs.flip(1)),
        lambda batch: batch._replace(inputs=-batch.inputs),
        lambda batch: batch._replace(targets=batch.targets + batch.inputs.mean()),
        lambda batch: batch._replace(groups=batch.groups + 1),
        lambda batch: batch._replace(inputs=(batch.inputs, batch.inputs)),
        lambda batch: batch._replace(inputs=batch.inputs[:, None]),
        lambda batch: batch._replace(inputs=torch.cat([batch.inputs, batch.inputs.roll(1, 0)], dim=1)),
    ],
)
def test_samples_with_other_content_than_was_drawn_are_refused(change):
    """As mixup, cutmix, centring, targets of others: an example would reach the gradients of the others."""
    loop = make_loop(seed=1)
    batch = next(loop.batches())
    assert len(batch.indices) > 1
    with raises_field(SettingError, "batch"):
        loop.take(change(batch))
    assert loop.model.weight.tolist() == [0.0] * D


@pytest.mark.parametrize(
    "change",
    [
        lambda inputs: inputs.clone(),
        lambda inputs: inputs.double().float(),
        lambda inputs: inputs[:, :2].clone(),
        lambda inputs: inputs[:, 1:],
    ],
)
def test_rows_may_be_copied_and_cut_at_their_ends(change):
    """As devices do, and loops that drop padding."""
    loop = make_loop()
    seen = []
    loop.private_step.engine = seen_alone(seen)
    batch = next(loop.batches())
    cut = change(batch.inputs)
    with pytest.raises(KeyError):
        loop.take(Batch(cut, *(part.clone() for part in batch[1:])))
    assert torch.equal(seen[0], cut)


def seen_alone(seen: list[Tensor]) -> Callable[..., None]:
    """Engine that notes its inputs and fails: the given gradients need whole rows."""

    def note(inputs: Tensor, targets: Tensor) -> None:
        seen.append(inputs)
        raise KeyError

    return note


def test_numbers_that_are_none_are_what_was_drawn():
    loop = make_loop(load=lambda samples: (each._replace(inputs=each.inputs / 0) for each in load(samples)))
    batch = next(loop.batches())
    assert batch.inputs.isnan().any()
    loop.take(batch._replace(inputs=batch.inputs.clone()))
    assert loop.steps_done == 1


def test_a_step_that_fails_uses_its_sample_up():
    loop = make_loop()
    batch = next(loop.batches())

    def broken(inputs: Tensor, targets: Tensor) -> None:
        raise RuntimeError("no memory")

    loop.private_step.engine = broken
    with pytest.raises(RuntimeError, match="no memory"):
        loop.take(batch)
    with raises_field(SettingError, "batch"):
        loop.take(batch)
    assert loop.steps_done == 1
    assert loop.model.weight.tolist() == [0.0] * D


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda model: model.weight.requires_grad_(False), "requires_grad"),
        (lambda model: model.register_parameter("late", nn.Parameter(torch.zeros(2))), "parameters"),
        (lambda model: model.register_parameter("weight", None), "parameters"),
        (lambda model: setattr(model, "weight", nn.Parameter(torch.zeros(D))), "parameters"),
    ],
    ids=["frozen", "added", "removed", "replaced"],
)  # fmt: skip
def test_a_model_that_the_noise_does_not_cover_is_refused(change, field):
    loop = make_loop()
    batches = loop.batches()
    batch = next(batches)
    change(loop.model)
    with raises_field(SettingError, field):
        loop.take(batch)
    with pytest.warns(PrivacyWarning), raises_field(SettingError, field):
        next(batches)
    assert loop.steps_done == 1


def test_gradients_that_the_noise_does_not_cover_are_dropped():
    """The optimizer may hold a layer that was frozen after a try, or another model."""
    other = nn.Parameter(torch.zeros(2))
    loop = make_loop(extra=(other,))
    batch = next(loop.batches())
    other.grad = torch.ones(2)
    loop.take(batch)
    assert other.tolist() == [0.0, 0.0]
    assert other.grad is None


def test_a_loop_goes_on_with_the_steps_that_the_ledger_leaves():
    """Steps of other kinds in the ledger are not taken for its own."""
    other = StepEvent(0.5, 2.0)
    ledger = MemoryLedger(((EVENT, 2), (other, 7)))
    loop = make_loop(ledger=ledger)
    assert loop.steps_done == 2
    assert len([loop.take(batch) for batch in loop.batches()]) == 3
    assert loop.private_step.ledger.entries == ((EVENT, 2), (other, 7), (EVENT, 3))


def test_the_ledger_is_told_how_many_steps_are_to_come(monkeypatch):
    expected = []
    loop = make_loop()
    monkeypatch.setattr(loop.private_step.ledger, "expect", lambda *announced: expected.append(announced))
    next(loop.batches())
    assert expected == [(EVENT, 5)]


def test_a_loop_that_is_stopped_without_a_reason_ends_before_another_sample_is_paid_for():
    loop = make_loop(steps=5)
    for taken, batch in enumerate(loop.batches(), 1):
        loop.take(batch)
        if taken == 2:
            loop.stop()
    assert loop.steps_done == 2
    assert len([loop.take(batch) for batch in loop.batches()]) == 3


def test_a_stop_before_the_first_sample_holds_and_is_of_that_iterator_alone():
    loop = make_loop(steps=5)
    for reason, raised in ((None, nullcontext()), (KeyError("now"), pytest.raises(KeyError))):
        loop.stop(reason)
        with raised:
            assert not list(loop.batches())
    assert loop.steps_done == 0
    held = loop.batches()
    loop.take(next(held))
    loop.stop()  # of an iterator that is kept and asked for nothing more
    assert len([loop.take(batch) for batch in loop.batches()]) == 4


class Remembering(Model):
    """A model whose buffer keeps the mean of the last batch, as a running mean does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.register_buffer("mean", torch.zeros(()))

    def write_in_place(self, mean: Tensor) -> None:
        self.inner.mean.copy_(mean)

    def replace(self, mean: Tensor) -> None:
        self.inner.mean = mean.clone()

    def add(self, mean: Tensor) -> None:
        self.inner.register_buffer("other", mean.clone())

    def write_the_same(self, mean: Tensor) -> None:
        self.inner.mean.copy_(torch.zeros(()))


def loop_of_remembering(write: Callable[[Remembering, Tensor], None]) -> PrivateLoop:
    loop = make_loop(steps=2)
    model, measure = Remembering(), loop.private_step.engine

    def engine(inputs: Tensor, targets: Tensor):
        write(model, inputs.mean())
        return measure(inputs, targets)

    model.weight = loop.model.weight
    loop.model, loop.private_step.engine = model, engine
    return loop


@pytest.mark.parametrize("write", [Remembering.write_in_place, Remembering.replace, Remembering.add])
def test_a_buffer_that_a_step_writes_is_put_back_and_the_model_refused(write):
    """A trial runs models without gradients, which such a model may see; its buffers are released."""
    loop = loop_of_remembering(write)
    with pytest.raises(ModelError, match="buffer"):
        loop.take(next(loop.batches()))
    assert {name: float(each) for name, each in loop.model.named_buffers()} == {"inner.mean": 0.0}
    assert loop.model.weight.detach().tolist() == [0.0] * D
    assert loop.steps_done == 1


def test_buffers_that_steps_leave_as_they_are_may_be_set_between_steps():
    loop = loop_of_remembering(Remembering.write_the_same)
    for batch in loop.batches():
        loop.take(batch)
        loop.model.inner.mean = torch.zeros(())
    assert loop.steps_done == 2


@pytest.mark.parametrize("batch", [(torch.ones(1, 3), torch.zeros(1)), torch.ones(1, 3), None])
def test_what_is_no_sample_is_refused(batch):
    loop = make_loop()
    next(loop.batches())
    with raises_field(SettingError, "batch"):
        loop.take(batch)


@pytest.mark.parametrize("taken", [True, False])
def test_a_step_of_the_optimizer_beside_private_steps_is_warned_of(taken):
    """As in a loop of PyTorch, or of Opacus: its gradients have no noise."""
    loop = make_loop(steps=2)
    for batch in loop.batches():
        if taken:
            loop.take(batch)
        loop.model.weight.grad = torch.ones(D)
        with pytest.warns(PrivacyWarning, match="outside step"):
            loop.optimizer.step()
        if not taken:
            loop.take(batch)


def test_steps_of_two_loops_with_one_optimizer_are_not_warned_of():
    first = make_loop(steps=4)
    samples = first.batches()
    first.take(next(samples))  # and is left there
    second = PrivateLoop(
        first.private_step,
        first.model,
        first.optimizer,
        num_examples=first.num_examples,
        steps=3,
        load=first._load,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in second.batches():
            second.take(batch)
    assert next(samples) is not None


def test_a_step_of_the_optimizer_after_the_loop_or_without_gradients_is_not_warned_of():
    loop = make_loop(steps=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in loop.batches():
            loop.take(batch)
            loop.optimizer.zero_grad()
            loop.optimizer.step()
        loop.model.weight.grad = torch.ones(D)
        loop.optimizer.step()
