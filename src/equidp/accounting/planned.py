"""Sampling rate and steps of a run, and the noise of its releases, from public numbers only."""

from __future__ import annotations

import math
from typing import NamedTuple

import dp_accounting

from equidp._validate import check_number, check_whole
from equidp.accounting.calibration import calibrate_noise
from equidp.errors import SettingError
from equidp.kernel.epsilon import epsilon as epsilon_of, mechanism, over_labels
from equidp.kernel.event import Entries, Event

PREPROCESSING, COUNTS, INDIVIDUAL = "preprocessing", "class counts", "individual privacy"
"""Names of a run's releases."""
RELEASE_EPSILON = 0.1
"""Default epsilon of a release of individual privacy (Yu et al., Table 2)."""


class Schedule(NamedTuple):
    """Sampling rate and number of steps of a run.

    Attributes:
        sample_rate: q = b / n, in (0, 1].
        steps: T >= 1.
    """

    sample_rate: float
    steps: int

    def ends_epoch(self, step: int) -> bool:
        """Return whether a step, counted from 1, ends an epoch: n examples more in expectation, or the run.

        >>> [step for step in range(1, 8) if Schedule(sample_rate=0.4, steps=7).ends_epoch(step)]
        [3, 5, 7]
        """
        before, after = (math.floor(count * self.sample_rate + 1e-9) for count in (step - 1, step))
        return after > before or step == self.steps


def default_delta(num_examples: int) -> float:
    """Return a tenth of 1 / n, rounded down to a power of ten."""
    return 10.0 ** math.floor(math.log10(0.1 / num_examples))


def checked_schedule(
    num_examples: int,
    batch_size: int,
    *,
    epochs: float | None = None,
    steps: int | None = None,
    sample_rate: float | None = None,
) -> Schedule:
    """Return sampling rate q = b / n, unless it is given, and number of steps, T = floor(epochs / q).

    Raises:
        SettingError: a batch larger than the data, or no step at all.

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
                f"the plan has 0 steps: epochs={epochs} is less than a batch. Train for longer.",
                field="epochs",
            )
    check_whole(1, steps=steps)
    assert steps is not None
    rate = batch_size / num_examples if sample_rate is None else float(sample_rate)
    return Schedule(rate, int(steps))


def release_event(epsilon: float, delta: float) -> Event:
    """Return the charge of a release that costs (epsilon, delta) by itself.

    Together with a run it costs less than the sum of both: `Plan(releases=(Charge(event),))`.

    >>> round(release_event(0.3, delta=1e-6).noise, 1)
    13.0
    """
    return Event(1.0, calibrate_noise(epsilon, delta, Event(1.0, 1.0), 1), name="release")


def share_noise(name: str, share: float, epsilon: float | None, delta: float) -> float:
    """Return the noise multiplier of a release that takes a share of a target epsilon; see `check_share`.

    >>> share_noise("counts_share", 0.1, 3.0, 1e-6) == release_event(0.1 * 3.0, 1e-6).noise
    True
    """
    check_share(name, share, epsilon)
    assert epsilon is not None
    return release_event(share * epsilon, delta).noise


def check_share(name: str, share: float | None, epsilon: float | None) -> None:
    """Raise a SettingError unless a release can take this share of a target epsilon. None: it takes none."""
    if share is None:
        return
    check_number("(0, 1)", "", **{name: share})
    if epsilon is None:
        raise SettingError(
            f"{name}={share:g} takes a share of a target epsilon, which is not given; give --epsilon.",
            field=name,
        )


def costliest_mechanism(entries: Entries, delta: float) -> dp_accounting.DpEvent:
    """Return dp_accounting's event of all entries, to an example of the label that pays most."""
    given = tuple(entries)
    label = over_labels(given, lambda each: epsilon_of(given, delta, label=each))[1]
    return mechanism(given, label)
