"""What privacy cost each group: metrics by group, costs against a non-private run, gaps between groups, intervals and tests.

All tables are pandas DataFrames in long form. `results` has one row per run and group (and one for group "all"), with the columns
method, setting, seed, group, count, accuracy, loss, epsilon; a run is one (method, setting, seed).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from fairlearn.metrics import (
    MetricFrame,
    demographic_parity_difference,
    equalized_odds_difference,
    false_positive_rate,
    selection_rate,
    true_positive_rate,
)
from scipy import stats
from sklearn.metrics import accuracy_score
from torch import Tensor
from torch.nn.functional import cross_entropy

from equidp._validate import check_number
from equidp.data.dataset import ALL
from equidp.errors import DataError, SettingError, shape_in_words

COSTS = ("privacy_cost", "excessive_risk")
METRICS = {
    "accuracy": (0.0, 1.0),
    "loss": (0.0, np.inf),
    "privacy_cost": (-1.0, 1.0),
    "excessive_risk": (-np.inf, np.inf),
}
"""What is measured, and between what it can lie."""
RUN = ["method", "setting", "seed"]


def group_metrics(
    outputs: Tensor, targets: Tensor, groups: Tensor, group_names: Sequence[str]
) -> pd.DataFrame:
    """Accuracy and cross-entropy of each group, and of all examples.

    Args:
        outputs: [n, classes], logits.
        targets, groups: [n].
        group_names: one per group.

    Returns:
        Rows in the order of the groups, then "all": group, count, accuracy, loss (NaN for a group without examples).

    Raises:
        DataError: outputs of another shape.
    """
    check_outputs(outputs, targets)
    correct = (outputs.argmax(dim=1) == targets).double()
    losses = cross_entropy(outputs.double(), targets, reduction="none")
    rows = []
    for name, members in [
        *((name, groups == index) for index, name in enumerate(group_names)),
        (ALL, torch.ones_like(groups, dtype=torch.bool)),
    ]:
        accuracy, loss = float(correct[members].mean()), float(losses[members].mean())
        rows.append({"group": name, "count": int(members.sum()), "accuracy": accuracy, "loss": loss})
    return pd.DataFrame(rows)


def check_outputs(outputs: Tensor, targets: Tensor) -> None:
    """Raises unless outputs, [n, classes], have a logit for each class of the targets."""
    classes = max(int(targets.max()) + 1 if len(targets) else 1, 2)
    if outputs.dim() != 2 or outputs.shape[1] < classes:
        raise DataError(
            f"the model's outputs are {shape_in_words(outputs, 'n')} for {classes} classes; group metrics need one logit per "
            "class, [n, classes]. Have a model of one logit z give the two outputs (0, z)."
        )


def metric_frame(
    predictions: Tensor, targets: Tensor, groups: Tensor, group_names: Sequence[str]
) -> MetricFrame:
    """Fairlearn's MetricFrame for metrics within one model.

    Args:
        predictions, targets, groups: [n], class indices; for two classes, class 1 is the favourable one.
        group_names: one per group.
    """
    metrics = {"accuracy": accuracy_score}
    if int(max(targets.max(), predictions.max())) <= 1:
        metrics |= {
            "selection_rate": selection_rate,
            "true_positive_rate": true_positive_rate,
            "false_positive_rate": false_positive_rate,
        }
    names = np.asarray(group_names, dtype=object)[groups.numpy()]
    return MetricFrame(
        metrics=metrics,
        y_true=targets.numpy(),
        y_pred=predictions.numpy(),
        sensitive_features=pd.Series(names, name="group"),
    )


def within_model_gaps(predictions: Tensor, targets: Tensor, groups: Tensor) -> dict[str, float]:
    """Demographic parity and equalised odds differences of a two-class model; arguments [n]."""
    if int(max(targets.max(), predictions.max())) > 1:
        raise SettingError(
            "demographic parity and equalised odds are for two classes; these targets have more."
        )
    given = {"y_true": targets.numpy(), "y_pred": predictions.numpy(), "sensitive_features": groups.numpy()}
    return {
        "demographic_parity_difference": float(demographic_parity_difference(**given)),
        "equalized_odds_difference": float(equalized_odds_difference(**given)),
    }


def privacy_costs(results: pd.DataFrame, baseline: str = "sgd") -> pd.DataFrame:
    """`results` with what each run lost against the baseline's run of the same seed, group by group (spec section 3).

    privacy_cost = accuracy(baseline) - accuracy(run) (Xu et al.); excessive_risk = loss(run) - loss(baseline) (Tran et al.).

    Raises:
        DataError: a run has no baseline run of its seed.
    """
    reference = results[results["method"] == baseline].set_index(["seed", "group"])[["accuracy", "loss"]]
    if reference.index.has_duplicates:
        raise DataError(f"the results hold more than one {baseline!r} run of a seed; expected one.")
    keys = pd.MultiIndex.from_frame(results[["seed", "group"]])
    missing = keys.difference(reference.index)
    if len(missing):
        raise DataError(
            f"no {baseline!r} run for (seed, group) {missing[0]}; every run needs one of its seed to be compared with."
        )
    paired = reference.loc[keys].reset_index(drop=True)
    costs = results.reset_index(drop=True).copy()
    costs["privacy_cost"] = paired["accuracy"] - costs["accuracy"]
    costs["excessive_risk"] = costs["loss"] - paired["loss"]
    return costs


def group_gaps(costs: pd.DataFrame) -> pd.DataFrame:
    """Gaps between groups in each run, for every pair and the largest.

    Returns:
        Columns method, setting, seed, pair ("a | b", or "largest"), cost_gap = |pi_a - pi_b|, risk_gap = |R_a - R_b|.
    """
    rows = []
    for run, part in _groups_only(costs).groupby(RUN, sort=False):
        values = part.set_index("group")[["privacy_cost", "excessive_risk"]]
        pairs = [
            (f"{a} | {b}", *(values.loc[a] - values.loc[b]).abs())
            for a, b in itertools.combinations(values.index, 2)
        ]
        if not pairs:
            raise DataError(f"run {run} has one group; gaps need two.")
        largest = ("largest", max(pair[1] for pair in pairs), max(pair[2] for pair in pairs))
        rows += [(*run, *pair) for pair in [*pairs, largest]]
    return pd.DataFrame(rows, columns=[*RUN, "pair", "cost_gap", "risk_gap"])


def interval(
    values: Sequence[float], level: float = 0.95, within: tuple[float, float] = (-np.inf, np.inf)
) -> tuple[float, float, float]:
    """Mean and Student's t interval over seeds, as far as it lies within what can be; the interval is NaN for one value."""
    check_level(level)
    sample = np.asarray(values, dtype=float)
    mean = float(sample.mean())
    if len(sample) < 2:
        return mean, np.nan, np.nan
    half = float(stats.t.ppf((1 + level) / 2, len(sample) - 1) * sample.std(ddof=1) / np.sqrt(len(sample)))
    return mean, max(mean - half, within[0]), min(mean + half, within[1])


