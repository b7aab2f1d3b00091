"""Releases beside the steps of a run, each a Gaussian mechanism on all rows: planned, and paid for before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from equidp._validate import check_number
from equidp.accounting.budget import PrivacyBudget
from equidp.accounting.calibration import calibrate_noise
from equidp.errors import SettingError
from equidp.kernel.ledger import Event, Ledger, StepEvent

PREPROCESSING, COUNTS, INDIVIDUAL = "preprocessing", "class counts", "individual privacy"
RECALIBRATION = "recalibration"
"""Names of what a run releases beside its steps."""


def release_event(epsilon: float, delta: float) -> StepEvent:
    """Returns what a release is charged as that alone costs (epsilon, delta).

    Its noise multiplier is that of `equidp.data.release`. Together with a run it costs less than the sum of
    both epsilons: give it to `Plan.resolve(also_spent=((event, 1),))`.

    Raises:
        SettingError: an epsilon or a delta outside its range.

    >>> round(release_event(0.3, delta=1e-6).noise_multiplier, 1)
    13.0
    """
    return StepEvent(1.0, calibrate_noise(epsilon, delta, 1.0, 1))


def check_share(name: str, share: float | None, epsilon: float | None) -> None:
    """Raises a SettingError unless a release can take this share of a target epsilon; None: it takes none.

    >>> check_share("preprocessing_share", 0.1, 3.0)
    """
    if share is None:
        return
    check_number("(0, 1)", "", **{name: share})
    if epsilon is None:
        raise SettingError(
            f"{name}={share:g} takes a share of a target epsilon, which is not given; give --epsilon."
        )


def charge_releases(
    releases: Iterable[StepEvent], ledger: Ledger, budget: PrivacyBudget | None = None
) -> None:
    """Pays for those of a run's releases that its ledger does not hold yet; equal ones are counted.

    For a run whose releases are all planned, in which a resumption calls this again: give all of them each
    time, before the first step. Anyone else pays with `ledger.spend(event)` for each draw, and so does a run
    that draws again because a result was not kept: equal events would be taken for paid.

    Raises:
        BudgetError: one does not fit into the budget, or cannot be written; it must not be drawn then.

    >>> from equidp.kernel.ledger import MemoryLedger
    >>> ledger, event = MemoryLedger(), StepEvent(1.0, 20.0)
    >>> charge_releases([event, event], ledger)
    >>> charge_releases([event, event], ledger)
    >>> ledger.steps
    2
    """
    paid: Counter[Event] = Counter()
    for event, times in ledger.entries:
        paid[event] += times
    owed = Counter[Event](releases) - paid
    if owed:
        account = ledger if budget is None else budget.ledger(ledger)
        for event in owed.elements():
            account.spend(event)
