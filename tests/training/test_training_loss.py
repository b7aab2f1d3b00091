"""The mean training loss is released with noise after each epoch, at a privacy cost known before training."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

import equidp
import equidp.kernel.noisy_sum
from equidp.accounting.planned import Schedule, account, loss_release, release_event
from equidp.audit.bounds import NoiseFamily, Rates, noise_from_rates
from equidp.engines.functional import FunctionalEngine
from equidp.errors import BudgetError, SettingError
from equidp.kernel.epsilon import epsilon
from equidp.kernel.inputs import map_tensors, tensors
from equidp.kernel.ledger import ReleaseEvent, StepEvent
from equidp.kernel.loop import Batch
from equidp.kernel.noise import SeededRandomness, to_double
from equidp.ledger.format import read_ledger
from equidp.training import training_loss
from equidp.training.training_loss import mean_training_loss
from support import several
from support.errors import raises_field
from support.faults import noise_halved
from support.processes import together
from support.toy import make_trainer, toy

DELTA = 1e-5
PRIVATE = {"accountant": "rdp", "target_epsilon": 3.0, "noise_multiplier": None, "loss_epsilon": 0.5}
"""A run on 300 examples, batch size 30, of 2 epochs."""


def losses_as_inputs(values: list[float]) -> Batch:
    """A batch whose inputs are the losses that `read_loss` gives."""
    zeros = torch.zeros(len(values), dtype=torch.int64)
    return Batch(torch.tensor(values).unsqueeze(1), zeros, zeros, torch.arange(len(values)))


def read_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return outputs.squeeze(1)


def mean(values: list[float], noise: float = 0.0, bound: float = 5.0, n: int = 1, seed: int = 0) -> float:
    return mean_training_loss(
        nn.Identity(),
        read_loss,
        [losses_as_inputs(values)],
        bound=bound,
        noise_multiplier=noise,
        num_examples=n,
        randomness=SeededRandomness(seed),
    )


rogue = st.one_of(st.floats(width=32), st.sampled_from([math.inf, -math.inf, math.nan, 1e38, -1e38, 0.0]))


@given(rogue, st.lists(st.floats(-3, 3, width=32), max_size=4), st.sampled_from([0.1, 1.0, 5.0]))
def test_one_example_moves_the_sum_by_its_bound_at_most(value, others, bound):
    assert abs(mean([*others, value], bound=bound) - mean(others, bound=bound)) <= bound * (1 + 1e-9)


def test_a_loss_is_clipped_and_one_that_is_no_number_counts_as_the_bound():
    assert mean([1.0, 7.0, math.nan, math.inf, -9.0], n=5) == pytest.approx((1 + 5 + 5 + 5 - 5) / 5)


def test_no_example_gives_noise_alone():
    alone = [mean([], noise=2.0, bound=0.5, seed=seed) for seed in range(400)]
    assert np.std(alone) == pytest.approx(1.0, rel=0.2)  # five standard errors and more
    assert abs(np.mean(alone)) < 0.25


def unclipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equidp.kernel.noisy_sum, "bounded_rows", lambda rows, bound: to_double(rows))


def audited_epsilon() -> tuple[float, float]:
    """The claim of a release, and a lower bound at 95% from releases with an example of loss 100 and without.

    A sound bound exceeds the claim in one of 20 audits at most; seeds are fixed.
    """
    runs, claim = 600, 4.0
    event = release_event(claim, 1e-3)
    others = [0.5, 1.0, 2.0]
    inside, outside = (
        np.array([mean(values, event.noise_multiplier, seed=10_000 * side + run) for run in range(runs)])
        for side, values in enumerate(([*others, 100.0], others))
    )
    cut = float(np.median(np.concatenate([inside[::2], outside[::2]])))
    rates = Rates(int((inside[1::2] > cut).sum()), runs // 2, int((outside[1::2] > cut).sum()), runs // 2)
    return claim, noise_from_rates(rates, NoiseFamily([(event, 1)]), 1e-3)


@pytest.mark.soak
def test_an_audit_of_a_release_stays_below_the_claim_and_finds_a_part_of_it():
    claim, bound = audited_epsilon()
    assert 0.3 * claim < bound < claim


@pytest.mark.soak
@pytest.mark.parametrize("plant", [noise_halved, unclipped])
def test_a_fault_is_caught_by_the_audit(plant, monkeypatch):
    plant(monkeypatch)
    claim, bound = audited_epsilon()
    assert bound > claim


def test_the_releases_together_are_the_mechanism_that_costs_their_epsilon_alone():
    event, times = loss_release(0.5, DELTA, Schedule(0.1, 35))
    assert times == 4
    assert times / event.noise_multiplier**2 == pytest.approx(
        release_event(0.5, DELTA).noise_multiplier ** -2
    )
    assert epsilon([(event, times)], DELTA, "pld") <= 0.5 * 1.001


@pytest.fixture(scope="module")
def run_and_trainer():
    figures: dict[int, dict[str, float]] = {}
    log = equidp.LogReleases(lambda found, step: figures.update({step: found}))
    trainer = make_trainer(**PRIVATE, callbacks=[log])
    return trainer.fit(), trainer, figures


@pytest.mark.soak
def test_training_and_losses_together_cost_the_target(run_and_trainer):
    run, _, _ = run_and_trainer
    event, times = loss_release(0.5, DELTA, Schedule(0.1, 20))
    assert (sum(n for each, n in run.entries if each == event), times) == (2, 2)
    assert 2.99 < run.epsilon() <= 3.0
    assert run.planned_epsilon() == run.epsilon()


@pytest.mark.soak
def test_each_release_has_the_bound_and_the_noise_that_were_paid_for(monkeypatch):
    released = []

    def watch(rows, **settings):
        released.append((settings["bound"], settings["noise_multiplier"]))
        return private_sum(rows, **settings)

    private_sum = training_loss.private_sum
    monkeypatch.setattr(training_loss, "private_sum", watch)
    trainer = make_trainer(**PRIVATE, loss_bound=2.0)
    trainer.fit()
    event, times = loss_release(0.5, DELTA, Schedule(0.1, 20))
    assert released == [(2.0, event.noise_multiplier)] * times
    assert trainer.ledger.count_of(event) == times


def test_each_epoch_ends_with_a_loss_near_the_true_one(run_and_trainer):
    run, trainer, figures = run_and_trainer
    assert list(trainer.training_losses) == list(figures) == [10, 20]
    assert {step: each["training_loss"] for step, each in figures.items()} == trainer.training_losses
    data, (event, _) = toy(), loss_release(0.5, DELTA, Schedule(0.1, 20))
    true = nn.functional.cross_entropy(run.model(data.inputs), data.targets).item()
    assert trainer.training_losses[20] == pytest.approx(true, abs=6 * event.noise_multiplier * 5.0 / 300)
    assert run.facts.training_loss == pytest.approx(trainer.training_losses[20], rel=1e-3)


def test_without_it_nothing_is_released_and_nothing_more_is_charged():
    trainer = make_trainer()
    run = trainer.fit()
    assert (trainer.training_losses, run.facts.training_loss) == ({}, None)
    assert run.entries == ((trainer.event, 20),)


def test_a_training_without_privacy_has_the_exact_loss_and_pays_nothing():
    trainer = make_trainer(policy=equidp.SGD(), noise_multiplier=0.0, loss_epsilon=0.5)
    run, data = trainer.fit(), toy()
    true = nn.functional.cross_entropy(run.model(data.inputs), data.targets).item()
    assert trainer.training_losses[20] == pytest.approx(true, rel=1e-5)
    assert run.entries == ((trainer.event, 20),)


def test_a_model_that_diverged_has_the_bound_as_its_loss():
    trainer = make_trainer(policy=equidp.SGD(), noise_multiplier=0.0, loss_epsilon=0.5, loss_bound=4.0)
    with torch.no_grad():
        trainer.model.weight.fill_(math.nan)
    trainer.fit()
    assert trainer.training_losses[10] == pytest.approx(4.0)


class FailsOnLong(nn.Module):
    """Fails on rows whose first number is above 5, as a model that needs an end mark does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if len(inputs) and float(inputs[:, 0].max()) > 5:
            raise ValueError("too long")
        return self.linear(inputs)


