"""Averages of the weights over steps. They follow from weights that epsilon covers, so they cost nothing.

`WeightAverage` has the settings, `RunningAverage` the average of one model so far.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from equidp._validate import check_number, unknown_name
from equidp.errors import SettingError
from equidp.training.initial_weights import copy_model

AVERAGES = ("none", "ema", "tail")


@final
@dataclass(frozen=True)
class WeightAverage:
    """Average of the weights that a run releases in place of the weights of its last step.

    Noise of single steps averages out. The average is computed from the weights after each step, which
    epsilon covers, so it costs no privacy (De et al., 2204.13650; Rakhlin et al., ICML 2012, for tails).

    Attributes:
        kind: "none"; "tail": the plain mean over the last steps; "ema": an exponential average, in which
            weights from d steps before count (1 - 1 / h)^d, divided by the sum of these factors, so that the
            weights that training began with do not count.
        share: of the run's T steps: those that a tail has, rounded up, or the horizon h, at least 1.

    Raises:
        SettingError: an unknown kind, or a share outside (0, 1].

    Example:
        >>> import torch, equidp
        >>> x, targets, groups = torch.randn(64, 3), torch.arange(64) // 32, torch.arange(64) % 2
        >>> data = equidp.GroupedDataset(x, targets, groups, ("a", "b"), ("no", "yes"))
        >>> model = torch.nn.Linear(3, 2)
        >>> trainer = equidp.Trainer(
        ...     model, torch.optim.SGD(model.parameters(), lr=0.1), data, policy=equidp.DPSGD(),
        ...     batch_size=32, steps=8, noise_multiplier=2.0, delta=1e-3, scheduler="cosine",
        ...     average=equidp.WeightAverage("tail", share=0.5),
        ... )
        >>> trainer.fit().model is trainer.released_model
        True
    """

    kind: str = "none"
    share: float = 0.25

    def __post_init__(self) -> None:
        if self.kind not in AVERAGES:
            raise unknown_name("average", self.kind, AVERAGES)
        check_number("(0, 1]", average_share=self.share)

    def count_left_out(self, steps: int) -> int:
        """Number of the run's first steps whose weights do not count in the average."""
        return steps - math.ceil(round(self.share * steps, 6)) if self.kind == "tail" else 0

    def share_of_newest(self, count: int, steps: int) -> float:
        """Share of the newest weights in the average of the weights of `count` steps, of a run of `steps`."""
        if self.kind == "tail":
            return 1 / count
        decay = 1 - 1 / max(1.0, self.share * steps)
        return (1 - decay) / (1 - decay**count)


def average_of(average: object) -> WeightAverage:
    """Return the settings that a Trainer was given; None becomes the kind "none", without an average.

    Raises:
        SettingError: something else than a WeightAverage or None.
    """
    if average is None:
        return WeightAverage()
    if not isinstance(average, WeightAverage):
        raise SettingError(f"average={average!r}; expected equidp.WeightAverage('tail'), say, or None.")
    return average


@final
class RunningAverage:
    """Average of a model's weights over the steps so far.

    Args:
        average: its settings; for the kind "none", no copy of the model is kept.
        model: whose weights are averaged in a copy; it keeps those of the last step.
        steps: T, of the whole run.

    Raises:
        ModelError: the model cannot be copied.
    """

    def __init__(self, average: WeightAverage, model: nn.Module, steps: int) -> None:
        self.average, self.steps = average, steps
        self._averaged: AveragedModel | None = None
        if average.kind != "none":
            self._averaged = AveragedModel(copy_model(model, "an average of its weights"), avg_fn=self._mix)

    def _mix(self, mean: Tensor, newest: Tensor, count: Tensor | int) -> Tensor:
        return torch.lerp(mean, newest, self.average.share_of_newest(int(count) + 1, self.steps))

    @property
    def count(self) -> int:
        """Number of steps whose weights are in the average."""
        return 0 if self._averaged is None else int(self._averaged.n_averaged)

    def add(self, model: nn.Module, step: int) -> None:
        """Add the weights after a step, counted from 1, to the average. Buffers are the last ones."""
        if self._averaged is None or step <= self.average.count_left_out(self.steps):
            return
        self._averaged.update_parameters(model)

    def averaged_model(self, model: nn.Module) -> nn.Module:
        """Model with the averaged weights; the given model while no step counts in the average."""
        return self._averaged.module if self._averaged is not None and self.count else model

    def state(self) -> dict[str, Any]:
        """Tensors and plain values that `restore` reads."""
        weights = None if self._averaged is None else self._averaged.module.state_dict()
        return {**asdict(self.average), "count": self.count, "weights": weights}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set the average to a saved one.

        Raises:
            SettingError: the saved average has another kind or another share.
        """
        saved = WeightAverage(state["kind"], state["share"])
        if saved != self.average:
            raise SettingError(
                f"the checkpoint holds {saved}, and this trainer has {self.average}; make the trainer "
                "with the settings of that run.",
                field="average",
            )
        if self._averaged is not None:
            self._averaged.n_averaged.fill_(state["count"])
            self._averaged.module.load_state_dict(state["weights"])
