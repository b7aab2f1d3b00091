"""Individual: how a run accounts for each of its training examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from equidp._validate import check_number, check_whole
from equidp.errors import SettingError


@final
@dataclass(frozen=True)
class Individual:
    """Has a `Trainer` count the share of the sensitivity that each training example uses in each step.

    A pass over the data takes the gradient norms of all examples. They say, with the policy's state, what
    each example could use in a step, and hold until the next pass. It works for every method. Without
    clipping, training stays as it is.

    With clipping, an example's gradient is shortened to the share that was computed from its last norm, so
    that its epsilon is a guarantee, however rarely norms are taken (Yu et al. 2023, Algorithm 3). The private
    step caps weights by it, beside its own caps.

    Args:
        interval: steps between passes. 1 is exact, unless the model draws random numbers (dropout); more give
            estimates. Give this or `per_epoch`.
        per_epoch: passes in an epoch.
        clipping: limit gradients to what is accounted for.
        grid: width of the grid that shares are rounded up to.

    Raises:
        SettingError: settings out of range.

    Example:
        >>> import equidp
        >>> equidp.Individual(per_epoch=3).steps_between_passes(sample_rate=0.01)
        33
    """

    interval: int | None = None
    per_epoch: float | None = None
    clipping: bool = False
    grid: float = 0.01

    def __post_init__(self) -> None:
        if (self.interval is None) == (self.per_epoch is None):
            raise SettingError(
                f"interval={self.interval} and per_epoch={self.per_epoch}; expected exactly one of the two.",
                field="interval",
            )
        if self.interval is not None:
            check_whole(1, " between passes", interval=self.interval)
        if self.per_epoch is not None:
            check_number("(0, inf)", per_epoch=self.per_epoch)
        check_number("(0, 1]", ", such as 0.01", grid=self.grid)

    def steps_between_passes(self, sample_rate: float) -> int:
        """Number of steps from one pass to the next."""
        if self.per_epoch is None:
            return int(self.interval or 1)
        return max(1, round(1 / (sample_rate * self.per_epoch)))
