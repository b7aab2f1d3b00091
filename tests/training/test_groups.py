"""A Trainer with rates and bounds by group: what each group pays is known before the first step."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import equidp
from equidp.errors import SettingError
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import GroupedStepEvent, GroupShare, MemoryLedger, StepEvent
from equidp.training.assemble import in_groups_of_event
from support.errors import raises_field
from support.toy import make_trainer, toy

SETTINGS = {"secure": False, "seed": 3, "accountant": "rdp"}
GROUPS = {"rates": {"a": 2.0}, "bound_shares": {"b": 0.5, "*": 1.0}}


def weights_of(trainer: equidp.Trainer) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in trainer.model.parameters()])


@pytest.mark.parametrize(
    "equal",
    [
        {"rates": {"*": 1.0}},
        {"bound_shares": {"a": 1.0}},
        {"rates": {"a": 1, "b": 1}, "bound_shares": {"*": 1}},
    ],
)
def test_equal_groups_train_as_without_rates(equal):
    """The same event, ledger and weights, to the last digit."""
    ungrouped = make_trainer(steps=5, epochs=None, **SETTINGS)
    grouped = make_trainer(steps=5, epochs=None, **SETTINGS, **equal)
    assert grouped.event == ungrouped.event
    assert type(grouped.event) is StepEvent
    assert ungrouped.fit().entries == grouped.fit().entries
    assert torch.equal(weights_of(ungrouped), weights_of(grouped))


def test_each_group_has_its_own_epsilon_and_the_run_the_largest():
    trainer = make_trainer(steps=8, epochs=None, **SETTINGS, **GROUPS)
    run = trainer.fit()
    expected = {"a": StepEvent(0.2, 1.0), "b": StepEvent(0.1, 2.0)}
    by_group = run.epsilon_by_group()
    assert by_group == {name: epsilon([(event, 8)], 1e-5, "rdp") for name, event in expected.items()}
    assert run.epsilon() == max(by_group.values())
    assert run.epsilon() >= trainer.epsilon_so_far(8)
    assert trainer.expected_batch_size == 30
    assert trainer.sample_rate == 0.1
    assert trainer.event.sample_rate == 0.2


def test_statistics_have_the_group_s_bound_too():
    trainer = make_trainer(
        policy=equidp.DPSGDF(0.5), steps=1, epochs=None, **SETTINGS, bound_shares={"b": 0.25}
    )
    assert isinstance(trainer.event, GroupedStepEvent)
    whole, own = trainer.event.of_group("a"), trainer.event.of_group("b")
    assert own == StepEvent(0.1, 4 * whole.noise_multiplier, 4 * whole.statistics_noise)
    trainer.fit()


@pytest.mark.soak
def test_groups_are_sampled_at_their_rates():
    """Numbers of both groups in 60 samples within 5 standard errors; a group of rate 0 is never drawn."""
    trainer = make_trainer(steps=60, epochs=None, **SETTINGS, rates={"a": 3.0, "*": 0.5})
    drawn = torch.zeros(2)
    for batch in trainer.batches():
        drawn += torch.bincount(batch.groups, minlength=2)
        trainer.step(batch)
    for number, rate in zip(drawn.tolist(), (0.3, 0.05), strict=True):
        expected = 60 * 150 * rate
        assert abs(number - expected) < 5 * (expected * (1 - rate)) ** 0.5
    never = make_trainer(steps=5, epochs=None, **SETTINGS, rates={"b": 0.0})
    assert all((batch.groups == 0).all() for batch in never.batches() if never.step(batch) is None)
    assert never.run().epsilon_by_group()["b"] == 0


@pytest.mark.soak
def test_noise_is_calibrated_to_the_group_with_the_largest_epsilon():
    target = {"target_epsilon": 2.0, "noise_multiplier": None, "steps": 20, "epochs": None}
    run = make_trainer(**target, **SETTINGS, **GROUPS)
    entries = [(run.event, run.steps)]
    assert 2.0 * (1 - 5e-4) < epsilon(entries, 1e-5, "rdp") <= 2.0


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"rates": {"c": 2.0}}, "rates"),
        ({"bound_shares": {"c": 0.5}}, "bound_shares"),
        ({"rates": {"a": 11.0}}, "rates"),
        ({"rates": {"a": -1.0}}, "rates"),
        ({"rates": {"a": "twice"}}, "rates"),
        ({"rates": {"*": 0.0}}, "rates"),
        ({"rates": [2.0, 1.0]}, "rates"),
        ({"bound_shares": {"a": 1.5}}, "bound_shares"),
        ({"bound_shares": {"a": 0.01}}, "bound_shares"),
        ({"bound_shares": {"a": float("nan")}}, "bound_shares"),
        ({"policy": equidp.SGD(), "noise_multiplier": 0.0, "bound_shares": {"a": 0.5}}, "bound_shares"),
    ],
)
def test_what_no_group_can_have_is_refused_before_anything_is_spent(given, field):
    ledger = MemoryLedger()
    with raises_field(SettingError, field):
        make_trainer(ledger=ledger, **{"steps": 5, "epochs": None, **given})
    assert ledger.steps == 0


def test_rates_of_any_number_type_are_plain_numbers_in_ledger_and_card(tmp_path):
    """So that a ledger on disk can hold them, and a card's code runs without NumPy."""
    given = {"rates": {"a": np.float32(2.0)}, "bound_shares": {"b": np.float64(0.5)}}
    with equidp.LedgerFile(tmp_path / "ledger") as ledger:
        trainer = make_trainer(ledger=ledger, steps=2, epochs=None, **SETTINGS, **given)
        trainer.fit()
        assert ledger.entries == ((trainer.event, 2),)
    assert trainer.event == make_trainer(steps=2, epochs=None, **SETTINGS, **GROUPS).event
    for share in trainer.event.by_group:
        assert {type(value) for value in dataclasses.astuple(share)} == {str, float}


