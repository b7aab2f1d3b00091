"""Metrics of an evaluation by group, as texts for terminals and cards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from equidp.data.dataset import ALL
from equidp.evaluation.evaluation import Evaluation
from equidp.evaluation.metrics import METRICS
from equidp.evaluation.small_cells import FEWEST, SmallCells
from equidp.report.format import metric_text, points
from equidp.report.pictures import risk_picture

_ELSEWHERE = ("accuracy", "log_loss", "recall", "calibration", "rmse", "mae")
"""Metrics that the tables of accuracy, of errors, of recall and of risks show."""
_NO_INTERVAL = "no interval: "
_MOST_REASONS = 4


class Column(NamedTuple):
    """Column of a metric by group.

    Attributes:
        head: its label and unit.
        cells: group -> value and interval, both texts; a group without a value is left out.
    """

    head: str
    cells: dict[str, tuple[str, str]]


def columns(found: Evaluation) -> list[Column]:
    """Columns of metrics beside accuracy and loss, then, for two classes, of predicted and observed risk."""
    table = found.figures
    names = [] if table.empty else [name for name in table["metric"].unique() if name not in _ELSEWHERE]
    listed = []
    for name in names:
        metric = METRICS.get(name, found.metric)
        rows = table[(table["metric"] == name) & table["value"].notna()]
        cells = {
            row.group: (
                metric_text(metric, row.value),
                _ends(metric_text(metric, row.low), metric_text(metric, row.high)),
            )
            for row in rows.itertuples()
        }
        listed.append(Column(metric.label + (", %" if metric.percent else ""), cells))
    listed = [column for column in listed if column.cells]
    if not found.calibration.empty:
        risks = found.calibration.set_index("group")
        listed += [
            Column(
                "predicted, %",
                {name: (points(risks.at[name, "mean_predicted"]), "") for name in risks.index},
            ),
            Column(
                "happened, %",
                {
                    name: (
                        points(row["observed"]),
                        _ends(points(row["observed_low"]), points(row["observed_high"])),
                    )
                    for name, row in risks.iterrows()
                },
            ),
        ]
    return listed


def how_measured(found: Evaluation) -> list[str]:
    """Sentences on the positive class, the risk from which on it is the answer, and undefined metrics."""
    sentences = []
    if found.positive:
        where = (
            "where it is the more probable class"
            if found.threshold is None
            else f"from a predicted risk of {found.threshold:.3g} on"
        )
        sentences.append(
            f"Positive class: {found.positive!r}, answered {where} (--positive, --threshold). Predicted and "
            "happened: its mean predicted probability, and its share."
        )
    table = found.figures
    missing = table if table.empty else table[(table["reason"] != "") & ~table["metric"].isin(_ELSEWHERE)]
    for reason, rows in [] if missing.empty else missing.groupby("reason", sort=False):
        labels = ", ".join(METRICS.get(name, found.metric).label for name in rows["metric"].unique())
        groups = ["all examples" if name == ALL else f"group {name}" for name in rows["group"].unique()]
        lacking = "interval of " if str(reason).startswith(_NO_INTERVAL) else ""
        why = str(reason).removeprefix(_NO_INTERVAL)
        sentences.append(f"No {lacking}{labels} of {', '.join(groups)}: {why}.")
    return sentences[: _MOST_REASONS + 1]


def withheld_in_words(found: Evaluation | None) -> list[str]:
    """Sentences on groups and classes that an evaluation withholds, and why."""
    if found is None or found.small == SmallCells():
        return []
    small, who = found.small, "test examples" if found.people is None else "people"
    if small.everything:
        few = f"fewer than {FEWEST} {who}, or fewer than {FEWEST} of a class"
        return [f"No figures are shown: there are {few}."]
    sentences = []
    if small.groups:
        sentences.append(
            f"Left out of all figures, also of those of all groups: {'; '.join(small.groups)}. Each of these "
            f"groups has fewer than {FEWEST} {who}, or fewer than {FEWEST} of a class."
        )
    if small.classes:
        sentences.append(f"Left out in the same way, as classes: {'; '.join(small.classes)}.")
    return sentences


def mean_epsilons(
    released: Sequence[Mapping[str, Any]], spent: float
) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return released means of groups with small noise, and the names of groups whose noise hides the mean.

    Args:
        released: group, mean and standard_error of each.
        spent: epsilon of the run, which no mean can exceed; a standard error above half of it hides the mean.
    """
    told = [row for row in released if row["standard_error"] <= spent / 2]
    return told, [str(row["group"]) for row in released if row["standard_error"] > spent / 2]


def for_card(found: Evaluation | None) -> dict[str, Any]:
    """Values of a card's template on metrics, by name."""
    further = [] if found is None else columns(found)
    return {
        "columns": further,
        "risks": None if found is None else risk_picture(found),
        "with_columns": {group for column in further for group in column.cells},
        "how_measured": [] if found is None else how_measured(found),
    }


def metric_sentence(found: Evaluation | None) -> str:
    """Sentence for the head of a card: the overall metric, or that the model is no better than a constant."""
    if found is None or not len(found.figures):
        return ""
    if not found.useful:
        return f" By {found.metric.label} the model is no better than one constant answer."
    rows = found.figures.set_index(["group", "metric"])
    if found.metric.name == "accuracy" or (ALL, found.metric.name) not in rows.index:
        return ""
    row = rows.loc[(ALL, found.metric.name)]
    value, low, high = (metric_text(found.metric, row[name]) for name in ("value", "low", "high"))
    return f" {found.metric.label[0].upper()}{found.metric.label[1:]}: {value} ({low} to {high})."


def _ends(low: str, high: str) -> str:
    return "" if low == "–" else f"{low} to {high}"