def check_level(level: float) -> None:
    check_number("(0, 1)", ", such as 0.95", level=level)


def check_tau(tau: float) -> None:
    check_number("(0, 1]", ", a share such as 0.05 for 5 points", tau=tau)


def summary(costs: pd.DataFrame, level: float = 0.95) -> pd.DataFrame:
    """Means and intervals over seeds, by method, setting and group.

    Returns:
        Columns method, setting, group, seeds, epsilon, and for each metric m of METRICS: m_mean, m_low, m_high.
    """
    rows = []
    for (method, setting, group), part in costs.groupby(["method", "setting", "group"], sort=False):
        row = {
            "method": method,
            "setting": setting,
            "group": group,
            "seeds": len(part),
            "epsilon": part["epsilon"].max(),
        }
        for metric, within in METRICS.items():
            row |= dict(
                zip(
                    (f"{metric}_{end}" for end in ("mean", "low", "high")),
                    interval(part[metric], level, within),
                    strict=True,
                )
            )
        rows.append(row)
    return pd.DataFrame(rows)


def equal_cost(costs: pd.DataFrame, tau: float = 0.05, level: float = 0.95) -> pd.DataFrame:
    """Whether equal cost of privacy (Xu et al.: every gap <= tau) holds, with its uncertainty over seeds.

    The statistic is the largest gap in privacy cost of each run. Verdicts: "holds" or "fails" where the whole interval lies on one
    side of tau, "undecided" where it does not, and none from a single seed.

    Returns:
        Columns method, setting, gap_mean, gap_low, gap_high, pair (the two groups furthest apart in the mean), verdict.
    """
    check_tau(tau)
    gaps = group_gaps(costs)
    rows = []
    for (method, setting), part in gaps.groupby(["method", "setting"], sort=False):
        mean, low, high = interval(part.loc[part["pair"] == "largest", "cost_gap"], level, (0.0, 2.0))
        by_pair = part[part["pair"] != "largest"].groupby("pair")["cost_gap"].mean()
        rows.append((method, setting, mean, low, high, by_pair.idxmax(), _verdict(low, high, tau)))
    return pd.DataFrame(
        rows, columns=["method", "setting", "gap_mean", "gap_low", "gap_high", "pair", "verdict"]
    )


