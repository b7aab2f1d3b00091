"""The table of methods: a name, the policy behind it, and what it does in a line. Policies load on use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, final

if TYPE_CHECKING:
    from equidp.kernel.policy import Policy

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


class Row(NamedTuple):
    """A method of equidp before its policy is imported.

    Attributes:
        path: module:Class of its policy, below `equidp.policies`.
        summary: what it does and when to use it, in a line.
        statistics_ratio, private: those of the policy at its default settings, stated here so that accounting
            for the method needs no torch.
        options: of a plan, which the method fixes whatever the plan has.
    """

    path: str
    summary: str
    statistics_ratio: float | None = None
    private: bool = True
    options: Mapping[str, Any] = MappingProxyType({})


@final
class MethodTable(MutableMapping[str, Method]):
    """Name -> method. A policy is imported when its method is asked for; names and rows import nothing.

    Args:
        rows: of equidp's methods, by name; others are added as to a dict.

    >>> list(METHODS)[:2], METHODS["dpsgd"].policy.__name__
    (['sgd', 'dpsgd'], 'DPSGD')
    """

    def __init__(self, rows: Mapping[str, Row]) -> None:
        self._rows: dict[str, Row | Method] = dict(rows)

    def __getitem__(self, name: str) -> Method:
        found = self._rows[name]
        if isinstance(found, Method):
            return found
        module, _, policy = found.path.partition(":")
        return Method(getattr(import_module(f"equidp.policies.{module}"), policy), found.summary)

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __setitem__(self, name: str, method: Method) -> None:
        self._rows[name] = method

    def __delitem__(self, name: str) -> None:
        del self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, name: str) -> Row | None:
        """Row of a method of equidp; None for another name, also where a user's method took its place.

        >>> METHODS.row("dpsgd-f").statistics_ratio
        10.0
        """
        found = self._rows.get(name)
        return found if isinstance(found, Row) else None


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

METHODS = MethodTable(
    {
        "sgd": Row("sgd:SGD", "no privacy: the baseline that costs are measured against", private=False),
        "dpsgd": Row("dpsgd:DPSGD", "one clipping bound for everyone: the standard (Abadi 2016)"),
        "dpsgd-f": Row(
            "dpsgd_f:DPSGDF",
            "a higher bound for groups that are clipped more often; needs groups (Xu 2021, as printed)",
            statistics_ratio=10.0,
        ),
        "dpsgd-f-code": Row(
            "dpsgd_f:DPSGDFCode",
            "DPSGD-F as its authors ran it: ratios to the mean over groups",
            statistics_ratio=10.0,
        ),
        "fairlens": Row(
            "fairlens:FairLens",
            "penalises what makes two groups lose differently; small models, functional engine (Tran 2021)",
            statistics_ratio=10.0,
        ),
        "naive": Row("naive:Naive", "reweights groups by size; a baseline (Xu 2021)", statistics_ratio=10.0),
        "global": Row(
            "global_:Global",
            "scales all gradients by one factor and drops the longest; needs no groups (Bu 2021)",
        ),
        "global-adapt": Row(
            "global_adapt:GlobalAdapt",
            "scales all gradients by one factor, learnt privately; needs no groups (Esipova 2023)",
            statistics_ratio=10.0,
        ),
        "quantile": Row(
            "quantile:Quantile",
            "DP-SGD whose bound follows the median norm (Andrew 2021)",
            statistics_ratio=10.0,
        ),
        "quantile-bounded": Row(
            "quantile:QuantileBounded",
            "quantile with a lowest bound, which keeps hard examples in play (Zhao 2025)",
            statistics_ratio=10.0,
        ),
        "softadaclip": Row(
            "softadaclip:SoftAdaClip",
            "clips smoothly by tanh, at a bound that follows the median norm (Soleymani 2025)",
            statistics_ratio=10.0,
        ),
        "automatic": Row("automatic:Automatic", "normalises every gradient: no bound to tune (Bu 2022)"),
        "psac": Row("psac:PSAC", "normalises, without blowing up small gradients (Xia 2022)"),
        "prototypes": Row(
            "prototypes:Prototypes",
            "one noisy sum of unit features a class, no training: small epsilon, rare classes (Wahdany 2024)",
            options=_ONE_RELEASE,
        ),
    }
)
"""Name -> method. A row here makes a policy known to the command line, plans, comparisons and estimators."""
