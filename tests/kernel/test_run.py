"""A sample is charged before it is read, read once and completely; the optimizer sees private gradients
alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from equidp.errors import BudgetError, ModelError, SettingError
from equidp.kernel.event import Event
from equidp.kernel.noise import SeededRandomness, SystemRandomness
from equidp.kernel.run import Batch, PrivateRun
from equidp.kernel.step import PrivateStep
from equidp.ledger.ledger import Ledger
from equidp.policies import DPSGD
from support.errors import raises_field
from support.given_gradients import GivenGradients

N, RATE, D = 40, 0.25, 3
EVENT = Event(RATE, 1e-9)


class Model(nn.Module):
    """Parameters that the step's noise covers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(D))


class Data:
    """Examples whose gradients are known: the i-th has i in its second place. Notes the samples it loads."""

    def __init__(self) -> None:
        self.samples: list[Tensor] = []

    def __call__(self, samples: Iterable[Tensor]) -> Iterator[Batch]:
        for sample in samples:
            self.samples.append(sample)
            inputs = torch.stack([torch.ones(len(sample)), sample.float(), torch.zeros(len(sample))], dim=1)
            yield Batch(inputs, torch.zeros(len(sample)), torch.zeros(len(sample), dtype=torch.int64), sample)


def make_run(
    *,
    steps: int = 5,
    rate: float = RATE,
    seed: int = 0,
    ledger: Ledger | None = None,
    load: Callable[[Iterable[Tensor]], Iterator[Batch]] | None = None,
    extra: tuple[nn.Parameter, ...] = (),
    check: Callable[..., None] | None = None,
    examples: int = N,
) -> PrivateRun:
    model = Model()
    step = PrivateStep(
        GivenGradients(model.weight),
        DPSGD(1e6),
        list(model.parameters()),
        event=Event(rate, 1e-9),
        expected_batch_size=rate * N,
        num_groups=1,
        randomness=SeededRandomness(seed),
    )
    return PrivateRun(
        step,
        model,
        torch.optim.SGD([*model.parameters(), *extra], lr=1.0),
        Ledger() if ledger is None else ledger,
        num_examples=examples,
        steps=steps,
        load=Data() if load is None else load,
        check=check,
    )


def take_all(run: PrivateRun) -> int:
    """Take the steps that are left; return how many."""
    taken = 0
    while run.step():
        taken += 1
    return taken


def test_each_sample_moves_the_parameters_by_its_private_gradient_and_is_charged_once():
    """Noise of 1e-3 beside gradients of 1: only the sum over the sample, over b, can have moved the weight
    so."""
    run = make_run(load=(data := Data()))
    for taken in range(1, 6):
        before = run.model.weight.detach().clone()
        assert run.step()
        sample = data.samples[-1]
        expected = torch.tensor([len(sample), float(sample.sum()), 0.0]) / (RATE * N)
        torch.testing.assert_close(before - run.model.weight.detach(), expected, rtol=0, atol=0.01)
        assert run.steps_done == len(data.samples) == taken
    assert run.ledger.entries() == ((EVENT, 5),)
    assert not run.step()


@pytest.mark.parametrize("error", [OSError("cannot be read"), KeyboardInterrupt(), MemoryError()], ids=repr)
def test_a_sample_that_fails_to_load_is_charged_and_the_run_goes_on(error):
    """The failure tells that some example was drawn; uncharged, it could be drawn again until it succeeds."""
    failed = []

    def fails(samples: Iterable[Tensor]) -> Iterator[Batch]:
        for at, batch in enumerate(Data()(samples)):
            if at == 1 and not failed:
                failed.append(at)
                raise error
            yield batch

    run = make_run(load=fails)
    run.step()
    with pytest.raises(type(error)) as raised:
        run.step()
    assert "Step 2 of 5 is charged" in raised.value.__notes__[0]
    assert run.steps_done == 2
    assert take_all(run) == 3


def test_a_step_that_fails_is_charged_and_moves_nothing():
    run = make_run()

    def broken(inputs: Tensor, targets: Tensor) -> None:
        raise RuntimeError("no memory")

    run.private_step.engine = broken
    with pytest.raises(RuntimeError, match="no memory"):
        run.step()
    assert run.steps_done == 1
    assert run.model.weight.tolist() == [0.0] * D
    assert run.model.weight.grad is None


@pytest.mark.parametrize("secure", [True, False])
def test_what_a_dataset_draws_while_it_loads_is_the_systems_or_the_callers(secure):
    """Augmentations in order of place would tie one example's to whether another one is there."""
    drawn = []

    def augmented(samples: Iterable[Tensor]) -> Iterator[Batch]:
        for batch in Data()(samples):
            drawn.append(torch.rand(4))
            yield batch

    for _ in range(2):
        torch.manual_seed(0)
        run = make_run(load=augmented)
        if secure:
            run.private_step.randomness = SystemRandomness()
        run.step()
    assert torch.equal(*drawn) is not secure


