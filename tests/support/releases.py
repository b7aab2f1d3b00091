"""What a ledger holds of a release."""

from __future__ import annotations

from equidp.accounting.planned import release_event
from equidp.kernel.ledger import ReleaseEvent


def paid_for(name: str, epsilon: float, delta: float) -> ReleaseEvent:
    """The event of a release that costs (epsilon, delta) alone."""
    return ReleaseEvent(1.0, release_event(epsilon, delta).noise_multiplier, name=name)
