"""Result of an audit: claimed epsilons beside lower bounds, by group and overall."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any, final

from equidp._extras import require_extra
from equidp.audit.draws import DrawFinding

with require_extra("tables"):
    import pandas as pd

USEFUL = 0.1
"""Least share of a tight claim that an audit must be expected to find."""


@final
@dataclass(frozen=True)
class GroupBound:
    """Lower bounds on epsilon from the canaries of one group, or of all.

    Attributes:
        group: its name; "all" for all groups.
        tests: runs with the group's canary and without.
        epsilon: bound for the claimed mechanism with more or less noise (`audit.bounds`); infinite where no
            noise explains the guesses.
        assumption_free: bound for any mechanism.
        claimed: epsilon of the claim for this group, where groups differ; None: that of the audit.

    Example:
        >>> max(bound.epsilon for bound in (GroupBound("a", 9, 1.2, 0.8), GroupBound("b", 9, 1.5, 1.1)))
        1.5
    """

    group: str
    tests: int
    epsilon: float
    assumption_free: float
    claimed: float | None = None

    def claim(self, of_audit: float) -> float:
        """Return the claim for this group, given that of the audit."""
        return of_audit if self.claimed is None else self.claimed

    def exceeds(self, of_audit: float) -> bool:
        """Return True where the bound is above the claim."""
        return self.epsilon > self.claim(of_audit)

    def share(self, of_audit: float) -> float:
        """Return the bound as a share of the claim; NaN for a group whose steps cost nothing."""
        return self.epsilon / claim if (claim := self.claim(of_audit)) else math.nan


@final
@dataclass(frozen=True)
class Audit:
    """Claim and measured bounds of an audit.

    Do not share it where the data is private: it reads raw data, and no ledger is charged for it.

    Attributes:
        procedure: text that names what was audited.
        method: the method's name.
        claimed: epsilon of the claim.
        delta: of claim and bounds.
        level: of confidence: for "all" alone, and for all groups together.
        bounds: by group, then "all".
        settings: of the audit, plain values.
        draws: tests of noise and samples that failed (`audit.draws`).

    Example:
        >>> from equidp.audit import Audit, GroupBound
        >>> audit = Audit("one step", "dpsgd", 4.0, 1e-5, 0.95, (GroupBound("all", 2000, 3.1, 2.2),))
        >>> audit.bound, audit.exceeds
        (3.1, False)
    """

    procedure: str
    method: str
    claimed: float
    delta: float
    level: float
    bounds: tuple[GroupBound, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    draws: tuple[DrawFinding, ...] = ()

    @property
    def bound(self) -> float:
        """Lower bound over all groups."""
        return self.bounds[-1].epsilon

    @property
    def exceeds(self) -> bool:
        """True where the bound is above the claim, or noise or samples are not as claimed. The probability by
        chance is at most 1 - level + 10^-6."""
        return any(each.exceeds(self.claimed) for each in self.bounds) or bool(self.draws)

    def table(self) -> pd.DataFrame:
        """Return one row by group, then "all": group, tests, claimed, bound, share (of the claim),
        assumption_free."""
        return pd.DataFrame(
            {
                "group": each.group,
                "tests": each.tests,
                "claimed": each.claim(self.claimed),
                "bound": each.epsilon,
                "share": each.share(self.claimed),
                "assumption_free": each.assumption_free,
            }
            for each in self.bounds
        )

    def _repr_html_(self) -> str:
        table = self.table().to_html(index=False, border=0, float_format="{:.3g}".format)
        what = escape(f"{self.procedure} by {self.method}, delta {self.delta:g}, confidence {self.level:.0%}")
        return f"{table}<p>{what}. Measured on raw data: keep it to yourself.</p>"

    def to_json(self) -> str:
        """Return all fields and `exceeds` as JSON; an infinite bound becomes null."""
        content = asdict(self)
        for each in content["bounds"]:
            for name, value in each.items():
                if isinstance(value, float) and not math.isfinite(value):
                    each[name] = None
        return json.dumps({**content, "exceeds": self.exceeds}, indent=2) + "\n"
