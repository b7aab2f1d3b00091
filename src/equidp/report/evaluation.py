"""Evaluation of one model by group: the verdict on it, and blocks of a card."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from equidp._extras import require_extra
from equidp.data.dataset import ALL
from equidp.display import Column, Interval, Table, points
from equidp.evaluation.evaluation import Evaluation
from equidp.evaluation.metrics import METRICS, Metric
from equidp.evaluation.small_cells import FEWEST, SmallCells
from equidp.report.document import Block, Heading, Paragraph, Tile, paragraphs
from equidp.report.format import capitalise, metric_text, whole_number
from equidp.training.run import RunFacts

with require_extra("tables"):
    import pandas as pd

_MOST_RECALLS, _MOST_NAMED = 40, 4


def shown_metric(evaluation: Evaluation) -> Metric:
    """Return the metric that a reader should see first.

    It is the evaluation's metric, with AUC instead of accuracy if one of two classes is rare or a threshold
    was given, because a low threshold costs accuracy.
    """
    metric = evaluation.metric
    if metric.name != "accuracy" or evaluation.calibration.empty:
        return metric
    return METRICS["auc"] if evaluation.threshold is not None or evaluation.has_rare_class else metric


def values_of(evaluation: Evaluation, metric: Metric) -> dict[str, Interval]:
    """Return the metric of each group and of all examples, with its interval, or NaN if it is not defined."""
    rows = evaluation.values[evaluation.values["metric"] == metric.name]
    return dict(zip(rows["group"], _intervals(rows, "value", "low", "high"), strict=True))


def _intervals(rows: pd.DataFrame, *names: str) -> list[Interval]:
    return [Interval(*ends) for ends in rows[[*names]].to_numpy(dtype=float).tolist()]


def _cells(*columns: Sequence[Any] | pd.Series) -> list[list[Any]]:
    return [list(row) for row in zip(*columns, strict=True)]


def interval_text(metric: Metric, value: Interval) -> str:
    """Return a value of a metric with its unit, and its interval if there is one.

    >>> interval_text(METRICS["accuracy"], Interval(0.9, 0.88, 0.92))
    '90.0% (88.0 to 92.0)'
    """
    shown, sign = partial(metric_text, metric), "%" if metric.percent else ""
    between = "" if math.isnan(value.low) else f" ({shown(value.low)} to {shown(value.high)})"
    return f"{shown(value.value)}{sign}{between}"


def names_text(names: Sequence[str]) -> str:
    """Return the first few names in a list."""
    more = len(names) - _MOST_NAMED
    return "; ".join([*names[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else [])])


def verdict_clauses(evaluation: Evaluation, metric: Metric) -> list[str]:
    """Return whether a model is better than a prediction that knows nothing, and for whom it is not good.

    Args:
        evaluation: evaluation of one example or more.
        metric: metric to judge by.
    """
    of_all = values_of(evaluation, metric)[ALL]
    useful, nothing, spots = evaluation.useful, "one constant prediction", evaluation.blind_spots
    if metric.name == "auc":
        useful, nothing = of_all.low > 0.5, "a coin (0.5)"
    elif metric.name == "accuracy" and spots is not None:
        nothing = f"always predicting {spots.constant_class!r} ({points(spots.constant_value)}%)"
    worse, by_chance = [], []
    for part in evaluation.by_grouping():
        chances = _chances(part, metric)
        for name, value in values_of(part, metric).items():
            shown = f"{part.groupings[0]} {name}" if len(evaluation.groupings) > 1 else name
            if name != ALL and (value.high < of_all.low if metric.sign > 0 else value.low > of_all.high):
                worse.append(shown)
            if name != ALL and useful and value.low <= chances.get(name, -math.inf):
                by_chance.append(shown)
    better, reached = "Better" if useful else "No better", interval_text(metric, of_all)
    clauses = [f"{better} than {nothing}: {metric.label} {reached}"]
    lower = "lower" if metric.sign > 0 else "higher"
    clauses += [f"Clearly {lower} {metric.label} for {names_text(worse)}"] if worse and useful else []
    if by_chance:
        than = "a coin" if metric.name == "auc" else "always predicting the commonest class"
        clauses.append(f"Not clearly better than {than} for {names_text(by_chance)}")
    return clauses


def _chances(evaluation: Evaluation, metric: Metric) -> dict[str, float]:
    """The metric of a prediction that knows nothing, in each group for which it is known."""
    if metric.name == "auc":
        return dict.fromkeys(evaluation.groups["group"], 0.5)
    if metric.name != "accuracy" or evaluation.recalls.empty:
        return {}
    counts = evaluation.recalls.groupby("group")["count"]
    return dict(counts.max() / counts.sum())


def metric_tile(evaluation: Evaluation | None) -> Tile:
    """Return the main metric over all test examples as a large figure."""
    if evaluation is None or evaluation.groups.empty:
        return Tile("–", "not evaluated", "")
    metric = shown_metric(evaluation)
    figure, _, ends = interval_text(metric, values_of(evaluation, metric)[ALL]).partition(" (")
    return Tile(figure, metric.label, ends.rstrip(")"))


def summary_sentence(evaluation: Evaluation | None) -> str:
    """Return the head of a card in sentences: the verdict on the model."""
    if evaluation is None:
        return "No test set was given, so the card says nothing about accuracy."
    if evaluation.groups.empty:
        return "The test set holds too few people, or too few of a class, to show metrics."
    people = "" if evaluation.people is None else f" of {evaluation.people:,} people"
    tested = f"Tested on {evaluation.groups['count'].iloc[-1]:,} examples{people}"
    return ". ".join([tested, *verdict_clauses(evaluation, shown_metric(evaluation))]) + "."


def evaluation_blocks(evaluation: Evaluation | None, facts: RunFacts) -> Iterator[Block]:
    """Return metrics by group, one a table, and what they hide and withhold."""
    yield Heading("Evaluation by group")
    if evaluation is None:
        yield Paragraph("No test set was given.")
        return
    yield from paragraphs(withheld_sentences(evaluation), small=True)
    if not evaluation.groups.empty:
        for part in evaluation.by_grouping():
            yield from _grouping_blocks(part)
        yield from paragraphs(_measure_sentences(evaluation), small=True)
    yield from paragraphs([*blind_spot_sentences(evaluation), *risk_sentences(evaluation, facts)])


def _grouping_blocks(part: Evaluation) -> Iterator[Block]:
    """Tables of one way to group the test examples."""
    name = part.groupings[0] or "group"
    group, count = Column(name, "name"), Column("test examples", show=whole_number)
    binary = [METRICS["auc"]] if part.positive else []
    for metric in dict.fromkeys([shown_metric(part), METRICS["accuracy"], *binary]):
        rows = part.values[part.values["metric"] == metric.name]
        if rows["value"].notna().any():
            yield Heading(f"{capitalise(metric.label)} by {name}", 3)
            value = Column(metric.heading, show=partial(metric_text, metric), bar=metric.percent)
            intervals = _intervals(rows, "value", "low", "high")
            yield Table([group, count, value], _cells(rows["group"], rows["count"], intervals), total=ALL)
    if not part.recalls.empty:
        rows = part.recalls
        rows = rows if len(rows) <= _MOST_RECALLS else rows[rows["group"] == ALL]
        yield Heading(f"Recall by {name}: share of each class's examples that the model finds", 3)
        intervals = _intervals(rows, "recall", "recall_low", "recall_high")
        columns = [group, Column("class", "name"), count, Column("recall, %", show=points, bar=True)]
        cells = _cells(rows["group"], rows["class"], rows["count"], intervals)
        yield Table(columns, cells, total=ALL)
    if not part.calibration.empty:
        rows = part.calibration
        yield Heading(f"Predicted and observed share of {part.positive!r}, by {name}", 3)
        intervals = _intervals(rows, "observed", "observed_low", "observed_high")
        columns = [group, *(Column(head, show=points) for head in ("predicted, %", "happened, %"))]
        yield Table(columns, _cells(rows["group"], rows["mean_predicted"], intervals), total=ALL)
    yield from paragraphs(gap_sentences(part))


def _measure_sentences(evaluation: Evaluation) -> list[str]:
    """Sentences on the positive class and on the intervals."""
    people, positive = evaluation.people, evaluation.positive
    where = (
        "if it is the more probable class"
        if evaluation.threshold is None
        else f"from a probability of {evaluation.threshold:.3g} on"
    )
    alike = "" if people is None else "; the rows of one person are alike, so they are too narrow"
    return [
        *([f"Positive class: {positive!r}, predicted {where}."] if positive else []),
        f"Small numbers are {evaluation.level:.0%} intervals over the test examples{alike}. They do not show "
        "the variation between training runs, and people unlike the test examples may fare differently. "
        f"Every metric is over at least {FEWEST} {'test examples' if people is None else 'people'}"
        f"{', and as many of each class' if positive else ''}.",
    ]


def withheld_sentences(evaluation: Evaluation) -> list[str]:
    """Return which groups and classes an evaluation withholds, and why."""
    small, who = evaluation.small, "test examples" if evaluation.people is None else "people"
    if small == SmallCells():
        return []
    if small.everything:
        return [
            f"No metrics are shown: there are fewer than {FEWEST} {who}, or fewer than {FEWEST} of a class."
        ]
    combined = [f"combination {name}" for name in small.combinations]
    names = [*small.groups, *combined, *(f"class {name}" for name in small.classes)]
    return [
        f"Left out of all metrics, including the totals: {'; '.join(names)}. Each has fewer than {FEWEST} "
        f"{who}, or fewer than {FEWEST} of a class."
    ]


def gap_sentences(evaluation: Evaluation) -> list[str]:
    """Return the fairness differences of an evaluation; none of a model that is uninformative."""
    if _says_nothing(evaluation):
        return []
    texts = [f"{name.replace('_', ' ')}: {points(value)} points" for name, value in evaluation.gaps.items()]
    return [f"{capitalise('; '.join(texts))}."] if texts else []


def _says_nothing(evaluation: Evaluation) -> bool:
    """True if a model is no better than a constant prediction by a metric that should show it."""
    low_threshold = evaluation.threshold is not None and evaluation.metric.name == "accuracy"
    return not evaluation.useful and not low_threshold


def blind_spot_sentences(evaluation: Evaluation) -> list[str]:
    """Return what the metric of an evaluation hides, or empty without examples."""
    spots = evaluation.blind_spots
    if spots is None:
        return []
    sentences = []
    if shown_metric(evaluation).name != "accuracy":
        constant, share = spots.constant_class, points(spots.constant_value)
        sentences.append(
            f"Always predicting {constant!r} would be correct for {share}% of the test examples."
        )
    if spots.never_predicted:
        names = ", ".join(map(repr, spots.never_predicted))
        sentences.append(f"The model predicts {names} for no test example.")
    if _says_nothing(evaluation):
        sentences.append(
            f"By {evaluation.metric.label} the model is no better than one constant prediction, so its "
            "metrics by group say nothing about fairness or privacy."
        )
    return [*sentences, *ranking_sentences(evaluation)]


def ranking_sentences(evaluation: Evaluation) -> list[str]:
    """Return how to use a model that predicts one class, but ranks well; empty for other models."""
    spots = evaluation.blind_spots
    if spots is None or spots.ranking_auc is None or not _says_nothing(evaluation):
        return []
    return [
        f"Its ranking is informative (AUC {spots.ranking_auc:.3f}): judge it by --metric auc, and "
        f"predict {evaluation.positive!r} from a lower probability on (--threshold)."
    ]


def risk_sentences(evaluation: Evaluation, facts: RunFacts) -> list[str]:
    """Return which predicted probabilities are off, and what corrects them in this run; empty if none are."""
    table = evaluation.calibration
    if table.empty or not table["off"].any():
        return []
    rows = table[table["off"]]
    furthest = (rows["mean_predicted"] - rows["observed"]).abs().sort_values(ascending=False).index
    texts = {
        row["group"]: f"{points(row['mean_predicted'])}% predicted where {points(row['observed'])}% happened"
        for row in rows.loc[furthest].to_dict("records")
    }
    overall = [texts.pop(ALL)] if ALL in texts else []
    listed = [*overall, *(f"group {name}: {text}" for name, text in [*texts.items()][:_MOST_NAMED])]
    clips = facts.policy is not None and facts.policy.private
    remedy = risk_remedy(weighs_classes=facts.class_weighted, clips=clips, overall=bool(overall))
    return [f"Predicted risks of {evaluation.positive!r} are off: {'; '.join(listed)}. {remedy}"]


def risk_remedy(*, weighs_classes: bool, clips: bool, overall: bool) -> str:
    """Return what shifts predicted risks in a run, and what corrects them.

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
