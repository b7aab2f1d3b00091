"""What `equidp train` would release is what `equidp compare` compares: the same plan of the same options."""

from __future__ import annotations

import pytest

from equidp.comparison import compare as compare_module
from equidp.comparison.plan import ComparisonPlan
from equidp.data import Recipe
from equidp.errors import SettingError
from equidp.policies.methods import all_settings
from equidp.policies.table import AUTO
from equidp.runs.config import RunData, TrainConfig
from equidp.runs.session import Session
from equidp.training.plan import Plan
from support.command import people

__all__ = ["people"]  # a fixture

OTHER = {
    "model": "mlp", "epochs": 3.0, "noise_multiplier": 2.5, "average_share": 0.4, "views": 2,
    "class_weight": "low=1,high=3", "steps": 40, "epsilon_by_group": "*=2", "clipping_bound": 3.5,
    "statistics_ratio": 4.0, "initial_bound": 7.0,
}  # fmt: skip
"""Option -> a value that is nowhere the default, the dataset's or the recommended one."""
TOGETHER = {"average_share": {"average": "ema"}, "views": {"augmentation": "flip"}}
"""Option -> others without which it has no meaning."""
NOISE = {"noise_multiplier": 2.0}
EPSILON = 2.0


@pytest.fixture(scope="module")
def data(people):
    return {
        "people": RunData(str(people / "people.csv"), Recipe("income", group=("sex",))),
        "digits": RunData("digits"),
    }


def plan_of_training(data, given, method, settings):
    """Plan that `equidp train` works out."""
    level = {} if "noise_multiplier" in given else {"epsilon": EPSILON}
    plan = Plan(method="dpsgd" if method == AUTO else method).with_changes({**given, **level})
    wanted = TrainConfig(data, plan)
    config = Session(wanted, given, method, settings).choose().config
    train = config.data.source().split(data.seed).train
    return config.plan.resolve(len(train), train.group_names).settings


def plan_of_comparison(data, given, method, settings, folder):
    """Plan that `equidp compare` works out."""
    epsilons = () if "noise_multiplier" in given else (EPSILON,)
    asked = ComparisonPlan([method], [data.seed], settings, epsilons, given)
    return compare_module.prepare(data.source(), asked, directory=folder).first_cells()[-1].plan.settings


@pytest.fixture(scope="module")
def plans_before():
    """Plans of training without an option, by what they follow from: many options share one."""
    return {}


def result_of(plan, *given):
    """The plan, or the field that is refused."""
    try:
        return plan(*given)
    except SettingError as error:
        return f"refused: {error.field}"


@pytest.mark.soak
@pytest.mark.parametrize("option", OTHER)
def test_an_option_gives_the_same_plan_in_both_commands_or_is_refused_in_both(
    option, data, plans_before, tmp_path
):
    method = all_settings().get(option, [AUTO])[0]
    without = {**({} if option == "epsilon_by_group" else NOISE), **TOGETHER.get(option, {})}
    given = {**without, option: OTHER[option]}
    trained = result_of(plan_of_training, data["people"], given, method, "recommended")
    key = (method, repr(without))
    if key not in plans_before:
        plans_before[key] = result_of(plan_of_training, data["people"], without, method, "recommended")
    compared = result_of(plan_of_comparison, data["people"], given, method, "recommended", tmp_path)
    assert (
        {**trained, "method": ""} == {**compared, "method": ""}
        if isinstance(trained, dict)
        else (trained == compared)
    )
    assert trained != plans_before[key] or isinstance(trained, str)


@pytest.mark.parametrize("settings", ["recommended", "published"])
def test_a_named_method_trains_by_the_settings_that_it_is_compared_by(settings, data, monkeypatch, tmp_path):
    for method in ("dpsgd-f", "global-adapt"):
        given = {"noise_multiplier": 2.0}
        trained = plan_of_training(data["digits"], given, method, settings)
        assert trained == plan_of_comparison(data["digits"], given, method, settings, tmp_path)
