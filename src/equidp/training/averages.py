"""Average of the weights over steps. It follows from weights that epsilon covers, so it costs nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from equidp.training.initial_weights import copy_model

AVERAGES = ("none", "ema", "tail")


def count_left_out(kind: str, share: float, steps: int) -> int:
    """Return the number of a run's first steps whose weights do not count in its average.

    >>> count_left_out("tail", 0.25, steps=20)
    15
    """
    return steps - math.ceil(round(share * steps, 6)) if kind == "tail" else 0


@final
class RunningAverage:
    """Average of a model's weights over the steps so far, which a run releases instead of the last ones.

    Noise of single steps averages out (De et al., 2204.13650; Rakhlin et al., ICML 2012, for tails).

    Args:
        kind: "none": no copy of the model is kept. "tail": the plain mean over the last steps. "ema": an
            exponential average, in which weights from d steps ago count (1 - 1 / h)^d, divided by the sum of
            these factors. The initial weights do not count.
        share: share of the T steps, in (0, 1]: those that a tail has, rounded up, or the horizon h, at least
            1.
        model: model whose weights are averaged in a copy. It keeps the weights of the last step.
        steps: T.

    Raises:
        ModelError: the model cannot be copied.
    """

    def __init__(self, kind: str, share: float, model: nn.Module, steps: int) -> None:
        self.kind, self.share, self.steps = kind, share, steps
        self._averaged: AveragedModel | None = None
        if kind != "none":
            self._averaged = AveragedModel(copy_model(model, "an average of its weights"), avg_fn=self._mix)

    def _mix(self, mean: Tensor, newest: Tensor, count: Tensor | int) -> Tensor:
        count = int(count) + 1
        share = 1 / count
        if self.kind == "ema":
            decay = 1 - 1 / max(1.0, self.share * self.steps)
            share = (1 - decay) / (1 - decay**count)
        return torch.lerp(mean, newest, share)

    @property
    def count(self) -> int:
        """Number of steps whose weights are in the average."""
        return 0 if self._averaged is None else int(self._averaged.n_averaged)

    def add(self, model: nn.Module, step: int) -> None:
        """Add the weights after a step, counted from 1, to the average. Buffers are the last ones."""
        if self._averaged is not None and step > count_left_out(self.kind, self.share, self.steps):
            self._averaged.update_parameters(model)

    def averaged_model(self, model: nn.Module) -> nn.Module:
        """Model with the averaged weights; the given model while no step counts in the average."""
        return self._averaged.module if self._averaged is not None and self.count else model

    def state(self) -> dict[str, Any]:
        """Tensors and plain values that `restore` reads."""
        weights = None if self._averaged is None else self._averaged.module.state_dict()
        return {"count": self.count, "weights": weights}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set the average to a saved one, of the same settings."""
        if self._averaged is not None:
            self._averaged.n_averaged.fill_(state["count"])
            self._averaged.module.load_state_dict(state["weights"])
