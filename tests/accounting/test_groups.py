"""Budgets of groups: by rates or bounds, each group pays at most its budget, and nearly all of it."""

from __future__ import annotations

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

import equidp
from equidp.accounting.groups import numbers_by_group
from equidp.errors import SettingError
from equidp.kernel import epsilon as accounting
from equidp.kernel.epsilon import epsilon as epsilon_of
from equidp.kernel.event import Event, Label
from equidp.training.plan import account
from equidp.training.release import Charge
from support.errors import raises_field

NAMES = ("rare", "usual", "third")


def draw_budgets(seed: int):
    """Plan, target, releases and budgets by group of a random run."""
    draw = np.random.default_rng(seed)
    largest = float(draw.uniform(0.5, 8.0))
    budgets = {"rare": largest * float(draw.uniform(0.3, 0.95)), "usual": largest}
    if draw.random() < 0.5:
        budgets["third"] = largest * float(draw.uniform(0.3, 1.0))
    plan = equidp.Plan(
        batch_size=int(draw.integers(20, 400)),
        epochs=float(draw.uniform(2, 20)),
        delta=float(10.0 ** -draw.uniform(4, 7)),
        epsilon_by_group=budgets,
        protect_by=str(draw.choice(["sampling", "scaling"])),
    )
    method = str(draw.choice(["dpsgd", "dpsgd-f", "quantile"]))
    spent = ((Event(1.0, float(draw.uniform(15, 40))), 1),) if draw.random() < 0.5 else ()
    return plan, method, budgets, largest, spent


def check_budgets(seed: int, name: str, make_accountant) -> None:
    """Each group's epsilon, from the numbers of the plan and dp_accounting alone, and by equidp."""
    plan, method, budgets, largest, spent = draw_budgets(seed)
    releases = tuple(Charge(event) for event, _ in spent)
    found = plan.for_method(method).with_changes(releases=releases, accountant=name).resolve(2000, NAMES)
    entries = [(found.event, found.steps), *spent]
    for group in NAMES:
        rate = (found.rates or {}).get(group, 1.0) * found.sample_rate
        share = (found.bound_shares or {}).get(group, 1.0)
        precision = (share / found.noise_multiplier) ** 2
        if found.policy.statistics_ratio is not None:
            precision += (share / (found.policy.statistics_ratio * found.noise_multiplier)) ** 2
        accountant = make_accountant()
        step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(precision**-0.5))
        accountant.compose(step, found.steps)
        for event, _ in spent:
            accountant.compose(dp_accounting.GaussianDpEvent(event.noise))
        independent = accountant.get_epsilon(found.delta)
        budget = budgets.get(group, largest)
        assert epsilon_of(entries, found.delta, name, Label("", group)) == pytest.approx(
            independent, rel=1e-6
        )
        assert 0.99 * budget <= independent <= budget * (1 + 1e-9)


@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.soak) for k in range(1, 7))])
def test_each_group_pays_at_most_its_budget_and_nearly_all_of_it(seed):
    """By Renyi divergences; releases of the run count in each group's account."""
    check_budgets(seed, "rdp", RdpAccountant)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2))
def test_each_group_pays_at_most_its_budget_by_privacy_losses_too(seed):
    check_budgets(seed, "pld", lambda: PLDAccountant(value_discretization_interval=accounting.FINE))


@pytest.mark.soak
def test_bounds_follow_from_rates_at_one_epsilon_for_all():
    """A group is drawn four times as often and has a smaller bound; its epsilon is that of the others."""
    plan = equidp.Plan(
        batch_size=50, epochs=10, delta=1e-5, protect_by="scaling",
        rates={"rare": 4.0, "third": 0.5}, epsilon_by_group={"*": 2.0},
    )  # fmt: skip
    found = plan.for_method("dpsgd-f").with_changes(accountant="rdp").resolve(1000, NAMES)
    alike = equidp.Plan(batch_size=50, epochs=10, delta=1e-5)
    before = alike.for_method("dpsgd-f").with_changes(epsilon=2.0, accountant="rdp").resolve(1000)
    assert found.noise_multiplier == before.noise_multiplier
    entries = [(found.event, found.steps)]
    own = {name: epsilon_of(entries, 1e-5, "rdp", Label("", name)) for name in NAMES}
    assert 1.98 <= own["rare"] <= 2.0
    assert own["usual"] == pytest.approx(2.0, rel=1e-3)
    assert own["third"] < 1.5
    assert 0.2 < found.bound_shares["rare"] < 0.6
    assert found.bound_shares["usual"] == found.bound_shares["third"] == 1.0
    assert found.rates == {"rare": 4.0, "third": 0.5}
    shared = {"batch_size": 50, "epochs": 10, "delta": 1e-5, "rates": plan.rates, "protect_by": "scaling"}
    without = equidp.Plan(**shared)  # the budget of all is the run's epsilon
    equal = without.for_method("dpsgd-f").with_changes(epsilon=2.0, accountant="rdp").resolve(1000, NAMES)
    assert equal.bound_shares == found.bound_shares
    by_noise = equidp.Plan(**shared, noise_multiplier=before.noise_multiplier)
    again = by_noise.for_method("dpsgd-f").with_changes(accountant="rdp").resolve(1000, NAMES)
    assert again.bound_shares["rare"] == pytest.approx(found.bound_shares["rare"], rel=5e-3)


def test_rates_follow_from_bounds():
    plan = equidp.Plan(
        batch_size=50, epochs=10, delta=1e-5, bound_shares={"rare": 0.5}, epsilon_by_group="rare=0.5,*=2"
    )
    found = plan.with_changes(accountant="rdp").resolve(1000, NAMES)
    entries = [(found.event, found.steps)]
    assert 0.495 <= epsilon_of(entries, 1e-5, "rdp", Label("", "rare")) <= 0.5
    assert found.bound_shares == {"rare": 0.5}
    alone = equidp.Plan(batch_size=50, epochs=10, delta=1e-5, epsilon_by_group="rare=0.5,*=2")
    less = alone.with_changes(accountant="rdp").resolve(1000, NAMES)
    assert found.rates["rare"] > less.rates["rare"]


