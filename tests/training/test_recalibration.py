"""Recalibration corrects the logits of a finished model, at the privacy cost that was charged for it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

import equidp
from equidp.accounting.planned import release_event
from equidp.errors import SettingError
from equidp.kernel.bounding import bounded_rows, summed_rows
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import MemoryLedger, ReleaseEvent, StepEvent
from equidp.losses import Loss
from equidp.training import recalibration
from equidp.training.build import build
from equidp.training.plan import Plan, ResolvedPlan
from equidp.training.recalibration import Recalibrated, Recalibration, fit_recalibration, recalibrate
from support import several
from support.errors import raises_field
from support.processes import together
from support.toy import DropsInEvaluation, make_trainer, toy

N = 6000
TRUE = Recalibration(1.5, (-1.2, 1.2))


def made_up(n: int = N, classes: int = 2) -> equidp.GroupedDataset:
    """Logits, and classes drawn by them as `TRUE` mends them."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(n, classes, generator=generator)
    chances = torch.softmax(TRUE.scale * logits + torch.tensor((*TRUE.shift, *[0.0] * (classes - 2))), dim=1)
    targets = torch.multinomial(chances, 1, generator=generator).squeeze(1)
    return equidp.GroupedDataset(
        logits, targets, torch.arange(n) % 2, ("a", "b"), tuple(map(str, range(classes)))
    )


def as_it_is(classes: int = 2) -> nn.Sequential:
    """A model that gives its inputs back."""
    layer = nn.Linear(classes, classes)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(classes))
        layer.bias.zero_()
    return nn.Sequential(layer)


def trainer_of(data, noise: float, model: nn.Module | None = None, **settings) -> equidp.Trainer:
    """One of a private run; without noise, one that trains without privacy."""
    ledger = MemoryLedger()
    model = as_it_is(data.num_classes) if model is None else model
    given = {"policy": equidp.DPSGD() if noise else equidp.SGD(), "noise_multiplier": float(noise > 0)}
    given |= {"ledger": ledger, "seed": 0, "secure": False}
    size = min(64, len(data))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return equidp.Trainer(
        model, optimizer, data, **{**given, **settings}, batch_size=size, steps=1, delta=1e-5
    )


numbers = st.one_of(st.floats(-1e4, 1e4, width=32), st.sampled_from([math.inf, -math.inf, math.nan, 0.0]))


@given(
    st.lists(numbers, min_size=3, max_size=3),
    st.integers(0, 2),
    st.sampled_from([0.0, 1.0, 8.0, 1e6]),
    st.lists(st.floats(-20, 20), min_size=4, max_size=4),
)
def test_one_example_moves_a_sum_by_one_at_most(logits, target, weight, place):
    """Whatever the model says of it, whatever its weight, and wherever the fit stands."""
    others = made_up(5, 3)
    ones, place = torch.ones(6), torch.tensor(place, dtype=torch.float64)
    ones[5] = weight
    whole = torch.cat([others.inputs, torch.tensor([logits])])
    targets = torch.cat([others.targets, torch.tensor([target])])
    with_it = recalibration._sum_rows(whole.unsqueeze(1), targets.unsqueeze(1), ones.unsqueeze(1), place)
    without = recalibration._sum_rows(
        whole[:5].unsqueeze(1), targets[:5].unsqueeze(1), ones[:5].unsqueeze(1), place
    )
    assert (with_it - without).norm() <= 1 + 1e-9


def test_sums_are_added_in_the_blocks_that_the_noise_has_room_for():
    """A sum in one go may be rounded by more than `kernel.bounding.ROUNDING` from two million rows on."""
    data, place = made_up(5000), torch.zeros(3, dtype=torch.float64)
    weights = torch.ones(5000)
    rows = bounded_rows(recalibration._rows(data.inputs, data.targets, weights, place), 1.0)
    columns = (each.unsqueeze(1) for each in (data.inputs, data.targets, weights))
    assert torch.equal(recalibration._sum_rows(*columns, place), summed_rows(rows))


