"""A run while it trains: ProgressBar on the terminal, and LogReleases for any log."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, final

from tqdm.auto import tqdm

from equidp.data.dataset import GroupedDataset
from equidp.display import shown_epsilon
from equidp.policies.weights import released_values
from equidp.training.trainer import Callback, Trainer


class ProgressBar(Callback):
    """Shows steps, remaining time and the run's epsilon on the terminal.

    Example:
        >>> import equidp
        >>> callbacks = [equidp.ProgressBar()]
    """

    def before_training(self, trainer: Trainer) -> None:
        whole = shown_epsilon(trainer.epsilons()["epsilon"])
        self._bar = tqdm(
            desc=f"training to epsilon {whole:g} at delta {trainer.delta:g}",
            total=trainer.steps,
            initial=trainer.steps_done,
            unit="step",
        )

    def after_step(self, trainer: Trainer) -> None:
        self._bar.update()

    def after_training(self, trainer: Trainer) -> None:
        self._bar.close()


def duration(seconds: float) -> str:
    """A time for a reader.

    >>> duration(0.2), duration(600), duration(9000)
    ('1 second', '10 minutes', '2.5 hours')
    """
    if seconds < 1.5:
        return "1 second"
    if seconds < 100:
        return f"{round(seconds)} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 6000 else f"{seconds / 3600:.1f} hours"


_REFUSED = re.compile(r"[^-\w. ]")
"""Characters that a service may reject in a name, which would stop the run in the middle."""


@final
class LogReleases(Callback):
    """Passes epsilon and released values to a function after each epoch.

    `epsilon` is for the whole plan. `epsilon_of_steps_taken` is for the steps so far, and holds only if no
    result decides when to stop. The other values are the method's releases. Exact losses of training data,
    gradient norms and sample sizes are private and not passed. If the function raises an error, training
    stops after the step is accounted for. Another `fit` takes the remaining steps.

    Args:
        log: function of (values, step): name -> number, and the number of private steps so far. A number for
            each group has the name "statistic/group". The time of the call is private, because it depends on
            the sample sizes. Send a service one fixed time for all calls, or send the values after training.
        log_settings: function of name -> text, called once before the first step with method, method
            settings, noise, delta, steps, batch size and optimizer.

    Example:
        >>> import equidp
        >>> callbacks = [equidp.LogReleases(lambda values, step: print(step, values))]
    """

    def __init__(
        self,
        log: Callable[[dict[str, float], int], Any],
        log_settings: Callable[[dict[str, str]], Any] | None = None,
    ) -> None:
        self.log = log
        self.log_settings = log_settings
        self._run = ""  # whose settings were handed on

    def before_training(self, trainer: Trainer) -> None:
        if self.log_settings is not None and self._run != trainer.run_id:
            self.log_settings(_settings(trainer))
        self._run = trainer.run_id

    def after_epoch(self, trainer: Trainer) -> None:
        self.log(_released_values(trainer), trainer.steps_done)


def _settings(trainer: Trainer) -> dict[str, str]:
    """Settings chosen before the run. The number of examples is not among them."""
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


def _released_values(trainer: Trainer) -> dict[str, float]:
    """Epsilons and released values, by name; by group if there is one number for each group."""
    values = trainer.epsilons()
    train = trainer.train
    released = released_values(trainer.policy, trainer.policy_state, trainer.num_groups or 1)
    for name, value in released.items():
        if not value.dim():
            values[name] = float(value)
            continue
        numbers = map(str, range(len(value)))
        groups = train.group_names if isinstance(train, GroupedDataset) else numbers
        for group, each in zip(_clean_names(groups), value.tolist(), strict=True):
            values[f"{name}/{group}"] = float(each)
    return values


def _clean_names(groups: Iterable[str]) -> list[str]:
    """Return group names that services accept, numbered if two would have the same name."""
    names = [_REFUSED.sub("_", group) for group in groups]
    if len(set(names)) == len(names):
        return names
    return [f"{number} {name}" for number, name in enumerate(names)]
