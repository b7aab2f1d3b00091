"""Named errors. Each message says what was given, what was expected and what to do about it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


_FIELD = re.compile(r"(?:unknown (?P<name>[a-z_ ]+) '|(?P<field>-{0,2}[A-Za-z_][\w.-]*)(?:=| '| \"))")


class EquidpError(Exception):
    """Base class of the errors that equidp raises. The command line turns them into exit code 2.

    Args:
        *args: message.
        field: name of the invalid argument or part of the data, if the message does not start with it.

    >>> issubclass(SettingError, EquidpError)
    True
    """

    def __init__(self, *args: object, field: str = "") -> None:
        super().__init__(*args)
        self._field = field

    @property
    def field(self) -> str:
        """Name of the invalid argument, option or part of the data: `field`, or from the message; else "".

        Most messages start with the name and the value: `clipping_bound=-1.0; expected ...` or `column 'age'
        ...`.

        >>> SettingError("share=2; expected a number in (0, 1].").field
        'share'
        >>> DataError("column 'age' is missing; choose another.").field
        'column'
        >>> SettingError("an ablation needs a method that clips.", field="method").field
        'method'
        """
        if self._field:
            return self._field
        named = _FIELD.match(str(self))
        return (named["name"] or named["field"]) if named else ""


class SettingError(EquidpError, ValueError):
    """An argument is invalid, by itself or in combination with others.

    >>> import equidp
    >>> equidp.DPSGD(clipping_bound=-1.0)
    Traceback (most recent call last):
    equidp.errors.SettingError: clipping_bound=-1.0; expected a finite number > 0.
    """


class DataError(EquidpError, ValueError):
    """The data cannot be used, for example because of a missing file or column, an empty group or NaN.

    >>> import equidp
    >>> equidp.compare("nowhere.csv")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    equidp.errors.DataError: ...
    """


class ModelError(EquidpError, ValueError):
    """The model cannot be trained privately as it is, for example because of batch statistics.

    >>> from equidp.models import MODELS
    >>> MODELS["lenet"]((3,), 2)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    equidp.errors.ModelError: input_shape=[3]; lenet expects images ...
    """


class PolicyError(EquidpError):
    """A policy broke the contract of `equidp.kernel.policy.Policy`, and training cannot continue.

    >>> import equidp
    >>> equidp.check_policy("dpsgd")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    equidp.errors.PolicyError: policy='dpsgd'; expected a policy, such as ...
    """


class BudgetError(EquidpError):
    """A step would exceed the privacy budget, or cannot be recorded.

    >>> import equidp
    >>> from equidp.kernel.event import Event
    >>> equidp.Ledger(limit=(1.0, 1e-5)).check(Event(1.0, 0.1), 1)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    equidp.errors.BudgetError: the plan of 1 steps ...
    """


class CheckpointError(EquidpError):
    """A checkpoint cannot be written, or is missing or damaged.

    >>> import equidp
    >>> equidp.Checkpoints(getfixture("tmp_path")).steps_kept()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    equidp.errors.CheckpointError: there is no checkpoint in ...
    """


class ProcessError(EquidpError):
    """Another of the processes that train together has ended; what was spent is in the first one's ledger.

    >>> issubclass(ProcessError, EquidpError)
    True
    """


class MissingExtraError(EquidpError, ImportError):
    """An optional package is not installed; the message and `field` name the extra that brings it.

    >>> issubclass(MissingExtraError, ImportError)
    True
    """


class TrainingStopped(KeyboardInterrupt):
    """A signal ended training after a complete step. The run was saved and can be resumed.

    Attributes:
        signal: its number.

    >>> TrainingStopped("stopped by SIGTERM.", 15).signal
    15
    """

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal


class PrivacyWarning(UserWarning):
    """The guarantee is weaker than a reader might assume; training continues.

    >>> import warnings
    >>> warnings.simplefilter("error", PrivacyWarning)  # to stop instead
    """


class DataWarning(UserWarning):
    """Part of the data tells the model nothing. The rest is used.

    >>> import warnings
    >>> warnings.simplefilter("ignore", DataWarning)  # where it is known
    """


class ApproximationWarning(UserWarning):
    """A value is less exact than its name suggests.

    >>> import warnings
    >>> warnings.simplefilter("ignore", ApproximationWarning)  # where it is known
    """


class TrainingWarning(UserWarning):
    """A finished training seems to have taught the model nothing.

    >>> import warnings
    >>> warnings.simplefilter("error", TrainingWarning)  # to stop instead
    """


class CacheWarning(UserWarning):
    """A stored result is damaged and is computed again, or a result cannot be stored. Results stay the same.

    >>> import warnings
    >>> warnings.simplefilter("error", CacheWarning)  # to stop instead
    """


def error_text(error: BaseException) -> str:
    """Kind and message of an error within a sentence, without a full stop. An assertion may have no message.

    >>> error_text(ValueError("got 3; expected 4."))
    'ValueError: got 3; expected 4'
    """
    return f"{type(error).__name__}: {error}".strip().rstrip(".:")


def count_text(count: int, noun: str) -> str:
    """Text of a count, such as "1 step" or "1,200 steps"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def shape_text(values: Tensor, first: str) -> str:
    """Return a shape for an error message, such as `[batch, 3]`, without the private number of examples."""
    return f"[{', '.join([first, *map(str, values.shape[1:])])}]" if values.dim() else "[]"
