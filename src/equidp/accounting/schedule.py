"""Sample rate, number of steps and default delta of a plan."""

from __future__ import annotations

import math

from equidp._validate import check_number, check_whole
from equidp.errors import SettingError


def default_delta(num_examples: int) -> float:
    """A tenth of 1 / n, rounded down to a power of ten."""
    return 10.0 ** math.floor(math.log10(0.1 / num_examples))


def checked_schedule(
    num_examples: int, batch_size: int, *, epochs: float | None = None, steps: int | None = None
) -> tuple[float, int]:
    """Sample rate q = b / n and number of steps T (spec: T = floor(epochs n / b)) of a plan that makes sense."""
    check_whole(1, batch_size=batch_size)
    if batch_size > num_examples:
        raise SettingError(
            f"batch_size={batch_size} is more than the {num_examples} training examples; choose a smaller batch size."
        )
    if (epochs is None) == (steps is None):
        raise SettingError(f"epochs={epochs} and steps={steps}; expected exactly one of the two.")
    if epochs is not None:
        check_number("(0, inf)", epochs=epochs)
        steps = math.floor(epochs * num_examples / batch_size)
        if steps < 1:
            raise SettingError(
                f"the plan has 0 steps: epochs={epochs} is less than a batch. Train for longer."
            )
    check_whole(1, steps=steps)
    assert steps is not None
    return batch_size / num_examples, steps
