"""Findings and guarantees of a comparison in sentences, each computed from its table by a stated rule."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from equidp._extras import require_extra
from equidp.comparison.cells import TREES
from equidp.comparison.plan import BY_GROUP, EQUAL, PROTECTION, Kind, label_of
from equidp.comparison.recommend import Recommendation, Standing
from equidp.comparison.result import Setup
from equidp.comparison.tune import CHOICES, FINALISTS, SHARED, Tuning
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
)
from equidp.evaluation.groups import RISKS_OFF
from equidp.evaluation.intervals import LEVEL, mean_interval
from equidp.evaluation.metrics import Metric
from equidp.evaluation.small_cells import FEWEST
from equidp.policies.table import AUTO, BASELINE, STANDARD
from equidp.report.evaluation import risk_remedy
from equidp.report.format import amount, capitalise, unit
from equidp.report.guarantee import EXCLUSIONS, LARGER_EPSILON, compared_sentences, epsilons_differ
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
    seeds of that difference is on one side of 0. Otherwise the sentence says that it is not. One seed
    supports neither. Runs with a reference that is not meaningful have no such sentences. The sentence on
    their reference comes first.
    """
    served = [kind for kind in summary.private_kinds if summary.judgements[kind].serves]
    settings = list(dict.fromkeys(kind.setting for kind in served))
    faults = [each for each in summary.comparison.judgements.values() if not each.serves]
    sentences = [_fault_sentence(each) for each in faults]
    sentences += [] if faults else _model_cost_sentences(summary)
    for setting in settings:
        said = _setting_sentences(summary, setting, brief=len(settings) > 1)
        at = f"At {setting.replace('=', ' ')}: " if len(settings) > 1 else ""
        sentences += [at + each for each in said]
    sentences += _hopeless_group_sentences(summary)
    sentences += _uninformative_sentences(summary) + _risk_sentences(summary)
    return sentences + _small_test_sentences(summary.setup)


def _setting_sentences(summary: Summary, setting: str, *, brief: bool) -> list[str]:
    """Return the sentences on one setting; only the verdict with `brief`."""
    rows = [row for row in summary.overview if row.kind.setting == setting and row.kind.method != BASELINE]
    verdicts = {row.kind.method: row.verdict for row in rows if summary.judgements[row.kind].serves}
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


def _fault_sentence(judged: Judgement) -> str:
    """Sentence on a reference that does not serve."""
    label, seeds = Kind(BASELINE, judged.baseline).label, f"in {judged.seeds} of {judged.of} seeds"
    if judged.fault == "diverged":
        what = f"diverged {seeds}: its loss is not a finite number"
    elif judged.fault == "constant":
        what = f"is no better than one constant prediction {seeds}"
    else:
        labels = dict.fromkeys(Kind(*kind).label for kind in judged.by)
        are = "is" if len(labels) == 1 else "are"
        what = f"has learnt too little: {_listed(labels)} {are} better in every group"
    return (
        f"The non-private reference, {label}, {what}. Losses against it are not the cost of privacy, so "
        "there is no verdict on gaps and no recommendation. Try other learning rates or more epochs "
        "(--learning-rate, --epochs), or --tune."
    )


def _model_cost_sentences(summary: Summary) -> list[str]:
    """Sentence on the best model without privacy, and on what each reference loses against it."""
    references, text = summary.comparison.references, summary.text
    if references.empty or not (summary.has_model_cost or TREES in set(references["method"])):
        return []
    label, value = summary.best_label, text(summary.best_interval(ALL).value)
    sentences = [f"The best model without privacy is {label}: {summary.metric.label} {value}."]
    for kind in summary.reference_kinds:
        if summary.best["chosen"].all() and kind.label == label:
            continue
        reached = text(summary.interval(kind, ALL, summary.metric.name).value)
        cost = summary.interval(kind, ALL, "model_cost").value
        own = [k.label for k in summary.private_kinds if summary.judgements[k].baseline == kind.setting]
        sentences.append(
            f"{kind.label}, the same model as {_listed(own)} without privacy, has {reached}: the model costs "
            f"{amount(summary.metric, cost)}, and what privacy costs comes on top."
        )
    if len(sentences) == 1:
        sentences.append("It is the model of the private methods too, so the model costs nothing.")
    return [" ".join(sentences)]


