"""Predictions of a model on a test set, as metrics read them, and the threshold between two classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from equidp._validate import check_number, unknown_name
from equidp.engines.model import call_model, device_of, one_tensor, preserve_modes
from equidp.errors import SettingError
from equidp.evaluation.intervals import Floats
from equidp.kernel.inputs import Inputs, in_parts, moved_to
from equidp.tables.positive import named_positive

Codes = npt.NDArray[np.int64]


def positive_by_name(class_names: Sequence[str]) -> str:
    """Return which of two classes is called positive unless someone says: by their names, never by data.

    The name from `named_positive`; else the second name.

    >>> [positive_by_name(names) for names in (("no", "yes"), ("<=50K", ">50K"), ("0", "1"), ("ill", "well"))]
    ['yes', '>50K', '1', 'well']
    """
    return named_positive(class_names) or class_names[1]


def task_of(class_names: Sequence[str]) -> str:
    """Return "binary" or "multiclass"."""
    return "binary" if len(class_names) == 2 else "multiclass"


@final
@dataclass(frozen=True)
class Decision:
    """The positive one of two classes, and the threshold on its predicted probability.

    Attributes:
        positive: name of the positive class. None: `positive_by_name`.
        threshold: predicted probability, in [0, 1], from which the positive class is predicted. None: predict
            the most probable class.

    Raises:
        SettingError: the threshold is outside [0, 1].

    >>> Decision("ill", 0.08).index(("ill", "well"))
    0
    """

    positive: str | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        if self.threshold is not None:
            check_number("[0, 1]", ", a predicted probability such as 0.5", threshold=self.threshold)

    def index(self, class_names: Sequence[str]) -> int | None:
        """Return which class is positive, or None unless there are two classes.

        Raises:
            SettingError: the class does not exist, or there are more than two classes.
        """
        if len(class_names) != 2:
            if (self.positive, self.threshold) != (None, None):
                choice = f"positive={self.positive!r}" if self.positive else f"threshold={self.threshold:g}"
                raise SettingError(
                    f"{choice} is for two classes, and there are {len(class_names)}: "
                    f"{', '.join(class_names)}. Leave it out.",
                    field="positive" if self.positive else "threshold",
                )
            return None
        if self.positive is not None and self.positive not in class_names:
            raise unknown_name("positive class", self.positive, class_names)
        return list(class_names).index(self.positive or positive_by_name(class_names))


def check_base_rate(class_names: Sequence[str]) -> None:
    """Raise a SettingError unless there are two classes, one of which has a base rate to predict it from."""
    if len(class_names) != 2:
        raise SettingError(
            f"a threshold at the base rate is for two classes, and there are {len(class_names)} classes. "
            "Leave it out.",
            field="threshold",
        )


def base_rate_decision(positive: str | None, counts: Mapping[str, float]) -> Decision:
    """Return the decision whose threshold is the share of the positive class among counted examples.

    Args:
        positive: see `Decision`.
        counts: examples of each class: public, or released with noise, so they may be negative.

    Raises:
        SettingError: no such class, or more than two.

    >>> base_rate_decision(None, {"no": 920.0, "yes": 80.0})
    Decision(positive='yes', threshold=0.08)
    """
    names = list(counts)
    name = names[Decision(positive, 0.5).index(names) or 0]
    return Decision(name, min(max(counts[name], 0.0) / max(1.0, sum(counts.values())), 1.0))


@final
@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions of a model on n examples, the only input of a metric.

    Attributes:
        targets: true classes, [n] int64.
        probabilities: predicted probability of each class, [n, classes] float64.
        class_names: one name per class.
        positive: index of the positive class, or None unless there are two classes.
        threshold: see `Decision`.

    >>> predictions = Predictions(np.array([0, 1]), np.array([[0.9, 0.1], [0.7, 0.3]]), ("no", "yes"), 1, 0.2)
    >>> predictions.predicted.tolist(), predictions.risks.tolist(), predictions.hits.tolist()
    ([0, 1], [0.1, 0.3], [0, 1])
    """

    targets: Codes
    probabilities: Floats
    class_names: tuple[str, ...]
    positive: int | None = None
    threshold: float | None = None

    @classmethod
    def of(
        cls, outputs: Tensor, targets: Tensor, class_names: Sequence[str], decision: Decision = Decision()
    ) -> Predictions:
        """Return the predictions of logits, [n, classes], for examples with these targets."""
        probabilities = torch.softmax(outputs.double(), dim=1).numpy()
        return cls(
            targets.numpy(),
            probabilities,
            tuple(class_names),
            decision.index(class_names),
            decision.threshold,
        )

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def task(self) -> str:
        """Return "binary" or "multiclass"."""
        return task_of(self.class_names)

    @property
    def positive_name(self) -> str:
        """Return the name of the positive class, or "" unless there are two classes."""
        return "" if self.positive is None else self.class_names[self.positive]

    @cached_property
    def predicted(self) -> Codes:
        """Return the predicted classes, [n]: the most probable one, or by the threshold."""
        if self.positive is None or self.threshold is None:
            likeliest: Codes = self.probabilities.argmax(axis=1)
            return likeliest
        return np.where(self.risks >= self.threshold, self.positive, 1 - self.positive)

    @property
    def risks(self) -> Floats:
        """Return the predicted probability of the positive class, [n]; for two classes only."""
        risks: Floats = self.probabilities[:, self._of_two()]
        return risks

    @property
    def hits(self) -> Codes:
        """Return 1 for each example of the positive class and 0 for others, [n]; for two classes only."""
        hits: Codes = (self.targets == self._of_two()).astype(np.int64)
        return hits

    @property
    def predicted_positive(self) -> Codes:
        """Return 1 for each example that is predicted to be positive, [n]; for two classes only."""
        positive: Codes = (self.predicted == self._of_two()).astype(np.int64)
        return positive

    @property
    def counts(self) -> Codes:
        """Return the number of examples of each class, [classes]."""
        return np.bincount(self.targets, minlength=len(self.class_names))

    def take(self, rows: npt.NDArray[np.generic]) -> Predictions:
        """Return the predictions of some examples: their indices, or a mask [n]."""
        return replace(self, targets=self.targets[rows], probabilities=self.probabilities[rows])

    def constant(self) -> Predictions:
        """Return the predictions of the best constant: each class with its share."""
        shares = self.counts / max(len(self), 1)
        return replace(self, probabilities=np.tile(shares, (len(self), 1)), threshold=None)

    def _of_two(self) -> int:
        if self.positive is None:
            raise SettingError(
                f"there are {len(self.class_names)} classes, and none is the positive one; that is for two.",
                field="positive",
            )
        return self.positive


_CHUNK = 4096  # examples predicted at a time


def has_diverged(model: nn.Module) -> bool:
    """Return True if a weight of the model is NaN or infinite."""
    return not all(torch.isfinite(parameter).all() for parameter in model.parameters())


def predict(model: nn.Module, inputs: Inputs, *, together: bool = True) -> Tensor:
    """Return the model's outputs in evaluation mode, [n, ...], on the CPU; in chunks, to bound memory.

    For a model that returns a mapping, as in `transformers`, return the `logits`.

    Args:
        model: model that predicts.
        inputs: n examples.
        together: whether the model receives many examples at a time. False: one at a time, for a release of
            predictions by a model that no trial has shown to keep examples apart.
    """
    device = device_of(model)
    with preserve_modes(model), torch.no_grad():
        model.eval()
        chunks = in_parts(inputs, _CHUNK if together else 1) or [inputs]
        return torch.cat([one_tensor(call_model(model, moved_to(chunk, device))).cpu() for chunk in chunks])