def test_a_row_on_which_the_model_fails_counts_as_the_bound_and_the_others_as_they_are():
    inputs = toy(8).inputs.clone()
    inputs[3, 0] = 9.0
    model, zeros = FailsOnLong(), torch.zeros(8, dtype=torch.int64)
    loss = nn.CrossEntropyLoss(reduction="none")
    found = mean_training_loss(
        model, loss, [Batch(inputs, zeros, zeros, torch.arange(8))], bound=5.0, noise_multiplier=0.0,
        num_examples=8, randomness=SeededRandomness(0),
    )  # fmt: skip
    others = [each for each in range(8) if each != 3]
    true = loss(model(inputs[others]), zeros[others]).sum().item() + 5.0
    assert found == pytest.approx(true / 8, rel=1e-5)


class MixesManyRows(nn.Module):
    """Reads the largest number among more rows than a trial gives it: safe where each row is alone."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits = self.linear(inputs)
        return logits + inputs.max() * torch.tensor([9.0, 0.0]) if len(inputs) > 50 else logits


@pytest.mark.parametrize("named", [True, False])
def test_each_example_is_alone_in_the_model_where_the_engine_isolates_examples(named):
    model, cross_entropy = MixesManyRows(), nn.CrossEntropyLoss(reduction="none")
    engine = "functional" if named else FunctionalEngine(model, cross_entropy)
    trainer = make_trainer(
        policy=equidp.SGD(), noise_multiplier=0.0, loss_epsilon=0.5, epochs=1, model=model, engine=engine
    )
    trainer.fit()
    true = cross_entropy(model.linear(toy().inputs), toy().targets).mean().item()
    assert trainer.training_losses[10] == pytest.approx(true, rel=1e-5)


def penalised_cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy, and the squared length of its gradient by the outputs."""
    losses = nn.functional.cross_entropy(outputs, targets, reduction="none")
    (gradients,) = torch.autograd.grad(losses.sum(), outputs, create_graph=True)
    return losses + gradients.square().sum(1)


