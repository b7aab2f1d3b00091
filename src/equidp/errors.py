"""Named errors. Each message says what was given, what was expected and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class EquidpError(Exception):
    """Base of every error that equidp raises on purpose; the command line turns it into exit code 2."""


class SettingError(EquidpError, ValueError):
    """An argument is invalid, alone or in combination with others."""


class DataError(EquidpError, ValueError):
    """The data cannot be used: a missing file or column, one class only, an empty group, NaN."""


class ModelError(EquidpError, ValueError):
    """The model cannot be trained privately as it is, such as one with batch statistics."""


class PolicyError(EquidpError):
    """A policy broke the contract of `equidp.kernel.policy.Policy`, and training cannot continue."""


class BudgetError(EquidpError):
    """A step would spend more privacy than is allowed, or cannot be recorded."""


class CheckpointError(EquidpError):
    """A checkpoint cannot be written, or is missing or damaged."""


class TrainingStopped(KeyboardInterrupt):
    """A signal ended training after a complete step; the run was saved and can be resumed.

    Attributes:
        signal: its number.
    """

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal


class PrivacyWarning(UserWarning):
    """The guarantee is weaker than a reader might assume; training continues."""


class DataWarning(UserWarning):
    """Part of the data tells the model nothing; the rest is used."""


class ApproximationWarning(UserWarning):
    """A figure is less exact than its name suggests."""


def shape_in_words(values: Tensor, first: str) -> str:
    """Returns a shape for an error message, such as `[batch, 3]`, without the private number of examples."""
    return f"[{', '.join([first, *map(str, values.shape[1:])])}]" if values.dim() else "[]"
