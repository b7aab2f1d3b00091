"""Options generated from the fields of plans, and settings of plans and methods that --set gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from cyclopts import Group, Parameter

from equidp._validate import unknown_name
from equidp.advice.advise import AUTO
from equidp.cli.messages import say
from equidp.errors import SettingError
from equidp.policies.methods import all_settings, known_policies, method_named
from equidp.policies.setting import MethodSetting, settings_of
from equidp.training.plan import Plan

_Options = TypeVar("_Options")
_Part = TypeVar("_Part")
_PLAIN = (int, float, str, bool)


def part_settings(
    part: type, leave_out: Sequence[str] = (), prefix: str = "", *, flag: bool = True
) -> list[MethodSetting]:
    """Return the options of a part of a run, such as `Plan`: its fields made by `option`.

    Args:
        part: a dataclass.
        leave_out: names of fields that are no options here.
        prefix: of the options' names; a field `path` has this name itself.
        flag: False: those that are given by --set.
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
        if "help" in each.metadata and each.name not in leave_out and each.metadata.get("flag", True) is flag
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


def changes(
    plan: Any, sets: Any, methods: Sequence[str], others: Sequence[MethodSetting] = ()
) -> dict[str, Any]:
    """Return what was given of a plan and of methods; say which settings none of these methods takes.

    Args:
        plan: options of a plan.
        sets: texts of --set, and other settings of methods that have an option.
        methods: whose settings they may be, also user-defined ones.
        others: what --set takes too.
    """
    named = [method for method in methods if method != AUTO]
    for method in named:
        method_named(method)  # one of the user's own brings its settings
    given = parse_settings(sets.set, others)
    if sets.clipping_bound is not None:
        given["clipping_bound"] = sets.clipping_bound
    if named:
        say_ignored(given, named)
    return {**{name: value for name, value in vars(plan).items() if value is not None}, **given}


def take_part(given: dict[str, Any], part: type[_Part]) -> _Part:
    """Return a part of a run, such as `Execution`, by settings that are given, and take these out."""
    names = [each.name for each in part_settings(part, flag=False) if each.name in given]
    return part(**{name: given.pop(name) for name in names})


def settable(others: Sequence[MethodSetting] = ()) -> dict[str, MethodSetting]:
    """Return what --set takes, by name: settings of the plan and of methods that have no option."""
    every = (*part_settings(Plan, flag=False), *method_settings(), *others)
    return {each.name: each for each in every if each.name != "clipping_bound"}


def parse_settings(texts: Sequence[str], others: Sequence[MethodSetting] = ()) -> dict[str, Any]:
    """Return values by name.

    Raises:
        SettingError: a text that is not name=value, a name that is unknown or given twice, no number.

    >>> parse_settings(["momentum=0.9", "target-quantile=0.7"])
    {'momentum': 0.9, 'target_quantile': 0.7}
    """
    known, found = settable(others), {}
    for text in texts:
        name, _, value = (part.strip() for part in text.partition("="))
        name = name.replace("-", "_")
        if not (name and value):
            raise SettingError(f"--set {text!r}; expected name=value, such as momentum=0.9.", field="--set")
        if name not in known:
            raise unknown_name("setting", name, known)
        if name in found:
            raise SettingError(f"--set gives {name} twice; give it once.", field=name)
        found[name] = _converted(name, value, _without_none(known[name].type))
    return found


def _converted(name: str, value: str, kind: Any) -> Any:
    expected = {int: "a whole number", float: "a number", bool: "true or false"}
    try:
        if kind is bool:
            return {"true": True, "false": False}[value.lower()]
        return kind(value) if kind in expected else value
    except (ValueError, KeyError) as error:
        raise SettingError(f"--set {name}={value}; expected {expected[kind]}.", field=name) from error


def typed_setting(name: str, value: object = "") -> str:
    """Return a setting of a plan or a method as a command line has it.

    >>> typed_setting("batch_size", 64), typed_setting("momentum", 0.9), typed_setting("momentum")
    ('--batch-size 64', '--set momentum=0.9', '--set momentum')
    """
    if name in settable():
        return f"--set {name}={value}" if value != "" else f"--set {name}"
    return f"--{name.replace('_', '-')} {value}".rstrip()


def say_ignored(given: Iterable[str], methods: Sequence[str]) -> set[str]:
    """Say which of these settings are settings of methods that none of these is, and return them."""
    taken = {each.name for method in methods for each in settings_of(method_named(method).policy)}
    ignored = {name: all_settings().get(name, []) for name in given if name not in taken}
    ignored = {name: owners for name, owners in ignored.items() if owners}
    for name, owners in ignored.items():
        verb = "ignores" if len(methods) == 1 else "ignore"
        say(f"{name} is a setting of {', '.join(owners)}; {', '.join(methods)} {verb} it.")
    return set(ignored)