def test_all_steps_together_are_the_one_gaussian_that_is_charged(monkeypatch):
    """mu adds up in squares, and each step releases a sum of sensitivity 1 with its noise."""
    noises = []

    def watched(totals, sensitivity, noise, *rest):
        noises.append(noise)
        assert sensitivity == 1.0
        return release(totals, sensitivity, noise, *rest)

    release = recalibration.release
    monkeypatch.setattr(recalibration, "release", watched)
    fit_recalibration(as_it_is(), trainer_of(made_up(50), 7.0), 7.0)
    assert sum(noise**-2 for noise in noises) == pytest.approx(7.0**-2)


@pytest.mark.parametrize("noise", [0.0, 5.0])
def test_it_finds_scale_and_shifts(noise):
    """With noise within 0.5: at n = 6000, five deviations of the last step's noise."""
    data = made_up()
    trainer = trainer_of(data, noise)
    found = fit_recalibration(trainer.model, trainer, noise)
    assert found.shift == pytest.approx(TRUE.shift, abs=0.5 if noise else 0.1)
    before, after = (
        nn.functional.cross_entropy(model(data.inputs), data.targets).item()
        for model in (trainer.model, found.apply_to(trainer.model))
    )
    best = nn.functional.cross_entropy(TRUE.apply_to(as_it_is())(data.inputs), data.targets).item()
    assert after < best + 0.1 * (before - best)


def test_without_noise_predicted_rates_are_those_of_the_classes():
    """As the gradient in the shifts is zero there."""
    data = made_up(2000, 3)
    trainer = trainer_of(data, 0.0)
    model = fit_recalibration(trainer.model, trainer, 0.0).apply_to(trainer.model)
    predicted = torch.softmax(model(data.inputs), dim=1).mean(0)
    happened = torch.bincount(data.targets, minlength=3) / len(data)
    torch.testing.assert_close(predicted, happened, atol=1e-4, rtol=0)


def test_little_data_beside_the_noise_changes_next_to_nothing():
    data = made_up(20)
    trainer = trainer_of(data, 200.0)
    found = fit_recalibration(trainer.model, trainer, 200.0)
    # The pull back is 1 / (4 * 200 * sqrt(2)) of the noise per unit: farther than 4 deviations, hardly ever.
    assert found.scale == pytest.approx(1.0, abs=0.2)
    assert found.shift == pytest.approx((0.0, 0.0), abs=0.5)


@pytest.mark.parametrize("logits", ["one class", "equal", "not finite"])
def test_data_that_say_nothing_give_numbers(logits):
    data = made_up(30)
    if logits == "one class":
        data = replace(data, targets=torch.zeros(30, dtype=torch.int64))
    if logits == "equal":
        data = replace(data, inputs=torch.zeros(30, 2))
    trainer = trainer_of(data, 0.0)
    if logits == "not finite":
        with torch.no_grad():
            trainer.model[0].weight.fill_(math.nan)
    found = fit_recalibration(trainer.model, trainer, 0.0)
    assert all(map(math.isfinite, (found.scale, *found.shift)))
    assert 0.1 <= found.scale <= 10
    if logits == "not finite":
        assert found == Recalibration.identity(2)


@pytest.mark.soak
def test_weights_count_as_often_as_copies_do():
    """So that the weights that training was asked to use are not undone."""
    data = made_up(3000)
    twice = torch.cat([torch.arange(3000), torch.arange(3000)[data.targets == 1]])
    copies = trainer_of(data.subset(twice), 0.0)
    expected = fit_recalibration(copies.model, copies, 0.0)
    loss = Loss(nn.CrossEntropyLoss(reduction="none"), torch.tensor([0.5, 1.0]))
    by_class = trainer_of(data, 0.0, loss=loss)
    by_row = trainer_of(replace(data, weights=torch.where(data.targets == 1, 1.0, 0.5)), 0.0)
    for trainer in (by_class, by_row):
        found = fit_recalibration(trainer.model, trainer, 0.0)
        assert (found.scale, *found.shift) == pytest.approx((expected.scale, *expected.shift), abs=1e-3)


