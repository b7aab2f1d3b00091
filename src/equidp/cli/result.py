"""The result that `train` and `evaluate` print: how good the model is, for whom less, and at what epsilon.

At most 25 lines of 80 columns; all else is on the card.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from equidp.data.dataset import ALL
from equidp.display import Cell, Column, Interval, Table, points, shown_epsilon
from equidp.evaluation.evaluation import Evaluation
from equidp.evaluation.metrics import METRICS, Metric
from equidp.evaluation.small_cells import FEWEST
from equidp.report.evaluation import chances_of, interval_text, shown_metric, values_of
from equidp.report.format import metric_text, unit, whole_number
from equidp.report.guarantee import Guarantee, epsilon_of_groups_text, headline
from equidp.training.run import Run

_MOST_ROWS, _MOST_NAMED = 12, 4


def print_result(run: Run, found: Evaluation, metric: str | None = None, card: Path | None = None) -> None:
    """Print the verdict on a run, one table by group, its guarantee, and where its card is.

    Args:
        run: as it was trained.
        found: its evaluation, without metrics of few people.
        metric: that was asked for; None: accuracy, or AUC where one of two classes is rare.
        card: None where there is none.
    """
    console = Console(highlight=False)
    say = partial(console.print, markup=False)
    guarantee = Guarantee.of(run)
    spent = f"epsilon {shown_epsilon(guarantee.epsilon):g}" if guarantee.private else "without privacy"
    if found.groups.empty:
        say(f"The test set holds too few people, or too few of a class, to judge the model; {spent}.")
    else:
        shown = found.metric if metric is not None else shown_metric(found)
        judged = _judge_groups(found, shown)
        say(" ".join([f"{_verdict(found, shown, judged[-1])}; {spent}.", *_for_whom_not(judged, shown)]))
        if found.has_rare_class or found.threshold is not None:
            say(_recall_sentence(found))
        _print_table(found, shown, judged, console)
        if small := [*found.small.groups, *found.small.classes]:
            few = f"fewer than {FEWEST} people, or of a class"
            say(f"Left out of all numbers ({few}): {_names(small)}.", style="dim")
    say(headline(guarantee))
    if guarantee.by_group:
        say(f"Epsilon by group: {epsilon_of_groups_text(guarantee.by_group)}.")
    if card is not None:
        say(f"Model card: {card}")


@dataclass(frozen=True)
class _Judged:
    """A group, or all examples, with what a prediction that knows nothing reaches; NaN: not known."""

    grouping: str
    name: str
    count: int
    value: Interval
    chance: float
    predicted: float
    happened: float
    cost: float


def _judge_groups(found: Evaluation, metric: Metric) -> list[_Judged]:
    """The groups of each grouping, and last all examples."""
    judged = []
    for part in found.by_grouping():
        values = values_of(part, metric)
        chances = chances_of(part, metric)
        risks = {} if part.calibration.empty else part.calibration.set_index("group").to_dict("index")
        costs = (
            {} if part.costs is None or part.costs.empty else part.costs.set_index("group")["privacy_cost"]
        )
        judged += [
            _Judged(
                part.groupings[0],
                name,
                count,
                values.get(name, Interval(math.nan)),
                chances.get(name, math.nan),
                risks.get(name, {}).get("mean_predicted", math.nan),
                risks.get(name, {}).get("observed", math.nan),
                costs.get(name, math.nan),
            )
            for name, count in zip(part.groups["group"], part.groups["count"], strict=True)
        ]
    of_all = judged[-1]
    return [*(each for each in judged if each.name != ALL), of_all]


def _verdict(found: Evaluation, metric: Metric, of_all: _Judged) -> str:
    """The metric beside what a constant prediction, or a coin, reaches."""
    good = of_all.value.low > 0.5 if metric.name == "auc" else found.useful
    if metric.name == "auc":
        beside = "a coin (0.5)"
    elif metric.name == "accuracy" and found.blind_spots is not None:
        spots = found.blind_spots
        beside = f"always predicting {spots.constant_class!r} ({points(spots.constant_value)}%)"
    else:
        beside = "one constant prediction"
    reached = f"{metric.label} {interval_text(metric, of_all.value)}"
    return f"{'Better' if good else 'No better'} than {beside}: {reached}"


def _for_whom_not(judged: Sequence[_Judged], metric: Metric) -> list[str]:
    """Sentences on groups for which the model is clearly worse, or not clearly better than chance."""
    *groups, of_all = judged
    several = len({each.grouping for each in groups}) > 1

    def named(chosen: list[_Judged]) -> str:
        return _names([f"{each.grouping} {each.name}" if several else each.name for each in chosen])

    if metric.higher_is_better:
        worse = [each for each in groups if each.value.high < of_all.value.low]
    else:
        worse = [each for each in groups if each.value.low > of_all.value.high]
    by_chance = [each for each in groups if each.value.low <= each.chance]
    sentences = [f"Clearly worse for {named(worse)}."] if worse else []
    if by_chance and of_all.value.low > of_all.chance:
        than = "a coin" if metric.name == "auc" else "the commonest class"
        sentences.append(f"Not clearly better than {than} for {named(by_chance)}.")
    return sentences


def _names(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    shown = "; ".join(names[:_MOST_NAMED])
    return f"{shown}; and {more} more" if more > 0 else shown


def _recall_sentence(found: Evaluation) -> str:
    recall = values_of(found, METRICS["recall"]).get(ALL, Interval(math.nan))
    where = (
        "where it is the more probable class"
        if found.threshold is None
        else f"from a predicted risk of {found.threshold:.3g} on"
    )
    return f"{found.positive!r} is predicted {where}, which finds {points(recall.value)}% of them."


def _print_table(found: Evaluation, metric: Metric, judged: Sequence[_Judged], console: Console) -> None:
    """Print group, examples, the metric, predicted risk beside what happened, and what privacy cost."""
    columns = [
        Column("group", "name"),
        Column("n", show=whole_number),
        Column(metric.heading, show=partial(metric_text, metric)),
    ]
    risks, costs = not found.calibration.empty, found.costs is not None and not found.costs.empty
    columns += [Column("predicted %", show=points), Column("happened %", show=points)] if risks else []
    if costs:
        columns.append(Column(f"privacy cost, {unit(found.metric)}", show=partial(metric_text, found.metric)))
    rows: list[list[Cell]] = []
    *groups, of_all = judged
    heading = "" if len(found.groupings) > 1 else None
    for each in [*groups[:_MOST_ROWS], of_all]:
        if heading is not None and each.grouping != heading and each is not of_all:
            heading = each.grouping
            rows.append([heading, *("" for _ in columns[1:])])
        name = f"  {each.name}" if heading and each is not of_all else each.name
        cells: list[Cell] = [name, each.count, each.value]
        cells += [each.predicted, each.happened] if risks else []
        rows.append([*cells, each.cost] if costs else cells)
    Table(columns, rows, total=ALL).print(console, lines=False)
    if (hidden := len(groups) - _MOST_ROWS) > 0:
        console.print(f"{hidden} more groups are on the card.", style="dim")
