"""What a model's main figure hides, in sentences: constant answers, classes never answered, wrong risks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from equidp.data.dataset import ALL
from equidp.evaluation.groups import PeopleCounts, by_group
from equidp.evaluation.intervals import wilson
from equidp.evaluation.metric import Metric
from equidp.evaluation.metrics import METRICS, tells_something
from equidp.evaluation.predictions import Predictions

_BINS = 10
RISKS_OFF = 0.2
"""Share of the observed risk, or of its complement, by which a predicted risk may be off."""
_FEWEST_OF_A_CLASS = 5
"""People of the rarer class in a group whose risks are spoken of."""
_MOST_NAMED = 3


def blind_spots(
    found: Predictions,
    metric: Metric,
    level: float,
    calibration: pd.DataFrame,
    people: PeopleCounts | None = None,
) -> tuple[str, ...]:
    """Returns sentences on what a metric hides on these examples; `calibration` as of `calibration_table`.

    None is about groups of few people in a class, whom `people` counts where a person has several examples.

    >>> found = Predictions(np.array([0, 0, 0, 1]), np.tile([0.9, 0.1], (4, 1)), ("well", "ill"), 1)
    >>> blind_spots(found, METRICS["accuracy"], 0.95, pd.DataFrame())[1]
    "The model answers 'ill' for none of them."
    """
    if not len(found):
        return ()
    if found.task == "regression":
        error = METRICS["rmse"].function(found.constant())
        shown = f"{error:,.0f}" if error >= 1000 else f"{error:.3g}"
        sentence = f"Always answering the mean of the test examples would have an RMSE of {shown}."
        useful = tells_something(metric, found, level)
        return (sentence,) if useful else (sentence, says_nothing(metric, found, level))
    name, share = found.class_names[int(found.counts.argmax())], found.counts.max() / len(found)
    sentences = [f"Always answering {name!r} would be right for {100 * share:.1f}% of the test examples."]
    given = set(found.predicted.tolist())
    never = [repr(name) for at, name in enumerate(found.class_names) if at not in given]
    if never:
        sentences.append(f"The model answers {', '.join(never)} for none of them.")
    if not tells_something(metric, found, level):
        sentences.append(says_nothing(metric, found, level))
    return (*sentences, *_risks_off(calibration, found.positive_name, people))


def says_nothing(metric: Metric, found: Predictions, level: float) -> str:
    """Returns that a model is no better than one constant answer, and whether its ranking is."""
    sentence = (
        f"By {metric.label} the model is no better than one constant answer, so its figures by group say "
        "nothing about fairness or privacy."
    )
    if metric.name != "auc" and found.task == "binary" and tells_something(METRICS["auc"], found, level):
        area = METRICS["auc"].function(found)
        sentence += (
            f" Its ranking does tell something (AUC {area:.3f}): judge it by --metric auc, and answer "
            f"{found.positive_name!r} from a lower risk on (--threshold)."
        )
    return sentence


def calibration_table(
    found: Predictions, groups: npt.NDArray[np.int64], group_names: Sequence[str], level: float
) -> pd.DataFrame:
    """Returns mean predicted risks beside what happened; no rows unless there are two classes.

    Returns:
        group, count, mean_predicted, observed (share of positives) with observed_low and observed_high
        (Wilson's), for groups with examples and "all".
    """
    parts = [(name, found.take(members)) for name, members in by_group(groups, group_names)]
    if found.positive is None:
        return pd.DataFrame()
    return pd.DataFrame([{"group": name, **_calibrated(part, level)} for name, part in parts if len(part)])


def reliability_table(
    found: Predictions, groups: npt.NDArray[np.int64], group_names: Sequence[str], level: float
) -> pd.DataFrame:
    """Returns the same by predicted risk: up to ten bins with equally many of all examples.

    Returns:
        group, risk_from, risk_to (the bin holds risks above the first, up to the second), and the columns of
        `calibration_table`; bins without examples are left out.
    """
    if found.positive is None or not len(found):
        return pd.DataFrame()
    edges = np.unique(np.quantile(found.risks, np.linspace(0, 1, _BINS + 1)))
    bins = np.searchsorted(edges[1:-1], found.risks)
    rows = []
    for name, members in by_group(groups, group_names):
        for at in np.unique(bins[members]):
            ends = {"risk_from": edges[at], "risk_to": edges[min(at + 1, len(edges) - 1)]}
            part = found.take(members & (bins == at))
            rows.append({"group": name, **ends, **_calibrated(part, level)})
    return pd.DataFrame(rows)


def _calibrated(found: Predictions, level: float) -> dict[str, float]:
    observed, low, high = wilson(int(found.hits.sum()), len(found), level)
    return {
        "count": len(found),
        "mean_predicted": float(found.risks.mean()),
        "observed": observed,
        "observed_low": low,
        "observed_high": high,
    }


def of_few_people(calibration: pd.DataFrame, people: PeopleCounts | None, fewest: int) -> list[str]:
    """Returns groups with fewer people in one of two classes: the share of positives would tell theirs."""
    if calibration.empty:
        return []
    if people is not None:
        return [name for (name, *of), number in people.items() if of and number < fewest]
    positives = (calibration["observed"] * calibration["count"]).round()
    rarer = np.minimum(positives, calibration["count"] - positives)
    return [str(name) for name in calibration.loc[rarer < fewest, "group"]]


def _risks_off(calibration: pd.DataFrame, positive: str, people: PeopleCounts | None) -> list[str]:
    """A sentence where mean predicted risks are off by more than a fifth, and by more than chance."""
    if calibration.empty:
        return []
    predicted, observed = calibration["mean_predicted"], calibration["observed"]
    outside = (predicted < calibration["observed_low"]) | (predicted > calibration["observed_high"])
    far = (predicted - observed).abs() > RISKS_OFF * np.minimum(observed, 1 - observed)
    few = of_few_people(calibration, people, _FEWEST_OF_A_CLASS)
    off = calibration[outside & far & ~calibration["group"].isin(few)]
    if off.empty:
        return []
    texts = {
        row.group: f"{100 * row.mean_predicted:.1f}% predicted where {100 * row.observed:.1f}% happened"
        for row in off.itertuples()
    }
    overall = texts.pop(ALL, None)
    worst = (predicted - observed).abs()[off.index].sort_values(ascending=False).index
    named = [f"group {name}: {texts[name]}" for name in off["group"][worst] if name in texts][:_MOST_NAMED]
    listed = "; ".join([*([overall] if overall else []), *named])
    return [
        f"Predicted risks of {positive!r} are off: {listed}. Clipping gradients shifts them. A larger "
        "clipping bound mends that (--clipping-bound; equidp advise --profile-epsilon recommends one)."
    ]
