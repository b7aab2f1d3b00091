"""What `equidp train` would release is what `equidp compare` compares: the same plan of the same options."""

from __future__ import annotations

import re

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


@pytest.mark.soak
def test_weights_by_counted_classes_act_alike_in_both_commands(people, command, monkeypatch):
    """A value that a command takes apart before there is a plan, which tests of plans do not see."""
    given = (
        *TABLE,
        "--epsilon",
        "2",
        "--epochs",
        "3",
        "--class-weight",
        "balanced",
        "--set",
        "privacy.counts_share=0.3",
    )
    one, only = ("--methods", "dpsgd", "--seeds", "1", "--jobs", "1"), ("--dry-run",)
    noise = []
    for options in (given, given[:7]):
        _, trained, _ = command("train", *options, "--method", "dpsgd", *only, cwd=people)
        _, compared, _ = command("compare", *options, *one, *only, cwd=people)
        noise.append(float(re.search(r"noise multiplier ([\d.]+)\.", trained)[1]))
        assert float(rows(compared)["noise multiplier (dpsgd)"][0]) == pytest.approx(noise[-1], rel=1e-3)
    assert noise[0] != noise[1]  # the release is paid for

    def train(plan, train, **others):
        weights.append((plan.policy.private, plan.plan.class_weights))
        raise SettingError("the trainer was made")

    weights: list[tuple[bool, dict[str, float]]] = []
    monkeypatch.setattr("equidp.comparison.cells.build", train)
    command("compare", *given, *one, cwd=people)
    assert weights[0][1]["high"] > weights[0][1]["low"] > 0


TABLE = ("people.csv", "--target", "income", "--group", "sex")


def rows(text: str) -> dict[str, tuple[str, str]]:
    """Setting -> value and origin, of the table that --dry-run prints."""
    cells = [
        [cell.strip() for cell in line.strip().split("  ") if cell.strip()] for line in text.splitlines()
    ]
    return {row[0]: (row[1], row[2]) for row in cells if len(row) == 3}


def values(text: str) -> dict[str, tuple[str, str]]:
    """Field -> value and reason, of the run.toml that --dry-run prints."""
    found = re.findall(r"^(\w+) = (.*?)(?: # (.*))?$", text, re.MULTILINE)
    return {name.replace("_", " "): (value.strip('"'), why) for name, value, why in found}


@pytest.mark.soak
def test_a_dry_run_prints_the_whole_plan_with_origins_in_both_commands(people, command):
    given = ("--epsilon", "2", "--set", "training.weight_decay=0.01", "--dry-run")
    _, trained, _ = command("train", *TABLE, *given, cwd=people)
    _, compared, _ = command("compare", *TABLE, *given, "--methods", "auto", "--seeds", "1", cwd=people)
    options = {each.name.replace("_", " ") for each in Plan.options() if each.metadata["listed"]}
    assert {*options, "epsilon", "features"} <= {name.partition(" (")[0] for name in rows(compared)}
    own = {name.removesuffix(" (dpsgd)"): row for name, row in rows(compared).items()}
    words = {"given": "given", "by": "rule", "default": "default"}
    for name, (value, why) in values(trained).items():
        if name in own and name != "method":
            assert (own[name][0].rstrip("0"), own[name][1]) == (value.rstrip(".0"), words[why.split()[0]]), (
                name
            )
    assert values(trained)["weight decay"] == ("0.01", "given")
