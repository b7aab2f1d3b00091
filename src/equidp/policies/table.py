"""The table of methods: a name, the policy behind it, and what it does in a line. Policies load on use."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from equidp.kernel.policy import Policy

AUTO = "auto"
"""Name among methods that stands for the recommended one."""
BASELINE = "sgd"
"""The method without privacy that costs are measured against."""
STANDARD = "dpsgd"
"""The private method that others are measured against."""


class Method(NamedTuple):
    """Policy and summary of a name in `METHODS`.

    Attributes:
        source: class of the policy, whose fields are the method's settings, or module:Class in
            `equidp.policies`, imported when `policy` is first used.
        summary: one line on what it does and when to use it.
        statistics_ratio, private: values of a policy that is not imported, at default settings, so that
            accounting needs no torch.
        options: plan options that the method fixes, regardless of the plan.

    Example:
        >>> import equidp
        >>> equidp.METHODS["global"].policy(strict_bound=10.0)
        Global(clipping_bound=1.0, strict_bound=10.0)
    """

    source: type[Policy] | str
    summary: str
    statistics_ratio: float | None = None
    private: bool = True
    options: Mapping[str, Any] = MappingProxyType({})

    @property
    def policy(self) -> type[Policy]:
        """Class of the policy."""
        if not isinstance(self.source, str):
            return self.source
        module, _, name = self.source.partition(":")
        found: type[Policy] = getattr(import_module(f"equidp.policies.{module}"), name)
        return found


_ONE_RELEASE: Mapping[str, Any] = MappingProxyType(
    {
        "model": "prototypes",
        "loss": "equidp.losses:own_output",
        "class_weight": None,
        "batch_size": 0,
        "epochs": 1,
        "learning_rate": 1.0,
        "optimizer": "sgd",
        "momentum": 0.0,
        "weight_decay": 0.0,
        "schedule": "constant",
        "average": "none",
        "views": 1,
        "augmentation": "none",
    }
)
"""Options of one step over all examples that adds minus the gradient's sum to weights of zero."""

METHODS: dict[str, Method] = {
    "sgd": Method("sgd:SGD", "no privacy: the baseline that costs are measured against", private=False),
    "dpsgd": Method("dpsgd:DPSGD", "one clipping bound for everyone: the standard (Abadi 2016)"),
    "dpsgd-f": Method(
        "dpsgd_f:DPSGDF",
        "a higher bound for groups that are clipped more often; needs groups (Xu 2021, as printed)",
        statistics_ratio=10.0,
    ),
    "dpsgd-f-code": Method(
        "dpsgd_f:DPSGDFCode",
        "DPSGD-F as its authors ran it: ratios to the mean over groups",
        statistics_ratio=10.0,
    ),
    "naive": Method("naive:Naive", "reweights groups by size; a baseline (Xu 2021)", statistics_ratio=10.0),
    "global": Method(
        "global_:Global",
        "scales all gradients by one factor and drops the longest; needs no groups (Bu 2021)",
    ),
    "global-adapt": Method(
        "global_adapt:GlobalAdapt",
        "scales all gradients by one factor, learnt privately; needs no groups (Esipova 2023)",
        statistics_ratio=10.0,
    ),
    "quantile": Method(
        "quantile:Quantile",
        "DP-SGD whose bound follows the median norm (Andrew 2021)",
        statistics_ratio=10.0,
    ),
    "quantile-bounded": Method(
        "quantile:QuantileBounded",
        "quantile with a lowest bound, which keeps hard examples in play (Zhao 2025)",
        statistics_ratio=10.0,
    ),
    "softadaclip": Method(
        "softadaclip:SoftAdaClip",
        "clips smoothly by tanh, at a bound that follows the median norm (Soleymani 2025)",
        statistics_ratio=10.0,
    ),
    "automatic": Method("automatic:Automatic", "normalises every gradient: no bound to tune (Bu 2022)"),
    "psac": Method("psac:PSAC", "normalises, without blowing up small gradients (Xia 2022)"),
    "prototypes": Method(
        "prototypes:Prototypes",
        "one noisy sum of unit features a class, no training: small epsilon, rare classes (Wahdany 2024)",
        options=_ONE_RELEASE,
    ),
}
"""Name -> method. A row here makes a policy known to the command line, plans, comparisons and estimators."""
