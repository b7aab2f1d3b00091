"""The table of methods: a name, the policy behind it, and what it does in a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from equidp._validate import unknown_name
from equidp.kernel.policy import Policy
from equidp.policies.automatic import Automatic
from equidp.policies.dpsgd import DPSGD
from equidp.policies.dpsgd_f import DPSGDF, DPSGDFCode
from equidp.policies.global_ import Global
from equidp.policies.global_adapt import GlobalAdapt
from equidp.policies.naive import Naive
from equidp.policies.psac import PSAC
from equidp.policies.quantile import Quantile
from equidp.policies.setting import settings_of
from equidp.policies.sgd import SGD

BASELINE = "sgd"
"""The method without privacy that costs are measured against."""


class Method(NamedTuple):
    """What a name stands for.

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
    "naive": Method(Naive, "reweights groups by size; a baseline (Xu 2021)"),
    "global": Method(
        Global, "scales all gradients by one factor and drops the longest; needs no groups (Bu 2021)"
    ),
    "global-adapt": Method(
        GlobalAdapt, "scales all gradients by one factor, learnt privately; needs no groups (Esipova 2023)"
    ),
    "quantile": Method(Quantile, "DP-SGD whose bound follows the median norm (Andrew 2021)"),
    "automatic": Method(Automatic, "normalises every gradient: no bound to tune (Bu 2022)"),
    "psac": Method(PSAC, "normalises, without blowing up small gradients (Xia 2022)"),
}
"""Name -> method. A line here makes a policy known to the command line, plans, comparisons and estimators."""


def method_named(name: str) -> Method:
    """The method of that name.

    Raises:
        SettingError: unknown; names the closest one.
    """
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    return METHODS[name]


def all_settings() -> dict[str, list[str]]:
    """Every setting of any method -> the methods that have it."""
    owners: dict[str, list[str]] = {}
    for name, method in METHODS.items():
        for each in settings_of(method.policy):
            owners.setdefault(each.name, []).append(name)
    return owners


def make_policy(name: str, settings: Mapping[str, Any]) -> Policy:
    """The method's policy with those of these settings that it has.

    Raises:
        SettingError: an unknown method, or a value that the policy refuses.
    """
    policy = method_named(name).policy
    known = {each.name for each in settings_of(policy)}
    return policy(**{key: value for key, value in settings.items() if key in known})
