"""Whole-run accounting: from what was spent to epsilon, and from a target epsilon to noise."""

from equidp.accounting.calibrate import calibrate_noise
from equidp.accounting.epsilon import ACCOUNTANTS, EpsilonMeter, check_delta, epsilon
from equidp.accounting.events import effective_noise_multiplier, run_event
from equidp.accounting.histories import Histories, individual_epsilons

__all__ = [
    "ACCOUNTANTS",
    "EpsilonMeter",
    "Histories",
    "calibrate_noise",
    "check_delta",
    "effective_noise_multiplier",
    "epsilon",
    "individual_epsilons",
    "run_event",
]
