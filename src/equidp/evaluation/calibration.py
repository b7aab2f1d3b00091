"""Mean predicted risk beside what happened, of two classes: by group, and by predicted risk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from equidp._extras import require_extra
from equidp.data.dataset import ALL
from equidp.evaluation.groups import Part
from equidp.evaluation.intervals import wilson
from equidp.evaluation.predictions import Predictions
from equidp.evaluation.small_cells import FEWEST, SmallCells, count_people

with require_extra("tables"):
    import pandas as pd

Bools = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int64]
_BINS = 10
RISKS_OFF = 0.2
"""Share of the observed risk, or of its complement, by which a predicted risk may be off."""


class RiskOff(NamedTuple):
    """A group, or "all", whose mean predicted risk differs from the share of positives."""

    group: str
    predicted: float
    observed: float
    grouping: str = ""


def calibration_table(parts: Sequence[Part], level: float) -> pd.DataFrame:
    """Return mean predicted risks beside what happened; no rows unless there are two classes.

    Returns:
        grouping, group, count, mean_predicted, observed (share of positives) with observed_low and
        observed_high (Wilson's), for groups with examples and "all".
    """
    return pd.DataFrame(
        [
            {**part.head, **_risks(part.found, level)}
            for part in parts
            if len(part.found) and part.found.positive is not None
        ]
    )


def _risks(found: Predictions, level: float) -> dict[str, float]:
    observed, low, high = wilson(int(found.hits.sum()), len(found), level)
    means = {"mean_predicted": float(found.risks.mean()), "observed": observed}
    return {**means, "observed_low": low, "observed_high": high}


def risks_off(calibration: pd.DataFrame, small: SmallCells) -> tuple[RiskOff, ...]:
    """Return where mean predicted risks are off by more than a fifth, and by more than chance.

    Returns:
        "all", if its risks are, then groups that are not small, the furthest first.
    """
    if calibration.empty:
        return ()
    predicted, observed = calibration["mean_predicted"], calibration["observed"]
    outside = (predicted < calibration["observed_low"]) | (predicted > calibration["observed_high"])
    far = (predicted - observed).abs() > RISKS_OFF * np.minimum(observed, 1 - observed)
    found = [
        RiskOff(row.group, row.mean_predicted, row.observed, row.grouping)
        for row in calibration[outside & far].itertuples()
        if not small.hides(row.grouping, row.group)
    ]
    return tuple(sorted(found, key=lambda each: (each.group != ALL, -abs(each.predicted - each.observed))))


def reliability_table(parts: Sequence[Part], people: Codes, level: float, small: SmallCells) -> pd.DataFrame:
    """Return the same by predicted risk: up to ten bins.

    Bins of all examples have equally many, joined where one would hold few people of a class. Those of groups
    are the same, joined until each group has enough people in each; of several groupings, whose bins could
    tell of few people together, they are left out.

    Args:
        parts: of a test set; all of it is the last.
        people: whose each example is, [n].
        level: of the intervals.
        small: groups that are left out.

    Returns:
        grouping, group, count, risk_from, risk_to (the bin holds risks above the first, up to the second),
        and the columns of `calibration_table`; bins without examples are left out.
    """
    whole = parts[-1]
    if whole.found.positive is None or not len(whole.found):
        return pd.DataFrame()
    groups = [part for part in parts[:-1] if not small.hides(part.grouping, part.group)]
    if len({part.grouping for part in groups}) > 1:
        groups = []
    edges = np.unique(np.quantile(whole.found.risks, np.linspace(0, 1, _BINS + 1)))
    bins, hits = np.searchsorted(edges[1:-1], whole.found.risks), whole.found.hits
    people = people[whole.members]
    inside = [part.members[whole.members] for part in (*groups, whole)]
    of_all = _join_bins(bins, [inside[-1]], hits, people)
    of_groups = _join_bins(of_all[bins], inside[:-1], hits, people)[of_all]
    rows: list[dict[str, Any]] = []
    for part, members in zip((*groups, whole), inside, strict=True):
        joined = of_all if part is whole else of_groups
        for at in np.unique(joined[bins[members]]):
            its_bins = np.flatnonzero(joined == at)
            found = whole.found.take(members & (joined[bins] == at))
            ends = {"risk_from": edges[its_bins[0]], "risk_to": edges[min(its_bins[-1] + 1, len(edges) - 1)]}
            rows.append({**part.head, "count": len(found), **ends, **_risks(found, level)})
    return pd.DataFrame(rows)


def _join_bins(bins: Codes, cells: Sequence[Bools], hits: Codes, people: Codes) -> Codes:
    """Return bin -> number of joined bins, so that each cell has enough people of each class in each."""
    last = int(bins.max())
    joined, at = np.zeros(last + 1, dtype=np.int64), 0
    for each in range(last + 1):
        joined[each] = at
        inside = np.isin(bins, np.flatnonzero(joined[: each + 1] == at))
        if all(
            count_people(people[members & inside & (hits == hit)]) >= FEWEST
            for members in cells
            for hit in (0, 1)
        ):
            at += 1
    if at and at in joined:  # what is left at the end is too little
        joined[joined == at] = at - 1
    return joined
