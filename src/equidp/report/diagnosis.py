"""Diagnosis of a comparison: findings that its standard errors support, and a section of the report.

Everything in it is sensitive. docs/why-groups.md has the rules of the findings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from equidp._extras import require_extra
from equidp.comparison.result import Comparison
from equidp.display import Cell, Column, Noted, Table, measured_number
from equidp.report.document import Block, Callout, Heading, Paragraph, paragraphs
from equidp.report.format import capitalise, number
from equidp.report.summary import Summary, by_kind

with require_extra("tables"):
    import pandas as pd

_RISKS = {
    "excess": "all",
    "direction": "direction",
    "magnitude": "magnitude",
    "noise": "noise",
    "direction_alternative": "direction, other split",
    "magnitude_alternative": "magnitude, other split",
}
_GRADIENTS = {
    "group_gradient_norm": "norm of the mean",
    "mean_norm": "mean norm",
    "share_clipped": "share clipped",
    "cosine_before": "cosine before",
    "cosine_after": "after",
    "error_bias": "bias",
    "error_variance": "variance",
    "best_bound": "best bound",
}
"""Columns of the tables, without sensitive_ -> headings."""
CLEAR = 2.0
"""Standard errors by which a value must differ from another, or from zero, to be mentioned."""

_CAUSES = {
    "direction": (
        "turned gradients",
        "add",
        "gradients turned by clipping; a higher bound, or one scale for all (global-adapt), addresses that",
    ),
    "magnitude": (
        "shortened gradients",
        "add",
        "gradients shortened by clipping; a higher learning rate addresses that",
    ),
    "noise": ("noise", "adds", "noise; a larger batch, or a larger epsilon, addresses that"),
}
"""Cause -> its name, its verb, and where the loss comes from if it is the main one."""


def diagnosis_blocks(summary: Summary) -> Iterator[Block]:
    """Section of a report; empty without a diagnosis."""
    diagnosis = summary.comparison.sensitive_diagnosis
    if diagnosis is None:
        return
    parts, pairs = by_kind(diagnosis.sensitive_groups), by_kind(diagnosis.sensitive_pairs)
    warning = (
        "Must not be shared: everything in this part is computed from raw training data, and no epsilon "
        "covers it."
    )
    yield Heading("Where the disparity comes from")
    yield Callout([Paragraph(warning)], warning=True)
    yield Callout([Paragraph(f"{kind.label}: {' '.join(_finding(part))}") for kind, part in parts.items()])
    yield Paragraph(
        "Excess risk: what clipping and noise add to a group's mean training loss in one step, to second "
        "order. Averages over the diagnosed steps; differences within two standard errors are not "
        "mentioned.",
        small=True,
    )
    for kind, part in parts.items():
        bounds = bound_sentences(pairs[kind]) if kind in pairs else []
        for table in (_risk_table(kind.label, part), _gradient_table(kind.label, part, bounds)):
            yield Heading(table.caption, 3)
            yield table
            yield from paragraphs(table.notes, small=True)


def _risk_table(name: str, part: pd.DataFrame) -> Table:
    means = [average_column(part, column) for column in _RISKS]
    rows: list[list[Cell]] = [
        [group, *(Noted(mean[group].mean, f"± {measured_number(mean[group].error)}") for mean in means)]
        for group in means[0]
    ]
    columns = [Column("group", "name"), *(Column(head, show=measured_number) for head in _RISKS.values())]
    return Table(columns, rows, f"{name}: excess risk a step")


def _gradient_table(name: str, part: pd.DataFrame, bounds: list[str]) -> Table:
    means = part.groupby("group", sort=False)[[f"sensitive_{column}" for column in _GRADIENTS]].mean()
    best = number(float(part["sensitive_best_bound_all"].mean()))
    note = (
        "Bias and variance: bounds on the error of the group's private gradient (Xu et al.); best bound: the "
        f"clipping bound that balances the two for this group. For all examples together it is {best}."
    )
    columns = [Column("group", "name"), *(Column(head, show=measured_number) for head in _GRADIENTS.values())]
    rows: list[list[Cell]] = [
        [str(group), *row] for group, row in zip(means.index, means.to_numpy(), strict=True)
    ]
    return Table(columns, rows, f"{name}: gradients", [note, *bounds])


def sensitive_findings(comparison: Comparison) -> list[str]:
    """Return a warning and a line for each diagnosed kind of run; an empty list without a diagnosis."""
    if comparison.sensitive_diagnosis is None:
        return []
    parts = by_kind(comparison.sensitive_diagnosis.sensitive_groups)
    return [
        "Where the disparity comes from (computed from raw training data; must not be shared):",
        *(f"{kind.label}: {' '.join(_finding(part))}" for kind, part in parts.items()),
    ]


def bound_sentences(pairs: pd.DataFrame) -> list[str]:
    """Comparison of the papers' bounds with measured differences, over all pairs and diagnosed steps."""
    pairs = pairs.rename(columns=lambda name: name.removeprefix("sensitive_"))
    assumed = int((pairs["convex"] & pairs["step_small"]).sum())
    below = int((pairs["direction_bound"] <= pairs["direction_gap"]).sum())
    clear = pairs[pairs["direction_gap"] > 2 * pairs["direction_gap_se"]]
    predicted = int((clear["direction_bound"] > 0).sum())
    return [
        "Esipova et al.'s lower bound on how much more one group loses by direction than another "
        f"(Proposition 3) was below the measured difference in {below:,} of {len(pairs):,} cases (ordered "
        "pairs of groups at diagnosed steps). Its assumptions, convex losses and a step no longer than 1 / "
        f"largest eigenvalue, held as far as can be seen in {assumed:,}. Of {len(clear):,} clear differences "
        f"it predicted {predicted:,}. Tran et al.'s condition on norms alone held in "
        f"{int(pairs['norm_condition'].sum()):,} cases."
    ]


