"""Sample rate, number of steps, ends of epochs and default delta of a plan."""

from __future__ import annotations

import math
from typing import NamedTuple

from equidp._validate import check_number, check_whole
from equidp.errors import SettingError


class Schedule(NamedTuple):
    """Sample rate and number of steps of a run.

    Attributes:
        sample_rate: q = b / n, in (0, 1].
        steps: T >= 1.
    """

    sample_rate: float
    steps: int

    def ends_epoch(self, step: int) -> bool:
        """Returns whether a step, counted from 1, ends an epoch: n examples more in expectation, or the run.

        >>> [step for step in range(1, 8) if Schedule(sample_rate=0.4, steps=7).ends_epoch(step)]
        [3, 5, 7]
        """
        before, after = (math.floor(count * self.sample_rate + 1e-9) for count in (step - 1, step))
        return after > before or step == self.steps


def default_delta(num_examples: int) -> float:
    """Returns a tenth of 1 / n, rounded down to a power of ten."""
    return 10.0 ** math.floor(math.log10(0.1 / num_examples))


def checked_schedule(
    num_examples: int,
    batch_size: int,
    *,
    epochs: float | None = None,
    steps: int | None = None,
    sample_rate: float | None = None,
) -> Schedule:
    """Returns sample rate q = b / n, unless it is given, and number of steps, T = floor(epochs / q).

    Raises:
        SettingError: a batch larger than the data, both or none of epochs and steps, or no step at all.

    >>> checked_schedule(1000, 50, epochs=2)
    Schedule(sample_rate=0.05, steps=40)
    """
    check_whole(1, batch_size=batch_size)
    if sample_rate is not None:
        check_number("(0, 1]", ", a probability", sample_rate=sample_rate)
    elif batch_size > num_examples:
        raise SettingError(
            f"batch_size={batch_size} is more than the {num_examples} training examples; choose a smaller "
            "batch size."
        )
    if (epochs is None) == (steps is None):
        raise SettingError(f"epochs={epochs} and steps={steps}; expected exactly one of the two.")
    if epochs is not None:
        check_number("(0, inf)", epochs=epochs)
        steps = math.floor(
            epochs * num_examples / batch_size if sample_rate is None else epochs / sample_rate
        )
        if steps < 1:
            raise SettingError(
                f"the plan has 0 steps: epochs={epochs} is less than a batch. Train for longer."
            )
    check_whole(1, steps=steps)
    assert steps is not None
    return Schedule(batch_size / num_examples if sample_rate is None else float(sample_rate), steps)
