"""Individual privacy: what protection each example and each group had in a run."""

from equidp.evaluation.membership import sensitive_membership_inference
from equidp.individual.accountant import IndividualAccountant
from equidp.individual.clipping import IndividualClipping
from equidp.individual.report import IndividualReport

__all__ = [
    "IndividualAccountant",
    "IndividualClipping",
    "IndividualReport",
    "sensitive_membership_inference",
]
