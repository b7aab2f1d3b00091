"""Releases beside the steps of a run, each a Gaussian mechanism on all rows: what they are planned to cost.

`Ledger.pay` pays for one, just before it is drawn.
"""

from __future__ import annotations

from equidp._validate import check_number
from equidp.accounting.calibration import calibrate_noise
from equidp.errors import SettingError
from equidp.kernel.ledger import StepEvent

PREPROCESSING, COUNTS, INDIVIDUAL = "preprocessing", "class counts", "individual privacy"
RECALIBRATION = "recalibration"
"""Names of what a run releases beside its steps."""
RELEASE_EPSILON = 0.1
"""Default epsilon of a release of individual privacy (Yu et al., Table 2)."""


def release_event(epsilon: float, delta: float) -> StepEvent:
    """Returns what a release is charged as that alone costs (epsilon, delta).

    Its noise multiplier is that of `equidp.tables.release`. Together with a run it costs less than the sum of
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
