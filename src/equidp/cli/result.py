"""The result that `train` and `evaluate` print: how good the model is, for whom less, and at what epsilon.

At most 25 lines of 80 columns; all else is on the card.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rich.console import Console

from equidp.data.dataset import ALL
from equidp.display import Cell, Column, Table, points, shown_epsilon
from equidp.evaluation.evaluation import Evaluation
from equidp.evaluation.metrics import METRICS, Metric
from equidp.evaluation.small_cells import FEWEST
from equidp.report.evaluation import (
    names_text,
    ranking_sentences,
    shown_metric,
    values_of,
    verdict_clauses,
)
from equidp.report.format import metric_text, unit, whole_number
from equidp.report.guarantee import Guarantee, epsilon_of_groups_text, headline
from equidp.training.run import Run

_MOST_ROWS = 12


def print_result(
    run: Run, evaluation: Evaluation, metric: str | None = None, card: Path | None = None
) -> None:
    """Print the verdict on a run, one table by group, its guarantee, and the path of its card.

    Args:
        run: as it was trained.
        evaluation: evaluation of the run, without metrics of few people.
        metric: requested metric; None: accuracy, or AUC if one of two classes is rare.
        card: path of the card; None if there is none.
    """
    console = Console(highlight=False)
    say = partial(console.print, markup=False)
    guarantee = Guarantee.of(run)
    spent = f"epsilon {shown_epsilon(guarantee.epsilon):g}" if guarantee.private else "without privacy"
    if evaluation.groups.empty:
        say(f"The test set holds too few people, or too few of a class, to judge the model; {spent}.")
    else:
        shown = evaluation.metric if metric is not None else shown_metric(evaluation)
        verdict, *for_whom_not = verdict_clauses(evaluation, shown)
        say(
            " ".join(
                [". ".join([f"{verdict}; {spent}", *for_whom_not]) + ".", *ranking_sentences(evaluation)]
            )
        )
        if evaluation.has_rare_class or evaluation.threshold is not None:
            say(_recall_sentence(evaluation))
        _print_table(evaluation, shown, console)
        small = [*evaluation.small.groups, *evaluation.small.classes]
        if small and evaluation.rest is None:
            few = f"fewer than {FEWEST} people, or of a class"
            say(f"Left out of all numbers ({few}): {names_text(small)}.", style="dim")
    say(headline(guarantee))
    if guarantee.by_group:
        say(f"Epsilon by group: {epsilon_of_groups_text(guarantee.by_group)}.")
    if card is not None:
        say(f"Model card: {card}")


def _recall_sentence(evaluation: Evaluation) -> str:
    recall = values_of(evaluation, METRICS["recall"])[ALL]
    where = (
        "when it is the more probable class"
        if evaluation.threshold is None
        else f"from a predicted risk of {evaluation.threshold:.3g} on"
    )
    return f"{evaluation.positive!r} is predicted {where}, which finds {points(recall.value)}% of them."


def _print_table(evaluation: Evaluation, metric: Metric, console: Console) -> None:
    """Print group, examples, the metric, predicted and observed probability, and privacy cost."""
    columns = [
        Column("group", "name"),
        Column("n", show=whole_number),
        Column(metric.heading, show=partial(metric_text, metric)),
    ]
    if not evaluation.calibration.empty:
        columns += [Column("predicted %", show=points), Column("happened %", show=points)]
    if evaluation.costs is not None:
        cost = f"privacy cost, {unit(evaluation.metric)}"
        columns.append(Column(cost, show=partial(metric_text, evaluation.metric)))
    rows: list[list[Cell]] = []
    several = len(evaluation.groupings) > 1
    for part in evaluation.by_grouping():
        cells = _cells_by_group(part, metric)
        of_all = [ALL, *cells.pop(ALL)]
        rows += [[part.groupings[0], *("" for _ in columns[1:])]] if several else []
        rows += [["  " * several + name, *row] for name, row in cells.items()]
    Table(columns, [*rows[:_MOST_ROWS], of_all], total=ALL).print(console, lines=False)
    if (hidden := len(rows) - _MOST_ROWS) > 0:
        console.print(f"{hidden} more groups are on the card.", style="dim")


def _cells_by_group(part: Evaluation, metric: Metric) -> dict[str, list[Cell]]:
    """The cells of each group next to its name, and of all groups."""
    frames = [part.groups[["group", "count"]]]
    frames += [] if part.calibration.empty else [part.calibration[["group", "mean_predicted", "observed"]]]
    frames += [] if part.costs is None else [part.costs[["group", "privacy_cost"]]]
    table = frames[0].set_index("group").join([each.set_index("group") for each in frames[1:]])
    values = values_of(part, metric)
    return {
        str(name): [int(count), values[str(name)], *numbers]
        for name, (count, *numbers) in zip(table.index, table.to_numpy().tolist(), strict=True)
    }