def _verdict(low: float, high: float, tau: float) -> str:
    if np.isnan(low):
        return "one seed: no verdict"
    return "holds" if high <= tau else "fails" if low > tau else "undecided"


def wilcoxon_table(
    costs: pd.DataFrame, baseline: str = "sgd", pair: tuple[str, str] | None = None
) -> pd.DataFrame:
    """One-sided Wilcoxon signed-rank tests between methods over seeds (Esipova et al.): does a method have the smaller gap?

    Args:
        costs: from `privacy_costs`.
        baseline: left out, since its gap is 0 by definition.
        pair: two groups whose gap is compared; None: the largest gap of each run.

    Returns:
        Columns method, setting, other, other_setting, p (of "method's gap is not smaller than other's"), seeds,
        smallest_possible_p (2^-seeds: no result can be more significant than that).
    """
    name = "largest" if pair is None else " | ".join(pair)
    gaps = group_gaps(costs[costs["method"] != baseline])
    if pair is not None and not (gaps["pair"] == name).any():
        name = " | ".join(reversed(pair))
    chosen = gaps[gaps["pair"] == name]
    if chosen.empty and len(gaps):
        raise SettingError(
            f"pair={pair}: no such groups; known pairs: {', '.join(sorted(set(gaps['pair'])))}."
        )
    series = {
        key: part.set_index("seed")["cost_gap"].sort_index()
        for key, part in chosen.groupby(["method", "setting"], sort=False)
    }
    rows = []
    for (one, gaps_one), (other, gaps_other) in itertools.permutations(series.items(), 2):
        difference = (gaps_one - gaps_other).dropna()
        rows.append((*one, *other, _signed_rank(difference), len(difference), 0.5 ** len(difference)))
    return pd.DataFrame(
        rows, columns=["method", "setting", "other", "other_setting", "p", "seeds", "smallest_possible_p"]
    )


def _signed_rank(difference: pd.Series) -> float:
    if len(difference) < 2 or not (difference != 0).any():
        return 1.0 if len(difference) >= 2 else np.nan
    return float(
        stats.wilcoxon(
            difference, alternative="less", method="exact" if (difference != 0).all() else "auto"
        ).pvalue
    )


def _groups_only(costs: pd.DataFrame) -> pd.DataFrame:
    return costs[costs["group"] != ALL]
