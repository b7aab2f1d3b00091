"""Callbacks of a run whose plan has an individual filter; the filter itself is experimental."""

from __future__ import annotations

from equidp.individual.experimental import IndividualFilter
from equidp.training.plan import ResolvedPlan
from equidp.training.trainer import Callback

PASSES_PER_EPOCH = 3
"""Passes over the data that take norms, in an epoch."""


def filter_callbacks(plan: ResolvedPlan) -> list[Callback]:
    """Return the callbacks that take norms for accounts of single examples; none without such accounts.

    Args:
        plan: of the run.

    >>> import equidp
    >>> plan = equidp.Plan(batch_size=100, epochs=4, delta=1e-4, individual_filter=0.5)
    >>> found = plan.resolve("dpsgd", 1000, equidp.Target(3.0))
    >>> found.steps, found.full_steps, len(filter_callbacks(found))
    (40, 20, 1)
    """
    return [] if plan.full_steps is None else [IndividualFilter(per_epoch=PASSES_PER_EPOCH)]
