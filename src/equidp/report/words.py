"""Findings and guarantees of a comparison in sentences, each computed from values by a stated rule."""

from __future__ import annotations

import math
from collections.abc import Mapping

from equidp._extras import require_extra
from equidp.advice.advise import AUTO
from equidp.comparison.baselines import BOOSTING
from equidp.comparison.recommend import Recommendation
from equidp.comparison.result import Setup, best_label
from equidp.comparison.sweep import BY_GROUP, EQUAL, PROTECTION, Kind, label_of
from equidp.data.dataset import ALL
from equidp.display import points
from equidp.evaluation.baselines import Judgement
from equidp.evaluation.costs import (
    EPSILON_OF_GROUP,
    EXCEEDS_TOLERANCE,
    INCONCLUSIVE,
    UNINFORMATIVE,
    WITHIN_TOLERANCE,
    group_gaps,
    wilcoxon_table,
)
from equidp.evaluation.groups import RISKS_OFF
from equidp.evaluation.intervals import mean_interval
from equidp.evaluation.metrics import Metric
from equidp.evaluation.small_cells import FEWEST
from equidp.policies.table import STANDARD
from equidp.report.evaluation import risk_remedy
from equidp.report.format import amount, capitalise, unit
from equidp.report.guarantee import EXCLUSIONS, LARGER_EPSILON, compared_sentences, epsilons_differ
from equidp.report.individual import too_noisy
from equidp.report.summary import Summary, by_kind

with require_extra("tables"):
    import pandas as pd

_FEW_TESTS = 30
_TOO_LITTLE = 0.005
"""A difference in cost that is not worth a sentence."""
_MOST_NAMED = 4


def finding_sentences(summary: Summary) -> list[str]:
    """Findings of a comparison, in a few sentences; with several settings, a verdict on each.

    A group is named as the one that loses most, or a method as narrowing the gap, only if the interval over
    seeds of that difference lies on one side of 0; otherwise the sentence says that it does not. One seed
    supports neither.
    Runs whose baseline does not serve have no such sentences: that of their baseline comes first.
    """
    served = [kind for kind in summary.private_kinds if summary.judgements[kind].serves]
    settings = list(dict.fromkeys(kind.setting for kind in served))
    sentences = [_baseline_sentence(summary, each) for each in summary.judged.values() if not each.serves]
    costs = [] if sentences else _model_cost_sentences(summary)
    sentences += _other_class_sentences(summary.setup) + (costs if summary.has_model_cost else [])
    for setting in settings:
        said = _setting_sentences(summary, setting, brief=len(settings) > 1)
        at = f"At {setting.replace('=', ' ')}: " if len(settings) > 1 else ""
        sentences += [at + each for each in said]
    sentences += [] if summary.has_model_cost else costs
    sentences += _uninformative_sentences(summary) + _risk_sentences(summary)
    return sentences + _small_test_sentences(summary.setup) + _noise_sentences(summary)


def _setting_sentences(summary: Summary, setting: str, *, brief: bool) -> list[str]:
    """Return the sentences on one setting; only the verdict with `brief`."""
    setup = summary.setup
    rows = [row for row in summary.overview if row.kind.setting == setting]
    verdicts = {row.kind.method: row.verdict for row in rows if summary.judgements[row.kind].serves}
    verdicts.pop(setup.baseline, None)
    holds = _equal_cost_sentence(verdicts, summary)
    if brief:
        return [holds]
    standard = STANDARD if STANDARD in verdicts else next(iter(verdicts))
    sentences = [_costliest_group_sentence(summary, Kind(standard, setting))]
    if len(verdicts) > 1:
        gaps = group_gaps(summary.costs).query("pair == 'largest' and setting == @setting")
        table = gaps.pivot(index="seed", columns="method", values="cost_gap")[list(verdicts)]
        sentences.append(_gap_sentence(table, standard, summary))
    return [*sentences, holds]


