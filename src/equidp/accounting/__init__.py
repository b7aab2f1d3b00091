"""Accounting before and after a run: from what was spent to epsilon, and from a target epsilon to noise.

Plans, targets and people with several examples belong here. They use the epsilon of one run, which is in
kernel/. The epsilon of several runs is in ledger/.
"""

from equidp.accounting.calibration import calibrate_noise, calibrate_noise_to_risk
from equidp.accounting.meter import check_delta, epsilon_so_far
from equidp.accounting.rows import epsilon, mechanism
from equidp.kernel.epsilon import ACCOUNTANTS

__all__ = [
    "ACCOUNTANTS",
    "calibrate_noise",
    "calibrate_noise_to_risk",
    "check_delta",
    "epsilon",
    "epsilon_so_far",
    "mechanism",
]
