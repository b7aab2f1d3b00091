"""Individual: how a run accounts for each of its training examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from equidp._validate import check_number, check_whole
from equidp.errors import SettingError


@final
@dataclass(frozen=True)
class Individual:
    """Makes a `Trainer` record the share of the sensitivity that each training example uses in each step.

    A pass over the data computes the gradient norms of all examples. With the policy's state, they determine
    what each example could use in a step, until the next pass. This works for every method. Without clipping,
    training does not change.

    With clipping, an example's gradient is clipped to the share computed from its last norm. Its epsilon is
    then a guarantee, even if norms are computed rarely (Yu et al. 2023, Algorithm 3). The private step caps
    weights by this share in addition to its own caps.

    Args:
        interval: number of steps between passes. 1 is exact, unless the model draws random numbers (dropout);
            more give estimates. Pass this or `per_epoch`.
        per_epoch: number of passes per epoch.
        clipping: whether to limit gradients to what is accounted for.
        grid: width of the grid to which shares are rounded up.

    Raises:
        SettingError: a setting is outside its range.

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
