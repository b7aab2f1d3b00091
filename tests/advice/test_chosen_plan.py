"""Settings are chosen once for all commands: recommended or published, the user's over them, each with its
origin."""

from dataclasses import dataclass

import pytest
import torch

import equidp
from equidp.advice.chosen_plan import (
    ASKED,
    DEFAULT,
    RULE,
    ChosenPlan,
    check_published,
    choose_plan,
)
from equidp.comparison.plan import ComparisonPlan, choose_plans, private_variants
from equidp.data.table import TableSource
from equidp.errors import SettingError
from equidp.policies.table import AUTO
from equidp.tables.recipe import Recipe
from equidp.training.plan import Plan
from support.errors import raises_field


@dataclass(frozen=True)
class Named:
    """Data that goes by the name of a published dataset."""

    name: str = "adult"
    highlighted_groups: None = None


def made_up(n: int = 3000) -> equidp.GroupedDataset:
    targets = torch.arange(n) % 2
    return equidp.GroupedDataset(torch.rand(n, 5), targets, targets, ("a", "b"), ("n", "y"))


def chosen(given=None, **how) -> ChosenPlan:
    return choose_plan(Named(), made_up(), 0, given or {}, **how)


def test_each_setting_has_its_origin():
    recommended = chosen({"epochs": 3, "smoothing": 0.5})
    names = ("epochs", "smoothing", "batch_size", "clipping_bound", "delta", "weight_decay", "momentum")
    assert [recommended.origin(name) for name in names] == [
        ASKED, ASKED, RULE, RULE, RULE, DEFAULT, DEFAULT,
    ]  # fmt: skip
    published = chosen({"epochs": 3}, settings="published")
    names = ("epochs", "weight_decay", "clipping_bound", "batch_size")
    assert [published.origin(name) for name in names] == [ASKED, RULE, RULE, DEFAULT]
    of_user = ChosenPlan(Plan(epochs=3), otherwise=ASKED)
    assert of_user.origin("epochs") == of_user.origin("momentum") == ASKED


def test_published_settings_stay_out_of_recommended_ones_but_for_delta():
    """A published weight decay ruins runs at recommended learning rates."""
    assert chosen(settings="published").plan.weight_decay == 0.01
    plan = chosen({"learning_rate": 17.4}).plan
    assert (plan.weight_decay, plan.learning_rate, plan.delta) == (0.0, 17.4, 1e-6)


@pytest.mark.parametrize("source", [Named("other"), TableSource("adult.csv", Recipe("y", group=("g",)))])
def test_published_settings_of_data_that_has_none_are_refused(source):
    with raises_field(SettingError, "settings"):
        check_published(source)
    with raises_field(SettingError, "settings"):
        choose_plan(source, made_up(), 0, {}, "published")
    with raises_field(SettingError, "settings"):
        choose_plan(source, made_up(), 0, {}, "best")


def choice_of(**asked):
    return choose_plans(ComparisonPlan(seeds=1, **asked), Named(), made_up(), 0, 3000)


def variants_of(**asked):
    wanted = ComparisonPlan(seeds=1, **asked)
    return private_variants(wanted, choice_of(**asked), Named(), 3000)


def test_auto_is_the_recommended_method_by_name_or_a_row_of_its_own_beside_other_settings():
    methods = ["dpsgd-f", AUTO]
    assert [each.name for each in variants_of(methods=methods)] == ["dpsgd-f", "dpsgd"]
    for other in ({"plan": "published"}, {"plan": Plan()}):
        assert [each.name for each in variants_of(methods=methods, **other)] == ["dpsgd-f", AUTO]


def test_a_comparison_without_noise_is_at_epsilon_3_where_settings_are_recommended():
    assert choice_of().epsilons == (3.0,)
    assert choice_of(epsilons=(1.0,)).epsilons == (1.0,)
    for own in (
        {"options": {"noise_multiplier": 2.0}},
        {"changes": [{"noise_multiplier": 1.0}, {"noise_multiplier": 2.0}]},
        {"plan": "published"},
        {"plan": Plan()},
    ):
        assert choice_of(**own).epsilons == ()
