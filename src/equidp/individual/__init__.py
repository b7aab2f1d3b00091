"""Individual privacy: what protection each example and each group had in a run."""

from equidp.individual.accountant import IndividualAccountant, IndividualClipping
from equidp.individual.report import IndividualReport

__all__ = ["IndividualAccountant", "IndividualClipping", "IndividualReport"]