def test_a_loss_that_takes_gradients_is_released_as_it_is_trained():
    model = nn.Linear(5, 2)
    trainer = make_trainer(
        policy=equidp.SGD(), noise_multiplier=0.0, loss_epsilon=0.5, epochs=1, model=model,
        loss=penalised_cross_entropy, engine=FunctionalEngine(model, penalised_cross_entropy),
    )  # fmt: skip
    trainer.fit()
    true = penalised_cross_entropy(model(toy().inputs), toy().targets).mean().item()
    assert trainer.training_losses[10] == pytest.approx(true, rel=1e-5)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("targets", [{"a": 1.0, "b": 4.0}, {"a": 1.0}, (1.0, 4.0)])
def test_targets_of_several_tensors_count_as_many_examples_as_they_have_rows(targets, together):
    def loss(outputs, targets):
        return outputs.squeeze(1) + sum(tensors(targets))

    values, several = (
        losses_as_inputs([1.0, 2.0, 3.0]),
        map_tensors(lambda each: torch.full((3,), each), targets),
    )
    settings = {"bound": 50.0, "noise_multiplier": 0.0, "num_examples": 3, "randomness": SeededRandomness(0)}
    found = mean_training_loss(
        nn.Identity(), loss, [values._replace(targets=several)], together=together, **settings
    )
    assert found == pytest.approx(2.0 + sum(tensors(targets)))