def test_the_rows_of_a_person_count_together_and_move_a_sum_by_one_at_most():
    data = made_up(40)
    people = equidp.GroupedDataset(
        data.inputs.view(10, 4, 2), data.targets.view(10, 4), torch.arange(10) % 2, ("a", "b"), ("0", "1")
    )
    logits, targets, weights = recalibration._read(as_it_is(), trainer_of(people, 0.0))
    assert (logits.shape, targets.shape) == ((10, 4, 2), (10, 4))
    place = torch.zeros(3, dtype=torch.float64)
    for person in range(10):
        alone = slice(person, person + 1)
        heavy = 100 * weights[alone]
        assert recalibration._sum_rows(logits[alone], targets[alone], heavy, place).norm() <= 1 + 1e-9


def test_logits_are_mended_in_the_last_layer_or_behind_the_model():
    by, inputs = Recalibration(2.0, (0.5, -0.5)), torch.randn(4, 3)
    plain = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Sequential(nn.Linear(5, 2)))
    bare = nn.Sequential(nn.Linear(3, 2, bias=False))
    for model, kind in ((plain, nn.Sequential), (bare, Recalibrated), (nn.Linear(3, 2), nn.Linear)):
        expected = 2.0 * model(inputs) + torch.tensor([0.5, -0.5])
        mended = by.apply_to(model)
        assert type(mended) is kind
        torch.testing.assert_close(mended(inputs), expected)
        same = Recalibration.identity(2).apply_to(model)
        same.load_state_dict(mended.state_dict())
        torch.testing.assert_close(same(inputs), expected)


def test_what_cannot_be_paid_for_is_not_read():
    budget = equidp.PrivacyBudget(epsilon=5.0, delta=1e-5, accountant="rdp")
    trainer = trainer_of(made_up(50), 7.0, budget=budget, noise_multiplier=4.0)
    calls = []
    trainer.model.register_forward_hook(lambda *_: calls.append(1))
    with pytest.raises(equidp.BudgetError):
        fit_recalibration(trainer.model, trainer, 0.5)
    assert (calls, trainer.ledger.entries) == ([], ())


@pytest.mark.parametrize("budget", [None, "rdp"])
def test_a_model_that_does_not_fit_the_data_pays_for_nothing(budget):
    limit = budget and equidp.PrivacyBudget(epsilon=5.0, delta=1e-5, accountant=budget)
    trainer = trainer_of(made_up(50), 7.0, budget=limit, noise_multiplier=4.0)
    run = trainer.fit()
    payment = trainer.ledger.pay("recalibration", 7.0)
    spent = trainer.ledger.entries
    for noise in (7.0, payment):
        with pytest.raises(RuntimeError):
            recalibrate(replace(run, model=nn.Linear(3, 2)), trainer, noise)
        with raises_field(equidp.ModelError, "model"):
            recalibrate(replace(run, model=nn.Linear(2, 1)), trainer, noise)
    assert trainer.ledger.entries == spent
    assert limit is None or limit.entries == spent
    recalibrate(run, trainer, payment)  # which was not drawn


def counted(trainer):
    """How many recalibrations at noise 7 a trainer's ledger counts."""
    return trainer.ledger.count_of(ReleaseEvent(1.0, 7.0, name="recalibration"))


def test_each_fit_is_paid_for():
    trainer = trainer_of(made_up(50), 7.0)
    one, other = (fit_recalibration(trainer.model, trainer, 7.0) for _ in range(2))
    assert (counted(trainer), one.payment != other.payment) == (2, True)
    payment = trainer.ledger.pay("recalibration", 7.0)
    assert fit_recalibration(trainer.model, trainer, payment).payment == payment.event.id
    assert counted(trainer) == 3
    with raises_field(equidp.BudgetError, "payment"):
        fit_recalibration(trainer.model, trainer, payment)
    with raises_field(SettingError, "payment"):
        fit_recalibration(trainer.model, trainer, MemoryLedger().pay("recalibration", 7.0))


def test_a_run_of_another_trainer_is_refused_since_its_steps_would_not_count():
    one, other = trainer_of(made_up(50), 7.0), trainer_of(made_up(50), 7.0, noise_multiplier=9.0)
    run, few = one.fit(), other.fit()
    for noise in (7.0, None):
        with raises_field(SettingError, "trainer"):
            recalibrate(run, other, noise)
    with raises_field(SettingError, "run"):
        recalibrate(one, run, 7.0)
    assert counted(other) == counted(one) == 0
    longer = recalibrate(few, other, 7.0)
    assert recalibrate(longer, other, 7.0).epsilon() > longer.epsilon()


