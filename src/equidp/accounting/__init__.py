"""Accounting before and after a run: from what was spent to epsilon, and from a target epsilon to noise.

Plans, targets, budgets of several runs and people with several examples belong here; epsilon of one run, on
which these rest, is in kernel/.
"""

from equidp.accounting.cache import epsilon, remembered
from equidp.accounting.calibration import calibrate_noise, calibrate_noise_to_risk
from equidp.accounting.meter import EpsilonMeter, check_delta
from equidp.accounting.rows import run_event
from equidp.kernel.epsilon import ACCOUNTANTS, effective_noise_multiplier

__all__ = [
    "ACCOUNTANTS",
    "EpsilonMeter",
    "calibrate_noise",
    "calibrate_noise_to_risk",
    "check_delta",
    "effective_noise_multiplier",
    "epsilon",
    "remembered",
    "run_event",
]