def test_a_dataset_without_groups_in_memory_is_refused():
    data = torch.utils.data.TensorDataset(torch.randn(30, 5), torch.arange(30) % 2, torch.arange(30) % 2)
    with raises_field(SettingError, "rates"):
        make_trainer(data, steps=2, epochs=None, num_groups=2, rates={"a": 2.0})


@pytest.mark.soak
def test_a_budget_and_a_ledger_on_disk_hold_steps_by_group(tmp_path):
    """A later run has other groups; the budget counts what the two runs cost the example with the largest
    epsilon."""
    budget = equidp.PrivacyBudget(epsilon=9.0, delta=1e-5, accountant="rdp")
    settings = {**SETTINGS, "steps": 6, "epochs": None, "budget": budget}
    with equidp.LedgerFile(tmp_path / "ledger") as ledger:
        first = make_trainer(ledger=ledger, **settings, **GROUPS)
        run = first.fit()
    second = make_trainer(**settings, rates={"b": 1.5}).fit()
    assert budget.entries == (*run.entries, *second.entries)
    both = epsilon(budget.entries, 1e-5, "rdp")
    assert max(run.epsilon(), second.epsilon()) < both <= budget.spent() * (1 + 1e-9)
    with equidp.LedgerFile(tmp_path / "ledger") as ledger:
        assert ledger.entries == run.entries


@pytest.mark.soak
def test_a_run_by_group_is_resumed(tmp_path):
    """From its ledger and checkpoint, with the same rates alone."""

    class Stop(equidp.Callback):
        def after_step(self, trainer: equidp.Trainer) -> None:
            if trainer.steps_done == 3:
                trainer.stop()

    checkpoints = equidp.Checkpoints(tmp_path / "kept", seconds=0)
    settings = {**SETTINGS, "steps": 6, "epochs": None}
    with equidp.LedgerFile(tmp_path / "ledger") as ledger:
        make_trainer(ledger=ledger, callbacks=[Stop(), checkpoints], **settings, **GROUPS).fit()
    with equidp.LedgerFile(tmp_path / "ledger") as ledger:
        resumed = make_trainer(ledger=ledger, **settings, **GROUPS)
        assert resumed.steps_done == 3
        assert checkpoints.restore(resumed) == 0
        assert resumed.fit().entries == ((resumed.event, 6),)
    other = make_trainer(**settings, rates={"a": 1.5})
    with raises_field(equidp.errors.EquidpError, "event"):
        checkpoints.restore(other)


