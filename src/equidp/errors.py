"""Named errors. Each message says what was given, what was expected and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class EquidpError(Exception):
    """Base of every error that equidp raises on purpose; the command line turns it into exit code 2."""


class SettingError(EquidpError, ValueError):
    """An argument is outside what it may be, alone or together with others."""


class DataError(EquidpError, ValueError):
    """The data cannot be used as given: a missing file or column, one class only, an empty group, NaN."""


class ModelError(EquidpError, ValueError):
    """The model cannot be trained privately as it is, such as one with batch statistics."""


class PolicyError(EquidpError):
    """A policy broke the contract of `equidp.kernel.policy.Policy` in a way that training cannot go on with."""


class BudgetError(EquidpError):
    """A step would spend more privacy than was allowed, or what was spent can no longer be recorded."""


class CheckpointError(EquidpError):
    """A checkpoint cannot be written, or is missing or damaged."""


class TrainingStopped(KeyboardInterrupt):
    """A signal ended training at the end of a step; the run was saved and can go on.

    Attributes:
        signal: its number.
    """

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal


class PrivacyWarning(UserWarning):
    """Training goes on, but the guarantee is weaker than a reader might assume."""


class DataWarning(UserWarning):
    """Data can be used as given, but part of it tells the model nothing."""


class ApproximationWarning(UserWarning):
    """A figure is less exact than its name says."""


def shape_in_words(values: Tensor, first: str) -> str:
    """A shape for an error message, which does not tell how many examples were drawn: `[batch, 3]`."""
    return f"[{', '.join([first, *map(str, values.shape[1:])])}]" if values.dim() else "[]"
