"""What has been spent: an append-only account of private steps, kept apart from what they computed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from equidp.errors import SettingError


@dataclass(frozen=True)
class StepEvent:
    """One private step: a Poisson sample, read by a gradient query and perhaps a statistics query.

    Attributes:
        sample_rate: probability q of each example to be in the sample, in (0, 1].
        noise_multiplier: sigma, noise of the gradient query as a multiple of its sensitivity; 0 means no privacy.
        statistics_noise: sigma_s, noise of the statistics query as a multiple of its sensitivity (1); None: no such query.
    """

    sample_rate: float
    noise_multiplier: float
    statistics_noise: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.sample_rate <= 1:
            raise SettingError(f"sample_rate={self.sample_rate}; expected a probability in (0, 1].")
        if not (self.noise_multiplier >= 0 and math.isfinite(self.noise_multiplier)):
            raise SettingError(f"noise_multiplier={self.noise_multiplier}; expected a finite number >= 0.")
        if self.statistics_noise is not None and not (
            self.statistics_noise >= 0 and math.isfinite(self.statistics_noise)
        ):
            raise SettingError(
                f"statistics_noise={self.statistics_noise}; expected None or a finite number >= 0."
            )


class Ledger:
    """Counts private steps, equal neighbours together. `spend` comes before anything noisy is released."""

    def __init__(self, entries: tuple[tuple[StepEvent, int], ...] = ()) -> None:
        self._entries = list(entries)

    def spend(self, event: StepEvent) -> None:
        """Records one more step."""
        if self._entries and self._entries[-1][0] == event:
            self._entries[-1] = (event, self._entries[-1][1] + 1)
        else:
            self._entries.append((event, 1))

    def expect(self, event: StepEvent, steps: int) -> None:
        """Told that up to `steps` steps of this kind are to come: as far as a ledger on disk may write ahead."""

    def settle(self) -> None:
        """Told that no step is under way: a ledger that wrote ahead takes back what was not spent."""

    @property
    def entries(self) -> tuple[tuple[StepEvent, int], ...]:
        """(event, number of steps) pairs in the order they were spent."""
        return tuple(self._entries)

    @property
    def steps(self) -> int:
        return sum(count for _, count in self.entries)
