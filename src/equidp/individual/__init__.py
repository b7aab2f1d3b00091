"""Individual privacy: what protection each example and each group had in a run.

Shares of the sensitivity by example, and epsilons that follow from them, belong here. Epsilon of a whole run
is in kernel/. Epsilon of a person with several examples is in accounting/.
"""

from equidp.individual.settings import Individual

__all__ = ["Individual"]
