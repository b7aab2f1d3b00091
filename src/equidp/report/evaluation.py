"""Evaluation of one model by group: blocks of a card, and sentences on what metrics hide and withhold."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from equidp._extras import require_extra
from equidp.data.dataset import ALL
from equidp.display import Cell, Column, Interval, Table, points
from equidp.evaluation.evaluation import Evaluation
from equidp.evaluation.metrics import METRICS, Metric
from equidp.evaluation.small_cells import FEWEST, SmallCells
from equidp.report.document import Block, Heading, Paragraph, Tile, paragraphs
from equidp.report.format import capitalise, metric_text, whole_number
from equidp.training.run import RunFacts

with require_extra("tables"):
    import pandas as pd

_MOST_RECALLS, _MOST_NAMED = 40, 4
_INTERVALS = (
    "Beside numbers: {level:.0%} intervals over the test examples{of_people}. They do not show the variation "
    "between training runs, and people unlike the test examples may fare differently. Every metric is over "
    "at least {fewest}{of_class}."
)


def shown_metric(found: Evaluation) -> Metric:
    """Return the metric that a reader should see first.

    It is that of the evaluation, but AUC in place of accuracy where one of two classes is rare or a threshold
    was given: a low threshold costs accuracy.
    """
    if found.metric.name != "accuracy" or found.calibration.empty:
        return found.metric
    return METRICS["auc"] if found.threshold is not None or found.has_rare_class else found.metric


def values_of(found: Evaluation, metric: Metric) -> dict[str, Interval]:
    """Return the metric of each group and of all examples, with its interval, where it is defined."""
    rows = found.values[(found.values["metric"] == metric.name) & found.values["value"].notna()]
    return {row.group: Interval(row.value, row.low, row.high) for row in rows.itertuples()}


def metric_tile(found: Evaluation | None) -> Tile:
    """Return the main metric over all test examples as a large figure."""
    if found is None or found.groups.empty:
        return Tile("–", "not evaluated", "")
    metric = shown_metric(found)
    value = values_of(found, metric).get(ALL, Interval(math.nan))
    text, low, high = (metric_text(metric, each) for each in value)
    between = "" if math.isnan(value.low) else f"{low} to {high}"
    return Tile(f"{text}{'%' if metric.percent else ''}", metric.label, between)


def summary_sentence(found: Evaluation | None) -> str:
    """Return the head of a card in sentences: the main metric overall, and for whom it is low."""
    if found is None:
        return "No test set was given, so the card says nothing about accuracy."
    if found.groups.empty:
        return "The test set holds too few people, or too few of a class, to show metrics."
    metric = shown_metric(found)
    values = values_of(found, metric)
    of_all = values.pop(ALL, Interval(math.nan))
    tested = f"{found.groups.set_index('group').at[ALL, 'count']:,} test examples"
    tested += "" if found.people is None else f" of {found.people:,} people"
    sentences = [f"{capitalise(metric.label)} on {tested}: {interval_text(metric, of_all)}"]
    ranked = sorted(values, key=lambda name: metric.sign * values[name].value)
    if ranked and values[ranked[0]].value == values[ranked[-1]].value:
        sentences[0] += ", the same in every group"
    elif ranked:
        worst, best = (f"{name}, {interval_text(metric, values[name])}" for name in (ranked[0], ranked[-1]))
        sentences.append(f"Worst for group {worst}, best for {best}")
    if by_chance := _no_better(found, metric, values):
        than = "a coin" if metric.name == "auc" else "the most frequent class"
        sentences.append(f"Not clearly better than {than} for {_names(by_chance)}")
    if _says_nothing(found):
        sentences.append(f"By {found.metric.label} the model is no better than one constant prediction")
    return ". ".join(sentences) + "."


def interval_text(metric: Metric, value: Interval) -> str:
    """Return a value of a metric with its unit, and its interval where there is one.

    >>> interval_text(METRICS["accuracy"], Interval(0.9, 0.88, 0.92))
    '90.0% (88.0 to 92.0)'
    """
    shown, sign = partial(metric_text, metric), "%" if metric.percent else ""
    between = "" if math.isnan(value.low) else f" ({shown(value.low)} to {shown(value.high)})"
    return f"{shown(value.value)}{sign}{between}"


def _names(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _no_better(found: Evaluation, metric: Metric, values: Mapping[str, Interval]) -> list[str]:
    """Groups for which the model is not clearly better than a prediction that knows nothing."""
    chances = chances_of(found, metric)
    return [name for name, value in values.items() if name in chances and value.low <= chances[name]]


def chances_of(found: Evaluation, metric: Metric) -> dict[str, float]:
    """Return what a prediction that knows nothing reaches in each group and overall, where it is known."""
    if metric.name == "auc":
        return dict.fromkeys(found.groups["group"], 0.5)
    if metric.name != "accuracy" or found.recalls.empty:
        return {}
    counts = found.recalls.groupby("group")["count"]
    return dict(counts.max() / counts.sum())


def _says_nothing(found: Evaluation) -> bool:
    """Return whether the model is no better than a constant prediction by a metric that should tell."""
    low_threshold = found.threshold is not None and found.metric.name == "accuracy"
    return not found.useful and not low_threshold


def evaluation_blocks(found: Evaluation | None, facts: RunFacts) -> Iterator[Block]:
    """Return metrics by group, one a table, and what they hide and withhold."""
    yield Heading("Evaluation by group")
    if found is None:
        yield Paragraph("No test set was given.")
        return
    yield from paragraphs(withheld_sentences(found), small=True)
    if not found.groups.empty:
        for part in found.by_grouping():
            yield from _grouping_blocks(part)
        of_people = "; the rows of one person are alike, so they are too narrow" if found.people else ""
        fewest = f"{FEWEST} {'people' if found.people else 'test examples'}"
        of_class = ", and as many of each class" if found.positive else ""
        note = _INTERVALS.format(level=found.level, of_people=of_people, fewest=fewest, of_class=of_class)
        yield from paragraphs([*measure_sentences(found), note], small=True)
    yield from paragraphs([*blind_spot_sentences(found), *risk_sentences(found, facts)])


def _grouping_blocks(found: Evaluation) -> Iterator[Block]:
    """Tables of one way to group the test examples."""
    name = found.groupings[0] or "group"
    main = shown_metric(found)
    metrics = [main, METRICS["accuracy"], *([] if found.calibration.empty else [METRICS["auc"]])]
    for metric in dict.fromkeys(metrics):
        if values := values_of(found, metric):
            yield Heading(f"{capitalise(metric.label)} by {name}", 3)
            yield _metric_table(found, metric, values, name)
    if not found.recalls.empty:
        of_all = found.recalls["group"] == ALL
        yield Heading(f"Recall by {name}: share of each class's examples that the model finds", 3)
        yield _recall_table(
            found.recalls if len(found.recalls) <= _MOST_RECALLS else found.recalls[of_all], name
        )
    if not found.calibration.empty:
        from equidp.report.plots.calibration import draw_calibration

        if (drawn := draw_calibration(found)) is not None:
            yield drawn
        yield _calibration_table(found, name)
    yield from paragraphs(gap_sentences(found))


def _metric_table(found: Evaluation, metric: Metric, values: Mapping[str, Interval], name: str) -> Table:
    columns = [
        Column(name, "name"),
        Column("test examples", show=whole_number),
        Column(metric.heading, show=partial(metric_text, metric), bar=metric.percent),
    ]
    counts = found.groups.set_index("group")["count"]
    rows: list[list[Cell]] = [
        [str(group), int(count), values.get(str(group), "–")] for group, count in counts.items()
    ]
    return Table(columns, rows, total=ALL)


def _recall_table(rows: pd.DataFrame, name: str) -> Table:
    columns = [
        *(Column(head, "name") for head in (name, "class")),
        Column("test examples", show=whole_number),
        Column("recall, %", show=points, bar=True),
    ]
    cells = [
        (str(row["group"]), str(row["class"]), row["count"], _interval(row, "recall"))
        for row in rows.to_dict("records")
    ]
    return Table(columns, cells, total=ALL)


def _calibration_table(found: Evaluation, name: str) -> Table:
    columns = [
        Column(name, "name"),
        Column("predicted, %", show=points),
        Column("happened, %", show=points),
    ]
    rows = [
        (str(row["group"]), row["mean_predicted"], _interval(row, "observed"))
        for row in found.calibration.to_dict("records")
    ]
    return Table(columns, rows, total=ALL)


def reliability_table(found: Evaluation) -> Table:
    """Return the table of mean predicted and observed risk, by group and predicted risk."""
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


def measure_sentences(found: Evaluation) -> list[str]:
    """Return what the positive class is, and the probability from which on it is predicted."""
    if not found.positive:
        return []
    where = (
        "if it is the more probable class"
        if found.threshold is None
        else f"from a probability of {found.threshold:.3g} on"
    )
    return [f"Positive class: {found.positive!r}, predicted {where}."]


def withheld_sentences(found: Evaluation) -> list[str]:
    """Return which groups and classes an evaluation withholds, and why."""
    if found.small == SmallCells():
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
    if small.combinations:
        sentences.append(f"Combinations left out in the same way: {'; '.join(small.combinations)}.")
    if small.classes:
        sentences.append(f"Classes left out in the same way: {'; '.join(small.classes)}.")
    return sentences


def gap_sentences(found: Evaluation) -> list[str]:
    """Return the fairness differences of an evaluation; none of a model that is uninformative."""
    if _says_nothing(found):
        return []
    texts = [f"{name.replace('_', ' ')}: {points(value)} points" for name, value in found.gaps.items()]
    return [f"{capitalise('; '.join(texts))}."] if texts else []


def blind_spot_sentences(found: Evaluation) -> list[str]:
    """Return what the metric of an evaluation hides; empty without examples."""
    spots = found.blind_spots
    if spots is None:
        return []
    sentences = [
        f"Always predicting {spots.constant_class!r} would be correct for "
        f"{points(spots.constant_value)}% of the test examples."
    ]
    if spots.never_predicted:
        names = ", ".join(map(repr, spots.never_predicted))
        sentences.append(f"The model predicts {names} for none of them.")
    if _says_nothing(found):
        ranking = ""
        if spots.ranking_auc is not None:
            ranking = (
                f" Its ranking is informative (AUC {spots.ranking_auc:.3f}): judge it by --metric auc, and "
                f"predict {found.positive!r} from a lower probability on (--threshold)."
            )
        sentences.append(
            f"By {found.metric.label} the model is no better than one constant prediction, so its metrics by "
            f"group say nothing about fairness or privacy.{ranking}"
        )
    return sentences


def risk_sentences(found: Evaluation, facts: RunFacts) -> list[str]:
    """Return where predicted probabilities are off, and what corrects them in this run; empty without any."""
    if not found.risks_off:
        return []
    texts = {
        each.group: f"{points(each.predicted)}% predicted where {points(each.observed)}% happened"
        for each in found.risks_off
    }
    overall = [texts.pop(ALL)] if ALL in texts else []
    named = [f"group {name}: {text}" for name, text in texts.items()][:_MOST_NAMED]
    listed = "; ".join([*overall, *named])
    clips = facts.policy is not None and facts.policy.private
    remedy = risk_remedy(weighs_classes=facts.class_weighted, clips=clips, overall=bool(overall))
    return [f"Predicted risks of {found.positive!r} are off: {listed}. {remedy}"]


def risk_remedy(*, weighs_classes: bool, clips: bool, overall: bool) -> str:
    """Return what shifts predicted probabilities in a run, and what corrects them.

    Args:
        weighs_classes: whether its losses are weighted by class.
        clips: whether it bounds gradients.
        overall: whether they are off over all test examples, not only in some groups.
    """
    if weighs_classes:
        return (
            "This run weighs classes, which shifts predicted risks towards the rarer class; without "
            "--class-weight they are not shifted."
        )
    if overall and clips:
        return (
            "Bounding the lengths of gradients can shift risks. A larger clipping bound or a larger epsilon "
            "can bring them in line."
        )
    if overall:
        return "Nothing was clipped, and no noise was added: test examples may differ from training examples."
    return (
        "Over all test examples together they are not, so a correction that all groups share does not help. "
        "Inputs that distinguish these groups can, such as the group columns, if group_as_input is not set."
    )


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
