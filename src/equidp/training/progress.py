"""ProgressBar: progress of a run on the terminal."""

from __future__ import annotations

from rich import progress as rich

from equidp.training.trainer import Callback, Trainer


class ProgressBar(Callback):
    """Shows steps, time left and epsilon so far on the terminal.

    Example:
        >>> import equidp
        >>> callbacks = [equidp.ProgressBar()]
    """

    _progress: rich.Progress | None = None

    def before_training(self, trainer: Trainer) -> None:
        self._progress = rich.Progress(
            rich.TextColumn("training"),
            rich.BarColumn(),
            rich.MofNCompleteColumn(),
            rich.TimeElapsedColumn(),
            rich.TimeRemainingColumn(),
            rich.TextColumn("epsilon so far {task.fields[epsilon]}"),
        )
        self._task = self._progress.add_task(
            "training", total=trainer.steps, completed=trainer.steps_done, epsilon="0"
        )
        self._progress.start()

    def after_step(self, trainer: Trainer) -> None:
        if self._progress is None:  # in your own loop, without fit
            self.before_training(trainer)
        assert self._progress is not None
        epsilon = f"<= {trainer.epsilon_so_far(trainer.steps_done):.3g} at delta {trainer.delta:g}"
        self._progress.update(self._task, completed=trainer.steps_done, epsilon=epsilon)
        if trainer.steps_done == trainer.steps:
            self.after_training(trainer)

    def after_training(self, trainer: Trainer) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


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
