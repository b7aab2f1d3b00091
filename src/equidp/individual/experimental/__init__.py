"""Young uses of the accounts of single examples; docs/experimental.md says what moves one up.

A user hands them to a Trainer; `individual/filter_option.py` makes the one that is an option of plans.
"""

from equidp.individual.experimental.individual_filter import IndividualFilter

__all__ = ["IndividualFilter"]
