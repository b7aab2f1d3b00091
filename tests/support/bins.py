"""Widths of bins of privacy losses, which decide how long an epsilon takes and how tight it is."""

from __future__ import annotations

from functools import partial

COARSE_BINS, FINE_BINS = 1e-3, 1e-4


def round_privacy_losses(width: float) -> None:
    """Round privacy losses of this process to bins of this width; nothing worked out with others is kept."""
    from equidp.accounting import rows
    from equidp.accounting.calibration import calibrate_noise, calibrate_noise_to_risk
    from equidp.kernel import epsilon

    if width == epsilon.FINE:
        return
    epsilon.FINE = width
    epsilon.ACCOUNTANTS["pld"] = partial(epsilon.pld_epsilon, interval=width)
    for each in (epsilon._epsilon, rows._epsilon_of_rows, calibrate_noise, calibrate_noise_to_risk):
        each.cache_clear()