@pytest.mark.soak
def test_individual_accounts_are_by_the_rates_and_bounds_of_the_example_s_group():
    """Every gradient beyond its bound: each example has all of its group's epsilon, and no more."""
    accountant = equidp.IndividualAccountant(interval=1, grid=0.1)
    trainer = make_trainer(
        policy=equidp.DPSGD(1e-3), steps=4, epochs=None, callbacks=[accountant], **SETTINGS, **GROUPS
    )
    run = trainer.fit()
    report = accountant.report(trainer, accountant="rdp")
    own = np.array(list(run.epsilon_by_group().values()))
    assert_allclose(report.group_epsilons, own, rtol=1e-9)
    assert_allclose(report.sensitive_epsilons, own[report.groups], rtol=1e-9)
    assert report.largest == own.max()


@pytest.mark.soak
def test_an_example_of_small_gradients_pays_less_than_its_group():
    accountant = equidp.IndividualClipping(interval=2, grid=0.1)
    trainer = make_trainer(
        policy=equidp.DPSGD(20.0), steps=4, epochs=None, callbacks=[accountant], **SETTINGS, **GROUPS
    )
    by_group = trainer.fit().epsilon_by_group()
    report = accountant.report(trainer, accountant="rdp")
    assert report.guaranteed
    for group, most in enumerate(by_group.values()):
        assert (report.sensitive_epsilons[report.groups == group] < 0.9 * most).all()


