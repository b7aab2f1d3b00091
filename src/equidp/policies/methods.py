"""Methods by name, import path, policy or class; policies of given settings, and all settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from inspect import getdoc
from typing import Any

from equidp._parts import is_import_path, own_part
from equidp._validate import unknown_name
from equidp.errors import EquidpError, PolicyError, SettingError, error_text
from equidp.kernel.policy import Policy
from equidp.policies.checks import check_settings
from equidp.policies.setting import settings_of
from equidp.policies.table import METHODS, Method

MethodLike = str | Policy | type[Policy]
"""A name from `METHODS`, an import path such as "my_module:MyPolicy", a policy, or a policy's class."""


def method_named(method: MethodLike) -> Method:
    """Return the method of a name, an import path, a policy or a policy's class.

    Raises:
        SettingError: the name is unknown (the message has the closest one), or the path names nothing.
        PolicyError: it is not a frozen dataclass, or is abstract.
    """
    if isinstance(method, str) and method in METHODS:
        return METHODS[method]
    found = found_policy(method)
    policy = found if isinstance(found, type) else type(found)
    if not (is_dataclass(policy) and policy.__dataclass_params__.frozen):
        raise PolicyError(
            f"{policy.__name__} is not a frozen dataclass; write @dataclass(frozen=True) above the class.",
            field="method",
        )
    if policy.bound is Policy.bound and policy.sensitivity is Policy.sensitivity:
        raise PolicyError(f"{policy.__name__} lacks bound(self, state, group).", field="method")
    return Method(policy, (getdoc(policy) or "").partition("\n")[0])


def found_policy(method: MethodLike) -> Policy | type[Policy]:
    """The policy or the class that a method stands for.

    Raises:
        SettingError: the name has nothing, or something else.
    """
    if isinstance(method, str):
        if method in METHODS:
            return METHODS[method].policy
        if not is_import_path(method):
            raise unknown_name("method", method, METHODS)
        expected = "a subclass of equidp.Policy, or an object of one"
        method = own_part(method, "method", _is_policy, expected)
    if not _is_policy(method):
        raise SettingError(
            f"method {method!r}; expected a name from equidp.METHODS, an import path such as "
            "'my_module:MyPolicy', or a policy such as equidp.DPSGD(clipping_bound=1.0).",
            field="method",
        )
    return method  # type: ignore[return-value]


def _is_policy(thing: Any) -> bool:
    return isinstance(thing, Policy) or (isinstance(thing, type) and issubclass(thing, Policy))


def all_settings() -> dict[str, list[str]]:
    """Every setting of any method -> the methods that have it. The user's own are under their classes."""
    owners: dict[str, list[str]] = {}
    for name, policy in known_policies().items():
        for each in fields(policy):  # type: ignore[arg-type]
            owners.setdefault(each.name, []).append(name)
    return owners


def known_policies() -> dict[str, type[Policy]]:
    """The policies of `METHODS` by name, and all others that this process has defined, by their classes."""
    known = {name: method.policy for name, method in METHODS.items()}
    own = {each.__name__: each for each in _below(Policy) if each not in known.values()}
    return {**known, **{name: each for name, each in own.items() if name not in known}}


def _below(policy: type[Policy]) -> Iterator[type[Policy]]:
    for each in policy.__subclasses__():
        if is_dataclass(each) and not each.__module__.startswith("equidp."):
            yield each
        yield from _below(each)


def make_policy(method: MethodLike, settings: Mapping[str, Any]) -> Policy:
    """Return the policy of a method with the settings that it has. A policy object is returned unchanged.

    Raises:
        SettingError: the method is unknown, a setting is missing, or the policy rejects a value.
    """
    policy, made = method_named(method).policy, found_policy(method)
    if isinstance(made, Policy):
        check_settings(made)
        return made
    own = {each.name: each for each in fields(policy)}  # type: ignore[arg-type]
    given = {key: value for key, value in settings.items() if key in own}
    required = {name for name, each in own.items() if each.default is each.default_factory is MISSING}
    if missing := sorted(required - {*given}):
        raise SettingError(
            f"method {name_of(method)!r} has no default for {', '.join(missing)}; give it as a setting, or "
            "write a default in the class."
        )
    try:
        return policy(**given)
    except EquidpError:
        raise
    except Exception as error:
        raise SettingError(
            f"method {name_of(method)!r} cannot be made with {given}: {error_text(error)}."
        ) from error


def fixed_options(method: MethodLike) -> Mapping[str, Any]:
    """Options of a plan that a method fixes, by name, or {} for most.

    >>> fixed_options("prototypes")["epochs"], dict(fixed_options("dpsgd"))
    (1, {})
    """
    known = METHODS.get(name_of(method))
    return {} if known is None else known.options


def check_not_fixed(given: Mapping[str, Any], method: MethodLike) -> None:
    """Raise a SettingError if options that are given differ from those that a method fixes."""
    for name, value in fixed_options(method).items():
        if name in given and given[name] != value:
            raise SettingError(
                f"{name}={given[name]!r}, and method {name_of(method)!r} fixes it, as {value!r}; leave it "
                "out, or choose another method.",
                field=name,
            )


def name_of(method: MethodLike) -> str:
    """Name of a method: its name in `METHODS`, its import path, or the name of its class.

    >>> from equidp.policies import DPSGD
    >>> name_of(DPSGD(2.0)), name_of("my_module:MyPolicy")
    ('dpsgd', 'my_module:MyPolicy')
    """
    if isinstance(method, str):
        return method
    policy = method if isinstance(method, type) else type(method)
    return next((name for name, known in METHODS.items() if known.policy is policy), policy.__name__)


def ignored_sentences(given: Iterable[str], methods: Sequence[str]) -> tuple[str, ...]:
    """Return a sentence on each of these settings that other methods have, and none of these."""
    taken = {each.name for method in methods for each in settings_of(method_named(method).policy)}
    ignored = {name: all_settings().get(name, []) for name in given if name not in taken}
    verb = "ignores" if len(methods) == 1 else "ignore"
    return tuple(
        f"{name} is a setting of {', '.join(owners)}; {', '.join(methods)} {verb} it."
        for name, owners in ignored.items()
        if owners
    )
