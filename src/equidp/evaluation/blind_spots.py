"""Blind spots of a model's main metric: constant predictions, classes never predicted, and wrong risks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from equidp._extras import require_extra
from equidp.data.dataset import ALL
from equidp.evaluation.groups import by_group
from equidp.evaluation.intervals import wilson
from equidp.evaluation.metrics import METRICS, Metric, tells_something
from equidp.evaluation.predictions import Predictions
from equidp.evaluation.small_cells import FEWEST, count_people

with require_extra("tables"):
    import pandas as pd

_BINS = 10
RISKS_OFF = 0.2
"""Share of the observed risk, or of its complement, by which a predicted risk may be off."""


class RiskOff(NamedTuple):
    """A group, or "all", whose mean predicted risk differs from the share of positives."""

    group: str
    predicted: float
    observed: float


@dataclass(frozen=True)
class BlindSpots:
    """Findings on what a model's main metric hides on some examples.

    Attributes:
        constant_class: the most frequent class; "" where numbers are predicted.
        constant_value: accuracy of always predicting that class.
        never_predicted: classes that the model predicts for no example.
        uninformative: True where the model is no better than one constant prediction by the metric.
        ranking_auc: AUC of an uninformative model of two classes whose ranking is better than chance.

    >>> found = Predictions(np.array([0, 0, 0, 1]), np.tile([0.9, 0.1], (4, 1)), ("well", "ill"), 1)
    >>> BlindSpots.of(found, METRICS["accuracy"], 0.95)
    BlindSpots(constant_class='well', constant_value=0.75, never_predicted=('ill',), uninformative=True, \
ranking_auc=None)
    """

    constant_class: str
    constant_value: float
    never_predicted: tuple[str, ...] = ()
    uninformative: bool = False
    ranking_auc: float | None = None

    def __bool__(self) -> bool:
        """True where the metric hides something."""
        return self.uninformative or bool(self.never_predicted)

    @classmethod
    def of(cls, found: Predictions, metric: Metric, level: float) -> BlindSpots:
        """Return the findings on predictions of one or more examples; `level` is of the intervals."""
        uninformative, area = not tells_something(metric, found, level), None
        given = set(found.predicted.tolist())
        never = [name for at, name in enumerate(found.class_names) if at not in given]
        if uninformative and metric.name != "auc" and found.task == "binary":
            ranks = tells_something(METRICS["auc"], found, level)
            area = METRICS["auc"].function(found) if ranks else None
        name, share = found.class_names[int(found.counts.argmax())], found.counts.max() / len(found)
        return cls(name, float(share), tuple(never), uninformative, area)


def calibration_table(
    found: Predictions, groups: npt.NDArray[np.int64], group_names: Sequence[str], level: float
) -> pd.DataFrame:
    """Return mean predicted risks beside what happened; no rows unless there are two classes.

    Returns:
        group, count, mean_predicted, observed (share of positives) with observed_low and observed_high
        (Wilson's), for groups with examples and "all".
    """
    parts = [(name, found.take(members)) for name, members in by_group(groups, group_names)]
    if found.positive is None:
        return pd.DataFrame()
    return pd.DataFrame(
        [{"group": name, **_calibration_row(part, level)} for name, part in parts if len(part)]
    )


def reliability_table(
    found: Predictions,
    groups: npt.NDArray[np.int64],
    group_names: Sequence[str],
    level: float,
    people: npt.NDArray[np.int64],
    named: Sequence[str],
) -> pd.DataFrame:
    """Return the same by predicted risk: up to ten bins.

    Bins of all examples have equally many, joined where one would hold few people of a class. Those of groups
    are the same, joined until each named group has enough people in each.

    Args:
        found: what is predicted of the n examples.
        groups: of the examples, [n].
        group_names: one for each group.
        level: of the intervals.
        people: whose each example is, [n].
        named: groups that are shown.

    Returns:
        group, risk_from, risk_to (the bin holds risks above the first, up to the second), and the columns of
        `calibration_table`; bins without examples are left out.
    """
    if found.positive is None or not len(found):
        return pd.DataFrame()
    edges = np.unique(np.quantile(found.risks, np.linspace(0, 1, _BINS + 1)))
    bins, rows = np.searchsorted(edges[1:-1], found.risks), []
    parts = by_group(groups, group_names)
    shown = {name: members for name, members in parts[:-1] if name in named}
    of_all = _join_bins(bins, [parts[-1][1]], found, people)
    of_groups = _join_bins(of_all[bins], list(shown.values()), found, people)[of_all]
    for name, members in [*shown.items(), parts[-1]]:
        joined = of_all if name == ALL else of_groups
        for at in np.unique(joined[bins[members]]):
            its_bins = np.flatnonzero(joined == at)
            ends = {"risk_from": edges[its_bins[0]], "risk_to": edges[min(its_bins[-1] + 1, len(edges) - 1)]}
            part = found.take(members & (joined[bins] == at))
            rows.append({"group": name, **ends, **_calibration_row(part, level)})
    return pd.DataFrame(rows)


def _join_bins(
    bins: npt.NDArray[np.int64],
    cells: Sequence[npt.NDArray[np.bool_]],
    found: Predictions,
    people: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Return bin -> number of joined bins, so that each cell has enough people of each class in each."""
    last = int(bins.max())
    joined, at = np.zeros(last + 1, dtype=np.int64), 0
    for each in range(last + 1):
        joined[each] = at
        inside = np.isin(bins, np.flatnonzero(joined[: each + 1] == at))
        if _has_enough_people(inside, cells, found, people):
            at += 1
    if at and at in joined:  # what is left at the end is too little
        joined[joined == at] = at - 1
    return joined


def _has_enough_people(
    inside: npt.NDArray[np.bool_],
    cells: Sequence[npt.NDArray[np.bool_]],
    found: Predictions,
    people: npt.NDArray[np.int64],
) -> bool:
    """Tell whether each cell has enough people of each of two classes among the examples inside."""
    return all(
        count_people(people[members & inside & (found.targets == code)]) >= FEWEST
        for members in cells
        for code in (0, 1)
    )


def _calibration_row(found: Predictions, level: float) -> dict[str, float]:
    observed, low, high = wilson(int(found.hits.sum()), len(found), level)
    return {
        "count": len(found),
        "mean_predicted": float(found.risks.mean()),
        "observed": observed,
        "observed_low": low,
        "observed_high": high,
    }


def risks_off(calibration: pd.DataFrame, shown: Sequence[str]) -> tuple[RiskOff, ...]:
    """Return where mean predicted risks are off by more than a fifth, and by more than chance.

    Args:
        calibration: from `calibration_table`.
        shown: groups that may be spoken of, and "all".

    Returns:
        "all", if its risks are, then groups, the furthest first.
    """
    if calibration.empty:
        return ()
    predicted, observed = calibration["mean_predicted"], calibration["observed"]
    outside = (predicted < calibration["observed_low"]) | (predicted > calibration["observed_high"])
    far = (predicted - observed).abs() > RISKS_OFF * np.minimum(observed, 1 - observed)
    off = calibration[outside & far & calibration["group"].isin(shown)]
    found = [RiskOff(row.group, row.mean_predicted, row.observed) for row in off.itertuples()]
    return tuple(sorted(found, key=lambda each: (each.group != ALL, -abs(each.predicted - each.observed))))