def reference_sentences(summary: Summary) -> list[str]:
    """Sentences on the learning rate of each reference, if several were tried."""
    references = summary.comparison.references
    if references.empty:
        return []
    sentences = []
    plain = references[(references["method"] == BASELINE) & (references["group"] == ALL)]
    for name, part in plain.groupby("baseline", sort=False):
        rates = part["rate"].unique()
        if len(rates) > 1:
            used = part.loc[part["chosen"], "rate"].iloc[0]
            end = {rates.max(): "largest", rates.min(): "smallest"}.get(used)
            edge = f" It is the {end} tried, so the reference could be better still." if end else ""
            sentences.append(
                f"{Kind(BASELINE, str(name)).label}: learning rate {rates[0]:.4g} is the plan's, and "
                f"{used:.4g} is used, the best of {len(rates)} on seed {summary.setup.seeds[0]}.{edge}"
            )
    return sentences


def difference_sentences(summary: Summary) -> list[str]:
    """Sentence on how differences from the named method are taken."""
    better = "above" if summary.metric.higher_is_better else "below"
    return [
        f"Each method less {summary.setup.against}, run by run of one seed: {summary.metric.label} over all "
        f"test examples and in the group where a run is worst ({better} 0 is better), and the largest gap in "
        f"privacy cost between two groups (below 0 is better). Intervals: Student's, {LEVEL:.0%}, not "
        "corrected. p: two-sided t-test of pairs, corrected for all tests of the table (Holm)."
    ]


def _hopeless_group_sentences(summary: Summary) -> list[str]:
    """Sentence on groups in which the metric is as bad as it can be, under every kind of run."""
    metric = summary.metric
    lowest = metric.range[0] if metric.higher_is_better else metric.range[1]
    if not math.isfinite(lowest):
        return []
    values = pd.DataFrame({kind: part[f"{metric.name}_mean"] for kind, part in summary.by_group.items()})
    groups = [str(group) for group in values.index[(values == lowest).all(axis=1)]]
    if not groups:
        return []
    return [
        f"{capitalise(metric.label)} is {summary.text(lowest)} in group {', '.join(groups)} under every "
        f"method, {BASELINE} without privacy too: no model here learns it, so privacy had nothing to "
        "cost. More examples, more epochs or weights of classes come before a choice of method."
    ]


def _uninformative_sentences(summary: Summary) -> list[str]:
    """Warning on methods whose models are no better than one constant prediction: their costs mean
    nothing."""
    setup, metric = summary.setup, summary.metric
    labels = [
        row.kind.label
        for row in summary.overview
        if not row.informative and (row.kind.method != BASELINE or summary.judgements[row.kind].serves)
    ]
    if not labels:
        return []
    largest, share = setup.most_frequent_class
    always = ""
    if metric.name == "accuracy":
        always = f"Always predicting {largest!r} would be correct for {points(share)}% of the test examples. "
    ranking = ""
    if "auc" in summary.costs and metric.name != "auc":
        ranking = " Their ranking may still say something: --metric auc measures what privacy costs it."
    are = "is" if len(labels) == 1 else "are"
    return [
        f"{always}By {metric.label}, {', '.join(labels)} {are} no better than one constant prediction, so "
        "what privacy costs says nothing. Try more epochs, another learning rate or a larger "
        f"epsilon.{ranking}"
    ]


def _risk_sentences(summary: Summary) -> list[str]:
    """Sentence on runs whose mean predicted risk is off by more than a fifth of the observed risk."""
    if "mean_predicted" not in summary.costs:
        return []
    rows = summary.costs[summary.costs["group"] == ALL]
    said, private = [], False
    for kind, part in by_kind(rows).items():
        predicted, observed = part["mean_predicted"].mean(), part["observed"].mean()
        if abs(predicted - observed) > RISKS_OFF * min(observed, 1 - observed):
            said.append(f"{kind.label} {points(predicted)}%")
            private |= kind.method != BASELINE
    if not said:
        return []
    weighs = bool(summary.setup.plan.plan.class_weight)
    return [
        f"Predicted risks of {summary.setup.positive!r} are off: {points(rows['observed'].mean())}% "
        f"happened, and on average {', '.join(said)} were predicted. "
        f"{risk_remedy(weighs_classes=weighs, clips=private, overall=True)}"
    ]