def _model_cost_sentences(summary: Summary) -> list[str]:
    """Sentences on the best model without privacy, and on what each baseline loses against it."""
    baselines, text = summary.comparison.baselines, summary.text
    if baselines.empty:
        return []
    if not summary.has_model_cost and BOOSTING not in set(baselines["method"]):
        return ["No other model was tried without privacy, so the model costs nothing by definition."]
    label, value = best_label(baselines), text(summary.best_interval(ALL).value)
    sentences = [f"The best model without privacy is {label}: {summary.metric.label} {value}."]
    for kind in summary.baseline_kinds:
        own = [
            each.label for each in summary.private_kinds if summary.judgements[each].baseline == kind.setting
        ]
        same = (
            "the private models" if len(summary.baseline_kinds) == 1 else _join_labels(dict.fromkeys(own, ""))
        )
        reached = text(summary.interval(kind, ALL, summary.metric.name).value)
        cost = summary.interval(kind, ALL, "model_cost").value
        if summary.best["chosen"].all() and kind.label == label:
            sentences.append(f"{label} is the model of {same} too, so the model costs nothing there.")
        else:
            sentences.append(
                f"{kind.label}, the same model as {same} without privacy, has {reached}: the model costs "
                f"{amount(summary.metric, cost)}, and what privacy costs comes on top."
            )
    return [" ".join(sentences)]


def _other_class_sentences(setup: Setup) -> list[str]:
    """Sentence on private runs of another model than the only baseline."""
    if setup.search == "best" or not setup.other_classes:
        return []
    labels = _join_labels(setup.other_classes)
    return [
        f"Not the same model as the baseline {setup.baseline}: {labels}. What they lose against it is not "
        "what privacy alone costs."
    ]


def _baseline_sentence(summary: Summary, judged: Judgement) -> str:
    """Sentence on a baseline that does not serve."""
    label = Kind(summary.setup.baseline, judged.baseline).label
    seeds = f"in {judged.seeds} of {judged.of} seeds"
    if judged.fault == "diverged":
        what = f"diverged {seeds}: its loss is not a finite number"
    elif judged.fault == "constant":
        what = f"is no better than one constant prediction {seeds}"
    else:
        labels = dict.fromkeys((Kind(*kind).label for kind in judged.by), "")
        are = "is" if len(labels) == 1 else "are"
        what = f"has learnt too little: {_join_labels(labels)} {are} better in every group"
    return (
        f"The non-private baseline, {label}, {what}. Losses against it are not the cost of privacy, so "
        "there is no verdict on gaps and no recommendation. Try other learning rates or more epochs "
        "(--learning-rate, --epochs)."
    )


def difference_sentences(summary: Summary) -> list[str]:
    """Sentences on how differences from the named method are taken; empty where none was named."""
    setup = summary.setup
    if not setup.against:
        return []
    better = "above" if summary.metric.higher_is_better else "below"
    return [
        f"Each method less {setup.against}, run by run of one seed: {summary.metric.label} over all test "
        f"examples and in the group where a run is worst ({better} 0 is better), and the largest gap in "
        f"privacy cost between two groups (below 0 is better). Intervals: Student's, {setup.level:.0%}, not "
        "corrected. p: two-sided t-test of pairs, corrected for all tests of the table (Holm)."
    ]


def _uninformative_sentences(summary: Summary) -> list[str]:
    """Warning on methods whose models are no better than one constant prediction: their costs mean
    nothing."""
    data, metric = summary.setup.data, summary.metric
    listed = [
        row.kind.label
        for row in summary.overview
        if not row.informative
        and (row.kind.method != summary.setup.baseline or summary.judgements[row.kind].serves)
    ]
    if not listed:
        return []
    largest, share = data.most_frequent_class
    always = ""
    if metric.name == "accuracy":
        always = f"Always predicting {largest!r} would be correct for {points(share)}% of the test examples. "
    ranking = ""
    if "auc" in summary.costs and metric.name != "auc":
        ranking = "Their ranking may be informative: --metric auc measures what privacy costs it. "
    are = "is" if len(listed) == 1 else "are"
    return [
        f"{always}By {metric.label}, {', '.join(listed)} {are} no better than one constant prediction: what "
        f"privacy costs such a model says nothing. {ranking}Or try more epochs, another learning rate or a "
        "larger epsilon."
    ]


