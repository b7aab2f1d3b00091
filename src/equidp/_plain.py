"""Plain values, as TOML and JSON hold them: dataclasses from such values and back, by cattrs."""

from __future__ import annotations

import datetime
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import cattrs

from equidp._validate import unknown_name
from equidp.errors import SettingError

_Part = TypeVar("_Part")
Texts = tuple[str, ...]

_WORDS: dict[Any, str] = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    Texts: "a list of texts",
    tuple[float, float]: "[low, high]",
    Path: "the name of a file",
}


def describe_type(kind: Any) -> str:
    """Return what a value of a type looks like in TOML, in words.

    >>> describe_type(float | None), describe_type(tuple[str, ...]), describe_type(Literal["yes", "no"])
    ('a number', 'a list of texts', "'yes' or 'no'")
    """
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    if _is_union(kind):
        kinds = [each for each in types_in(kind) if each is not NoneType]
        return " or ".join(dict.fromkeys(describe_type(each) for each in kinds if each is not Any))
    return _WORDS.get(kind, "a table" if get_origin(kind) in (dict, Mapping) else "another value")


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of a TOML file; raise a SettingError that says why it cannot be read."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        why = f"cannot be read ({error.strerror}); check the path"
    except ValueError as error:
        why = f"cannot be read as TOML: {error}"
    raise SettingError(f"config {os.fspath(path)!r} {why}.", field="config")


def read_part(kind: type[_Part], content: Mapping[str, Any], place: str = "") -> _Part:
    """Return a dataclass from plain values by field.

    Args:
        kind: dataclass. The types of its fields say how each is read.
        content: values as in TOML and JSON. A text means a list of one.
        place: its place, such as "[column.lab]".

    Raises:
        SettingError: a field is unknown, a value has another type, or the dataclass rejects it.
    """
    kinds = get_type_hints(kind)
    check_fields(content, {each.name for each in fields(kind)}, place)  # type: ignore[arg-type]
    values = {name: read_value(name, value, kinds[name], place) for name, value in content.items()}
    try:
        return kind(**values)
    except SettingError as error:
        if not place or str(error).startswith("["):
            raise
        raise SettingError(f"{place} {error}", field=error.field) from error


def check_table(content: Any, place: str) -> None:
    """Raise a SettingError unless a plain value is a table of fields."""
    if not isinstance(content, Mapping):
        raise SettingError(f"{place or 'value'} is {content!r}; expected a table of fields.", field=place)


def check_fields(content: Any, known: Any, place: str) -> None:
    """Raise a SettingError unless a plain value is a table of known fields."""
    check_table(content, place)
    for name in content:
        if name not in known:
            raise unknown_name(
                f"field in {place}" if place else "field", name, known, "equidp train --dry-run"
            )


def read_value(name: str, value: Any, kind: Any, place: str = "") -> Any:
    """Return the value of a field from a plain value.

    Raises:
        SettingError: names place, field, the value and what was expected.

    >>> read_value("range", [0, "x"], tuple[float, float], "[column.lab]")
    Traceback (most recent call last):
    equidp.errors.SettingError: [column.lab] range = [0, 'x']; expected [low, high].
    """
    try:
        return converter.structure(value, kind)
    except SettingError:
        raise
    except Exception as error:  # cattrs raises what its hooks raise, and errors of its own
        where = f"{place} {name}" if place else name
        raise SettingError(f"{where} = {value!r}; expected {describe_type(kind)}.", field=name) from error


def to_plain(part: Any) -> Any:
    """Return a value as plain values: a dataclass as a dictionary, by its own `to_plain` if it has one."""
    return converter.unstructure(part)


def fields_to_plain(part: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name, as plain values."""
    return {each.name: to_plain(getattr(part, each.name)) for each in fields(part)}


def without_defaults(part: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults, as plain values."""
    return {
        each.name: to_plain(value)
        for each in fields(part)
        if (value := getattr(part, each.name)) != _default(each)
    }


def _default(each: Any) -> Any:
    return each.default_factory() if callable(each.default_factory) else each.default


def _take_only(*kinds: type, besides: tuple[type, ...] = ()) -> Callable[[Any, Any], Any]:
    """Return a hook that accepts only values of these types, as they are."""

    def check(value: Any, _: Any) -> Any:
        if not isinstance(value, kinds) or isinstance(value, besides):
            raise TypeError(f"{value!r} is none of {kinds}")
        return value

    return check


def _read_text(value: Any, _: Any) -> str:
    """Return a text. A date of TOML is one."""
    if isinstance(value, datetime.date):
        return value.isoformat()
    return _take_only(str)(value, str)  # type: ignore[no-any-return]


def _read_texts(value: Any, _: Any) -> Texts:
    """Return the texts of a list; -999 needs no quotes."""
    values = value if isinstance(value, list | tuple) else [value]
    numbers_as_texts = [f"{each:.12g}" if type(each) in (int, float) else each for each in values]
    return tuple(converter.structure(each, str) for each in numbers_as_texts)


def _read_union(value: Any, kind: Any) -> Any:
    """Return the value by the first type of a union that takes it."""
    if value is None and NoneType in get_args(kind):
        return None
    kinds = [each for each in get_args(kind) if each is not NoneType]
    for each in kinds[:-1]:
        try:
            return converter.structure(value, each)
        except Exception:  # the next type may take it
            continue
    return converter.structure(value, kinds[-1])


def types_in(kind: Any) -> tuple[Any, ...]:
    """Return the types that a value may have: the types of a union, or the one type."""
    return get_args(kind) if _is_union(kind) else (kind,)


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType)


def _read_by_own_method(value: Any, kind: Any) -> Any:
    return kind.from_plain(value)


converter = cattrs.Converter(detailed_validation=False, forbid_extra_keys=True)
converter.register_structure_hook(str, _read_text)
converter.register_structure_hook(bool, _take_only(bool))
converter.register_structure_hook(int, _take_only(int, besides=(bool,)))
converter.register_structure_hook(float, _take_only(int, float, besides=(bool,)))
converter.register_structure_hook(Path, lambda value, _: Path(converter.structure(value, str)))
converter.register_structure_hook_func(lambda kind: kind == Texts, _read_texts)
converter.register_structure_hook_func(_is_union, _read_union)
converter.register_structure_hook_func(lambda kind: hasattr(kind, "from_plain"), _read_by_own_method)
converter.register_unstructure_hook(Path, str)
converter.register_unstructure_hook_func(
    lambda kind: hasattr(kind, "to_plain"), lambda value: value.to_plain()
)
