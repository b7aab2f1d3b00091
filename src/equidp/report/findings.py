"""Findings of a diagnosis that its standard errors support; docs/diagnostics.md has the rules."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

CLEAR = 2.0
"""Standard errors by which a figure must differ from another, or from zero, to be mentioned."""

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


@dataclass(frozen=True)
class Figure:
    """Mean with its standard error."""

    mean: float
    error: float

    def exceeds(self, other: Figure) -> bool:
        """True where this figure is clearly larger than an independent figure."""
        return self.mean - other.mean > CLEAR * math.hypot(self.error, other.error)


_ZERO = Figure(0.0, 0.0)


def average_column(groups: pd.DataFrame, column: str) -> dict[str, Figure]:
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
    return {str(name): Figure(mean, errors[name]) for name, mean in seeds.mean().items()}


def findings(groups: pd.DataFrame) -> list[str]:
    """Sentences on the group that loses most by clipping and noise, since when, and from which cause.

    Args:
        groups: `Diagnosis.sensitive_groups` of one method, with a column seed or without.
    """
    excess = average_column(groups, "excess")
    worst = max(excess, key=lambda name: excess[name].mean)
    most = excess[worst]
    others = [figure for name, figure in excess.items() if name != worst]
    if not most.exceeds(_ZERO):
        return ["No group clearly loses by clipping and noise in the diagnosed steps."]
    if not all(most.exceeds(other) for other in others):
        return ["Clipping and noise cost loss, but no group clearly loses most of it in the diagnosed steps."]
    how = "loses most" if others else "loses"
    sentences = [f"Group {worst} {how}: {most.mean:.3g} of loss a step{_since(groups, worst)}."]
    splits = [
        {name: average_column(groups, name + ending if name != "noise" else name)[worst] for name in _CAUSES}
        for ending in ("", "_alternative")
    ]
    return sentences + _causes(splits)


def _since(groups: pd.DataFrame, worst: str) -> str:
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


def _causes(splits: list[dict[str, Figure]]) -> list[str]:
    """Causes of a group's excess risk by both splits of clipping's error, as shares of all raising parts."""
    mains = [_main_cause(parts) for parts in splits]
    if None in mains:
        return ["The standard errors do not show which cause is the largest."]
    if mains[0] != mains[1]:
        short, full = (_shares([parts], "direction") for parts in splits)
        return [
            f"At the length that clipping leaves, {short} of that comes from turned gradients, and at full "
            f"length {full}: turning and shortening cannot be told apart here, so look at both splits, or "
            "ablate."
        ]
    main = mains[0]
    assert main is not None
    sentences = [f"{_shares(splits, main)} of that comes from {_CAUSES[main][2]}."]
    rest = [name for name in _CAUSES if name != main and all(parts[name].exceeds(_ZERO) for parts in splits)]
    if rest:
        listed = " and ".join(f"{' '.join(_CAUSES[name][:2])} {_shares(splits, name)}" for name in rest)
        sentences.append(f"{listed[0].upper()}{listed[1:]}.")
    lowered = [name for name in _CAUSES if all(_ZERO.exceeds(parts[name]) for parts in splits)]
    if lowered:
        sentences.append(
            f"Against that, {' and '.join(_CAUSES[name][0] for name in lowered)} lower its loss."
        )
    return sentences


def _main_cause(parts: dict[str, Figure]) -> str | None:
    """Cause that clearly exceeds zero and every other cause."""
    name = max(parts, key=lambda name: parts[name].mean)
    others = [part for other, part in parts.items() if other != name]
    return name if all(parts[name].exceeds(other) for other in [*others, _ZERO]) else None


def _shares(splits: list[dict[str, Figure]], name: str) -> str:
    """Share of a cause in the parts that raise the loss; a range if the splits differ."""
    shares = [
        f"{max(parts[name].mean, 0.0) / sum(max(part.mean, 0.0) for part in parts.values()):.0%}"
        for parts in splits
    ]
    ends = sorted(set(shares), key=lambda share: int(share[:-1]))
    return " to ".join(dict.fromkeys([ends[0], ends[-1]]))
