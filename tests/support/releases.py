"""What a ledger holds of a release."""

from __future__ import annotations

from equidp.accounting.planned import release_event
from equidp.kernel.event import Event


def paid_for(name: str, epsilon: float, delta: float) -> Event:
    """The event of a release that costs (epsilon, delta) alone."""
    return Event(1.0, release_event(epsilon, delta).noise, name=name)