def _small_test_sentences(setup: Setup) -> list[str]:
    sizes = zip(setup.group_names, setup.test_group_sizes, strict=True)
    few = [f"{name} {size}" for name, size in sizes if size < _FEW_TESTS]
    if not few:
        return []
    return [
        f"Few test examples: {', '.join(few)}. One more or one fewer correct prediction moves the accuracy "
        f"of such a group by {points(1 / _FEW_TESTS)} points or more. Intervals over seeds do not include "
        "this, so do not base a verdict on it. Costs, gaps and verdicts leave out runs that were tested on "
        f"fewer than {FEWEST} people of a group."
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
    mean, low, _ = mean_interval((table[worst] - others).dropna().to_list(), LEVEL)
    change = lost_phrase(text(others.mean()), one=rest.shape[1] == 1)
    who = f"group {rest.columns[0]}" if rest.shape[1] == 1 else "the other groups on average"
    loses = f"{amount(summary.metric, table[worst].mean())}, where {who} {change}"
    if math.isnan(low):
        equal = text(mean) == text(0.0)
        most = "no group more than the others" if equal else f"group {worst} most: {loses}"
        return (
            f"In this one run under {name}, privacy costs {most}. One run shows no tendency; use more seeds."
        )
    if low > 0 and mean > _TOO_LITTLE:
        return f"Under {name}, privacy costs group {worst} most: {loses}."
    return (
        f"Under {name}, no group clearly loses more than the others; group {worst} loses most, {loses}, "
        "within the variation between seeds."
    )


def auto_sentences(setup: Setup) -> list[str]:
    """Sentence on the method that "auto" was compared as, or empty if it was not, or has its own row."""
    return [f"{AUTO} takes {setup.auto_takes}: see its row."] if setup.auto_takes else []


def _gap_sentence(gaps: pd.DataFrame, standard: str, summary: Summary) -> str:
    """Sentence on the method that narrows the largest gap most; `gaps`: largest gaps, [seeds, methods]."""
    means, text = gaps.mean(), summary.text
    by_mean = [method for method in means.sort_values().index if method != standard]
    gains = {method: mean_interval((gaps[standard] - gaps[method]).to_list(), LEVEL)[1] for method in by_mean}
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


def _equal_cost_sentence(verdicts: Mapping[str, str], summary: Summary) -> str:
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
    return f"{rule}: {'; '.join(parts)} ({LEVEL:.0%} intervals over {len(setup.seeds)} seeds)."


def recommendation_sentences(summary: Summary) -> list[str]:
    """Recommended method at each target epsilon, how sure that is, and how the others compare."""
    return [_recommendation_sentence(each, summary.metric) for each in summary.comparison.recommendation()]


def _recommendation_sentence(advised: Recommendation, metric: Metric) -> str:
    at = "" if advised.epsilon is None else f"At epsilon {advised.epsilon:g}: "

    def text(value: float) -> str:
        return "not known" if math.isnan(value) else points(value) if metric.percent else f"{value:.3g}"

    def standing(each: Standing) -> str:
        return f"gap {text(each.gap)}, {metric.label} {text(each.value)}"

    in_points = " points" if metric.percent else ""
    first = advised.alike[0] if advised.alike else None
    if (chosen := advised.chosen) is not None:
        head = (
            f"take {chosen.label}: {metric.label} {text(chosen.value)}, largest gap between groups "
            f"{text(chosen.gap)}{in_points}. "
        )
        head += (
            "No other method was compared."
            if not advised.compared
            else "This is clear."
            if advised.sure
            else "This is not certain; more seeds would help."
        )
    elif first is not None:
        most = max(advised.alike, key=lambda each: metric.sign * each.value)
        head = (
            f"no method is clearly the one to take. {first.label} has the smallest gap ({standing(first)}), "
            f"and {most.label} the best {metric.label} ({standing(most)}); more seeds may tell them apart."
        )
    else:
        return capitalise_after(at, _no_recommendation(advised))
    parts = {
        f"Clearly worse in {metric.label}": [f"{each.label} ({text(each.behind)})" for each in advised.worse],
        "Not clearly worse, but by more than the tolerance on average": [
            f"{each.label} ({text(each.behind)})" for each in advised.far_behind
        ],
        "Matched or beaten by another method in every group": [
            f"{each.label} (by {each.by})" for each in advised.beaten
        ],
        "With a clearly larger gap": [f"{each.label} ({text(each.gap)})" for each in advised.wider],
        "Not clearly different, so choose by other criteria": [
            f"{each.label} ({standing(each)})" for each in advised.alike
        ],
        "No better than one constant prediction": advised.uninformative,
    }
    tails = [f"{name}: {_listed(labels)}." for name, labels in parts.items() if labels]
    return " ".join([capitalise_after(at, head), *tails])


def capitalise_after(at: str, text: str) -> str:
    """Return a text after a beginning that ends in a colon, or capitalised without one."""
    return f"{at}{text}" if at else capitalise(text)


def _no_recommendation(advised: Recommendation) -> str:
    if advised.faults:
        return f"no method can be recommended: the non-private reference {_FAULTS[advised.faults[0].fault]}."
    if advised.seeds < 2:
        return "one run of each method supports no recommendation; use more seeds."
    return "no method can be recommended: no private model is better than one constant prediction."


_FAULTS = {
    "diverged": "diverged",
    "constant": "is no better than one constant prediction",
    "beaten": "is beaten in every group by a private method",
}


def _listed(labels: Iterable[str]) -> str:
    texts = list(labels)
    left = len(texts) - _MOST_NAMED
    return ", ".join([*texts[:_MOST_NAMED], *([f"and {left} more"] if left > 0 else [])])


def protection_sentences(summary: Summary) -> list[str]:
    """Sentences on what rates and bounds by group do to each group, against the method's equal run.

    Empty if all groups are equal.
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
        changes = "; ".join(
            f"{group} {summary.text(before.loc[group, column])} to {summary.text(moved.loc[group, column])} "
            f"at epsilon {before.loc[group, epsilons]:.3g} to {moved.loc[group, epsilons]:.3g}"
            for group in moved.index
            if group != ALL
        )
        sentences.append(
            f"Compared with the same method and equal groups, {kind.method} changes "
            f"{summary.metric.label} of {changes}."
        )
    if differ:
        sentences.append(LARGER_EPSILON)
    return sentences


def tuning_sentences(metric: Metric, tuning: Tuning) -> list[str]:
    """Sentences on a search for settings: how it chose, and what it drew from."""
    first, *others = tuning.seeds
    shared = {name: text for own in tuning.ranges.values() for name, text in own.items() if name in SHARED}
    drawn = [f"{name} {text}{'' if name in CHOICES else ' times the plan'}" for name, text in shared.items()]
    drawn += [
        f"{name} of {method} {text}"
        for method, own in tuning.ranges.items()
        for name, text in own.items()
        if name not in SHARED
    ]
    return [
        f"Up to {tuning.draws} settings of each method, plain SGD among them, were tried: the plan's own, "
        "and random multiples of them that are the same for all methods. Each was trained on four fifths of "
        f"the training set of seed {first} and judged on the other fifth; the best {FINALISTS} also on seeds "
        f"{' and '.join(map(str, others))}. Chosen are the settings under which the group that loses most "
        f"{metric.label} against plain SGD loses least on average; ties go to the better value over all "
        "held-out examples, by which the settings of plain SGD are chosen too. All other metrics are of new "
        "runs, of other seeds, on test sets. Where each seed splits all rows again, a row that settings were "
        "chosen on may be a test row of another seed.",
        "Choosing settings reads the training data, and epsilon does not cover it: this is for research on "
        "methods, not for a model that is released.",
        f"Drawn: {'; '.join(drawn)}. All other settings stayed as they are.",
    ]


def guarantee_sentences(summary: Summary) -> list[str]:
    """Sentences on the meaning of epsilon and delta for the private runs of a comparison."""
    setup = summary.setup
    epsilons = {row.kind.label: row.epsilon for row in summary.overview if row.kind in summary.private_kinds}
    steps = "a run's own number of steps" if setup.steps_differ else f"{setup.plan.steps:,} steps"
    rate = "the run's own probability" if setup.steps_differ else f"probability {setup.plan.sample_rate:.4g}"
    fewest, most = min(setup.num_train_by_seed), max(setup.num_train_by_seed)
    rows = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}, by seed,"
    return [
        *compared_sentences(epsilons, setup.plan.delta),
        f"Epsilon is of {steps}, each on a Poisson sample of the {rows} training examples with {rate}. "
        "Statistics that a method reads privately are accounted for jointly with the gradients of the same "
        "sample.",
        "Noise and samples of a comparison come from seeds, so that all methods get the same samples. That "
        "is for research: a model for release needs randomness from the operating system, the default of "
        "equidp's Trainer.",
    ]


def exclusion_sentences(setup: Setup) -> list[str]:
    """Sentences on what the guarantee does not cover, with the notes on how the data was prepared."""
    return [
        f"This page: it shows results of training without privacy ({BASELINE}) on test examples.",
        EXCLUSIONS["other runs"],
        EXCLUSIONS["public facts"],
        *setup.notes,
    ]
