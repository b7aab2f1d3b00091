"""DecisionOptions: a decision between two classes, as requested in Python and on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from equidp._validate import check_number
from equidp.errors import SettingError
from equidp.evaluation.predictions import Decision, base_rate_decision

BASE_RATE = "base-rate"


@dataclass(frozen=True)
class DecisionOptions:
    """Options for two classes: the positive one, and the risk from which it is predicted."""

    positive: str | None = None
    """Positive class. Default: the one whose name says so (yes, true, 1, >50K), else the second."""
    threshold: float | str | None = None
    """Lowest risk at which it is predicted, in [0, 1], or base-rate. Default: the more probable class."""
    base_rate: float | None = None
    """For --threshold base-rate: how many of 1 are positive, a public number such as 0.08. Default: as the
    run counts its classes with noise (--set privacy.counts_share)."""

    def decision(
        self, kept: Decision = Decision(), counts: Mapping[str, float] = MappingProxyType({})
    ) -> Decision:
        """Decision of these options; `kept` has what they leave out.

        Args:
            kept: what else holds.
            counts: examples of each class, as released with noise. Empty: not known.
        """
        threshold = kept.threshold if self.threshold is None else self._number(kept, counts)
        if self.base_rate is not None and self.threshold != BASE_RATE:
            raise SettingError(f"base_rate={self.base_rate} is for threshold={BASE_RATE!r}; give that too.")
        positive = self.positive or kept.positive
        if self.positive not in (None, kept.positive) and self.threshold is None:
            threshold = None  # it was for the other class
        return Decision(positive, threshold)

    def decision_to_train(self) -> Decision:
        """Return the decision of runs to be trained, without a threshold if each run counts the base rate."""
        if self.at_counted_rate:
            return Decision(self.positive)
        return self.decision()

    @property
    def at_counted_rate(self) -> bool:
        """True if the threshold is the base rate, and no public number was given for it."""
        return self.threshold == BASE_RATE and self.base_rate is None

    def _number(self, kept: Decision, counts: Mapping[str, float]) -> float:
        if self.threshold == BASE_RATE:
            if self.base_rate is None and counts:
                return base_rate_decision(self.positive or kept.positive, counts).threshold or 0.0
            if self.base_rate is None:
                raise SettingError(
                    f"threshold={BASE_RATE!r} needs base_rate, a public number such as 0.08, or a run that "
                    "counted its classes (counts_share): taken from the test examples, it would flatter the "
                    "model."
                )
            check_number("(0, 1)", ", a share such as 0.08", base_rate=self.base_rate)
            return self.base_rate
        try:
            return float(self.threshold or 0.0)
        except ValueError:
            raise SettingError(
                f"threshold={self.threshold!r}; expected a number in [0, 1], or {BASE_RATE}."
            ) from None
