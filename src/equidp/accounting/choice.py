"""Number of tries of a private choice: a random number, drawn before the first try."""

from __future__ import annotations

import math

from equidp._validate import check_number
from equidp.kernel.noise import Randomness


def number_of_tries(mean: float, randomness: Randomness) -> int:
    """Returns a draw from the geometric distribution on 1, 2, ... with this mean.

    Guarantee: made this many times with fresh randomness, with the best outcome released and nothing of the
    others, queries of Renyi divergence rho(alpha) have that of Papernot and Steinke (2022, Theorem 2 with
    eta = 1): `ChoiceEvent`. It fails where the number is chosen by what the tries show, or where the choice
    is begun again after some of them: such a choice is another one, and paid for again.

    | case | number |
    | --- | --- |
    | mean 1 | 1 |
    | any other mean | unbounded: more than 3 times the mean in 1 of 20 choices |
    | mean below 1, or NaN | SettingError |

    >>> from equidp.kernel.noise import SeededRandomness
    >>> number_of_tries(1.0, SeededRandomness(0))
    1
    """
    check_number("[1, inf)", mean=mean)
    draw = float(randomness.uniform(1)[0])
    return 1 if mean == 1 else 1 + math.floor(math.log(draw) / math.log1p(-1 / mean))
