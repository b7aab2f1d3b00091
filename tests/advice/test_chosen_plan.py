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
    ChosenRun,
    check_published,
    choose_plan,
    setting_rows,
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


@pytest.mark.parametrize(
    ("name", "value"), [("clipping_bound", float("inf")), ("clipping_bound", 0.0), ("epochs", -1)]
)
def test_what_was_given_is_checked_before_rules_compute_with_it(name, value):
    source = equidp.data.open_source("digits")
    with raises_field(SettingError, name):
        choose_plan(source, source.split(seed=0).train, 0, {name: value})


def test_another_optimizer_has_its_own_learning_rate_by_default_and_not_by_rule():
    other = chosen({"optimizer": "adam"})
    assert other.plan.learning_rate < 0.1
    assert [other.origin(name) for name in ("optimizer", "learning_rate", "batch_size")] == [
        ASKED, DEFAULT, RULE,
    ]  # fmt: skip


def test_settings_that_a_dataset_publishes_for_one_method_are_the_dataset_s():
    plan = choose_plan(Named("adult-esipova"), made_up(), 0, {}, "published")
    assert plan.origin("learning_rate", "global-adapt") == RULE
    asked = choose_plan(Named("adult-esipova"), made_up(), 0, {"learning_rate": 0.3}, "published")
    assert asked.origin("learning_rate", "global-adapt") == ASKED


@pytest.mark.parametrize("source", [Named("other"), TableSource("adult.csv", Recipe("y", group=("g",)))])
def test_published_settings_of_data_that_has_none_are_refused(source):
    with raises_field(SettingError, "settings"):
        check_published(source)
    with raises_field(SettingError, "settings"):
        choose_plan(source, made_up(), 0, {}, "published")
    with raises_field(SettingError, "settings"):
        choose_plan(source, made_up(), 0, {}, "best")


def test_a_model_of_the_user_s_takes_inputs_as_they_are_also_where_models_are_swept():
    targets = torch.arange(600) % 2
    images = equidp.GroupedDataset(torch.rand(600, 1, 8, 8), targets, targets, ("a", "b"), ("n", "y"))
    features = [
        choose_plan(Named(), images, 0, given, swept=swept).features
        for given, swept in (({}, ()), ({"model": "lenet"}, ()), ({}, ("model",)))
    ]
    assert features == ["scattering", None, None]


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


@pytest.mark.soak
@pytest.mark.parametrize("settings", ["recommended", "published"])
def test_what_the_user_gives_acts_on_auto_in_a_comparison(settings):
    changes = {"clipping_bound": 6.0, "epochs": 40}
    for given in ({}, changes):
        plan = variants_of(methods=[AUTO], plan=settings, options=given, epsilons=(2.0,))[-1].plan
        assert given.items() <= {**vars(plan), **plan.method_settings}.items()


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


@pytest.mark.soak
def test_rows_say_which_methods_have_a_setting_and_where_it_is_from():
    plan = chosen({"epochs": 3})
    runs = [
        ChosenRun(
            plan,
            plan.plan.for_method(method).with_changes(epsilon=epsilon).resolve(3000),
            epsilon is not None,
        )
        for method, epsilon in (("sgd", None), ("dpsgd", 1.0), ("dpsgd", 2.0), ("dpsgd-f", 1.0))
    ]
    rows = setting_rows(runs, epsilons=(1.0, 2.0), swept={"clipping_bound": (1.0, 2.0)})
    found = {(row.name, row.methods): row for row in rows}
    assert found[("epochs", ())][1:3] == (3, ASKED)
    assert found[("epsilon", ())].value == (1.0, 2.0)
    noise = [row for row in rows if row.name == "noise_multiplier"]
    assert {row.origin for row in noise} == {RULE}
    assert {row.methods for row in noise} == {("dpsgd",), ("dpsgd-f",)}
    assert len(found[("noise_multiplier", ("dpsgd",))].value) == 2
    assert found[("clipping_bound", ("dpsgd", "dpsgd-f"))].origin == ASKED
    assert {row.name for row in rows} >= {each.name for each in Plan.options() if each.metadata["listed"]}
