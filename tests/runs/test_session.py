"""From Python as from the command line: the same names, the same defaults, the same numbers."""

from __future__ import annotations

import inspect
import json
import sys
from io import StringIO

import pandas as pd
import pytest

import equidp
from equidp.cli.account import account_command
from equidp.errors import BudgetError, DataError, DataWarning, SettingError
from equidp.runs.folder import RunFolder
from equidp.tables.inspect import recipe_toml
from support.command import equidp_here, people
from support.errors import raises_field

__all__ = ["people"]  # a fixture

pytestmark = pytest.mark.soak
ROLES = {"target": "income", "group": "sex"}
LITTLE = {"epsilon": 3, "batch_size": 50, "steps": 6, "model": "logistic"}
TYPED = (
    *("--target", "income", "--group", "sex", "--epsilon", "3", "--batch-size", "50"),
    *("--set", "training.steps=6", "--model", "logistic"),
)


HALF = """
from dataclasses import dataclass

import equidp
from equidp.policies.setting import setting


@dataclass(frozen=True)
class Half(equidp.Policy):
    half_of_it: float = setting(0.5, "Half of the clipping bound.")

    def bound(self, state, group):
        return 2 * self.half_of_it
"""


@pytest.fixture(scope="module")
def run(people):
    return equidp.train(people / "people.csv", **ROLES, **LITTLE, out=people / "run")


@pytest.fixture(scope="module")
def typed(people):
    """Folder of the same run by the command line."""
    done = equidp_here("train", "people.csv", *TYPED, "--out", "typed", cwd=people)
    assert done.returncode == 0, done.stderr
    return people / "typed"


def facts(folder):
    return json.loads((folder / "share" / "run.json").read_text())


def test_a_run_from_python_is_that_of_the_command_line(run, typed):
    ours, theirs = facts(run.folder), facts(typed)
    for name in ("epsilon", "delta", "entries", "config", "plan"):
        assert ours[name] == theirs[name], name
    assert run.epsilon() == pytest.approx(3, rel=1e-3)
    assert run.epsilon() == ours["epsilon"]


class StopAfterTwo(equidp.Callback):
    def after_step(self, trainer):
        if trainer.steps_done == 2:
            raise KeyboardInterrupt