def _finding(part: pd.DataFrame) -> list[str]:
    """Findings, and a caution where gradient descent would leave the region of second-order terms."""
    too_long = part["learning_rate"] * part["sensitive_largest_eigenvalue"] > 2
    steps = int(too_long.groupby([part["seed"], part["step"]]).any().sum())
    if not steps:
        return findings(part)
    total = len(part[["seed", "step"]].drop_duplicates())
    return [
        *findings(part),
        f"Caution: in {steps} of {total} diagnosed steps the learning rate is above 2 / largest eigenvalue, "
        "so a step without privacy may raise the loss, and second-order terms are inaccurate.",
    ]


@dataclass(frozen=True)
class Estimate:
    """Mean with its standard error."""

    mean: float
    error: float

    def exceeds(self, other: Estimate) -> bool:
        """True where this estimate is clearly larger than an independent one."""
        return self.mean - other.mean > CLEAR * math.hypot(self.error, other.error)


_ZERO = Estimate(0.0, 0.0)


def average_column(groups: pd.DataFrame, column: str) -> dict[str, Estimate]:
    """Return the mean of a column over diagnosed steps and seeds, by group.

    Its standard error follows from the standard errors of the steps, or from the variation between seeds if
    that is larger.

    Args:
        groups: `Diagnosis.sensitive_groups` of one method, with a column seed or without.
        column: its name without `sensitive_`.
    """
    runs = groups if "seed" in groups else groups.assign(seed=0)
    runs = runs.assign(variance=runs[f"sensitive_{column}_se"] ** 2).groupby(["group", "seed"], sort=False)
    means, variances = runs[f"sensitive_{column}"].mean(), runs["variance"].sum() / runs.size() ** 2
    seeds = means.groupby("group", sort=False)
    within = variances.groupby("group", sort=False).sum() ** 0.5 / seeds.size()
    errors = within.combine(seeds.sem().fillna(0.0), max)
    return {str(name): Estimate(mean, errors[name]) for name, mean in seeds.mean().items()}


