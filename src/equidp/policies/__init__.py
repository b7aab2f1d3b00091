"""Methods of private training, one a file, and the table of their names. Names load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equidp._lazy import lazy_names

if TYPE_CHECKING:
    from equidp.kernel.policy import NoState, Policy, Setting
    from equidp.policies.automatic import Automatic
    from equidp.policies.checks import check_policy
    from equidp.policies.dpsgd import DPSGD
    from equidp.policies.dpsgd_f import DPSGDF, DPSGDFCode
    from equidp.policies.fairlens import FairLens
    from equidp.policies.global_ import Global
    from equidp.policies.global_adapt import GlobalAdapt
    from equidp.policies.methods import make_policy
    from equidp.policies.naive import Naive
    from equidp.policies.prototypes import Prototypes
    from equidp.policies.psac import PSAC
    from equidp.policies.quantile import Quantile, QuantileBounded
    from equidp.policies.sgd import SGD
    from equidp.policies.softadaclip import SoftAdaClip
    from equidp.policies.table import METHODS, Method

__all__ = [
    "DPSGD",
    "DPSGDF",
    "METHODS",
    "PSAC",
    "SGD",
    "Automatic",
    "DPSGDFCode",
    "FairLens",
    "Global",
    "GlobalAdapt",
    "Method",
    "Naive",
    "NoState",
    "Policy",
    "Prototypes",
    "Quantile",
    "QuantileBounded",
    "Setting",
    "SoftAdaClip",
    "check_policy",
    "make_policy",
]

__getattr__ = lazy_names(
    __name__,
    {
        "equidp.kernel.policy": "NoState Policy Setting",
        "equidp.policies.automatic": "Automatic",
        "equidp.policies.checks": "check_policy",
        "equidp.policies.dpsgd": "DPSGD",
        "equidp.policies.dpsgd_f": "DPSGDF DPSGDFCode",
        "equidp.policies.fairlens": "FairLens",
        "equidp.policies.global_": "Global",
        "equidp.policies.global_adapt": "GlobalAdapt",
        "equidp.policies.methods": "make_policy",
        "equidp.policies.naive": "Naive",
        "equidp.policies.prototypes": "Prototypes",
        "equidp.policies.psac": "PSAC",
        "equidp.policies.quantile": "Quantile QuantileBounded",
        "equidp.policies.sgd": "SGD",
        "equidp.policies.softadaclip": "SoftAdaClip",
        "equidp.policies.table": "METHODS Method",
    },
)