def test_another_release_of_the_same_noise_pays_for_none():
    ledger = MemoryLedger()
    ledger.pay("class counts", 7.0)
    ledger.spend(StepEvent(1.0, 7.0))
    trainer = trainer_of(made_up(50), 7.0, ledger=ledger)
    run = recalibrate(trainer.fit(), trainer, 7.0)
    assert counted(trainer) == 1
    assert sum(steps for event, steps in run.entries if event.noise_multiplier == 7.0) == 3


@pytest.mark.soak
def test_a_script_that_is_run_again_pays_for_its_second_fit(tmp_path):
    """Its ledger and checkpoints say that all steps were taken; the fit is drawn again."""
    kept = []
    for _ in range(2):
        with equidp.LedgerFile(tmp_path / "ledger") as ledger:
            checkpoints = equidp.Checkpoints(tmp_path / "run")
            given = {"ledger": ledger, "callbacks": [checkpoints], "secure": True, "seed": None}
            trainer = trainer_of(made_up(50), 7.0, **given)
            if trainer.steps_done:
                checkpoints.restore(trainer)
            kept.append(recalibrate(trainer.fit(), trainer, 7.0))
    first, second = kept
    assert not torch.equal(first.model[0].bias, second.model[0].bias)
    fit = ReleaseEvent(1.0, 7.0, name="recalibration")
    assert [dict(run.entries)[fit] for run in kept] == [1, 2]
    assert second.epsilon() > first.epsilon()


def test_a_private_run_is_never_recalibrated_without_noise():
    trainer = trainer_of(made_up(50), 7.0)
    with raises_field(SettingError, "noise_multiplier"):
        fit_recalibration(trainer.model, trainer, 0.0)
    plan = Plan(noise_multiplier=0.0, recalibration=0.1)
    with raises_field(SettingError, "recalibration"):
        plan.resolve("dpsgd", 1000, equidp.Target(risk=equidp.RiskTarget.parse("advantage=0.5")))


@pytest.mark.soak
def test_all_processes_get_the_same_fit_of_all_examples():
    """The noise is drawn once: from a seed, two processes differ from one by rounding."""
    expected = several.recalibrated(0.0), several.recalibrated(7.0)
    for noise, one in zip((0.0, 7.0), expected, strict=True):
        first, second = together(2, several.recalibrated, noise)
        assert first == second == pytest.approx(one, abs=1e-6)


class TestPlan:
    """The share of epsilon that a plan gives to recalibration."""

    @pytest.mark.soak
    def test_training_and_recalibration_together_cost_the_target(self):
        plan = Plan(recalibration=0.2, delta=1e-5).resolve(
            "dpsgd", 5000, equidp.Target(2.0, accountant="rdp")
        )
        assert plan.releases == (release_event(0.2 * 2.0, 1e-5),)
        steps = (StepEvent(plan.sample_rate, plan.noise_multiplier), plan.steps)
        assert 1.99 < epsilon((steps, (plan.releases[0], 1)), 1e-5, "rdp") <= 2.0
        assert ResolvedPlan.from_plain(plan.to_plain()) == plan

    def test_without_privacy_it_is_fitted_without_noise(self):
        plan = Plan(recalibration=0.2)
        for found in (plan.resolve("sgd", 500), replace(plan, noise_multiplier=0.0).resolve("dpsgd", 500)):
            assert found.recalibration_noise == 0.0
            assert found.releases == ()
        assert Plan().resolve("dpsgd", 500).recalibration_noise is None

    @pytest.mark.parametrize("share", [1.0, -0.1, math.nan])
    def test_a_share_is_less_than_the_whole(self, share):
        with raises_field(SettingError, "recalibration", share):
            Plan(recalibration=share)

    def test_a_share_of_no_epsilon_is_refused(self):
        with raises_field(SettingError, "recalibration", "0.2"):
            Plan(recalibration=0.2).resolve("dpsgd", 500)

    @pytest.mark.soak
    def test_shares_that_leave_nothing_to_train_with_are_named(self):
        plan = Plan(recalibration=0.9, delta=1e-5)
        taken = ((release_event(1.5, 1e-5), 1),)
        with raises_field(SettingError, "target_epsilon", "2.645 of 2"):
            plan.resolve("dpsgd", 5000, equidp.Target(2.0, accountant="rdp"), also_spent=taken)

    def test_losses_without_logits_are_refused_before_anything_is_spent(self):
        plan = Plan(recalibration=0.2, delta=1e-3, batch_size=50)
        data = made_up(100)
        resolved = plan.resolve("sgd", 100)
        with raises_field(SettingError, "recalibration", "loss"):
            build(resolved, data, seed=0, secure=True, loss=_hinge)