def findings(groups: pd.DataFrame) -> list[str]:
    """Sentences on the group that loses most by clipping and noise, since when, and from which cause.

    Args:
        groups: `Diagnosis.sensitive_groups` of one method, with a column seed or without.
    """
    excess = average_column(groups, "excess")
    worst = max(excess, key=lambda name: excess[name].mean)
    most = excess[worst]
    others = [estimate for name, estimate in excess.items() if name != worst]
    if not most.exceeds(_ZERO):
        return ["No group clearly loses by clipping and noise in the diagnosed steps."]
    if not all(most.exceeds(other) for other in others):
        return ["Clipping and noise cost loss, but no group clearly loses most of it in the diagnosed steps."]
    how = "loses most" if others else "loses"
    sentences = [f"Group {worst} {how}: {most.mean:.3g} of loss a step{_since_text(groups, worst)}."]
    splits = [
        {name: average_column(groups, name + ending if name != "noise" else name)[worst] for name in _CAUSES}
        for ending in ("", "_alternative")
    ]
    return sentences + _cause_sentences(splits)


def _since_text(groups: pd.DataFrame, worst: str) -> str:
    """Text on the first diagnosed epoch from which the group always loses most."""
    if groups["group"].nunique() == 1:
        return ""
    epochs = groups.groupby("step")["epoch"].mean()
    table = groups.pivot_table(index="step", columns="group", values="sensitive_excess", aggfunc="mean")
    leads = table.idxmax(axis=1) == worst
    since = leads[::-1].cumprod()[::-1].astype(bool)
    if since.all() or since.sum() < 2:
        return ", from the start" if since.all() and len(since) > 1 else ""
    return f", always the most since epoch {epochs[since.idxmax()]:.3g}"


def _cause_sentences(splits: list[dict[str, Estimate]]) -> list[str]:
    """Causes of a group's excess risk by both splits of clipping's error, as shares of all raising parts."""
    mains = [_main_cause(parts) for parts in splits]
    if None in mains:
        return ["The standard errors do not show which cause is the largest."]
    if mains[0] != mains[1]:
        short, full = (_shares([parts], "direction") for parts in splits)
        return [
            f"At the length that clipping leaves, {short} of that comes from turned gradients, and at full "
            f"length {full}: turning and shortening cannot be distinguished here, so look at both splits, or "
            "ablate."
        ]
    main = mains[0]
    assert main is not None
    sentences = [f"{_shares(splits, main)} of that comes from {_CAUSES[main][2]}."]
    rest = [name for name in _CAUSES if name != main and all(parts[name].exceeds(_ZERO) for parts in splits)]
    if rest:
        listed = " and ".join(f"{' '.join(_CAUSES[name][:2])} {_shares(splits, name)}" for name in rest)
        sentences.append(f"{capitalise(listed)}.")
    lowered = [name for name in _CAUSES if all(_ZERO.exceeds(parts[name]) for parts in splits)]
    if lowered:
        sentences.append(
            f"Against that, {' and '.join(_CAUSES[name][0] for name in lowered)} lower its loss."
        )
    return sentences


def _main_cause(parts: dict[str, Estimate]) -> str | None:
    """Cause that clearly exceeds zero and every other cause."""
    name = max(parts, key=lambda name: parts[name].mean)
    others = [part for other, part in parts.items() if other != name]
    return name if all(parts[name].exceeds(other) for other in [*others, _ZERO]) else None


def _shares(splits: list[dict[str, Estimate]], name: str) -> str:
    """Share of a cause in the parts that raise the loss; a range if the splits differ."""
    shares = [
        f"{max(parts[name].mean, 0.0) / sum(max(part.mean, 0.0) for part in parts.values()):.0%}"
        for parts in splits
    ]
    ends = sorted(set(shares), key=lambda share: int(share[:-1]))
    return " to ".join(dict.fromkeys([ends[0], ends[-1]]))
