"""Findings and guarantees of a comparison in sentences, each computed from figures by a stated rule."""

from __future__ import annotations

import math

import pandas as pd

from equidp.comparison.result import Setup
from equidp.data.dataset import ALL
from equidp.evaluation.costs import group_gaps, wilcoxon_table
from equidp.evaluation.intervals import mean_interval
from equidp.report.format import points
from equidp.report.summary import Kind, Summary, by_kind

STANDARD = "dpsgd"
_FEW_TESTS = 30
_HARDLY_BETTER = 0.005


def finding(summary: Summary) -> list[str]:
    """What a comparison shows, in a few sentences.

    A group is named as paying most, or a method as narrowing the gap, only if the interval over seeds of that
    difference lies on one side of 0; otherwise the sentence says that it does not. One seed supports neither.
    """
    setup, setting = summary.setup, summary.private_kinds[0].setting
    verdicts = {
        kind.method: verdict
        for kind, *_, verdict in summary.overview
        if kind.setting == setting and kind in summary.private_kinds
    }
    standard = STANDARD if STANDARD in verdicts else next(iter(verdicts))
    sentences = [_who_pays(summary.costs, Kind(standard, setting), setup.level)]
    if len(verdicts) > 1:
        gaps = group_gaps(summary.costs).query("pair == 'largest' and setting == @setting")
        table = gaps.pivot(index="seed", columns="method", values="cost_gap")
        table = table.drop(columns=setup.baseline, errors="ignore")
        sentences.append(_who_narrows(table, standard, setup.level))
    sentences.append(_who_holds(verdicts, setup))
    return sentences + _no_better_than_one_answer(summary) + _few_to_test_on(setup)


def _no_better_than_one_answer(summary: Summary) -> list[str]:
    """Names methods whose models may give the same answer to everything, so that their costs mean nothing."""
    answer, share = summary.setup.data.most_frequent_class
    listed = [row.kind.label for row in summary.overview if row.accuracy < share + _HARDLY_BETTER]
    if not listed:
        return []
    return [
        f"Always answering {answer!r} would be right for {points(share)}% of the test examples, and "
        f"{', '.join(listed)} {'is' if len(listed) == 1 else 'are'} hardly better: such a model may give no "
        "other answer, and its costs say nothing about privacy. Try more epochs, another learning rate or a "
        "larger epsilon (equidp advise)."
    ]


def _few_to_test_on(setup: Setup) -> list[str]:
    sizes = zip(setup.data.group_names, setup.data.test_group_sizes, strict=True)
    few = [f"{name} {size}" for name, size in sizes if size < _FEW_TESTS]
    if not few:
        return []
    return [
        f"Few test examples: {', '.join(few)}. One more or one fewer right answer moves the accuracy of such "
        f"a group by {points(1 / _FEW_TESTS)} points or more. Intervals over seeds do not include this, so "
        "do not base a verdict on it."
    ]


def _who_pays(costs: pd.DataFrame, kind: Kind, level: float) -> str:
    rows = by_kind(costs[costs["group"] != ALL])[kind]
    table = rows.pivot(index="seed", columns="group", values="privacy_cost")
    name, worst = kind.label, table.mean().idxmax()
    rest = table.drop(columns=worst)
    others = rest.mean(axis=1)
    mean, low, _ = mean_interval((table[worst] - others).to_list(), level)
    who = f"group {rest.columns[0]} loses" if rest.shape[1] == 1 else "the other groups lose on average"
    loses = f"{points(table[worst].mean())} points of accuracy, where {who} {points(others.mean())}"
    if math.isnan(low):
        equal = points(mean) == points(0.0)
        most = "no group more than the others" if equal else f"group {worst} most: {loses}"
        return f"In this one run, privacy by {name} costs {most}. One run shows no tendency; use more seeds."
    if low > 0 and mean > 0.005:
        return f"Privacy by {name} costs group {worst} most: {loses}."
    return (
        f"Under {name} no group clearly pays more than the others; group {worst} loses most, {loses}, within "
        "the variation between seeds."
    )