def test_the_loss_of_a_person_is_the_sum_over_the_rows():
    people = equidp.by_person(toy(), torch.arange(300) // 3, 3)
    trainer = make_trainer(
        people, equidp.SGD(), noise_multiplier=0.0, loss_epsilon=0.5, loss_bound=50.0, batch_size=20, epochs=1
    )
    model, data = trainer.fit().model, toy()
    whole = nn.functional.cross_entropy(model(data.inputs), data.targets, reduction="sum").item()
    assert trainer.training_losses[5] == pytest.approx(whole / 100, rel=1e-5)


@pytest.mark.soak
def test_every_group_pays_for_the_losses_and_the_largest_keeps_to_the_target():
    trainer = make_trainer(**PRIVATE, rates={"a": 1.5}, bound_shares={"b": 0.5})
    run = trainer.fit()
    by_group = run.epsilon_by_group()
    assert 2.98 < max(by_group.values()) <= 3.0
    losses = [entry for entry in run.entries if isinstance(entry[0], ReleaseEvent)]
    alone = epsilon(losses, DELTA, "rdp")
    assert all(each > alone for each in by_group.values())
    assert list(trainer.training_losses) == [10, 20]


def test_a_run_that_stops_early_is_promised_the_epsilon_of_its_plan_with_all_losses():
    class Stops(equidp.Callback):
        def after_step(self, trainer):
            if trainer.steps_done == 12:
                trainer.stop()

    run = make_trainer(**PRIVATE, callbacks=[Stops()]).fit()
    assert sum(n for event, n in run.entries if isinstance(event, ReleaseEvent)) == 1
    assert run.epsilon() < 2.99 < run.planned_epsilon() <= 3.0


def test_a_resumed_run_keeps_its_losses_and_pays_for_each_once(tmp_path):
    class Killed(equidp.Callback):
        def after_step(self, trainer):
            if trainer.steps_done == 13:
                raise KeyboardInterrupt

    def made(ledger, *callbacks):
        checkpoints = equidp.Checkpoints(tmp_path)
        return checkpoints, make_trainer(**PRIVATE, ledger=ledger, callbacks=[checkpoints, *callbacks])

    with equidp.LedgerFile(tmp_path / "ledger") as ledger, pytest.raises(KeyboardInterrupt):
        made(ledger, Killed())[1].fit()
    with equidp.LedgerFile(tmp_path / "ledger") as ledger:
        checkpoints, trainer = made(ledger)
        checkpoints.restore(trainer)
        before = trainer.training_losses
        run = trainer.fit()
    assert (list(before), list(trainer.training_losses)) == ([10], [10, 20])
    assert trainer.training_losses[10] == before[10]
    counted = [
        (event, n) for event, n in read_ledger(tmp_path / "ledger").entries if isinstance(event, ReleaseEvent)
    ]
    assert sum(n for _, n in counted) == 2
    assert 2.9 < run.epsilon() <= 3.0


@pytest.mark.soak
def test_a_budget_sets_the_losses_aside_and_refuses_a_plan_that_does_not_fit():
    budget = equidp.PrivacyBudget(epsilon=3.0, delta=DELTA, accountant="rdp")
    trainer = make_trainer(**PRIVATE, budget=budget)
    assert not budget.fits(StepEvent(1.0, release_event(2.8, DELTA).noise_multiplier), 1)
    trainer.fit()
    assert 2.99 < budget.spent() <= 3.0
    small = equidp.PrivacyBudget(epsilon=2.6, delta=DELTA, accountant="rdp")
    with raises_field(BudgetError, "budget"):
        make_trainer(**PRIVATE, budget=small)
    assert small.spent() == 0
    cut = make_trainer(**PRIVATE, budget=small, beyond_budget="stop")
    cut.fit()
    assert cut.steps < 20
    assert list(cut.training_losses)[-1] == cut.steps
    assert small.spent() <= 2.6


def test_what_a_stopped_run_did_not_release_is_free_again():
    class Stops(equidp.Callback):
        def after_step(self, trainer):
            trainer.stop()

    budget = equidp.PrivacyBudget(epsilon=3.0, delta=DELTA, accountant="rdp")
    trainer = make_trainer(**PRIVATE, budget=budget, callbacks=[Stops()])
    trainer.fit()
    assert not any(isinstance(event, ReleaseEvent) and n for event, n in budget._spent_and_reserved())


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"loss_epsilon": 0.0}, "loss_epsilon"),
        ({"loss_epsilon": math.nan}, "loss_epsilon"),
        ({"loss_epsilon": 3.0}, "loss_epsilon"),
        ({"loss_bound": 0.0}, "loss_bound"),
        ({"loss_bound": math.inf}, "loss_bound"),
    ],
)
def test_numbers_outside_their_range_are_refused(settings, field):
    with raises_field(SettingError, field):
        make_trainer(**{**PRIVATE, **settings})


@pytest.mark.soak
def test_a_plan_gives_a_share_of_epsilon_to_the_losses():
    target = equidp.Target(3.0, accountant="rdp")
    plan = equidp.Plan(training_loss=0.1, delta=DELTA, batch_size=30, epochs=2)
    found = plan.resolve("dpsgd", 300, target)
    assert found.loss_epsilon == pytest.approx(0.3)
    entries = [*((event, 1) for event in found.releases), (StepEvent(0.1, found.noise_multiplier), 20)]
    assert len(found.releases) == 2
    assert 2.99 < epsilon(entries, DELTA, "rdp") <= 3.0
    planned = account(300, 30, epochs=2, target_epsilon=3.0, delta=DELTA, accountant="rdp", training_loss=0.1)
    assert planned.event.noise_multiplier == found.noise_multiplier
    assert planned.epsilon("rdp") <= 3.0
    assert planned.epsilon("rdp") == epsilon(entries, DELTA, "rdp")
    with raises_field(SettingError, "training_loss"):
        plan.resolve("dpsgd", 300)
    assert plan.resolve("sgd", 300).loss_epsilon == 0.0


@pytest.mark.soak
def test_several_processes_release_one_loss_of_all_examples_and_pay_once():
    (first, paid), (second, counted) = together(2, several.losses_released)
    assert first == second
    assert list(first) == [5, 10]
    assert paid == counted == 2
    exact, other = together(2, several.losses_released, False)
    assert exact == other
    assert exact[0] == pytest.approx(several.losses_released(noise=False)[0], rel=1e-4)
