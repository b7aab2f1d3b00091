"""Options that are texts, as typed values."""

from __future__ import annotations

import math

from equidp._validate import names
from equidp.errors import SettingError


def parse_bounds(text: str) -> dict[str, tuple[float, float]]:
    """Returns the public range of each column.

    Raises:
        SettingError: says which part is wrong.

    >>> parse_bounds("age=0:100, hours=0:99")
    {'age': (0.0, 100.0), 'hours': (0.0, 99.0)}
    """
    bounds: dict[str, tuple[float, float]] = {}
    for part in names(text):
        name, _, span = part.rpartition("=")
        try:
            low, high = (float(end) for end in span.split(":"))
        except ValueError:
            low = high = math.nan
        if not (name and low < high and math.isfinite(low) and math.isfinite(high)):
            raise SettingError(
                f"bounds {part!r}; expected column=low:high with low < high, such as age=0:100."
            )
        if name.strip() in bounds:
            raise SettingError(
                f"bounds {text!r} name column {name.strip()!r} twice; give one range for each."
            )
        bounds[name.strip()] = (low, high)
    return bounds
