"""Number of guesses about the canaries of one run, fixed before it, and the bounds from guesses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from dp_accounting import get_sigma_gaussian
from scipy.optimize import brentq
from scipy.special import ndtr

from equidp.audit.asked import fewest
from equidp.audit.bounds import epsilon_of_guesses, noise_of_guesses
from equidp.audit.family import NoiseFamily
from equidp.audit.result import USEFUL, GroupBound
from equidp.errors import SettingError
from equidp.kernel.ledger import StepEvent

_SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
_MOST = 10**6


def equal_gaussian(epsilon: float, delta: float) -> float:
    """mu of the Gaussian mechanism with this epsilon at this delta."""
    return 1 / float(get_sigma_gaussian(epsilon, delta))


def guess_bound(
    name: str,
    scores: npt.NDArray[np.float64],
    inside: npt.NDArray[np.bool_],
    family: NoiseFamily,
    mu: float,
    delta: float,
    level: float,
) -> GroupBound:
    """Lower bounds from canaries' scores, where higher scores mean "in".

    Of r guesses, half guess "in" for the highest scores and half "out" for the lowest; r would be best if the
    mechanism were a Gaussian of this mu, so it does not depend on the scores.

    Args:
        name: of the group.
        scores, inside: [m].
        family: the claimed mechanism.
        mu: expected strength of the attack.
        delta, level: of the bounds.
    """
    count, order = len(scores), np.argsort(-scores, kind="stable")
    found = []
    for bound, expected in (
        (partial(noise_of_guesses, family=family, delta=delta, level=level), _gaussian(mu, delta, level)),
        *((partial(epsilon_of_guesses, delta=delta, level=level),) * 2,),
    ):
        guesses = best_guesses(count, mu, expected)[0]
        highest, lowest = order[: (guesses + 1) // 2], order[count - guesses // 2 :]
        right = int(inside[highest].sum() + (~inside[lowest]).sum())
        found.append(bound(canaries=count, right=right, guesses=guesses))
    return GroupBound(name, count, *found)


def best_guesses(canaries: int, mu: float, bound: Callable[..., float]) -> tuple[int, float]:
    """Number of guesses with the largest expected bound under an attack of this mu, and that bound."""
    numbers = sorted({max(1, round(share * canaries)) for share in _SHARES})
    expected = [
        bound(canaries=canaries, right=round(number * _accuracy(number / canaries, mu)), guesses=number)
        for number in numbers
    ]
    best = int(np.argmax(expected))
    return numbers[best], expected[best]


def check_canaries(count: int, claimed: float, mu: float, delta: float, level: float) -> None:
    """Check that the canaries are enough for a bound of at least a tenth of a tight claim.

    Raises:
        SettingError: too few canaries; the message has the number needed.
    """
    bound = _gaussian(mu, delta, level)

    def enough(canaries: int) -> bool:
        return best_guesses(canaries, mu, bound)[1] >= USEFUL * claimed

    if enough(count):
        return
    needed = fewest(count, enough, most=_MOST)
    if needed is None:
        raise SettingError(
            f"{count} canaries say nothing about epsilon {claimed:.3g} in one run, and a million would not; "
            "audit one step."
        )
    raise SettingError(
        f"{count} canaries are too few to say anything: a training that has all of epsilon {claimed:.3g} "
        f"would get a lower bound below a tenth of it. {needed} are enough."
    )


def _gaussian(mu: float, delta: float, level: float) -> Callable[..., Any]:
    family = NoiseFamily([(StepEvent(1.0, 1 / mu), 1)])
    return partial(noise_of_guesses, family=family, delta=delta, level=level)


def _accuracy(share: float, mu: float) -> float:
    """Share of right guesses about the outermost share of scores, N(0, 1) "out" and N(mu, 1) "in"."""

    def beyond(threshold: float) -> tuple[float, float]:
        return float(ndtr(mu - threshold)), float(ndtr(-threshold))

    if share == 1:
        return float(ndtr(mu / 2))
    threshold = brentq(lambda at: sum(beyond(at)) - share, mu / 2, mu + 10)
    inside, outside = beyond(threshold)
    return inside / (inside + outside)
