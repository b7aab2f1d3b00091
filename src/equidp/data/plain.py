"""Fields of a recipe from plain values, as TOML, JSON and command lines hold them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from equidp.errors import SettingError

ALL_COLUMNS = "*"
"""Stands for all columns where a value is given by column."""
BY_COLUMN = ("na", "not_na", "thousands", "decimal")
"""Options whose values may be given for all columns; there, a column called * is written \\*."""
MARKS = {"comma": ",", "point": ".", "space": " ", "apostrophe": "'"}
"""Words for the marks within numbers."""


def as_key(name: str) -> str:
    """Returns a column as options of `BY_COLUMN` name it.

    >>> as_key("*"), as_key("age"), as_name("\\\\*")
    ('\\\\*', 'age', '*')
    """
    return f"\\{name}" if re.fullmatch(r"\\*\*", name) else name


def as_name(key: str) -> str:
    """Returns the column that `as_key` wrote."""
    return key[1:] if re.fullmatch(r"\\+\*", key) else key


def in_shell(text: str) -> str:
    """Returns a text between single quotes, as a shell takes it.

    >>> print(in_shell("zip"), in_shell("patient's zip"))
    'zip' 'patient'\\''s zip'
    """
    return "'" + text.replace("'", r"'\''") + "'"


def field(option: str, value: Any) -> Any:
    """A field of a recipe from a plain value."""
    if option in ("group", "drop", "categorical", "numeric", "fold"):
        return tuple(_texts(option, value))
    if option == "date":
        plain = not isinstance(value, Mapping)
        return tuple(_by_column(option, dict.fromkeys(_texts(option, value), "iso") if plain else value))
    if option in ("na", "not_na"):
        by_column = value if isinstance(value, Mapping) else {ALL_COLUMNS: value}
        return tuple((name, text) for name, given in by_column.items() for text in _texts(option, given))
    if option in ("thousands", "decimal"):
        pairs = _by_column(option, value if isinstance(value, Mapping) else {ALL_COLUMNS: value})
        return tuple((name, MARKS.get(mark, mark)) for name, mark in pairs)
    if option == "bounds":
        return tuple(_range(name, span) for name, span in _mapping(option, value).items())
    if option == "target_bounds":
        return _range("the target", value)[1:]
    if option in ("test_share", "rows_per_person"):
        return value
    if value is None and option in ("target", "weight", "person", "positive"):
        return value
    if not isinstance(value, str):
        raise SettingError(f"{option} = {value!r}; expected a text.")
    return {"tab": "\t", "\\t": "\t"}.get(value, value) if option == "sep" else value


def _texts(option: str, value: Any) -> list[str]:
    values = list(value) if isinstance(value, list | tuple) else [value]
    if option in ("na", "not_na"):  # -999 needs no quotes
        values = [f"{each:.12g}" if type(each) in (int, float) else each for each in values]
    if not all(isinstance(each, str) for each in values):
        raise SettingError(f"{option} = {value!r}; expected texts.")
    return values


def _mapping(option: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SettingError(f"{option} = {value!r}; expected a value for each column by name.")
    return value


def _by_column(option: str, value: Any) -> list[tuple[str, str]]:
    pairs = list(_mapping(option, value).items())
    if not all(isinstance(text, str) for _, text in pairs):
        raise SettingError(f"{option} = {value!r}; expected texts.")
    return pairs


def _range(name: str, span: Any) -> tuple[str, float, float]:
    try:
        low, high = span
        return name, float(low), float(high)
    except (TypeError, ValueError) as error:
        raise SettingError(f"bounds of {name!r} are {span!r}; expected [low, high].") from error
