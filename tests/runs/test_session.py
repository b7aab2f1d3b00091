"""From Python as from the command line: the same names, the same defaults, the same numbers."""

from __future__ import annotations

import json
from io import StringIO

import pandas as pd
import pytest

import equidp
from equidp.errors import DataError, DataWarning, SettingError
from equidp.runs.folder import RunFolder
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
        assert equidp_here("verify", str(run.folder), cwd=run.folder).returncode == 1
        with raises_field(DataError, "card.md"):
            equidp.open_run(run.folder)
    finally:
        path.write_text(text)


@pytest.mark.parametrize(
    ("options", "field", "said"),
    [
        ({"traget": "income"}, "option", "Did you mean 'target'"),
        ({"target_epsilon": 2}, "target_epsilon", "write epsilon="),
        ({"max_grad_norm": 1.0}, "max_grad_norm", "DPSGD"),
        ({"epsilon": None}, "method", "without a level of privacy"),
        ({"release_epsilon": 0.1}, "release_epsilon", "individual"),
        ({"ledger_epsilon": 3.0}, "ledger_epsilon", "give ledger too"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_written(people, tmp_path, options, field, said):
    with raises_field(SettingError, field) as caught:
        equidp.train(people / "people.csv", **{**ROLES, **LITTLE, **options}, out=tmp_path / "run")
    assert said in str(caught.value)
    assert not (tmp_path / "run").exists()
