"""Changes of settings are trained by the methods that have them; the reference once, by the plan's own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from equidp.cli.compare import parse_sweep
from equidp.comparison.compare import prepare
from equidp.comparison.plan import ComparisonPlan
from equidp.data.dataset import DataSplit
from equidp.errors import SettingError
from equidp.training.plan import Plan
from support.errors import raises_field
from support.toy import toy

PLAN = Plan(batch_size=40, epochs=1, delta=1e-4, learning_rate=0.5)


@dataclass(frozen=True)
class Toys:
    name: str = "toys"
    highlighted_groups: tuple[str, str] | None = None

    def split(self, seed: int) -> DataSplit:
        return DataSplit(toy(120, seed), toy(60, seed + 1000))


def prepared(tmp_path, methods, changes, epsilons=(), plan=PLAN):
    asked = ComparisonPlan(methods, 1, plan, changes=changes, epsilons=epsilons)
    return prepare(Toys(), asked, directory=tmp_path)


def test_each_method_is_trained_by_the_changes_that_it_has(tmp_path):
    changes = parse_sweep(["strict_bound=5,10", "learning_rate=0.1,1"])
    found = prepared(tmp_path, ["dpsgd", "global"], changes)
    assert [(each.name, each.setting) for each in (*found.references, *found.private)] == [
        ("sgd", ""),
        ("dpsgd", "learning_rate=0.1"),
        ("dpsgd", "learning_rate=1"),
        ("global", "strict_bound=5, learning_rate=0.1"),
        ("global", "strict_bound=5, learning_rate=1"),
        ("global", "strict_bound=10, learning_rate=0.1"),
        ("global", "strict_bound=10, learning_rate=1"),
    ]


def test_another_model_has_a_reference_of_its_own(tmp_path):
    found = prepared(tmp_path, ["dpsgd"], [{"model": "logistic"}, {"model": "mlp"}])
    assert [each.setting for each in found.references] == ["", "model=mlp"]
    assert [each.reference for each in found.private] == ["", "model=mlp"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ([{"cliping_bound": 1.0}], "setting to change"),
        ([{"strict_bound": 1.0}], "strict_bound"),
        ([{"epsilon": 1.0}], "epsilon"),
        ([{"delta": 1e-2}], "delta"),
        ({"clipping_bound": [1.0]}, "changes"),
        ([{"clipping_bound": -1.0}], "clipping_bound"),
        ([{"batch_size": 1000}], "batch_size"),
        ([{"model": "logistik"}], "model"),
    ],
    ids=lambda value: "",
)
def test_what_cannot_be_changed_is_refused_before_anything_is_trained(tmp_path, changes, field):
    with raises_field(SettingError, field):
        prepared(tmp_path, ["dpsgd"], changes).first_cells()


def test_a_delta_of_one_method_alone_is_refused(tmp_path):
    with raises_field(SettingError, "delta"):
        prepared(tmp_path, ["dpsgd"], [], plan=replace(PLAN, by_method={"dpsgd": {"delta": 1e-2}}))