def test_the_same_call_goes_on_with_a_run_that_was_stopped(people, tmp_path):
    asked = {**ROLES, **LITTLE, "out": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        equidp.train(people / "people.csv", **asked, callbacks=[StopAfterTwo()])
    begun = RunFolder(tmp_path / "run").read_settings()[2]["run"]
    with raises_field(SettingError, "folder"):
        equidp.train(people / "people.csv", **{**asked, "epsilon": 2})
    with raises_field(DataError, "folder"):
        equidp.open_run(tmp_path / "run")
    with pytest.warns(equidp.errors.TrainingWarning, match="lost"):
        run = equidp.train(people / "people.csv", **asked)
    assert run.facts["run"] == begun
    assert sum(count for event, count in run.run.entries if event.name == "step") == 6
    assert not run.verify().failed
    with raises_field(SettingError, "folder"):
        equidp.train(people / "people.csv", **asked)


def test_an_evaluation_is_that_of_the_command_line(run, people):
    done = equidp_here(
        "evaluate", "run", "--metric", "auc", "--threshold", "0.4", "--json", "e.json", cwd=people
    )
    assert done.returncode == 0, done.stderr
    found = run.evaluate(metric="auc", threshold=0.4)
    said = json.loads((people / "e.json").read_text())
    assert json.loads(json.dumps(found.plain())) == {name: said[name] for name in found.plain()}
    with pytest.warns(DataWarning, match="rows that the run was trained on"):
        assert len(run.evaluate(people / "people.csv").groups) == 3
    with raises_field(SettingError, "base_rate"):
        run.evaluate(threshold="base-rate", base_rate=2.0)
    assert run.evaluate(threshold="base-rate", base_rate=0.4).threshold == 0.4


def test_privacy_is_measured_against_a_run_without_it(run, people, tmp_path):
    plain = equidp.train(
        people / "people.csv", **ROLES, method="sgd", steps=6, model="logistic", out=tmp_path / "sgd"
    )
    for baseline in (plain, tmp_path / "sgd"):
        assert not run.evaluate(baseline=baseline).costs.empty
    with pytest.raises(SettingError, match="a baseline is a run by sgd"):
        plain.evaluate(baseline=run)


def test_predictions_are_those_of_the_command_line(run, people):
    done = equidp_here("predict", "run", "people.csv", "--keep", "job", cwd=people)
    typed = pd.read_csv(StringIO(done.stdout))
    found = run.predict(people / "people.csv", keep=["job"])
    assert list(found) == ["job", "prediction", "p(high)", "p(low)"]
    pd.testing.assert_frame_equal(found, typed, rtol=1e-5, check_dtype=False)
    assert len(run.predict()) == run.evaluate().groups["count"].iloc[-1]
    with raises_field(SettingError, "keep"):
        run.predict(keep=["job"])


def test_a_run_is_verified_and_opened_by_its_folder(run):
    assert equidp.verify(run.folder) == run.verify()
    assert equidp.open_run(run.folder).epsilon() == run.epsilon()
    path = run.folder / "share" / "card.md"
    text = path.read_text()
    path.write_text(text + "changed")
    try:
        assert "files" in run.verify().failed
        with raises_field(DataError, "card.md"):
            equidp.open_run(run.folder)
    finally:
        path.write_text(text)


def test_a_recipe_goes_from_inspecting_to_training(people, tmp_path):
    report = equidp.inspect(people / "gaps.csv", **ROLES)
    equidp_here("inspect", "gaps.csv", "--target", "income", "--group", "sex", "--json", "i.json", cwd=people)
    assert json.loads((people / "i.json").read_text())["recipe"] == report.recipe.to_plain()
    assert report.recipe.missing == "category"
    (people / "run.toml").write_text(recipe_toml(report))
    run = equidp.train(people / "gaps.csv", config=people / "run.toml", **LITTLE, out=tmp_path / "run")
    assert run.config.data.recipe == report.recipe
    with raises_field(SettingError, "field in [table]"):
        equidp.inspect(people / "gaps.csv", tarrget="income")
    assert equidp.inspect(people / "people.csv", **ROLES, person="age").recipe.rows_per_person == 4


def test_settings_of_a_method_of_the_users_own_are_options(people, tmp_path, monkeypatch):
    """Also where nothing has imported its module before."""
    (tmp_path / "half_of_a_bound.py").write_text(HALF)
    monkeypatch.syspath_prepend(tmp_path)
    own = {"method": "half_of_a_bound:Half", "half_of_it": 0.25}
    run = equidp.train(people / "people.csv", **ROLES, **LITTLE, **own, out=tmp_path / "run")
    assert run.run.facts.policy.half_of_it == 0.25
    del sys.modules["half_of_a_bound"]


def test_an_account_is_that_of_the_command_line(capsys):
    plan = {"batch_size": 256, "epochs": 20, "epsilon": 3.0, "method": "dpsgd-f"}
    typed = ("--batch-size", "256", "--epochs", "20", "--epsilon", "3", "--method", "dpsgd-f")
    done = equidp_here("account", "--examples", "36177", *typed, cwd=".")
    resolved = equidp.account(36177, **plan)
    assert f"noise multiplier {resolved.noise_multiplier:.4f}"[:-1] in done.stdout
    assert f"{resolved.steps:,} steps" in done.stdout
    assert inspect.signature(account_command).parameters.keys() == {"planned", "rows_per_person"}


@pytest.mark.parametrize(
    ("options", "field", "said"),
    [
        ({"traget": "income"}, "option", "Did you mean 'target'"),
        ({"epsilom": 2}, "option", "Did you mean 'epsilon'"),
        ({"target_epsilon": 2}, "target_epsilon", "write epsilon=3"),
        ({"max_grad_norm": 1.0}, "max_grad_norm", "DPSGD"),
        ({"noise_multiplier": 1.0}, "epsilon", "expected exactly one of"),
        ({"epsilon": -1}, "epsilon", "expected a finite number > 0"),
        ({"epsilon": None}, "method", "without a level of privacy"),
        ({"method": "dpsdg"}, "method", "Did you mean 'dpsgd'"),
        ({"test_share": 2.0}, "test_share", "expected a number in"),
        ({"release_epsilon": 0.1}, "release_epsilon", "individual"),
        ({"ledger_epsilon": 3.0}, "ledger_epsilon", "give ledger too"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_written(people, tmp_path, options, field, said):
    with raises_field(SettingError, field) as caught:
        equidp.train(people / "people.csv", **{**ROLES, **LITTLE, **options}, out=tmp_path / "run")
    assert said in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_policy_is_kept_by_its_name_and_settings(people, tmp_path):
    run = equidp.train(
        people / "people.csv",
        **ROLES,
        **LITTLE,
        method=equidp.DPSGD(clipping_bound=0.25),
        out=tmp_path / "run",
    )
    assert run.run.facts.policy == equidp.DPSGD(clipping_bound=0.25)
    with pytest.warns(UserWarning, match="smoothing is a setting of .*; dpsgd ignores it"):
        equidp.train(
            people / "people.csv", **ROLES, **LITTLE, method="dpsgd", smoothing=0.5, out=tmp_path / "b"
        )


def test_a_ledger_limits_the_runs_on_a_table(people, tmp_path):
    named = {"ledger": tmp_path / "people.ledger", "ledger_epsilon": 3.5, "ledger_delta": 1e-3}
    equidp.train(people / "people.csv", **ROLES, **LITTLE, **named, out=tmp_path / "first")
    with pytest.raises(BudgetError):
        equidp.train(people / "people.csv", **ROLES, **LITTLE, **named, out=tmp_path / "second")
    assert not (tmp_path / "second").exists()