def test_a_ledger_that_cannot_record_stops_before_a_sample_is_loaded(monkeypatch):
    run = make_run(load=(data := Data()))
    monkeypatch.setattr(run.ledger, "charge", Mock(side_effect=BudgetError("full")))
    with pytest.raises(BudgetError):
        run.step()
    assert data.samples == []


def test_the_ledger_is_told_how_many_steps_are_to_come(monkeypatch):
    charge, ahead = Ledger.charge, []
    run = make_run()
    monkeypatch.setattr(Ledger, "charge", lambda *given: (ahead.append(given[1:]), charge(*given)))
    while run.step():
        pass
    assert ahead == [("run", EVENT, left) for left in (5, 4, 3, 2, 1)]


def test_a_run_goes_on_with_the_steps_that_the_ledger_leaves():
    """Steps of other kinds in the ledger are not taken for its own."""
    other = Event(0.5, 2.0)
    ledger = Ledger()
    for event, count in ((EVENT, 2), (other, 7)):
        for _ in range(count):
            ledger.charge("run", event)
    run = make_run(ledger=ledger)
    assert run.steps_done == 2
    assert take_all(run) == 3
    assert ledger.entries() == ((EVENT, 5), (other, 7))


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.weight.requires_grad_(False),
        lambda model: model.register_parameter("late", nn.Parameter(torch.zeros(2))),
        lambda model: model.register_parameter("weight", None),
        lambda model: setattr(model, "weight", nn.Parameter(torch.zeros(D))),
    ],
    ids=["frozen", "added", "removed", "replaced"],
)
def test_a_model_that_the_noise_does_not_cover_is_refused_before_it_costs(change):
    run = make_run()
    run.step()
    change(run.model)
    with raises_field(SettingError, "parameters"):
        run.step()
    assert run.steps_done == 1


def test_gradients_that_the_noise_does_not_cover_are_dropped():
    """The optimizer may hold a layer that was frozen after a try, or another model."""
    other = nn.Parameter(torch.zeros(2))
    run = make_run(extra=(other,))
    other.grad = torch.ones(2)
    run.step()
    assert other.tolist() == [0.0, 0.0]
    assert other.grad is None


def test_a_stop_without_a_reason_ends_before_another_sample_is_paid_for_and_a_later_step_goes_on():
    run = make_run()
    run.step()
    run.stop()
    assert not run.step()
    assert run.steps_done == 1
    assert take_all(run) == 4


def test_a_stop_with_a_reason_raises_it_in_place_of_the_next_step():
    run = make_run()
    run.stop(KeyError("now"))
    with pytest.raises(KeyError):
        run.step()
    assert run.steps_done == 0
    assert take_all(run) == 5
    run.stop(KeyError("too late"))
    assert not run.step()


def test_rows_of_samples_are_checked_inside_charged_steps_that_double():
    seen = []
    run = make_run(steps=20, check=lambda inputs, targets: seen.append((run.steps_done, len(inputs))))
    take_all(run)
    assert [step for step, _ in seen] == [1, 2, 4, 8, 16]
    assert all(rows for _, rows in seen)


def test_an_engine_that_a_check_finds_wrong_ends_the_step_charged_and_releases_nothing():
    def wrong(inputs: Tensor, targets: Tensor) -> None:
        raise ModelError("it mixes rows")

    run = make_run(check=wrong)
    with pytest.raises(ModelError):
        run.step()
    assert run.steps_done == 1
    assert run.model.weight.tolist() == [0.0] * D


class Remembering(Model):
    """A model that keeps the mean of the last batch, as a running mean does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.register_buffer("mean", torch.zeros(()))
        self.frozen = nn.Parameter(torch.zeros(()), requires_grad=False)

    def write_frozen(self, mean: Tensor) -> None:
        with torch.no_grad():
            self.frozen.copy_(mean)

    def write_in_place(self, mean: Tensor) -> None:
        self.inner.mean.copy_(mean)

    def replace(self, mean: Tensor) -> None:
        self.inner.mean = mean.clone()

    def add(self, mean: Tensor) -> None:
        self.inner.register_buffer("other", mean.clone())


def run_of_remembering(write: Callable[[Remembering, Tensor], None]) -> PrivateRun:
    run = make_run(steps=2)
    model, measure = Remembering(), run.private_step.engine

    def engine(inputs: Tensor, targets: Tensor):
        write(model, inputs.mean())
        return measure(inputs, targets)

    model.weight = run.model.weight
    run.model, run.private_step.engine = model, engine
    return run


@pytest.mark.parametrize(
    ("write", "field"),
    [
        (Remembering.write_in_place, "inner.mean"),
        (Remembering.replace, "inner.mean"),
        (Remembering.add, "inner.other"),
        (Remembering.write_frozen, "frozen"),
    ],
)
def test_a_model_whose_buffers_or_parameters_a_pass_writes_is_refused(write, field):
    """They are released with it."""
    run = run_of_remembering(write)
    with pytest.raises(ModelError, match=f"^{field} "):
        run.step()
    assert run.model.weight.detach().tolist() == [0.0] * D
    assert run.steps_done == 1
