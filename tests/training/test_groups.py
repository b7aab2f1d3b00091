"""A Trainer with rates and bounds by group: what each group pays is known before the first step."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import equidp
from equidp.errors import BudgetError, SettingError
from equidp.kernel.epsilon import epsilon
from equidp.kernel.event import Event, Share
from equidp.ledger.ledger import Ledger
from equidp.training.build import build
from equidp.training.release import Charge
from support.errors import raises_field
from support.toy import make_trainer, toy

SETTINGS = {"seed": 3, "accountant": "rdp"}
GROUPS = {"rates": {"a": 2.0}, "bound_shares": {"b": 0.5, "*": 1.0}}


def weights_of(trainer: equidp.Trainer) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in trainer.model.parameters()])


@pytest.mark.parametrize(
    "equal", [{"bound_shares": {"a": 1.0}}, {"rates": {"a": 1, "b": 1}, "bound_shares": {"*": 1}}]
)
def test_equal_groups_train_as_without_rates(equal):
    """The same event, ledger and weights, to the last digit."""
    ungrouped = make_trainer(steps=5, epochs=None, **SETTINGS)
    grouped = make_trainer(steps=5, epochs=None, **SETTINGS, **equal)
    assert grouped.event == ungrouped.event
    assert not grouped.event.shares
    assert ungrouped.fit().entries == grouped.fit().entries
    assert torch.equal(weights_of(ungrouped), weights_of(grouped))


def test_each_group_has_its_own_epsilon_and_the_run_the_largest():
    trainer = make_trainer(steps=8, epochs=None, **SETTINGS, **GROUPS)
    run = trainer.fit()
    expected = {"a": Event(0.2, 1.0), "b": Event(0.1, 2.0)}
    by_group = run.epsilon_by_group()
    assert by_group == {name: epsilon([(event, 8)], 1e-5, "rdp") for name, event in expected.items()}
    assert run.epsilon() == max(by_group.values())
    assert run.epsilon() >= trainer.epsilon_so_far(8)
    assert trainer.expected_batch_size == 30
    assert trainer.sample_rate == 0.1
    assert trainer.event.rate == 0.2


@dataclasses.dataclass(frozen=True)
class LowerForFirst(equidp.Policy):
    """Clips group 0 at half of the bound of the others, or another share of it."""

    first_share: float = 0.5

    def bound(self, state, group):
        return torch.where(group == 0, self.first_share, 1.0)


BY_GROUP = [
    LowerForFirst(),
    equidp.DPSGD(clipping_bound={"a": 0.05, "*": 0.1}),
]


@pytest.mark.parametrize("policy", BY_GROUP, ids=repr)
def test_public_bounds_by_group_give_each_group_an_epsilon_of_its_own(policy):
    """Known before the first step; a group that may use half of S pays what twice the noise costs."""
    given = {"method": policy, "steps": 8, "epochs": None, "noise_multiplier": 0.8}
    trainer = make_trainer(**given, **SETTINGS)
    assert [each.bound for each in trainer.event.shares] == [0.5, 1.0]
    run = trainer.fit()
    expected = {"a": Event(0.1, 1.6), "b": Event(0.1, 0.8)}
    by_group = run.epsilon_by_group()
    assert by_group == {name: epsilon([(event, 8)], 1e-5, "rdp") for name, event in expected.items()}
    assert run.epsilon() == by_group["b"] > 2 * by_group["a"]


@pytest.mark.parametrize(
    ("policy", "settings", "field"),
    [
        (LowerForFirst(1 / 17), {}, "bound"),
        (
            LowerForFirst(),
            {"noise_multiplier": None, "epsilon_by_group": {"a": 1, "b": 2}, "protect_by": "scaling"},
            "bound_shares",
        ),
        (
            equidp.DPSGD({"a": 1.0, "*": 0.5}),
            {"train": [(torch.zeros(5), 1), (torch.ones(5), 0)], "batch_size": 2},
            "clipping_bound",
        ),
    ],
    ids=str,
)
def test_bounds_by_group_that_no_share_stands_for_are_refused(policy, settings, field):
    with raises_field(SettingError, field):
        make_trainer(method=policy, **SETTINGS, **settings)
    with raises_field(SettingError, "clipping_bound"):
        equidp.DPSGD({"a": 1.0, "*": -1.0})


def test_a_dataset_without_groups_in_memory_is_refused():
    data = torch.utils.data.TensorDataset(torch.randn(30, 5), torch.arange(30) % 2, torch.arange(30) % 2)
    with raises_field(SettingError, "rates"):
        make_trainer(data, steps=2, epochs=None, rates={"a": 2.0})


@pytest.mark.soak
def test_an_account_of_one_example_counts_other_steps_for_any_group():
    """Of another column: an example of a group of small epsilon may be in another one there."""
    event = Event(0.2, 2.0, shares=(Share("a", 0.01), Share("b", 0.2)), column="other")
    ledger = Ledger()
    for _ in range(50):
        ledger.charge("a", event)
    trainer = make_trainer(
        method=equidp.DPSGD(1e-3), steps=4, epochs=None, individual=equidp.Individual(1, grid=0.1),
        ledger=(ledger, "a"), **SETTINGS, **GROUPS,
    )  # fmt: skip
    trainer.fit()
    report = trainer.individual_report(accountant="rdp")
    for group, label in enumerate(trainer.event.labels):
        whole = [(Event(*trainer.event.cost(label)), 4), (Event(0.2, 2.0), 50)]
        assert report.group_epsilons[group] == pytest.approx(epsilon(whole, 1e-5, "rdp"), rel=1e-9)
        own = report.sensitive_epsilons[report.groups == group]
        assert_allclose(own, report.group_epsilons[group], rtol=1e-9)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("given", "group"),
    [
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
    by_group = run.epsilon_by_group()
    assert by_group["a"] != by_group["b"]
    assert (make_trainer(people, steps=3, epochs=None, batch_size=6).train.groups == 0).all()


@pytest.mark.soak
@pytest.mark.parametrize("budgets", [{"a": 1.0, "*": 2.5}, {"*": 2.5}], ids=["by group", "one for all"])
def test_a_release_that_would_exceed_the_budget_of_a_group_is_refused(budgets):
    """Before training the plan counts whole; what the plan holds, and what still fits, is released."""
    plan = equidp.Plan(batch_size=15, epochs=0.5, delta=1e-3, epsilon_by_group=budgets)
    counts = Event(1.0, 40.0, name="counts")
    resolved = plan.with_changes(releases=(Charge(counts),), accountant="rdp").resolve(150, "ab")
    data = toy(150)
    for trained in (False, True):
        trainer = build(resolved, data, weights_seed=0, seed=0, model=torch.nn.Linear(5, 2))
        if trained:
            trainer.fit()
        release = functools.partial(trainer.ledger.release, trainer.run_id, "counts")
        with raises_field(BudgetError, "epsilon_by_group"):
            release(2.0, lambda noise: pytest.fail("drawn"))
        assert trainer.ledger.count(trainer.run_id, Event(1.0, 2.0, name="counts")) == 0
        assert release(40.0, lambda noise: noise) == 40.0
        with raises_field(BudgetError, "epsilon_by_group"):
            release(40.0, lambda noise: noise)
        assert release(1e6, lambda noise: noise) == 1e6
        run = trainer.fit()
        assert run.epsilon_by_group()["a"] <= budgets.get("a", 2.5)
        assert run.epsilon() <= 2.5
