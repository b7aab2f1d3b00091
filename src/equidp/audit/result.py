"""Result of an audit: claimed epsilons and lower bounds, by group and overall."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from equidp._extras import require_extra

with require_extra("tables"):
    import pandas as pd


@final
@dataclass(frozen=True)
class GroupBound:
    """Lower bounds on epsilon from the canaries of one group, or of all.

    Attributes:
        group: its name; "all" for all groups.
        tests: runs with the group's canary and without.
        claimed: epsilon of the claim for the group.
        epsilon: bound for the claimed mechanism with more or less noise (`audit.bounds`), or infinite if no
            noise explains the guesses.
        assumption_free: bound for any mechanism.
    """

    group: str
    tests: int
    claimed: float
    epsilon: float
    assumption_free: float

    @property
    def exceeds(self) -> bool:
        """True if the bound is above the claim."""
        return self.epsilon > self.claimed

    @property
    def share(self) -> float:
        """The bound as a share of the claim, or NaN for a group whose steps cost nothing."""
        return self.epsilon / self.claimed if self.claimed else math.nan


@final
@dataclass(frozen=True)
class Audit:
    """Claim and measured bounds of an audit.

    Do not share it if the data is private: it reads raw data, and no ledger is charged for it.

    Attributes:
        procedure: name of what was audited.
        method: name of the method.
        delta: delta of claim and bounds.
        level: confidence level, for "all" by itself, and for all groups together.
        bounds: by group, then "all".
        noise_multiplier: noise multiplier sigma of the claim.

    Example:
        >>> from equidp.audit import Audit, GroupBound
        >>> audit = Audit("one step", "dpsgd", 1e-5, 0.95, (GroupBound("all", 2000, 4.0, 3.1, 2.2),), 0.9)
        >>> audit.claimed, audit.bound, audit.exceeds
        (4.0, 3.1, False)
    """

    procedure: str
    method: str
    delta: float
    level: float
    bounds: tuple[GroupBound, ...]
    noise_multiplier: float

    @property
    def claimed(self) -> float:
        """Epsilon of the claim: the largest of all groups."""
        return self.bounds[-1].claimed

    @property
    def bound(self) -> float:
        """Lower bound over all groups."""
        return self.bounds[-1].epsilon

    @property
    def exceeds(self) -> bool:
        """True if a bound is above its claim. The probability by chance is at most 1 - level."""
        return any(each.exceeds for each in self.bounds)

    def table(self) -> pd.DataFrame:
        """Return one row by group, then "all": group, tests, claimed, bound, share (of the claim),
        assumption_free."""
        names = ["group", "tests", "claimed", "bound", "share", "assumption_free"]
        rows = [
            (each.group, each.tests, each.claimed, each.epsilon, each.share, each.assumption_free)
            for each in self.bounds
        ]
        return pd.DataFrame(rows, columns=names)
