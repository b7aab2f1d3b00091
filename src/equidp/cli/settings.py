"""Options generated from the fields of plans and of methods: a new field is an option with no other edit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from cyclopts import Group, Parameter

from equidp.advice.advise import AUTO
from equidp.cli.messages import say
from equidp.policies.methods import all_settings, known_policies, method_named
from equidp.policies.setting import MethodSetting, settings_of

_Options = TypeVar("_Options")
_PLAIN = (int, float, str, bool)


def part_settings(part: type, leave_out: Sequence[str] = (), prefix: str = "") -> list[MethodSetting]:
    """Return the options of a part of a run, such as `Plan`: its fields made by `option`.

    Args:
        part: a dataclass.
        leave_out: names of fields that are no options here.
        prefix: of the options' names; a field `path` has this name itself.
    """
    kinds = get_type_hints(part)
    return [
        MethodSetting(
            _option_name(each.name, prefix),
            _without_none(kinds[each.name]),
            each.default,
            each.metadata["help"],
            each.metadata["names"],
        )
        for each in dataclasses.fields(part)
        if "help" in each.metadata and each.name not in leave_out
    ]


def part_values(options: Any, part: type, prefix: str = "") -> dict[str, Any]:
    """Return the fields of a part that options of it are given for, with their values."""
    names = {each.name: _option_name(each.name, prefix) for each in dataclasses.fields(part)}
    return {
        field: value for field, name in names.items() if (value := getattr(options, name, None)) is not None
    }


def _option_name(field: str, prefix: str) -> str:
    if not prefix:
        return field
    return prefix if field == "path" else f"{prefix}_{field}"


def method_settings() -> list[MethodSetting]:
    """Return the settings of all methods, one for each name; their help says which methods take them."""
    every = {each.name: each for policy in known_policies().values() for each in settings_of(policy)}
    return [
        dataclasses.replace(every[name], help=f"{every[name].help} Of {', '.join(owners)}.")
        for name, owners in all_settings().items()
    ]


def options_from(
    settings: Iterable[MethodSetting | tuple[MethodSetting, Group]],
) -> Callable[[type[_Options]], type[_Options]]:
    """Make a class a frozen dataclass with a field for each setting, which is None unless it is given.

    Args:
        settings: each alone, or with the group that lists it in the help.
    """

    def add(cls: type[_Options]) -> type[_Options]:
        cls.__annotations__ = {}
        for given in settings:
            each, group = given if isinstance(given, tuple) else (given, None)
            kind = _without_none(each.type)
            if each.names:
                kind = Literal[each.names] | kind
            wanted = kind | None
            if group is not None:
                wanted = Annotated[wanted, Parameter(group=group)]
            cls.__annotations__[each.name] = wanted
            setattr(cls, each.name, dataclasses.field(default=None, metadata={"help": each.help}))
        return dataclasses.dataclass(frozen=True)(cls)

    return add


def _without_none(kind: Any) -> Any:
    """The type of an optional value; the first plain one of several."""
    if get_origin(kind) not in (Union, UnionType):
        return kind
    parts = [part for part in get_args(kind) if part is not NoneType]
    return next((part for part in parts if part in _PLAIN), parts[0])


def changes(plan: Any, methods_settings: Any, methods: Sequence[str]) -> dict[str, Any]:
    """Return what was given of a plan and of methods; say which settings none of these methods takes."""
    given = {name: value for name, value in vars(methods_settings).items() if value is not None}
    if named := [method for method in methods if method != AUTO]:
        say_ignored(given, named)
    return {**{name: value for name, value in vars(plan).items() if value is not None}, **given}


def say_ignored(given: Iterable[str], methods: Sequence[str]) -> set[str]:
    """Say which of these settings are settings of methods that none of these is, and return them."""
    taken = {each.name for method in methods for each in settings_of(method_named(method).policy)}
    ignored = {name: all_settings().get(name, []) for name in given if name not in taken}
    ignored = {name: owners for name, owners in ignored.items() if owners}
    for name, owners in ignored.items():
        option = f"--{name.replace('_', '-')}"
        verb = "ignores" if len(methods) == 1 else "ignore"
        say(f"{option} is a setting of {', '.join(owners)}; {', '.join(methods)} {verb} it.")
    return set(ignored)
