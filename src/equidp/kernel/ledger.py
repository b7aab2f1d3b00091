"""What has been spent: an append-only account of private steps, kept apart from what they computed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

from equidp._validate import check_number


@dataclass(frozen=True)
class StepEvent:
    """One private step: a Poisson sample, read by a gradient query and perhaps a statistics query.

    Attributes:
        sample_rate: probability q of each example to be in the sample, in (0, 1].
        noise_multiplier: sigma, noise of the gradient query over its sensitivity, in [0, inf); 0: no privacy.
        statistics_noise: sigma_s, noise of the statistics query over its sensitivity (1); None: no such
            query.

    Raises:
        SettingError: a value outside its range, or NaN.
    """

    sample_rate: float
    noise_multiplier: float
    statistics_noise: float | None = None

    def __post_init__(self) -> None:
        check_number("(0, 1]", ", a probability", sample_rate=self.sample_rate)
        check_number("[0, inf)", noise_multiplier=self.noise_multiplier)
        if self.statistics_noise is not None:
            check_number("[0, inf)", ", or None", statistics_noise=self.statistics_noise)


class Ledger(ABC):
    """Counts private steps. The step calls `spend` before it looks at its sample.

    Guarantee: once `spend` has returned, `entries` counts the step, whatever happens later. If `spend`
    raises, draw no noise; the step may still be counted.
    """

    @abstractmethod
    def spend(self, event: StepEvent) -> None:
        """Records one more step."""

    @abstractmethod
    def expect(self, event: StepEvent, steps: int) -> None:
        """Announces up to `steps` steps of this kind, which a ledger may record or set aside in advance."""

    @abstractmethod
    def settle(self) -> None:
        """Signals that no step is in progress: what was recorded in advance and not spent is given back."""

    @property
    @abstractmethod
    def entries(self) -> tuple[tuple[StepEvent, int], ...]:
        """(event, number of steps) pairs in the order they were spent."""

    @property
    def steps(self) -> int:
        """Number of steps of all kinds."""
        return sum(count for _, count in self.entries)


@final
class MemoryLedger(Ledger):
    """A ledger that lives as long as its process. Equal neighbours are counted together.

    >>> ledger = MemoryLedger()
    >>> for _ in range(3):
    ...     ledger.spend(StepEvent(sample_rate=0.01, noise_multiplier=1.0))
    >>> ledger.entries
    ((StepEvent(sample_rate=0.01, noise_multiplier=1.0, statistics_noise=None), 3),)
    """

    def __init__(self, entries: tuple[tuple[StepEvent, int], ...] = ()) -> None:
        self._entries = list(entries)

    def spend(self, event: StepEvent) -> None:
        self.count(event, 1)

    def count(self, event: StepEvent, steps: int) -> None:
        """Records `steps` >= 0 steps of one kind at once."""
        if self._entries and self._entries[-1][0] == event:
            steps += self._entries.pop()[1]
        if steps:
            self._entries.append((event, steps))

    def expect(self, event: StepEvent, steps: int) -> None:
        """Does nothing."""

    def settle(self) -> None:
        """Does nothing: no step was recorded in advance."""

    @property
    def entries(self) -> tuple[tuple[StepEvent, int], ...]:
        return tuple(self._entries)
