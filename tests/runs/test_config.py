"""A configuration is made of parts: each refuses what it cannot be, and all are kept as they were given."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from equidp.accounting.risk import RiskTarget
from equidp.data import Recipe
from equidp.errors import SettingError
from equidp.evaluation.predictions import Decision
from equidp.runs.config import CardTexts, DatasetLedger, RunData, TrainConfig
from equidp.runs.releases import CountsRelease, IndividualRelease
from equidp.training.plan import Plan
from support.errors import raises_field


def test_a_configuration_is_read_as_it_was_written(tmp_path):
    config = TrainConfig(
        RunData(str(tmp_path / "people.csv"), Recipe(target="y", group=("g", "h"), na="-9"), seed=3),
        Plan(batch_size=40, delta=1e-5, by_method={"dpsgd": {"clipping_bound": 0.5}}).with_changes(
            method="dpsgd",
            risk=RiskTarget(0.0512345678, 0.01),
            accountant="rdp",
            releases=(IndividualRelease(0.2),),
        ),
        DatasetLedger(tmp_path / "ledger", epsilon=9.0, delta=1e-5),
        "f1",
        Decision("yes", 0.25),
        CardTexts(reasons=("One.", "Two."), notes="Kept until 2030."),
        "functional",
        5.0,
    )
    assert TrainConfig.from_plain(json.loads(json.dumps(config.to_plain()))) == config
    other = config.plan.with_changes(epsilon=3.0, releases=(CountsRelease(0.1, balanced=True),))
    plain = replace(config, plan=other, ledger=None)
    assert TrainConfig.from_plain(json.loads(json.dumps(plain.to_plain()))) == plain


@pytest.mark.parametrize(
    ("part", "values", "field"),
    [
        (RunData, {"name": "digits", "seed": 2**32}, "seed"),
        (TrainConfig, {"data": None, "plan": Plan(), "engine": "gost"}, "engine"),
        (TrainConfig, {"data": None, "plan": Plan(), "checkpoint_seconds": -1.0}, "checkpoint_seconds"),
        (DatasetLedger, {"path": "a", "epsilon": 3.0}, "ledger_epsilon"),
        (Plan, {"epsilon": 0.0}, "epsilon"),
        (Plan, {"epsilon": 3.0, "risk": RiskTarget(0.6)}, "epsilon"),
        (Plan, {"accountant": "plt"}, "accountant"),
    ],
)
def test_a_part_refuses_what_it_cannot_be(part, values, field):
    with raises_field(SettingError, field):
        part(**values)
