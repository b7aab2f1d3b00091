"""Widths of bins of privacy losses, which decide how long an epsilon takes and how tight it is."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

COARSE_BINS, FINE_BINS = 1e-3, 1e-4


def round_privacy_losses(width: float) -> None:
    """Round privacy losses of this process to bins of this width; nothing worked out with others is kept.

    With coarse bins, those of several rows are ten times wider still, and ledgers choose from a quarter of
    the orders.
    """
    from equidp.accounting import rows
    from equidp.accounting.calibration import calibrate_noise, calibrate_noise_to_risk
    from equidp.kernel import epsilon
    from equidp.ledger import renyi

    if width == epsilon.FINE:
        return
    epsilon.FINE = width
    epsilon.ACCOUNTANTS["pld"] = partial(epsilon.pld_epsilon, interval=width)
    renyi._ORDERS = _all_orders()[:: 1 if width == FINE_BINS else 4]
    of_rows = _epsilon_of_rows()
    rows._epsilon_of_rows = of_rows if width == FINE_BINS else lru_cache(_in_wider_bins)
    for each in (epsilon._epsilon, of_rows, calibrate_noise, calibrate_noise_to_risk):
        each.cache_clear()


@lru_cache(maxsize=1)
def _epsilon_of_rows() -> Any:
    from equidp.accounting import rows

    return rows._epsilon_of_rows


def _in_wider_bins(*given: Any) -> float:
    from equidp.kernel import epsilon

    width = epsilon.FINE
    try:
        epsilon.FINE = 10 * width
        return _epsilon_of_rows().__wrapped__(*given)
    finally:
        epsilon.FINE = width


@lru_cache(maxsize=1)
def _all_orders() -> tuple[float, ...]:
    from equidp.ledger import renyi

    return renyi._ORDERS