@pytest.mark.soak
def test_noise_by_hand_given_rates_is_calibrated_to_the_group_with_the_largest_epsilon():
    """Also to a risk, and where the names of groups are not known: then all other groups count too."""
    plain = equidp.Plan(batch_size=50, epochs=4, delta=1e-5, epsilon=2.0, accountant="rdp")
    found = plain.with_changes(rates={"rare": 2.0, "usual": 0.5, "third": 0.5}).resolve(1000, NAMES)
    entries = [(found.event, found.steps)]
    assert 1.99 < epsilon_of(entries, 1e-5, "rdp", Label("", "rare")) <= 2.0
    half = plain.with_changes(rates={"rare": 0.5}).resolve(1000)
    assert half.noise_multiplier == pytest.approx(plain.resolve(1000).noise_multiplier)
    risky = plain.with_changes(risk=equidp.RiskTarget(0.2))
    shared = risky.with_changes(rates={"*": 2.0}).resolve(1000)
    doubled = risky.with_changes(batch_size=100, epochs=8).resolve(1000)
    assert shared.noise_multiplier == pytest.approx(doubled.noise_multiplier, rel=1e-3)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ("rare", "rates"),
        ("rare=1,rare=2", "rates"),
        ("rare=nan", "rates"),
        ([2.0], "rates"),
    ],
)
def test_a_text_that_is_no_numbers_by_group_is_refused(given, field):
    with raises_field(SettingError, field):
        numbers_by_group("rates", given)


def test_a_text_may_name_groups_with_commas_and_equals_signs():
    assert numbers_by_group("rates", '"F, low"=2, a=b=0.5, *=1') == {"F, low": 2.0, "a=b": 0.5, "*": 1.0}
    assert numbers_by_group("rates", "rare=2,\n*=1\n") == {"rare": 2.0, "*": 1.0}


@pytest.mark.parametrize(
    ("settings", "epsilon", "field"),
    [
        ({"epsilon_by_group": "rare=inf"}, 2.0, "epsilon_by_group"),
        ({"epsilon_by_group": "raer=1"}, 2.0, "epsilon_by_group"),
        ({"epsilon_by_group": "rare=3"}, 2.0, "epsilon_by_group"),
        ({"epsilon_by_group": "*=1"}, 2.0, "epsilon_by_group"),
        ({"epsilon_by_group": "rare=0.01", "protect_by": "scaling"}, 2.0, "epsilon_by_group"),
        ({"epsilon_by_group": "rare=1", "rates": "rare=2"}, 2.0, "rates"),
        ({"epsilon_by_group": "*=2", "bound_shares": "*=1", "protect_by": "scaling"}, 2.0, "bound_shares"),
        ({"epsilon_by_group": "*=2", "rates": "rare=50", "protect_by": "scaling"}, 2.0, "rates"),
        ({"rates": "rare=2", "bound_shares": "rare=0.5", "protect_by": "scaling"}, 2.0, "bound_shares"),
        ({"rates": "rare=20", "protect_by": "scaling"}, 0.1, "epsilon_by_group"),
        ({"epsilon_by_group": "rare=1", "protect_by": "luck"}, 2.0, "protect_by"),
        ({"rates": "rare=1000"}, 2.0, "rates"),
        ({"bound_shares": "rare=0.01"}, 2.0, "bound_shares"),
    ],
)
def test_what_no_run_can_have_is_refused(settings, epsilon, field):
    with raises_field(SettingError, field):
        equidp.Plan(batch_size=50, epochs=4, delta=1e-5, **settings).with_changes(
            epsilon=epsilon, accountant="rdp"
        ).resolve(1000, NAMES)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"epsilon_by_group": "rare=1"}, "epsilon_by_group"),
        ({"rates": "rare=4", "protect_by": "scaling"}, "rates"),
    ],
)
def test_a_risk_is_refused_where_rates_or_shares_follow_from_an_epsilon(given, field):
    """Four times the rate at equal epsilon has 6.1% of true positives where 5% was the target."""
    risk = equidp.RiskTarget(0.05, 0.01)
    with raises_field(SettingError, field):
        equidp.Plan(batch_size=50, **given).with_changes(risk=risk).resolve(1000, NAMES)
    with raises_field(SettingError, field):
        account(1000, batch_size=50, epochs=1, risk=risk, **given)


@pytest.mark.soak
def test_an_account_of_public_numbers_takes_budgets_and_rates():
    given = {"num_examples": 1000, "batch_size": 50, "epochs": 4, "delta": 1e-5, "accountant": "rdp"}
    planned = account(**given, epsilon_by_group="rare=1,*=3")
    found = planned.epsilon_by_group("rdp")
    assert 0.99 <= found["rare"] <= 1.0
    assert 2.99 <= found["*"] <= 3.0 == pytest.approx(planned.epsilon("rdp"), rel=1e-3)
    by_hand = account(**given, epsilon=3.0, rates={"rare": 2.0}, bound_shares={"rare": 0.5})
    assert [(each.label, each.rate, each.bound) for each in by_hand.event.shares] == [
        ("rare", 0.1, 0.5),
        ("*", 0.05, 1.0),
    ]
    assert account(**given, epsilon=3.0).epsilon_by_group() == {}
    with raises_field(SettingError, "epsilon_by_group"):
        account(**given, noise_multiplier=1.0, epsilon_by_group="rare=1")
