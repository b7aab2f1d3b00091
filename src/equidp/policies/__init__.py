"""Methods of private training, one a file, and the table of their names."""

from __future__ import annotations

from equidp.kernel.policy import NoState, Policy, Setting
from equidp.policies.automatic import Automatic
from equidp.policies.checks import check_policy
from equidp.policies.dpsgd import DPSGD
from equidp.policies.dpsgd_f import DPSGDF, DPSGDFCode
from equidp.policies.experimental.fairlens import FairLens
from equidp.policies.global_ import Global
from equidp.policies.global_adapt import GlobalAdapt
from equidp.policies.methods import METHODS, Method
from equidp.policies.naive import Naive
from equidp.policies.psac import PSAC
from equidp.policies.quantile import Quantile, QuantileBounded
from equidp.policies.sgd import SGD
from equidp.policies.softadaclip import SoftAdaClip

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
    "Quantile",
    "QuantileBounded",
    "Setting",
    "SoftAdaClip",
    "check_policy",
]
