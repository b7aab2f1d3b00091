"""Texts of a command line that say something of each column, such as age=0:100,hours=0:99."""

from __future__ import annotations

import math
from collections.abc import Sequence

from equidp._validate import names
from equidp.errors import SettingError
from equidp.tables.recipe import ALL_COLUMNS, MARKS


def parse_range(text: str) -> tuple[float, float]:
    """Returns a public range.

    >>> parse_range("0:150000")
    (0.0, 150000.0)
    """
    try:
        ((_, span),) = parse_bounds(f"target={text}").items()
    except ValueError as error:
        raise SettingError(f"--target-bounds {text!r}; expected low:high, such as 0:150000.") from error
    return span


def parse_bounds(text: str) -> dict[str, tuple[float, float]]:
    """Returns the public range of each column.

    Raises:
        SettingError: says which part is wrong.

    >>> parse_bounds("age=0:100, hours=0:99")
    {'age': (0.0, 100.0), 'hours': (0.0, 99.0)}
    """
    bounds: dict[str, tuple[float, float]] = {}
    for part in names(text):
        name, _, span = part.rpartition("=")
        try:
            low, high = (float(end) for end in span.split(":"))
        except ValueError:
            low = high = math.nan
        if not (name and low < high and math.isfinite(low) and math.isfinite(high)):
            raise SettingError(
                f"bounds {part!r}; expected column=low:high with low < high, such as age=0:100."
            )
        if name.strip() in bounds:
            raise SettingError(
                f"bounds {text!r} name column {name.strip()!r} twice; give one range for each."
            )
        bounds[name.strip()] = (low, high)
    return bounds


def by_column(text: str) -> tuple[str, str]:
    """Returns a column and its value from `column=value`; the value is "" where there is none."""
    name, _, value = text.partition("=")
    return name.strip(), value.strip()


def parse_counts(text: str) -> dict[str, int]:
    """Returns the number of each name.

    >>> parse_counts("mnist=1, adult=3")
    {'mnist': 1, 'adult': 3}
    """
    counts: dict[str, int] = {}
    for part in names(text):
        name, count = by_column(part)
        if not (name and count.isdecimal()) or name in counts:
            raise SettingError(
                f"{part!r} in {text!r}; expected name=number, each name once, such as mnist=1."
            )
        counts[name] = int(count)
    return counts


def parse_na(texts: Sequence[str]) -> dict[str, list[str]]:
    """Returns the texts that stand for a missing value, by column.

    >>> parse_na(["-999", "age=-1", "age=0"])
    {'*': ['-999'], 'age': ['-1', '0']}
    """
    found: dict[str, list[str]] = {}
    for text in texts:
        name, value = by_column(text) if "=" in text else (ALL_COLUMNS, text)
        found.setdefault(name, []).append(value)
    return found


def parse_marks(text: str) -> dict[str, str]:
    """Returns the mark within numbers of each column: a word or the mark itself.

    >>> parse_marks(","), parse_marks("comma, price=point"), parse_marks("price=,")
    ({'*': ','}, {'*': ',', 'price': '.'}, {'price': ','})
    """
    if text in MARKS.values():
        return {ALL_COLUMNS: text}
    found = {}
    for part in names(text):
        name, mark = by_column(part) if "=" in part else (ALL_COLUMNS, part)
        found[name] = MARKS.get(mark, mark or ",")  # a comma alone was taken as the end of the part
    return found