def _risk_sentences(summary: Summary) -> list[str]:
    """Sentence on private runs whose mean predicted risk is off by more than a fifth of the observed risk."""
    if "mean_predicted" not in summary.costs:
        return []
    rows = summary.costs[summary.costs["group"] == ALL]
    said, private = [], False
    for kind, part in by_kind(rows).items():
        predicted, observed = part["mean_predicted"].mean(), part["observed"].mean()
        if abs(predicted - observed) > RISKS_OFF * min(observed, 1 - observed):
            said.append(f"{kind.label} {points(predicted)}%")
            private |= kind.method != summary.setup.baseline
    if not said:
        return []
    setup = summary.setup
    weighs = bool(setup.training.plan.plan.class_weight)
    what = risk_remedy(weighs_classes=weighs, clips=private, overall=True)
    return [
        f"Predicted risks of {setup.positive!r} are off: {points(rows['observed'].mean())}% happened, and on "
        f"average {', '.join(said)} were predicted. {what}"
    ]


def _noise_sentences(summary: Summary) -> list[str]:
    """Warning on methods whose released mean epsilons differ by no more than the release's noise."""
    noisy = too_noisy(summary)
    if not noisy:
        return []
    cost = next(iter(summary.individual.values()))["release_epsilon"].iloc[0]
    return [
        f"The released mean epsilons of {', '.join(noisy)} are too noisy to compare groups. A "
        f"release_epsilon above {cost:g} (--set), or larger groups, would help."
    ]


def _small_test_sentences(setup: Setup) -> list[str]:
    sizes = zip(setup.data.group_names, setup.data.test_group_sizes, strict=True)
    few = [f"{name} {size}" for name, size in sizes if size < _FEW_TESTS]
    if not few:
        return []
    left_out = (
        f" Costs, gaps and verdicts leave out runs that were tested on fewer than {FEWEST} people of a group."
    )
    return [
        f"Few test examples: {', '.join(few)}. One more or one fewer correct prediction moves the accuracy "
        f"of such "
        f"a group by {points(1 / _FEW_TESTS)} points or more. Intervals over seeds do not include this, so "
        f"do not base a verdict on it.{left_out}"
    ]


def lost_phrase(cost: str, *, one: bool) -> str:
    """Return what one group, or several, lose or gain by a cost in figures.

    >>> lost_phrase("0.4", one=True), lost_phrase("-0.4", one=False)
    ('loses 0.4', 'gain 0.4')
    """
    verb = "gain" if cost.startswith("-") else "lose"
    return f"{verb}{'s' if one else ''} {cost.removeprefix('-')}"


def _costliest_group_sentence(summary: Summary, kind: Kind) -> str:
    costs, text = summary.costs, summary.text
    rows = by_kind(costs[costs["group"] != ALL])[kind]
    table = rows.pivot(index="seed", columns="group", values="privacy_cost").dropna(axis=1, how="all")
    if table.shape[1] < 2:
        return f"By {summary.metric.label} fewer than two groups can be compared under {kind.method}."
    name, worst = kind.method, table.mean().idxmax()
    rest = table.drop(columns=worst)
    others = rest.mean(axis=1)
    mean, low, _ = mean_interval((table[worst] - others).dropna().to_list(), summary.setup.level)
    change = lost_phrase(text(others.mean()), one=rest.shape[1] == 1)
    who = f"group {rest.columns[0]}" if rest.shape[1] == 1 else "the other groups on average"
    loses = f"{amount(summary.metric, table[worst].mean())}, where {who} {change}"
    if math.isnan(low):
        equal = text(mean) == text(0.0)
        most = "no group more than the others" if equal else f"group {worst} most: {loses}"
        return f"In this one run, privacy by {name} costs {most}. One run shows no tendency; use more seeds."
    if low > 0 and mean > _TOO_LITTLE:
        return f"Privacy by {name} costs group {worst} most: {loses}."
    return (
        f"Under {name} no group clearly loses more than the others; group {worst} loses most, {loses}, "
        "within the variation between seeds."
    )


