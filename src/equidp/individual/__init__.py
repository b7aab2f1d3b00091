"""Individual privacy: what protection each example and each group had in a run.

Shares of the sensitivity by example, and epsilons that follow from them, belong here; epsilon of a whole run
is in kernel/, and epsilon of a person with several examples in accounting/.
"""

from equidp.individual.settings import Individual

__all__ = ["Individual"]