@pytest.mark.soak
def test_an_account_of_one_example_counts_other_steps_for_any_group():
    """Labels may have changed: an example of a group of small epsilon may have been in another one before."""
    event = GroupedStepEvent(0.2, 2.0, by_group=(GroupShare("a", 0.01), GroupShare("b", 0.2)))
    ledger = MemoryLedger([(event, 50)])
    accountant = equidp.IndividualAccountant(interval=1, grid=0.1)
    trainer = make_trainer(
        policy=equidp.DPSGD(1e-3), steps=4, epochs=None, callbacks=[accountant], ledger=ledger,
        **SETTINGS, **GROUPS,
    )  # fmt: skip
    trainer.fit()
    report = accountant.report(trainer, accountant="rdp")
    for group, name in enumerate("ab"):
        whole = [(trainer.event.of_group(name), 4), (event.of_group("b"), 50)]
        assert report.group_epsilons[group] == pytest.approx(epsilon(whole, 1e-5, "rdp"), rel=1e-9)
        own = report.sensitive_epsilons[report.groups == group]
        assert_allclose(own, report.group_epsilons[group], rtol=1e-9)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("given", "group"),
    [
        ({"rates": {"b": 2.0}}, "b"),
        ({"rates": {"a": 2.0}}, "a"),
        ({"bound_shares": {"a": 0.5}}, "b"),
        ({"bound_shares": {"b": 0.5}}, "a"),
        ({"rates": {"b": 2.0}, "bound_shares": {"b": 0.5}}, "b"),
    ],
)
def test_a_person_with_rows_in_several_groups_counts_in_that_of_the_largest_rate(given, group):
    rows = dataclasses.replace(toy(60), groups=torch.arange(60) % 2)
    people = equidp.by_person(rows, np.arange(60) // 2, most_rows=2)  # each has a row of either group
    assert (people.groups == 0).all()
    trainer = make_trainer(people, steps=3, epochs=None, batch_size=6, **SETTINGS, **given)
    run = trainer.fit()
    assert (trainer.train.groups == "ab".index(group)).all()
    for batch in make_trainer(people, steps=3, epochs=None, batch_size=6, **SETTINGS, **given).batches():
        assert (batch.groups == "ab".index(group)).all()
        break
    by_group = run.epsilon_by_group()
    assert by_group["a"] != by_group["b"]
    assert (make_trainer(people, steps=3, epochs=None, batch_size=6).train.groups == 0).all()


@pytest.mark.parametrize(
    ("shares", "group"),
    [
        ((GroupShare("a", 0.1), GroupShare("b", 0.2, 0.5)), 1),
        ((GroupShare("a", 0.2, 0.5), GroupShare("b", 0.1)), 0),
        ((GroupShare("a", 0.2, 0.5), GroupShare("b", 0.2)), 1),
    ],
)
def test_people_are_put_into_the_group_of_the_largest_rate_and_then_bound(shares, group):
    rows = dataclasses.replace(toy(60), groups=torch.arange(60) % 2)
    people = equidp.by_person(rows, np.arange(60) // 2, most_rows=2)
    event = GroupedStepEvent(0.2, 1.0, by_group=shares)
    assert (in_groups_of_event(people, event).groups == group).all()
    assert in_groups_of_event(people, StepEvent(0.2, 1.0)) is people


def test_a_person_whose_rows_are_of_one_group_stays_in_it():
    rows = dataclasses.replace(toy(60), groups=(torch.arange(60) // 2) % 2)
    people = equidp.by_person(rows, np.arange(60) // 2, most_rows=3)
    assert people.row_groups is None
    assert people.in_largest_groups([1.0, 2.0]) is people


@pytest.mark.soak
@pytest.mark.parametrize("protect_by", ["sampling", pytest.param("scaling", marks=pytest.mark.soak)])
def test_budgets_of_groups_are_met(protect_by):
    """By the Trainer as by a plan: each group pays at most its budget, and nearly all of it."""
    budgets = {"epsilon_by_group": {"a": 1.0, "*": 2.5}, "protect_by": protect_by}
    given = {"noise_multiplier": None, "steps": 10, "epochs": None}
    run = make_trainer(**given, **SETTINGS, **budgets).fit()
    found = run.epsilon_by_group()
    assert 0.99 <= found["a"] <= 1.0
    assert 2.49 <= found["b"] <= 2.5
    (share,) = (each for each in run.facts.event.by_group if each.name == "a")
    assert (share.sample_rate < 0.1) == (protect_by == "sampling")
    assert (share.bound_share < 1) == (protect_by == "scaling")
    by_target = make_trainer(
        **given, **SETTINGS, target_epsilon=2.5, epsilon_by_group="a=1", protect_by=protect_by
    )
    assert by_target.event == run.facts.event


@pytest.mark.soak
@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"epsilon_by_group": {"c": 1.0}}, "epsilon_by_group"),
        ({"epsilon_by_group": {"a": 3.0}, "target_epsilon": 2.0}, "epsilon_by_group"),
        ({"epsilon_by_group": {"*": 1.0}, "target_epsilon": 2.0}, "epsilon_by_group"),
        ({"epsilon_by_group": {"a": 0.0}}, "epsilon_by_group"),
        ({"epsilon_by_group": {"a": 1.0}, "noise_multiplier": 1.0}, "epsilon_by_group"),
        ({"epsilon_by_group": {"a": 1.0}, "rates": {"a": 2.0}}, "rates"),
        ({"epsilon_by_group": {"a": 1e-3, "b": 1.0}, "protect_by": "scaling"}, "epsilon_by_group"),
        ({"epsilon_by_group": {"a": 1.0}, "protect_by": "clipping"}, "protect_by"),
        ({"epsilon_by_group": {"a": 1.0}, "policy": equidp.SGD()}, "epsilon_by_group"),
    ],
)
def test_budgets_that_no_run_meets_are_refused_before_anything_is_spent(given, field):
    ledger = MemoryLedger()
    with raises_field(SettingError, field):
        make_trainer(ledger=ledger, **{"noise_multiplier": None, "steps": 5, "epochs": None, **given})
    assert ledger.steps == 0
