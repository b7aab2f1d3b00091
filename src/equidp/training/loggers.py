"""Callbacks that send a run's releases to TensorBoard or MLflow, and nothing else about its data.

What is sent follows from settings and from released values alone: the method and its settings, noise, delta
and steps once; after each epoch epsilon so far, and what the method released (`Policy.released`). Losses of
training data, gradient norms and sample sizes are private, and so is how long a step took, which follows from
the size of its sample: every figure carries the time at which logging began.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any, final

from equidp.data.dataset import GroupedDataset
from equidp.errors import SettingError
from equidp.training.trainer import Callback, Trainer

_REFUSED = re.compile(r"[^-\w. ]")
"""What a service may refuse in a name, which would stop the run in the middle."""


class _ReleaseLogger(Callback, ABC):
    """Writes the settings when a run begins, and figures after each epoch; also in a loop of your own."""

    _began = 0.0  # seconds since 1970; 0: nothing was opened yet

    @final
    def before_training(self, trainer: Trainer) -> None:
        self._began = self._began or time.time()
        self._open(_settings(trainer))

    @final
    def after_epoch(self, trainer: Trainer) -> None:
        if not self._began:  # in your own loop, without fit
            self.before_training(trainer)
        self._write(_figures(trainer), trainer.steps_done)

    @final
    def after_training(self, trainer: Trainer) -> None:
        self._close(complete=trainer.steps_done >= trainer.steps)

    @abstractmethod
    def _open(self, settings: dict[str, str]) -> None: ...

    @abstractmethod
    def _write(self, figures: dict[str, float], step: int) -> None: ...

    @abstractmethod
    def _close(self, *, complete: bool) -> None: ...


@final
class TensorBoardLogger(_ReleaseLogger):
    """Writes epsilon so far and what the method released to event files, for TensorBoard.

    Args:
        folder: where event files go: `tensorboard --logdir FOLDER`.

    Raises:
        SettingError: the package is missing.

    Example:
        >>> import equidp
        >>> callbacks = [equidp.TensorBoardLogger("runs/first")]
    """

    def __init__(self, folder: str | Path) -> None:
        self._module = _needed("torch.utils.tensorboard", "tensorboard", "TensorBoardLogger")
        self.folder = Path(folder)
        self._writer: Any = None

    def _open(self, settings: dict[str, str]) -> None:
        self._writer = self._module.SummaryWriter(str(self.folder))
        text = "\n".join(f"- {name}: {value}" for name, value in settings.items())
        self._writer.add_text("settings", text, 0, walltime=self._began)

    def _write(self, figures: dict[str, float], step: int) -> None:
        for name, figure in figures.items():
            self._writer.add_scalar(name, figure, step, walltime=self._began)
        self._writer.flush()

    def _close(self, *, complete: bool) -> None:
        self._writer.close()


@final
class MLflowLogger(_ReleaseLogger):
    """Logs epsilon so far and what the method released to MLflow.

    Args:
        experiment: its name; made if it is not there.
        run_name: of a new run; "": MLflow chooses one.
        run_id: of a run of yours to log to, such as `mlflow.active_run().info.run_id`; it is left open.
        tracking_uri: of the server; None: MLflow's own setting.

    Raises:
        SettingError: the package is missing.

    Example:
        >>> import equidp
        >>> callbacks = [equidp.MLflowLogger("patients", tracking_uri="http://localhost:5000")]
    """

    def __init__(
        self,
        experiment: str = "equidp",
        *,
        run_name: str = "",
        run_id: str | None = None,
        tracking_uri: str | None = None,
    ) -> None:
        module = _needed("mlflow", "mlflow-skinny", "MLflowLogger")
        self.experiment, self.run_name, self.run_id = experiment, run_name, run_id
        self._client = module.MlflowClient(tracking_uri=tracking_uri)
        self._own = run_id is None

    def _open(self, settings: dict[str, str]) -> None:
        if self.run_id is not None:
            return
        found = self._client.get_experiment_by_name(self.experiment)
        experiment = self._client.create_experiment(self.experiment) if found is None else found.experiment_id
        run = self._client.create_run(experiment, start_time=self._time, run_name=self.run_name or None)
        self.run_id = run.info.run_id
        for name, value in settings.items():
            self._client.log_param(self.run_id, name, value)

    def _write(self, figures: dict[str, float], step: int) -> None:
        for name, figure in figures.items():
            self._client.log_metric(self.run_id, name, figure, timestamp=self._time, step=step)

    def _close(self, *, complete: bool) -> None:
        if self._own:
            status = "FINISHED" if complete else "KILLED"
            self._client.set_terminated(self.run_id, status, end_time=self._time)

    @property
    def _time(self) -> int:
        return int(1000 * self._began)


def _settings(trainer: Trainer) -> dict[str, str]:
    """What was chosen before the run; the number of examples is not among it."""
    settings = {
        "method": type(trainer.policy).__name__,
        **asdict(trainer.policy),  # type: ignore[call-overload]
        "noise_multiplier": trainer.noise_multiplier,
        "delta": trainer.delta,
        "steps": trainer.steps,
        "expected_batch_size": trainer.expected_batch_size,
        "optimizer": type(trainer.optimizer).__name__,
    }
    return {name: str(value) for name, value in settings.items()}


def _figures(trainer: Trainer) -> dict[str, float]:
    """What was released so far, by name, and by group where there is one number for each."""
    figures = {"epsilon": trainer.epsilon_so_far(trainer.steps_done)}
    train = trainer.train
    for name, value in trainer.policy.released(trainer.policy_state).items():
        if not value.dim():
            figures[name] = float(value)
            continue
        numbers = map(str, range(len(value)))
        groups = train.group_names if isinstance(train, GroupedDataset) else numbers
        for group, each in zip(groups, value.tolist(), strict=True):
            figures[f"{name}/{_REFUSED.sub('_', group)}"] = float(each)
    return figures


def _needed(module: str, package: str, user: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise SettingError(
            f"{user} needs the package {package} ({error}); install it with pip install 'equidp[loggers]'."
        ) from error
