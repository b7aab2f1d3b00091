"""Evaluation of one model by group: tables, and sentences on what they hide and withhold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rich.console import Console
from rich.markup import escape

from equidp._extras import require_extra
from equidp.data.dataset import ALL
from equidp.display import Cell, Column, Interval, Table, measured_number, points
from equidp.evaluation.evaluation import Evaluation
from equidp.evaluation.metrics import METRICS, Metric
from equidp.evaluation.small_cells import FEWEST, SmallCells
from equidp.report.format import capitalise, metric_text, unit, whole_number
from equidp.training.run import RunFacts

with require_extra("tables"):
    import pandas as pd

LARGER_BOUND = "A larger clipping bound or a larger epsilon can bring them in line."
_UNEXPLAINED = ("accuracy", "log_loss", "recall", "calibration")
"""Metrics that are undefined for groups without examples alone, or that other tables show."""
_HEADINGS: dict[str, tuple[str, Callable[[float], str]]] = {
    "accuracy": ("accuracy, %", points),
    "loss": ("loss", measured_number),
    "recall": ("recall, %", points),
    "recall_cost": ("recall lost, points", points),
    "excessive_risk": ("excessive risk, loss", measured_number),
}
_BARS = ("accuracy", "recall")
_NO_INTERVAL = "no interval: "
_MOST_REASONS = 4
_MOST_RECALLS = 40
_MOST_NAMED = 3


def print_evaluation(found: Evaluation, facts: RunFacts) -> None:
    """Print metrics by group and what they hide; withhold metrics of few people before."""
    if not found.groups.empty:
        print_groups(found.groups)
        if not found.recalls.empty:
            of_all = found.recalls["group"] == ALL
            print_groups(found.recalls if len(found.recalls) <= _MOST_RECALLS else found.recalls[of_all])
        print_metrics(found)
    for sentence in (*withheld_sentences(found), *blind_spot_sentences(found), *risk_sentences(found, facts)):
        print(sentence)


def print_groups(rows: pd.DataFrame, metric: Metric = METRICS["accuracy"]) -> None:
    """Print a row per group, or per group and class, of a table of an `Evaluation`; see `groups_table`."""
    groups_table(rows, metric).print(split=True)


def print_metrics(found: Evaluation) -> None:
    """Print the metrics other than accuracy and loss by group, in tables that fit, and how to read them."""
    console, table = Console(), metrics_table(found)
    if table is not None:
        table.print(console, split=True)
    for sentence in measure_sentences(found):
        console.print(escape(sentence), highlight=False, style="dim")


def groups_table(rows: pd.DataFrame, metric: Metric = METRICS["accuracy"]) -> Table:
    """Table with a row per group, or per group and class, with each value present and its interval.

    Args:
        rows: a table of an `Evaluation`.
        metric: the metric of privacy_cost.
    """
    headings: dict[str, tuple[str, Callable[[float], str]]] = {
        **_HEADINGS,
        "privacy_cost": (f"privacy cost, {unit(metric)}", partial(metric_text, metric)),
    }
    names = [name for name in ("group", "class") if name in rows]
    present = {name: texts for name, texts in headings.items() if name in rows}
    columns = [
        *(Column(name, "name") for name in names),
        Column("test examples", show=whole_number),
        *(Column(head, show=show, bar=name in _BARS) for name, (head, show) in present.items()),
    ]
    cells = [
        [*(str(row[name]) for name in names), row["count"], *(_interval(row, name) for name in present)]
        for row in rows.to_dict("records")
    ]
    return Table(columns, cells, total=ALL)


def metrics_table(found: Evaluation) -> Table | None:
    """Table of the metrics that other tables leave out, and of predicted and observed risk; None without any.

    Groups are down; a metric that is defined for no group is left out.
    """
    columns = [Column("group", "name")]
    rows: dict[str, list[Cell]] = {str(name): [str(name)] for name in found.groups["group"]}
    table = found.values
    listed = [] if table.empty else [name for name in table["metric"].unique() if name not in _UNEXPLAINED]
    for name in listed:
        metric = METRICS.get(name, found.metric)
        values = table[(table["metric"] == name) & table["value"].notna()].set_index("group")
        if not values.empty:
            columns.append(Column(metric.heading, show=partial(metric_text, metric)))
            for group, row in rows.items():
                row.append(
                    Interval(*values.loc[group, ["value", "low", "high"]]) if group in values.index else "–"
                )
    if not found.calibration.empty:
        risks = found.calibration.set_index("group").to_dict("index")
        columns += [Column("predicted, %", show=points), Column("happened, %", show=points)]
        for group, row in rows.items():
            risk = risks.get(group)
            row += ["–", "–"] if risk is None else [risk["mean_predicted"], _interval(risk, "observed")]
    return Table(columns, list(rows.values()), total=ALL) if len(columns) > 1 else None


def reliability_table(found: Evaluation) -> Table:
    """Table of mean predicted and observed risk, by group and predicted risk."""
    columns = (
        Column("group", "name"),
        Column("risk, %"),
        Column("test examples", show=whole_number),
        Column("mean predicted risk, %", show=points),
        Column("happened, %", show=points),
    )
    rows = [
        (
            str(row["group"]),
            f"{points(row['risk_from'])} to {points(row['risk_to'])}",
            row["count"],
            row["mean_predicted"],
            _interval(row, "observed"),
        )
        for row in found.reliability.to_dict("records")
    ]
    return Table(columns, rows, total=ALL)


def _interval(row: Mapping[Any, Any], name: str) -> Interval:
    return Interval(row[name], row[f"{name}_low"], row[f"{name}_high"])


def summary_sentence(found: Evaluation | None) -> str:
    """Sentences for the head of a card: the main metric overall, and of the worst and the best group."""
    if found is None:
        return "No test set was given, so the card says nothing about accuracy."
    if found.groups.empty:
        return "The test set holds too few people, or too few of a class, to show metrics."
    rows = found.groups.set_index("group")
    tested = f"{rows.at[ALL, 'count']:,} test examples"
    if found.people is not None:
        tested += f" of {found.people:,} people"
    overall = f"Accuracy on {tested}: {points(rows.at[ALL, 'accuracy'])}%"
    of_groups = rows["accuracy"].drop(ALL).dropna()
    lowest, highest = of_groups.min(), of_groups.max()
    if of_groups.empty:
        shown = f"{overall}."
    elif lowest == highest:
        shown = f"{overall}, the same in every group."
    else:
        shown = (
            f"{overall}. Lowest for group {of_groups.idxmin()}, {points(lowest)}%, highest for "
            f"{of_groups.idxmax()}, {points(highest)}%."
        )
    return shown + _metric_sentence(found)


def _metric_sentence(found: Evaluation) -> str:
    """The overall metric where it is not accuracy, or that the model is no better than a constant."""
    if found.values.empty:
        return ""
    if not found.useful:
        return f" By {found.metric.label} the model is no better than one constant prediction."
    rows = found.values.set_index(["group", "metric"])
    if found.metric.name == "accuracy" or (ALL, found.metric.name) not in rows.index:
        return ""
    row = rows.loc[(ALL, found.metric.name)]
    value, low, high = (metric_text(found.metric, row[name]) for name in ("value", "low", "high"))
    return f" {capitalise(found.metric.label)}: {value} ({low} to {high})."


def measure_sentences(found: Evaluation) -> list[str]:
    """Sentences on the positive class, the risk from which on it is predicted, and undefined metrics."""
    sentences = []
    if found.positive:
        where = (
            "where it is the more probable class"
            if found.threshold is None
            else f"from a predicted risk of {found.threshold:.3g} on"
        )
        sentences.append(
            f"Positive class: {found.positive!r}, predicted {where} (--positive, --threshold). Predicted and "
            "happened: its mean predicted probability, and its share."
        )
    table = found.values
    missing = table if table.empty else table[(table["reason"] != "") & ~table["metric"].isin(_UNEXPLAINED)]
    for reason, rows in [] if missing.empty else missing.groupby("reason", sort=False):
        labels = ", ".join(METRICS.get(name, found.metric).label for name in rows["metric"].unique())
        lacking_it = set(rows["group"])
        groups = [f"group {name}" for name in rows["group"].unique() if name != ALL]
        if len(groups) > 1 and lacking_it >= set(table["group"]) - {ALL}:
            groups = ["any single group"]
        groups = (["all examples"] if ALL in lacking_it else []) + groups
        lacking = "interval of " if str(reason).startswith(_NO_INTERVAL) else ""
        why = str(reason).removeprefix(_NO_INTERVAL)
        sentences.append(f"No {lacking}{labels} of {', '.join(groups)}: {why}.")
    return sentences[: _MOST_REASONS + 1]


def withheld_sentences(found: Evaluation | None) -> list[str]:
    """Sentences on groups and classes that an evaluation withholds, and why."""
    if found is None or found.small == SmallCells():
        return []
    small, who = found.small, "test examples" if found.people is None else "people"
    if small.everything:
        few = f"fewer than {FEWEST} {who}, or fewer than {FEWEST} of a class"
        return [f"No metrics are shown: there are {few}."]
    sentences = []
    if small.groups:
        sentences.append(
            f"Left out of all metrics, including the totals: {'; '.join(small.groups)}. Each of these "
            f"groups has fewer than {FEWEST} {who}, or fewer than {FEWEST} of a class."
        )
    if small.classes:
        sentences.append(f"Classes left out in the same way: {'; '.join(small.classes)}.")
    return sentences


def interval_sentence(found: Evaluation) -> str:
    """Sentence on the intervals of the table of groups."""
    intervals = f"Beside numbers: {found.level:.0%} intervals over the test examples,"
    of_recall = "" if found.recalls.empty else " and recall"
    return f"{intervals} Wilson's for accuracy{of_recall}, Student's for loss."


def gap_sentences(found: Evaluation) -> list[str]:
    """Sentences on the fairness differences of an evaluation; none of a model that is uninformative."""
    if found.blind_spots is not None and found.blind_spots.uninformative:
        return []
    return [
        f"{capitalise(name.replace('_', ' '))}: {points(value)} points." for name, value in found.gaps.items()
    ]


def blind_spot_sentences(found: Evaluation) -> list[str]:
    """Sentences on what the metric of an evaluation hides; empty without examples."""
    spots = found.blind_spots
    if spots is None:
        return []
    sentences = [
        f"Always predicting {spots.constant_class!r} would be correct for "
        f"{100 * spots.constant_value:.1f}% of the test examples."
    ]
    if spots.never_predicted:
        names = ", ".join(map(repr, spots.never_predicted))
        sentences.append(f"The model predicts {names} for none of them.")
    if spots.uninformative:
        ranking = ""
        if spots.ranking_auc is not None:
            ranking = (
                f" Its ranking is informative (AUC {spots.ranking_auc:.3f}): judge it by --metric auc, and "
                f"predict {found.positive!r} from a lower risk on (--threshold)."
            )
        sentences.append(
            f"By {found.metric.label} the model is no better than one constant prediction, so its metrics by "
            f"group say nothing about fairness or privacy.{ranking}"
        )
    return sentences


def risk_sentences(found: Evaluation, facts: RunFacts) -> list[str]:
    """Sentences on wrong predicted risks, and on what corrects them in this run; empty without any."""
    if not found.risks_off:
        return []
    texts = {
        each.group: f"{100 * each.predicted:.1f}% predicted where {100 * each.observed:.1f}% happened"
        for each in found.risks_off
    }
    overall = [texts.pop(ALL)] if ALL in texts else []
    named = [f"group {name}: {text}" for name, text in texts.items()][:_MOST_NAMED]
    listed = "; ".join([*overall, *named])
    remedy = _risk_remedy(facts, bool(overall))
    return [f"Predicted risks of {found.positive!r} are off: {listed}. {remedy}"]


def _risk_remedy(facts: RunFacts, overall: bool) -> str:
    if facts.class_weighted:
        return (
            "This run weighs classes, which shifts predicted risks towards the rarer class; without "
            "--class-weight they are not shifted."
        )
    if not overall:
        return (
            "Over all test examples together they are not, so a correction that all groups share, such as "
            "a larger clipping bound, does not help; inputs that distinguish these groups can."
        )
    private = facts.policy is not None and facts.policy.private
    if private:
        return f"Bounding the lengths of gradients can shift risks. {LARGER_BOUND}"
    return "Nothing was clipped, and no noise was added: test examples may differ from training examples."


def split_noisy_means(
    released: Sequence[Mapping[str, Any]], spent: float
) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return released means of groups with small noise, and the names of groups whose noise hides the mean.

    Args:
        released: group, mean and standard_error of each.
        spent: epsilon of the run, which no mean can exceed; a standard error above half of it hides the mean.
    """
    clear = [row for row in released if row["standard_error"] <= spent / 2]
    return clear, [str(row["group"]) for row in released if row["standard_error"] > spent / 2]