def _who_narrows(gaps: pd.DataFrame, standard: str, level: float) -> str:
    """`gaps` are the largest of each run, with seeds down and methods across."""
    means = gaps.mean()
    by_mean = [method for method in means.sort_values().index if method != standard]
    gains = {method: mean_interval((gaps[standard] - gaps[method]).to_list(), level)[1] for method in by_mean}
    supported = [method for method in by_mean if gains[method] > 0]
    best = (supported or by_mean)[0]
    change = f"from {points(means[standard])} to {points(means[best])} points"
    smaller = means[best] < means[standard]
    if math.isnan(gains[best]) and smaller:
        return f"In this one run, {best} narrows the largest gap between groups most, {change}."
    if supported:
        return f"{best} narrows the largest gap between groups {change}."
    if not smaller:
        return (
            f"No method has a smaller gap between groups than {standard} ({points(means[standard])} points)."
        )
    return (
        f"No method clearly narrows the gap between groups: {best} comes nearest, {change}, within the "
        "variation between seeds."
    )


def _who_holds(verdicts: dict[str, str], setup: Setup) -> str:
    rule = f"Equal cost of privacy (every gap at most {points(setup.tau)} points)"
    if all(verdict.startswith("one seed") for verdict in verdicts.values()):
        return f"{rule} cannot be judged from one seed."
    said = {"holds": "holds", "undecided": "is undecided", "fails": "fails"}
    parts = [
        f"{words} under {', '.join(method for method, given in verdicts.items() if given == verdict)}"
        for verdict, words in said.items()
        if verdict in verdicts.values()
    ]
    return f"{rule} {'; '.join(parts)} ({setup.level:.0%} intervals over {len(setup.seeds)} seeds)."


def test_sentences(summary: Summary) -> list[str]:
    """Wilcoxon tests of each method's largest gap against the standard's, and the smallest p possible."""
    table = wilcoxon_table(summary.costs, summary.setup.baseline)
    against = (table["other"] == STANDARD) & (table["setting"] == table["other_setting"])
    table = table[against & (table["method"] != STANDARD)]
    if table.empty:
        return []
    seeds = int(table["seeds"].iloc[0])
    if seeds < 2:
        return ["With one seed no test between methods is possible."]
    listed = ", ".join(f"{Kind(row.method, row.setting).label} p = {row.p:.3g}" for row in table.itertuples())
    return [
        f"One-sided Wilcoxon signed-rank test that the largest gap is smaller than under {STANDARD}: "
        f"{listed}. With {seeds} seeds no p can be below 1/{2**seeds} = {0.5**seeds:.3g}; the tests are not "
        "corrected for their number."
    ]


def guarantee(summary: Summary) -> list[str]:
    """What epsilon and delta mean for the private runs of a comparison."""
    data, training = summary.setup.data, summary.setup.training
    rows = [row for row in summary.overview if row.kind in summary.private_kinds]
    listed = ", ".join(f"{row.kind.label} {row.epsilon:.3f}" for row in rows)
    return [
        "Unit: one training example. Two datasets are neighbours if one has one example more. With and "
        "without any one example, a private model's weights, and anything computed from them, have almost "
        "the same distribution: probabilities of outcomes differ by at most a factor e^epsilon, up to a "
        f"probability of delta = {training.delta:g}.",
        f"Epsilon of each private run: {listed} (tight accounting by privacy loss distributions).",
        f"It holds for {training.steps:,} steps, each on a Poisson sample that contains each of the "
        f"{data.num_train:,} training examples with probability "
        f"{training.sample_rate:.4g}{_other_seeds(summary.setup)}. Statistics that a method reads privately "
        "are accounted for jointly with the gradients of the same sample.",
        "Noise and samples of a comparison come from seeds, so that all methods get the same samples. That "
        "is for research: train a model for release with randomness from the operating system, the default "
        "of equidp's Trainer.",
    ]


def _other_seeds(setup: Setup) -> str:
    sizes = setup.num_train_by_seed
    if min(sizes) == max(sizes):
        return ""
    return (
        f" (for seed {setup.seeds[0]}; seeds train on {min(sizes):,} to {max(sizes):,} rows, and each is "
        "accounted for with its own number)"
    )


def not_covered(setup: Setup) -> list[str]:
    """What the guarantee does not cover, including the notes on how the data was prepared."""
    return [
        f"This page: it shows results of training without privacy ({setup.baseline}).",
        "Several runs together: each private run on the same data spends its own epsilon, and choosing "
        "between runs by their results spends the sum.",
        "The choice of settings (learning rate, clipping bound, epochs), if it was made by looking at this "
        "data.",
        "The test examples: accuracy, loss and gradient figures on this page are measured on them.",
        "The number of training examples, and the number and names of groups, which count as public.",
        *setup.data.notes,
    ]
