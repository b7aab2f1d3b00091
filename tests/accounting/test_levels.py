"""Epsilons that people chose among: each level pays at most itself, and nearly all of it."""

from __future__ import annotations

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

import equidp
from equidp.accounting.groups import MOST_LEVELS, GroupSettings, level_name, parse_levels
from equidp.accounting.planned import account
from equidp.errors import SettingError
from equidp.kernel import epsilon as accounting
from equidp.kernel.epsilon import epsilon, epsilon_of_group
from equidp.kernel.ledger import StepEvent
from support.errors import raises_field


def check_levels(seed: int, name: str, make_accountant) -> None:
    """The epsilon of each level, from the numbers of the plan and dp_accounting alone, and by equidp."""
    draw = np.random.default_rng(seed)
    levels = sorted(float(each) for each in draw.uniform(0.8, 6.0, int(draw.integers(1, 4))))
    plan = equidp.Plan(
        batch_size=int(draw.integers(20, 400)),
        epochs=float(draw.uniform(2, 20)),
        delta=float(10.0 ** -draw.uniform(4, 7)),
        recalibration=0.05 if draw.random() < 0.5 else 0.0,
        epsilon_levels=levels,
        protect_by=str(draw.choice(["sampling", "scaling"])),
    )
    method = str(draw.choice(["dpsgd", "dpsgd-f", "quantile"]))
    spent = ((StepEvent(1.0, float(draw.uniform(20, 40))), 1),) if draw.random() < 0.5 else ()
    target = equidp.Target(accountant=name)
    found = plan.resolve(method, 2000, target, also_spent=spent, group_names=("rare", "usual"))
    entries = [(found.step_event(("rare", "usual")), found.steps), *spent]
    entries += [(each, 1) for each in found.releases]
    for level in levels:
        rate = (found.rates or {}).get(level_name(level), 1.0) * found.sample_rate
        share = (found.bound_shares or {}).get(level_name(level), 1.0)
        precision = (share / found.noise_multiplier) ** 2
        if found.policy.statistics_ratio is not None:
            precision += (share / (found.policy.statistics_ratio * found.noise_multiplier)) ** 2
        accountant = make_accountant()
        step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(precision**-0.5))
        accountant.compose(step, found.steps)
        for event in (*(each for each, _ in spent), *found.releases):
            accountant.compose(dp_accounting.GaussianDpEvent(event.noise_multiplier))
        independent = accountant.get_epsilon(found.delta)
        own = epsilon_of_group(entries, level_name(level), found.delta, name)
        assert own == pytest.approx(independent, rel=1e-6)
        assert 0.99 * level <= independent <= level * (1 + 1e-9)
    assert epsilon(entries, found.delta, name) == pytest.approx(own, rel=1e-9)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_each_level_pays_at_most_itself_and_nearly_all_of_it(seed):
    """By Renyi divergences; releases of the run count at each level."""
    check_levels(seed, "rdp", RdpAccountant)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10, 12))
def test_each_level_pays_at_most_itself_by_privacy_losses_too(seed):
    check_levels(seed, "pld", lambda: PLDAccountant(value_discretization_interval=accounting.FINE))


@pytest.mark.parametrize(
    "given",
    ["", "a", "1,1", "1,0", "-1", "inf", "nan", 3.0, [1, "x"], [], [*range(1, MOST_LEVELS + 2)]],
)
def test_levels_that_nobody_can_choose_among_are_refused(given):
    with raises_field(SettingError, "epsilon_levels"):
        parse_levels(given)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"epsilon_by_group": "rare=1,*=3"}, "epsilon_levels"),
        ({"rates": "rare=2"}, "epsilon_levels"),
        ({"bound_shares": "level 1=0.5"}, "epsilon_levels"),
    ],
)
def test_levels_beside_what_follows_from_them_are_refused(given, field):
    with raises_field(SettingError, field):
        equidp.Plan(batch_size=50, epsilon_levels="1,3", **given)


@pytest.mark.parametrize(
    ("target", "recalibration", "field"),
    [
        (equidp.Target(2.0), 0.0, "epsilon_levels"),
        (equidp.Target(4.0), 0.0, "epsilon_levels"),
        (equidp.Target(risk=equidp.RiskTarget.parse("tpr=0.1@0.01")), 0.0, "epsilon_levels"),
        (equidp.Target(3.0), 0.5, "epsilon_levels"),
    ],
)
def test_levels_that_a_target_or_a_release_contradicts_are_refused(target, recalibration, field):
    plan = equidp.Plan(batch_size=50, epochs=2, epsilon_levels="0.5,3", recalibration=recalibration)
    with raises_field(SettingError, field):
        plan.resolve("dpsgd", 1000, target)


def test_levels_have_names_of_their_own_whatever_the_groups():
    settings = GroupSettings.of(None, None, None, epsilon_levels=[3, 0.5])
    assert settings.names(("a", "b")) == settings.names() == ("level 0.5", "level 3")
    assert settings.run_epsilon(None) == 3.0


def test_a_plan_with_levels_is_read_back():
    plan = equidp.Plan(batch_size=50, epochs=2, epsilon_levels="0.5,2", delta=1e-4)
    found = plan.resolve("dpsgd", 1000, equidp.Target(accountant="rdp"))
    again = type(found).from_plain(found.to_plain())
    assert again.settings == found.settings
    assert again.step_event(("a",)) == found.step_event()
    assert found.level_names == ("level 0.5", "level 2")
    planned = account(1000, 50, epochs=2, epsilon_levels="0.5,2", delta=1e-4, accountant="rdp")
    assert planned.event == found.step_event()
