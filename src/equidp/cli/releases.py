"""Options of what a run releases of its training rows before the first step, for a share of epsilon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Group, Parameter

from equidp.data.unencoded import COUNTS_SHARE, EXACT, PREPROCESSING_SHARE, PREPROCESSINGS, PRIVATE
from equidp.errors import SettingError

BALANCED = "balanced"


@Parameter(name="*", group=Group("Preprocessing", sort_key=1))
@dataclass(frozen=True)
class PreprocessingOptions:
    """Where scales and lists of categories come from."""

    preprocessing: Annotated[str, Parameter(choices=PREPROCESSINGS)] = EXACT
    """Take them from the data as they are, which epsilon does not cover, or release them with noise."""
    preprocessing_share: float | None = None
    """Share of --epsilon for private preprocessing; default: 0.1."""

    def share(self) -> float | None:
        """Share of epsilon that private preprocessing takes; None where it is exact."""
        if self.preprocessing == PRIVATE:
            return PREPROCESSING_SHARE if self.preprocessing_share is None else self.preprocessing_share
        if self.preprocessing_share is not None:
            raise SettingError(
                f"--preprocessing-share {self.preprocessing_share:g} is for --preprocessing private; give "
                "that too."
            )
        return None


@Parameter(name="*", group=Group("Preprocessing", sort_key=1))
@dataclass(frozen=True)
class CountOptions:
    """Options of counting classes."""

    counts_share: Annotated[
        float | None,
        Parameter(
            help="Share of --epsilon to count the classes with, by noise, for --class-weight balanced and "
            f"--threshold base-rate; default: {COUNTS_SHARE} where one of these is asked for, else none."
        ),
    ] = None

    def settings(self, changed: dict[str, Any]) -> dict[str, Any]:
        """Settings of the run, as keyword arguments; removes balanced weights from the plan's changes."""
        if changed.get("class_weight") != BALANCED:
            return {"counts_share": self.counts_share}
        del changed["class_weight"]
        return {"counts_share": self.counts_share or COUNTS_SHARE, "balanced": True}
