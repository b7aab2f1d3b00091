"""Checks of names, numbers and paths, with errors that say what was given and what was expected."""

from __future__ import annotations

import csv
import difflib
import io
import math
import os
from collections.abc import Iterable
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equidp.errors import DataError, SettingError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MOST_WEIGHT = 1e6
"""Beyond this, products with losses leave float32's range soon. All that counts is how weights compare."""
_MOST_LISTED = 20
"""Names that an error lists."""


def unknown_name(kind: str, given: object, known: Iterable[str], listed_in: str = "") -> SettingError:
    """Return an error with the closest known names, and with all of them if they are few.

    Args:
        kind: kind of the name.
        given: what was given.
        known: names.
        listed_in: command or page that lists many names, such as "equidp methods".

    >>> raise unknown_name("method", "dpsgf", ["sgd", "dpsgd"])
    Traceback (most recent call last):
    equidp.errors.SettingError: unknown method 'dpsgf'. Did you mean 'dpsgd'? Known: dpsgd, sgd.
    """
    names = sorted(known)
    few = len(names) <= _MOST_LISTED
    close = difflib.get_close_matches(str(given), names, n=1 if few else 3)
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    where = f" {listed_in} lists them." if listed_in else ""
    listed = f" Known: {', '.join(names)}." if few else f" {len(names)} are known.{where}"
    return SettingError(f"unknown {kind} {given!r}.{hint}{listed}", field=kind.partition(" (")[0])


def names(text: str) -> list[str]:
    """Return the names between commas or on lines; double quotes protect both in a name, as in a CSV file.

    >>> names('age, "Hb, g/dL"')
    ['age', 'Hb, g/dL']
    """
    lines = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    return [name.strip() for line in lines for name in line if name.strip()]


def check_number(interval: str, hint: str = "", **given: Any) -> None:
    """Raise unless each setting is a number within an interval, such as "[0, 1)" or "(0, inf)".

    Raises:
        SettingError: names the setting, what was given and what was expected, and ends with the hint.

    >>> check_number("(0, 1]", ", a share", share=2)
    Traceback (most recent call last):
    equidp.errors.SettingError: share=2; expected a number in (0, 1], a share.
    """
    low, high = (float(end) for end in interval[1:-1].split(","))
    for name, value in given.items():
        number = _to_float(value)
        if not (
            (low <= number if interval.startswith("[") else low < number)
            and (number <= high if interval.endswith("]") else number < high)
        ):
            sign = ">=" if interval.startswith("[") else ">"
            expected = (
                f"a finite number {sign} {low:g}" if interval.endswith("inf)") else f"a number in {interval}"
            )
            raise SettingError(f"{name}={value!r}; expected {expected}{hint}.")


def check_whole(least: int, hint: str = "", **given: Any) -> None:
    """Raise unless each setting is a whole number of at least `least`.

    Raises:
        SettingError: as `check_number`.

    >>> check_whole(1, steps=1.5)
    Traceback (most recent call last):
    equidp.errors.SettingError: steps=1.5; expected a whole number >= 1.
    """
    for name, value in given.items():
        if not (_is_number(value) and value >= least and value % 1 == 0):
            raise SettingError(f"{name}={value!r}; expected a whole number >= {least}{hint}.")


def checked_path(**given: Any) -> Path:
    """Return the value, which names a file or a folder, as a path.

    Raises:
        SettingError: it is neither text nor a path.

    >>> checked_path(path="run").name
    'run'
    """
    ((name, value),) = given.items()
    if not isinstance(value, str | os.PathLike) or isinstance(os.fspath(value), bytes):
        raise SettingError(f"{name}={value!r}; expected the name of a file or a folder, as text or a Path.")
    return Path(value)


def check_seed(seed: Any) -> None:
    """Raise a SettingError unless a seed is a whole number that all generators take."""
    if not (isinstance(seed, int) and 0 <= seed < 2**32):
        raise SettingError(f"seed={seed!r}; expected a whole number from 0 to 2^32 - 1.")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _to_float(value: Any) -> float:
    """Number as a float, infinite beyond the range of floats, or NaN for anything else."""
    try:
        return float(value) if _is_number(value) else math.nan
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def check_weights(weights: npt.NDArray[np.float64], what: str, field: str = "") -> None:
    """Raise unless the weights, [n], are numbers from 0 to `MOST_WEIGHT`.

    Raises:
        DataError: of the field, begins with `what` and says in which row, never which value.

    >>> import numpy as np
    >>> check_weights(np.array([1.0, -1.0]), "column 'weight'")
    Traceback (most recent call last):
    equidp.errors.DataError: column 'weight' has 1 of 2 weights that are negative, the first in row 2; ...
    """
    kinds = {
        "missing or not numbers": weights != weights,
        "negative": weights < 0,
        f"beyond {MOST_WEIGHT:g}": weights > MOST_WEIGHT,
    }
    for kind, wrong in kinds.items():
        if wrong.any():
            raise DataError(
                f"{what} has {int(wrong.sum()):,} of {len(weights):,} weights that are {kind}, the first in "
                f"row {int(wrong.argmax()) + 1:,}; expected numbers from 0 to {MOST_WEIGHT:g}.",
                field=field,
            )


def check_some_weight(weights: npt.NDArray[np.float64], what: str, field: str = "") -> None:
    """Raise a DataError, which begins with `what`, if all training weights, [n], are 0."""
    if not weights.any():
        raise DataError(f"{what} is zero in each row; expected at least one weight above zero.", field=field)
