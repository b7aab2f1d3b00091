"""The table of methods: a name, the policy behind it, and what it does in a line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from inspect import getdoc, isabstract
from typing import Any, NamedTuple

from equidp._parts import is_import_path, own_part
from equidp._validate import unknown_name
from equidp.errors import EquidpError, PolicyError, SettingError
from equidp.kernel.policy import Policy, check_settings
from equidp.policies.automatic import Automatic
from equidp.policies.dpsgd import DPSGD
from equidp.policies.dpsgd_f import DPSGDF, DPSGDFCode
from equidp.policies.experimental.fairlens import FairLens
from equidp.policies.global_ import Global
from equidp.policies.global_adapt import GlobalAdapt
from equidp.policies.naive import Naive
from equidp.policies.psac import PSAC
from equidp.policies.quantile import Quantile, QuantileBounded
from equidp.policies.sgd import SGD
from equidp.policies.softadaclip import SoftAdaClip

BASELINE = "sgd"
"""The method without privacy that costs are measured against."""
STANDARD = "dpsgd"
"""The private method that others are measured against."""


class Method(NamedTuple):
    """Policy and summary of a name in `METHODS`.

    Attributes:
        policy: a frozen dataclass; its fields are the method's settings.
        summary: what it does and when to use it, in a line.

    Example:
        >>> import equidp
        >>> equidp.METHODS["global"].policy(strict_bound=10.0)
        Global(clipping_bound=1.0, strict_bound=10.0)
    """

    policy: type[Policy]
    summary: str


METHODS: dict[str, Method] = {
    "sgd": Method(SGD, "no privacy: the reference that costs are measured against"),
    "dpsgd": Method(DPSGD, "one clipping bound for everyone: the standard (Abadi 2016)"),
    "dpsgd-f": Method(
        DPSGDF, "a higher bound for groups that are clipped more often; needs groups (Xu 2021, as printed)"
    ),
    "dpsgd-f-code": Method(DPSGDFCode, "DPSGD-F as its authors ran it: ratios to the mean over groups"),
    "fairlens": Method(
        FairLens,
        "penalises what makes two groups lose differently; small models, functional engine (Tran 2021)",
    ),
    "naive": Method(Naive, "reweights groups by size; a baseline (Xu 2021)"),
    "global": Method(
        Global, "scales all gradients by one factor and drops the longest; needs no groups (Bu 2021)"
    ),
    "global-adapt": Method(
        GlobalAdapt, "scales all gradients by one factor, learnt privately; needs no groups (Esipova 2023)"
    ),
    "quantile": Method(Quantile, "DP-SGD whose bound follows the median norm (Andrew 2021)"),
    "quantile-bounded": Method(
        QuantileBounded, "quantile with a lowest bound, which keeps hard examples in play (Zhao 2025)"
    ),
    "softadaclip": Method(
        SoftAdaClip,
        "clips smoothly by tanh, at a bound that follows the median norm (Soleymani 2025)",
    ),
    "automatic": Method(Automatic, "normalises every gradient: no bound to tune (Bu 2022)"),
    "psac": Method(PSAC, "normalises, without blowing up small gradients (Xia 2022)"),
}
"""Name -> method. A line here makes a policy known to the command line, plans, comparisons and estimators."""


MethodLike = str | Policy | type[Policy]
"""A name from `METHODS`, an import path such as "my_module:MyPolicy", a policy, or a policy's class."""


def method_named(method: MethodLike) -> Method:
    """Return the method of a name, an import path, a policy or a policy's class.

    Raises:
        SettingError: an unknown name, whose closest one it names, or a path that leads nowhere.
        PolicyError: no frozen dataclass, or an abstract one.
    """
    if isinstance(method, str) and method in METHODS:
        return METHODS[method]
    found = found_policy(method)
    policy = found if isinstance(found, type) else type(found)
    if not (is_dataclass(policy) and policy.__dataclass_params__.frozen):
        raise PolicyError(
            f"{policy.__name__} is not a frozen dataclass; write @dataclass(frozen=True) above the class."
        )
    if isabstract(policy):
        missing = ", ".join(sorted(policy.__abstractmethods__))
        raise PolicyError(f"{policy.__name__} lacks {missing}; a policy has weight and sensitivity.")
    return Method(policy, (getdoc(policy) or "").partition("\n")[0])


def found_policy(method: MethodLike) -> Policy | type[Policy]:
    """The policy or the class that a method stands for.

    Raises:
        SettingError: nothing of that name, or something else.
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
            "'my_module:MyPolicy', or a policy such as equidp.DPSGD(clipping_bound=1.0)."
        )
    return method  # type: ignore[return-value]


def _is_policy(thing: Any) -> bool:
    return isinstance(thing, Policy) or (isinstance(thing, type) and issubclass(thing, Policy))


def all_settings() -> dict[str, list[str]]:
    """Every setting of any method -> the methods that have it; the user's own are under their classes."""
    owners: dict[str, list[str]] = {}
    for name, policy in known_policies().items():
        for each in fields(policy):  # type: ignore[arg-type]
            owners.setdefault(each.name, []).append(name)
    return owners


def known_policies() -> dict[str, type[Policy]]:
    """The policies of `METHODS` by name, and all others that this process has defined, by their classes."""
    known = {name: method.policy for name, method in METHODS.items()}
    own = {each.__name__: each for each in _below(Policy) if each not in known.values()}  # type: ignore[type-abstract]
    return {**known, **{name: each for name, each in own.items() if name not in known}}


def _below(policy: type[Policy]) -> Iterator[type[Policy]]:
    for each in policy.__subclasses__():
        if is_dataclass(each) and not each.__module__.startswith("equidp."):
            yield each
        yield from _below(each)


def make_policy(method: MethodLike, settings: Mapping[str, Any]) -> Policy:
    """The method's policy with those of these settings that it has. A policy that was made stays as it is.

    Raises:
        SettingError: an unknown method, a setting that is missing, or a value that the policy refuses.
    """
    policy, made = method_named(method).policy, found_policy(method)
    if isinstance(made, Policy):
        check_settings(made)
        return made
    own = {each.name: each for each in fields(policy)}  # type: ignore[arg-type]
    given = {key: value for key, value in settings.items() if key in own}
    required = [name for name, each in own.items() if each.default is each.default_factory is MISSING]
    if missing := [name for name in required if name not in given]:
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
            f"method {name_of(method)!r} cannot be made with {given}: {type(error).__name__}: {error}."
        ) from error


def name_of(method: MethodLike) -> str:
    """Name of a method: its name in `METHODS`, its import path, or the name of its class.

    >>> name_of(DPSGD(2.0)), name_of("my_module:MyPolicy")
    ('dpsgd', 'my_module:MyPolicy')
    """
    if isinstance(method, str):
        return method
    policy = method if isinstance(method, type) else type(method)
    return next((name for name, known in METHODS.items() if known.policy is policy), policy.__name__)
