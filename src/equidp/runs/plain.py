"""Plain values of a configuration's parts, as JSON holds them, and parts from plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

_Part = TypeVar("_Part")


def plain_fields(part: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name, as plain values.

    A field that is a dataclass becomes a dictionary, by its own `to_plain` if it has one.
    """
    return {each.name: _plain_value(getattr(part, each.name)) for each in fields(part)}


def part_of(kind: type[_Part], content: Mapping[str, Any]) -> _Part:
    """Return a dataclass from what `plain_fields` returned; its fields' types say how each is read.

    Raises:
        KeyError, TypeError: an unknown field, or a missing one.
        SettingError: a value that the dataclass refuses.
    """
    kinds = get_type_hints(kind)
    return kind(**{name: _read_value(kinds[name], value) for name, value in content.items()})


def _plain_value(value: Any) -> Any:
    if hasattr(value, "to_plain"):
        return value.to_plain()
    if is_dataclass(value):
        return plain_fields(value)
    if isinstance(value, tuple):
        return [_plain_value(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def _read_value(kind: Any, value: Any) -> Any:
    if get_origin(kind) is tuple:
        return tuple(_read_value(get_args(kind)[0], each) for each in value)
    kinds = [each for each in get_args(kind) or (kind,) if each is not NoneType]
    if value is None or len(kinds) != 1 or not isinstance(kinds[0], type):
        return value
    if hasattr(kinds[0], "from_plain"):
        return kinds[0].from_plain(value)
    if is_dataclass(kinds[0]):
        return part_of(kinds[0], value)
    return Path(value) if kinds[0] is Path else value
