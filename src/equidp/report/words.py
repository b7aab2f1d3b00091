"""Findings and guarantees in plain words, each computed from figures by a stated rule."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from equidp.data.dataset import ALL
from equidp.evaluation.groups import equal_cost, group_gaps, interval, wilcoxon_table

if TYPE_CHECKING:
    from equidp.comparison.result import Comparison

STANDARD = "dpsgd"
_FEW_TESTS = 30
_HARDLY_BETTER = 0.005


def label(method: str, setting: str) -> str:
    """How a method, at one of several epsilons perhaps, is called."""
    return f"{method} ({setting})" if setting else method


def points(value: float, *, sign: bool = False) -> str:
    """A share as percentage points."""
    return "–" if math.isnan(value) else f"{round(100 * value, 1) + 0.0:{'+' if sign else ''}.1f}"


def number(value: float) -> str:
    return "∞" if math.isinf(value) else "–" if math.isnan(value) else f"{value:.3g}"


def counted_steps(count: int) -> str:
    """So many steps, in words."""
    return "1 step" if count == 1 else f"{count:,} steps"


def upper(value: float) -> str:
    """A number rounded up to three decimals, or to four digits where it is small: never below the truth."""
    if not math.isfinite(value) or value <= 0:
        return number(value)
    places = 3 if value >= 0.1 else 3 - math.floor(math.log10(value))
    return f"{math.ceil(value * 10**places - 1e-9) / 10**places:.{places}f}"


def span(low: float, high: float) -> str:
    """An interval in percentage points; empty where there is none."""
    return "" if math.isnan(low) else f"{points(low)} to {points(high)}"


def finding(comparison: Comparison) -> list[str]:
    """What a reader in a hurry should take away.

    A group is named as paying most, and a method as narrowing the gap, only where the interval over seeds of that difference
    lies on one side of 0; otherwise the sentence says that it does not. One seed supports neither.
    """
    costs, settings = comparison.costs(), comparison.settings
    private = costs[costs["method"] != settings["baseline"]]
    first = private["setting"].iloc[0]
    private = private[private["setting"] == first]
    standard = STANDARD if STANDARD in set(private["method"]) else private["method"].iloc[0]
    sentences = [_who_pays(private[private["method"] == standard], label(standard, first), settings["level"])]
    if private["method"].nunique() > 1:
        sentences.append(_who_narrows(private, standard, settings["level"]))
    sentences.append(_who_holds(private, settings))
    return sentences + _no_better_than_one_answer(comparison) + _few_to_test_on(settings)


def _no_better_than_one_answer(comparison: Comparison) -> list[str]:
    """Methods whose models may not tell anything from anything: what they cost a group is its share of the other classes."""
    name, share = comparison.settings["most_frequent_class"]
    rows = comparison.results[comparison.results["group"] == ALL]
    means = rows.groupby(["method", "setting"], sort=False)["accuracy"].mean()
    as_good = [label(*key) for key, accuracy in means.items() if accuracy < share + _HARDLY_BETTER]
    if not as_good:
        return []
    return [
        f"Always answering {name!r} would be right for {points(share)}% of the test examples, and {', '.join(as_good)} "
        f"{'is' if len(as_good) == 1 else 'are'} hardly better: such a model may give no other answer, and its costs say nothing "
        "of privacy. Try more epochs, another learning rate or a larger epsilon (equidp advise)."
    ]


def _few_to_test_on(settings: dict[str, Any]) -> list[str]:
    """Groups whose figures a single test example moves: intervals over seeds, which share them, do not tell."""
    sizes = zip(settings["group_names"], settings["test_group_sizes"], strict=True)
    few = [f"{name} {size}" for name, size in sizes if size < _FEW_TESTS]
    if not few:
        return []
    return [
        f"Few test examples: {', '.join(few)}. One of them more or less right moves such a group's accuracy by "
        f"{points(1 / _FEW_TESTS)} points or more, which intervals over seeds do not count; do not rest a verdict on it."
    ]


def _who_pays(costs: pd.DataFrame, name: str, level: float) -> str:
    table = costs[costs["group"] != ALL].pivot(index="seed", columns="group", values="privacy_cost")
    worst = table.mean().idxmax()
    others = table.drop(columns=worst).mean(axis=1)
    mean, low, _ = interval((table[worst] - others).to_list(), level)
    figures = f"{points(table[worst].mean())} points of accuracy, where {_others(table, worst)} {points(others.mean())}"
    if math.isnan(low) and points(mean) == points(0.0):
        return f"In this one run, privacy by {name} costs no group more than the others. One run shows no tendency; use more seeds."
    if math.isnan(low):
        return f"In this one run, privacy by {name} costs group {worst} most: {figures}. One run shows no tendency; use more seeds."
    if low > 0 and mean > 0.005:
        return f"Privacy by {name} costs group {worst} most: {figures}."
    return (
        f"Under {name} no group clearly pays more than the others; group {worst} loses most, {figures}, "
        "within what seeds differ by."
    )


def _others(table: pd.DataFrame, worst: Any) -> str:
    rest = [name for name in table.columns if name != worst]
    return f"group {rest[0]} loses" if len(rest) == 1 else "the other groups lose on average"


def _who_narrows(costs: pd.DataFrame, standard: str, level: float) -> str:
    gaps = group_gaps(costs)
    largest = gaps[gaps["pair"] == "largest"].pivot(index="seed", columns="method", values="cost_gap")
    by_mean = [method for method in largest.mean().sort_values().index if method != standard]
    gains = {
        method: interval((largest[standard] - largest[method]).to_list(), level)[1] for method in by_mean
    }
    supported = [method for method in by_mean if gains[method] > 0]
    best = (supported or by_mean)[0]
    change = f"from {points(largest[standard].mean())} to {points(largest[best].mean())} points"
    smaller = largest[best].mean() < largest[standard].mean()
    if math.isnan(gains[best]) and smaller:
        return f"The largest gap between groups is smallest under {best}: {change} against {standard}, in this one run."
    if supported:
        return f"{best} narrows the largest gap between groups {change}."
    if not smaller:
        return f"No method has a smaller gap between groups than {standard} ({points(largest[standard].mean())} points)."
    return f"No method clearly narrows the gap between groups: {best} comes nearest, {change}, within what seeds differ by."


def _who_holds(costs: pd.DataFrame, settings: dict[str, Any]) -> str:
    verdicts = equal_cost(costs, settings["tau"], settings["level"]).set_index("method")["verdict"]
    rule = f"Equal cost of privacy (every gap at most {points(settings['tau'])} points)"
    if verdicts.str.startswith("one seed").all():
        return f"{rule} cannot be judged from one seed."
    parts = [
        f"{verb} under {', '.join(verdicts.index[verdicts == verdict])}"
        for verdict, verb in (("holds", "holds"), ("undecided", "is undecided"), ("fails", "fails"))
        if (verdicts == verdict).any()
    ]
    return (
        f"{rule} {'; '.join(parts)} ({settings['level']:.0%} intervals over {len(settings['seeds'])} seeds)."
    )


def test_sentences(comparison: Comparison) -> list[str]:
    """Wilcoxon tests of each method's largest gap against the standard's, with the smallest p that so many seeds can give."""
    costs, baseline = comparison.costs(), comparison.settings["baseline"]
    table = wilcoxon_table(costs, baseline)
    table = table[
        (table["other"] == STANDARD)
        & (table["setting"] == table["other_setting"])
        & (table["method"] != STANDARD)
    ]
    if table.empty:
        return []
    seeds = int(table["seeds"].iloc[0])
    if seeds < 2:
        return ["With one seed no test between methods is possible."]
    listed = ", ".join(f"{label(row.method, row.setting)} p = {row.p:.3g}" for row in table.itertuples())
    return [
        f"One-sided Wilcoxon signed-rank test that the largest gap is smaller than under {STANDARD}: {listed}. "
        f"With {seeds} seeds no p can be below 1/{2**seeds} = {0.5**seeds:.3g}; the tests are not corrected for their number."
    ]


def guarantee(comparison: Comparison) -> list[str]:
    """What epsilon and delta mean here, and what they do not cover."""
    settings = comparison.settings
    runs = comparison.results[comparison.results["method"] != settings["baseline"]]
    epsilons = runs.groupby(["method", "setting"], sort=False)["epsilon"].max()
    listed = ", ".join(f"{label(*key)} {value:.3f}" for key, value in epsilons.items())
    return [
        "Unit: one training example. Two datasets are neighbours if one has one example more. Whatever a private model's weights "
        "are used for, they tell almost the same with and without any one example: probabilities of outcomes differ by at most "
        f"a factor e^epsilon, but for a probability of delta = {settings['delta']:g}.",
        f"Epsilon of each private run: {listed} (tight accounting by privacy loss distributions).",
        f"It holds for {settings['steps']:,} steps, each on a Poisson sample in which every one of {settings['num_train']:,} "
        f"training examples appears with probability {settings['sample_rate']:.4g}{_other_seeds(settings)}. Statistics "
        "that a method reads privately are accounted for jointly with the gradients of the same sample.",
        "Noise and samples of a comparison come from seeds, so that methods meet the same luck. That is for research: train the "
        "model that you release with entropy from the operating system (equidp's Trainer does so by default).",
    ]


def _other_seeds(settings: dict[str, Any]) -> str:
    """Where seeds train on different numbers of rows."""
    sizes = settings["num_train_by_seed"]
    if min(sizes) == max(sizes):
        return ""
    return f" (of seed {settings['seeds'][0]}; seeds train on {min(sizes):,} to {max(sizes):,} rows, each accounted for by its own)"


def not_covered(comparison: Comparison) -> list[str]:
    """What a reader might think is private and is not."""
    settings = comparison.settings
    return [
        f"This page itself: it shows results of training without privacy ({settings['baseline']}).",
        "Runs add up: each private run on the same data spends its own epsilon, and choosing between them by results adds theirs.",
        "The choice of settings (learning rate, clipping bound, epochs), where it was made by looking at this data.",
        "The test examples: accuracy, loss and gradient figures on this page are measured on them.",
        "The number of training examples, of groups and their names, which count as public.",
        *settings["notes"],
    ]


def overview(comparison: Comparison) -> pd.DataFrame:
    """One row per method and setting, which its epsilon tells: what the summary tables show.

    Columns: method, epsilon, accuracy, cost (of all), worst_group, worst_cost, gap, gap_low, gap_high, verdict.
    """
    costs, settings = comparison.costs(), comparison.settings
    verdicts = equal_cost(costs, settings["tau"], settings["level"]).set_index(["method", "setting"])
    rows = []
    for (method, setting), part in costs.groupby(["method", "setting"], sort=False):
        means = part.groupby("group", sort=False)[["accuracy", "privacy_cost"]].mean()
        by_group = means["privacy_cost"].drop(index=ALL)
        verdict = verdicts.loc[(method, setting)]
        reference = method == settings["baseline"]
        rows.append(
            {
                "method": method,
                "epsilon": part["epsilon"].max(),
                "accuracy": means.loc[ALL, "accuracy"],
                "cost": np.nan if reference else means.loc[ALL, "privacy_cost"],
                "worst_group": "" if reference else by_group.idxmax(),
                "worst_cost": np.nan if reference else by_group.max(),
                "gap": np.nan if reference else verdict["gap_mean"],
                "gap_low": np.nan if reference else verdict["gap_low"],
                "gap_high": np.nan if reference else verdict["gap_high"],
                "verdict": "reference" if reference else verdict["verdict"],
            }
        )
    return pd.DataFrame(rows)
