"""Loggers write releases, and nothing else of the training data: their files are read back."""

from __future__ import annotations

import subprocess
import sys

import pytest

import equidp
from equidp.errors import SettingError
from support.toy import make_trainer, toy

FIGURES = {"epsilon", "clipping_bound/a", "clipping_bound/_b_ 1"}
SETTINGS = {
    *(
        "method",
        "clipping_bound",
        "smoothing",
        "max_ratio",
        "statistics_ratio",
        "noise_multiplier",
        "delta",
        "steps",
    ),
    *("expected_batch_size", "optimizer"),
}


def trained(logger: equidp.Callback) -> equidp.Trainer:
    """Two epochs, of 5 steps each, by a method that releases; a group's name has what no service takes."""
    data = toy(150)
    data = equidp.GroupedDataset(data.inputs, data.targets, data.groups, ("a", "/b: 1"), data.class_names)
    policy = equidp.DPSGDF(clipping_bound=1.0, smoothing=0.9)
    trainer = make_trainer(data, policy, secure=False, seed=0, callbacks=[logger])
    trainer.fit()
    return trainer


def expected(trainer: equidp.Trainer, step: int) -> dict[str, float]:
    """What a run of as many steps has released."""
    settings = {"epochs": 2, "secure": False, "seed": 0}
    other = make_trainer(trainer.train, trainer.policy, **settings)
    for batch in other.batches():
        other.step(batch)
        if other.steps_done == step:
            break
    first, second = other.policy.released(other.policy_state)["clipping_bound"].tolist()
    return {
        "epsilon": other.epsilon_so_far(step),
        "clipping_bound/a": first,
        "clipping_bound/_b_ 1": second,
    }


@pytest.mark.soak
def test_tensorboard_gets_releases_and_settings_alone(tmp_path):
    pytest.importorskip("tensorboard", reason="needs the extra: pip install 'equidp[loggers]'")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    trainer = trained(equidp.TensorBoardLogger(tmp_path / "log"))
    (file,) = (tmp_path / "log").iterdir()
    events = [event for event in EventFileLoader(str(file)).Load() if event.summary.value]
    assert len({event.wall_time for event in events}) == 1  # how long steps took is private
    texts, figures = [], {}
    for event in events:
        for value in event.summary.value:
            if value.tag.startswith("settings"):
                texts += [each.decode() for each in value.tensor.string_val]
            else:
                figures[event.step, value.tag] = value.tensor.float_val[0]
    assert {tag for _, tag in figures} == FIGURES
    assert {step for step, _ in figures} == {5, 10}
    for step in (5, 10):
        for tag, number in expected(trainer, step).items():
            assert figures[step, tag] == pytest.approx(number, rel=1e-5)
    (text,) = texts
    assert {line.removeprefix("- ").split(":")[0] for line in text.splitlines()} == SETTINGS


@pytest.mark.soak
def test_mlflow_gets_releases_and_settings_alone(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="needs the extra: pip install 'equidp[loggers]'")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "log").as_uri()
    logger = equidp.MLflowLogger("patients", run_name="first", tracking_uri=uri)
    trainer = trained(logger)
    client = mlflow.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("patients").experiment_id])
    assert run.info.run_id == logger.run_id
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert set(run.data.params) == SETTINGS
    assert set(run.data.metrics) == FIGURES
    times = {run.info.start_time, run.info.end_time}
    for name in FIGURES:
        history = client.get_metric_history(logger.run_id, name)
        times |= {each.timestamp for each in history}
        assert [each.step for each in history] == [5, 10]
        for each in history:
            assert each.value == pytest.approx(expected(trainer, each.step)[name])
    assert len(times) == 1
    assert set(run.data.tags) == {"mlflow.runName"}


def test_a_run_of_ones_own_stays_open_and_gets_no_settings(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="needs the extra: pip install 'equidp[loggers]'")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "log").as_uri()
    client = mlflow.MlflowClient(tracking_uri=uri)
    own = client.create_run(client.create_experiment("mine")).info.run_id
    trained(equidp.MLflowLogger(run_id=own, tracking_uri=uri))
    assert client.get_run(own).info.status == "RUNNING"
    assert set(client.get_run(own).data.metrics) == FIGURES


@pytest.mark.soak
def test_a_loop_of_ones_own_is_logged_too(tmp_path):
    pytest.importorskip("tensorboard", reason="needs the extra: pip install 'equidp[loggers]'")
    trainer = make_trainer(callbacks=[equidp.TensorBoardLogger(tmp_path)], steps=2, epochs=None)
    for batch in trainer.batches():
        trainer.step(batch)
    (file,) = tmp_path.iterdir()
    assert b"epsilon" in file.read_bytes()


@pytest.mark.parametrize(
    ("module", "make", "package"),
    [
        ("torch.utils.tensorboard", lambda: equidp.TensorBoardLogger("log"), "tensorboard"),
        ("mlflow", lambda: equidp.MLflowLogger(), "mlflow-skinny"),
    ],
)
def test_a_missing_package_is_named_when_the_logger_is_made(monkeypatch, module, make, package):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SettingError, match=rf"needs the package {package} .*'equidp\[loggers\]'"):
        make()


@pytest.mark.soak
def test_neither_service_is_imported_before_a_logger_is_made():
    code = (
        "import sys, equidp; equidp.MLflowLogger; assert not {'mlflow', 'tensorboard'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
