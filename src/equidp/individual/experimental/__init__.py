"""Young uses of the accounts of single examples; docs/experimental.md says what moves one up.

Nothing else imports them: a user hands them to a Trainer.
"""

from equidp.individual.experimental.individual_filter import IndividualFilter

__all__ = ["IndividualFilter"]
