"""The table of methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from equidp.policies import (
    DPSGD,
    DPSGDF,
    PSAC,
    SGD,
    Automatic,
    DPSGDFCode,
    Global,
    GlobalAdapt,
    Naive,
    Policy,
    Quantile,
)

if TYPE_CHECKING:
    from equidp.training.plan import Plan


@dataclass(frozen=True)
class Method:
    """A policy's name to the world.

    Attributes:
        make: (plan for this method, number of groups) -> policy.
        summary: what it does and when to use it, in a line.
    """

    make: Callable[[Plan, int], Policy]
    summary: str


def _dpsgd_f(variant: Callable[..., Policy]) -> Callable[[Plan, int], Policy]:
    return lambda plan, groups: variant(
        plan.clipping_bound, groups, statistics_ratio=plan.statistics_ratio, smoothing=plan.smoothing
    )


METHODS: dict[str, Method] = {
    "sgd": Method(lambda plan, groups: SGD(), "no privacy: the reference that costs are measured against"),
    "dpsgd": Method(
        lambda plan, groups: DPSGD(plan.clipping_bound),
        "one clipping bound for everyone: the standard (Abadi 2016)",
    ),
    "dpsgd-f": Method(
        _dpsgd_f(DPSGDF),
        "a higher bound for groups that are clipped more often; needs groups (Xu 2021, as printed)",
    ),
    "dpsgd-f-code": Method(
        _dpsgd_f(DPSGDFCode), "DPSGD-F as its authors ran it: ratios to the mean over groups"
    ),
    "naive": Method(
        lambda plan, groups: Naive(plan.clipping_bound, groups, statistics_ratio=plan.statistics_ratio),
        "reweights groups by size; a baseline (Xu 2021)",
    ),
    "global": Method(
        lambda plan, groups: Global(plan.clipping_bound, plan.strict_bound),
        "scales all gradients alike and drops the longest; needs no groups (Bu 2021)",
    ),
    "global-adapt": Method(
        lambda plan, groups: GlobalAdapt(
            plan.clipping_bound,
            initial_bound=plan.initial_bound,
            learning_rate=plan.bound_learning_rate,
            tolerance=plan.tolerance,
            statistics_ratio=plan.statistics_ratio,
        ),
        "scales all gradients alike, learns the scale privately; needs no groups (Esipova 2023)",
    ),
    "quantile": Method(
        lambda plan, groups: Quantile(plan.clipping_bound, statistics_ratio=plan.statistics_ratio),
        "DP-SGD whose bound follows the median norm (Andrew 2021)",
    ),
    "automatic": Method(
        lambda plan, groups: Automatic(plan.clipping_bound),
        "normalises every gradient: no bound to tune (Bu 2022)",
    ),
    "psac": Method(
        lambda plan, groups: PSAC(plan.clipping_bound),
        "normalises, without blowing up small gradients (Xia 2022)",
    ),
}