def auto_sentences(setup: Setup) -> list[str]:
    """Sentence on the method that "auto" was compared as; empty where it was not, or has a row of its own."""
    taken = setup.training.auto_takes
    return [f"{AUTO} takes {taken}: see its row."] if taken else []


def _gap_sentence(gaps: pd.DataFrame, standard: str, summary: Summary) -> str:
    """Sentence on the method that narrows the largest gap most; `gaps`: largest gaps, [seeds, methods]."""
    means, text, level = gaps.mean(), summary.text, summary.setup.level
    by_mean = [method for method in means.sort_values().index if method != standard]
    gains = {method: mean_interval((gaps[standard] - gaps[method]).to_list(), level)[1] for method in by_mean}
    supported = [method for method in by_mean if gains[method] > 0]
    best = (supported or by_mean)[0]
    of = "points" if summary.metric.percent else f"of {unit(summary.metric)}"
    change = f"from {text(means[standard])} to {text(means[best])} {of}"
    smaller = means[best] < means[standard]
    if smaller and text(means[best]) == text(means[standard]):
        return f"No method narrows the gap between groups ({text(means[standard])} {of} under {standard})."
    if math.isnan(gains[best]) and smaller:
        return f"In this one run, {best} narrows the largest gap between groups most, {change}."
    if supported:
        return f"{best} narrows the largest gap between groups {change}."
    if not smaller:
        return f"No method has a smaller gap between groups than {standard} ({text(means[standard])} {of})."
    return (
        f"No method clearly narrows the gap between groups: {best} comes nearest, {change}, within the "
        "variation between seeds."
    )


def _equal_cost_sentence(verdicts: dict[str, str], summary: Summary) -> str:
    setup = summary.setup
    of = "points" if summary.metric.percent else f"of {unit(summary.metric)}"
    tolerance = f"{summary.text(setup.gap_tolerance)} {of}"
    rule = f"Gap between groups in what privacy costs, at a tolerance of {tolerance}"
    if all(verdict.startswith("one seed") for verdict in verdicts.values()):
        return f"{rule}: it cannot be judged from one seed."
    parts = [
        f"{verdict} under {', '.join(method for method, given in verdicts.items() if given == verdict)}"
        for verdict in (WITHIN_TOLERANCE, INCONCLUSIVE, EXCEEDS_TOLERANCE, UNINFORMATIVE)
        if verdict in verdicts.values()
    ]
    return f"{rule}: {'; '.join(parts)} ({setup.level:.0%} intervals over {len(setup.seeds)} seeds)."


def recommendation_sentences(summary: Summary) -> list[str]:
    """Recommended method at each target epsilon, how sure that is, and how the others compare."""
    return [_recommendation_sentence(each, summary.metric) for each in summary.comparison.recommendation()]


def _recommendation_sentence(found: Recommendation, metric: Metric) -> str:
    at = "" if found.epsilon is None else f"At epsilon {found.epsilon:g}: "
    if found.chosen is None:
        if found.faults:
            fault = _FAULTS[found.faults[0].fault]
            why = f"no method can be recommended: the non-private baseline {fault}."
        elif found.seeds < 2:
            why = "one run of each method supports no recommendation; use more seeds."
        else:
            why = "no method can be recommended: no private model is better than one constant prediction."
        return f"{at}{why}" if at else capitalise(why)

    def text(value: float) -> str:
        return "not known" if math.isnan(value) else points(value) if metric.percent else f"{value:.3g}"

    alike = {each.label: f"gap {text(each.gap)}, {metric.label} {text(each.value)}" for each in found.alike}
    parts = {
        f"Clearly worse in {metric.label}": {each.label: text(each.behind) for each in found.worse},
        "Not clearly worse, but by more than the tolerance on average": {
            each.label: text(each.behind) for each in found.far_behind
        },
        "Another method is on average at least as good in every group": {
            each.label: text(each.behind) for each in found.beaten
        },
        "With a clearly larger gap": {each.label: text(each.gap) for each in found.wider},
        "Not clearly different, so choose by other criteria": alike,
        "No better than one constant prediction": dict.fromkeys(found.uninformative, ""),
    }
    if not found.compared:
        sure = "No other method was compared."
    else:
        sure = "This is clear." if found.sure else "This is not certain; more seeds would help."
    chosen, in_points = found.chosen, " points" if metric.percent else ""
    return " ".join(
        [
            f"{at}{'take' if at else 'Take'} {chosen.label}: {metric.label} {text(chosen.value)}, largest "
            f"gap between groups {text(chosen.gap)}{in_points}.",
            sure,
            *(f"{head}: {_join_labels(labels)}." for head, labels in parts.items() if labels),
        ]
    )


