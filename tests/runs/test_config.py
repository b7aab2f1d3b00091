"""A configuration is made of parts: each refuses what it cannot be, and all are kept as they were given."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import equidp
from equidp.accounting.risk import RiskTarget
from equidp.accounting.target import Target
from equidp.cli.options import BudgetOptions
from equidp.cli.settings import take_part
from equidp.data import Recipe
from equidp.errors import SettingError
from equidp.evaluation.predictions import Decision
from equidp.runs import config
from equidp.runs.config import BudgetFile, CardTexts, Execution, Measures, RunData, TrainConfig
from equidp.runs.releases import CountsRelease, IndividualRelease
from equidp.training.plan import Plan
from support.errors import raises_field


def test_a_configuration_is_read_as_it_was_written(tmp_path):
    config = TrainConfig(
        RunData(
            str(tmp_path / "people.csv"), Recipe(target="y", group=("g", "h"), na=(("*", "-9"),)), seed=3
        ),
        "dpsgd",
        Plan(batch_size=40, delta=1e-5, by_method={"dpsgd": {"clipping_bound": 0.5}}),
        Target(risk=RiskTarget("tpr", 0.0512345678, 0.01), accountant="rdp"),
        BudgetFile(tmp_path / "budget", epsilon=9.0, data="people"),
        (IndividualRelease(0.2),),
        Measures("f1", Decision("yes", 0.25)),
        CardTexts(("One.", "Two."), "Kept until 2030."),
        Execution("functional", "stop", 5.0),
    )
    assert TrainConfig.from_plain(json.loads(json.dumps(config.to_plain()))) == config
    plain = replace(config, target=Target(3.0), budget=None, releases=(CountsRelease(0.1, balanced=True),))
    assert TrainConfig.from_plain(json.loads(json.dumps(plain.to_plain()))) == plain


@pytest.mark.parametrize(
    ("part", "values", "field"),
    [
        (RunData, {"name": "digits", "seed": 2**32}, "seed"),
        (Execution, {"engine": "gost"}, "engine"),
        (Execution, {"beyond_budget": "stopp"}, "beyond_budget"),
        (Execution, {"checkpoint_seconds": -1.0}, "checkpoint_seconds"),
        (Target, {"epsilon": 0.0}, "epsilon"),
        (Target, {"epsilon": 3.0, "risk": RiskTarget("auc", 0.6)}, "epsilon"),
        (Target, {"accountant": "plt"}, "accountant"),
    ],
)
def test_a_part_refuses_what_it_cannot_be(part, values, field):
    with raises_field(SettingError, field):
        part(**values)


def test_fields_of_parts_are_options_of_commands(tmp_path):
    given = {"engine": "functional", "momentum": 0.9}
    assert take_part(given, Execution) == Execution("functional")
    assert given == {"momentum": 0.9}
    given = BudgetOptions(budget=tmp_path / "b", budget_epsilon=2.0, budget_delta=1e-5, budget_data="people")
    assert given.file() == BudgetFile(tmp_path / "b", 2.0, 1e-5, "people")
    assert BudgetOptions().file() is None
    with raises_field(SettingError, "--budget-data"):
        BudgetOptions(budget_data="people").file()


def test_a_budget_that_cannot_be_written_is_not_to_be_replaced_by_another(tmp_path, monkeypatch):
    """Another file would count none of what is spent; only for a new budget is any place as good."""

    def refuse(path):
        raise SettingError(f"{path} cannot be written; choose another place.", field="path")

    there, absent = tmp_path / "people.ledger", tmp_path / "new.ledger"
    equidp.PrivacyBudget(there, epsilon=3.0, delta=1e-5).close()
    monkeypatch.setattr(config, "check_writable", refuse)
    for path, field in ((there, "budget"), (absent, "path")):
        with raises_field(SettingError, field), BudgetFile(path, 3.0, 1e-5).rehearse("run"):
            pass
