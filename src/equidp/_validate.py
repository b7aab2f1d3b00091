"""Settings as they are given, and what to say where one is not what it may be."""

from __future__ import annotations

import csv
import difflib
from collections.abc import Iterable
from numbers import Real
from typing import Any

from equidp.errors import SettingError


def unknown_name(kind: str, given: object, known: Iterable[str]) -> SettingError:
    """An error that lists the known names and the closest one to what was given."""
    names = sorted(known)
    close = difflib.get_close_matches(str(given), names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return SettingError(f"unknown {kind} {given!r}.{hint} Known: {', '.join(names)}.")


def names(text: str) -> list[str]:
    """What stands between commas; a name with a comma of its own in double quotes, as in a CSV file."""
    return [name.strip() for name in next(csv.reader([text], skipinitialspace=True), []) if name.strip()]


def check_number(interval: str, hint: str = "", **given: Any) -> None:
    """Raises unless each setting is a number within an interval, such as "[0, 1)" or "(0, inf)".

    Raises:
        SettingError: names the setting, what was given and what was expected, and ends with the hint.
    """
    low, high = (float(end) for end in interval[1:-1].split(","))
    for name, value in given.items():
        if not (
            _is_number(value)
            and (low <= value if interval.startswith("[") else low < value)
            and (value <= high if interval.endswith("]") else value < high)
        ):
            sign = ">=" if interval.startswith("[") else ">"
            expected = (
                f"a finite number {sign} {low:g}" if interval.endswith("inf)") else f"a number in {interval}"
            )
            raise SettingError(f"{name}={value!r}; expected {expected}{hint}.")


def check_whole(least: int, hint: str = "", **given: Any) -> None:
    """Raises unless each setting is a whole number of at least `least`.

    Raises:
        SettingError: as `check_number`.
    """
    for name, value in given.items():
        if not (_is_number(value) and value >= least and value % 1 == 0):
            raise SettingError(f"{name}={value!r}; expected a whole number >= {least}{hint}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real)