_FAULTS = {
    "diverged": "diverged",
    "constant": "is no better than one constant prediction",
    "beaten": "is beaten in every group by a private method",
}


def _join_labels(labels: Mapping[str, str]) -> str:
    texts = [f"{label} ({value})" if value else label for label, value in labels.items()]
    left = len(texts) - _MOST_NAMED
    return ", ".join([*texts[:_MOST_NAMED], *([f"and {left} more"] if left > 0 else [])])


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


def protection_sentences(summary: Summary) -> list[str]:
    """Sentences on what rates and bounds by group do to each group, beside the equal run of the same method.

    Empty where all groups are equal.
    """
    if not summary.has_groups:
        return []
    label = label_of({PROTECTION: EQUAL})
    equal = {kind for kind in summary.private_kinds if kind.setting.endswith(label)}
    sentences, differ = [], False
    for kind in summary.private_kinds:
        other = kind._replace(setting=kind.setting.replace(label_of({PROTECTION: BY_GROUP}), label))
        if kind in equal or other not in equal:
            continue
        moved, before = summary.by_group[kind], summary.by_group[other]
        column, epsilons = f"{summary.metric.name}_mean", f"{EPSILON_OF_GROUP}_mean"
        differ |= epsilons_differ(moved[epsilons].drop(ALL))
        listed = "; ".join(
            f"{group} {summary.text(before.loc[group, column])} to {summary.text(moved.loc[group, column])} "
            f"at epsilon {before.loc[group, epsilons]:.3g} to {moved.loc[group, epsilons]:.3g}"
            for group in moved.index
            if group != ALL
        )
        sentences.append(
            f"By group, beside the same method with equal groups, {kind.method} changes "
            f"{summary.metric.label} of {listed}."
        )
    if differ:
        sentences.append(LARGER_EPSILON)
    return sentences


def guarantee_sentences(summary: Summary) -> list[str]:
    """Sentences on the meaning of epsilon and delta for the private runs of a comparison."""
    epsilons = {row.kind.label: row.epsilon for row in summary.overview if row.kind in summary.private_kinds}
    return [
        *compared_sentences(epsilons, summary.setup.training.plan.delta),
        f"{_steps_text(summary.setup)} Statistics that a method reads privately are accounted for jointly "
        "with the gradients of the same sample.",
        "Noise and samples of a comparison come from seeds, so that all methods get the same samples. That "
        "is for research: a model for release needs randomness from the operating system, the default of "
        "equidp's Trainer.",
    ]


def _steps_text(setup: Setup) -> str:
    """Sentence on the steps that epsilon is of, and on the number of rows where it differs by seed."""
    plan, sizes = setup.training.plan, setup.num_train_by_seed
    steps = "a run's own number of steps" if setup.steps_differ else f"{plan.steps:,} steps"
    rate = "the run's own probability" if setup.steps_differ else f"probability {plan.sample_rate:.4g}"
    rows = f"{min(sizes):,}"
    if min(sizes) != max(sizes):
        rows += f" to {max(sizes):,}, by seed,"
    return f"Epsilon is of {steps}, each on a Poisson sample of the {rows} training examples with {rate}."


def exclusion_sentences(setup: Setup) -> list[str]:
    """Sentences on what the guarantee does not cover, with the notes on how the data was prepared."""
    return [
        f"This page: it shows results of training without privacy ({setup.baseline}) on test examples.",
        EXCLUSIONS["other runs"],
        EXCLUSIONS["public facts"],
        *setup.data.notes,
    ]