def _hinge(outputs, targets):
    return nn.functional.multi_margin_loss(outputs, targets, reduction="none")


@pytest.mark.soak
def test_an_estimator_pays_once_and_keeps_its_coefficients():
    X = np.random.default_rng([7, 93]).normal(size=(800, 3))
    y = X[:, 0] > 1
    given = {"epochs": 1, "accountant": "rdp", "recalibration": 0.2, "random_state": 0, "delta": 1e-4}
    with pytest.warns(equidp.errors.PrivacyWarning):
        model = equidp.PrivateClassifier(epsilon=2.0, **given).fit(X, y)
    fit = ReleaseEvent(1.0, release_event(0.4, 1e-4).noise_multiplier, name="recalibration")
    assert dict(model.run_.entries)[fit] == 1
    assert 1.98 < model.epsilon_spent_ <= 2.0
    assert model.decision_function(X) == pytest.approx((X @ model.coef_.T + model.intercept_)[:, 0], abs=1e-5)


def test_individual_accounts_count_it_in_full_for_everyone():
    data = made_up(20)
    accountant = equidp.IndividualAccountant(interval=1)
    trainer = trainer_of(data, 3.0, callbacks=[accountant])
    recalibrate(trainer.fit(), trainer, 3.0)
    alone = epsilon(((StepEvent(1.0, 3.0), 1),), 1e-5, "rdp")
    assert accountant.report(trainer, accountant="rdp").sensitive_epsilons.min() >= alone


@pytest.mark.parametrize("secure", [True, False])
def test_what_a_model_draws_as_it_predicts_follows_from_the_runs_randomness(secure, monkeypatch):
    """Dealt out in order of place under a known seed, one row more would change all others' logits."""
    sums, release = [], recalibration.release
    monkeypatch.setattr(
        recalibration,
        "release",
        lambda totals, *rest: sums.append(totals[0].clone()) or release(totals, *rest),
    )
    for _ in range(2):
        torch.manual_seed(1)
        model = nn.Sequential(DropsInEvaluation(), nn.Linear(5, 2))
        trainer = make_trainer(model=model, secure=secure, seed=None if secure else 0)
        trainer.ledger.spend(StepEvent(1.0, 30.0))
        torch.manual_seed(0)
        fit_recalibration(model, trainer, 30.0)
    assert torch.equal(sums[0], sums[len(sums) // 2]) is not secure


class MixesInEvaluation(nn.Module):
    """Reads the largest number of all rows that it predicts, and of none that it trains on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits = self.linear(inputs)
        return logits if self.training else logits + inputs.max()


@pytest.mark.parametrize("engine", ["functional", "ghost"])
@pytest.mark.parametrize("rows", [None, 3])
def test_the_fit_gives_each_example_to_a_model_alone_that_may_mix_them_in_evaluation(rows, engine):
    """Under the functional engine any model may; under the ghost engine, a trial finds out."""
    data = toy(60)
    if rows is not None:
        data = equidp.by_person(data, torch.arange(60) // rows, most_rows=rows)
    model = MixesInEvaluation()
    settings = {"train": data, "steps": 2, "epochs": None, "batch_size": 10}
    trainer = make_trainer(model=model, engine=engine, **settings)
    trainer.fit()
    model.eval()
    logits, _, _ = recalibration._read(model, trainer)
    alone = [model(each) for each in data.inputs.reshape(len(logits), -1, 5)]
    assert torch.allclose(logits, torch.stack(alone))
