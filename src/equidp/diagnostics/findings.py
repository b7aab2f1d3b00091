"""Findings of a diagnosis: sentences that its standard errors support, by rules of docs/why-groups.md."""

from __future__ import annotations

import math
from typing import NamedTuple

from equidp._extras import require_extra

with require_extra("tables"):
    import pandas as pd

CLEAR = 2.0
"""Standard errors by which a value must differ from another, or from zero, to be mentioned."""

_CAUSES = {
    "direction": (
        "turned gradients",
        "add",
        "gradients turned by clipping; a higher bound, or one scale for all (global-adapt), addresses that",
    ),
    "magnitude": (
        "changed lengths of gradients",
        "add",
        "changed lengths of gradients; a higher learning rate addresses that if they became shorter "
        "(`sensitive_ratio` below 1), a lower one if they became longer",
    ),
    "noise": ("noise", "adds", "noise; a larger batch, or a larger epsilon, addresses that"),
}
"""Cause -> its name, its verb, and the origin of the loss if it is the main cause."""


class Estimate(NamedTuple):
    """Mean with its standard error."""

    mean: float
    error: float

    def exceeds(self, other: Estimate) -> bool:
        """True if this estimate is clearly larger than an independent one."""
        return self.mean - other.mean > CLEAR * math.hypot(self.error, other.error)


_ZERO = Estimate(0.0, 0.0)
_Parts = dict[str, Estimate]


def average_column(groups: pd.DataFrame, column: str) -> _Parts:
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


def find_causes(groups: pd.DataFrame) -> list[str]:
    """Return sentences on the group that loses most by clipping and noise, since when, and by which cause.

    Args:
        groups: `Diagnosis.sensitive_groups` of one method, with columns step, epoch and seed or without.
    """
    if groups.empty:
        return ["No step was diagnosed."]
    return [*_loss_sentences(groups), *_caution(groups)]


def _loss_sentences(groups: pd.DataFrame) -> list[str]:
    excess = average_column(groups, "excess")
    worst = max(excess, key=lambda name: excess[name].mean)
    most = excess[worst]
    others = [estimate for name, estimate in excess.items() if name != worst]
    if not most.exceeds(_ZERO):
        return ["No group clearly loses by clipping and noise in the diagnosed steps."]
    if not all(most.exceeds(other) for other in others):
        return ["Clipping and noise cost loss, but no group clearly loses most of it in the diagnosed steps."]
    how = "loses most" if others else "loses"
    since = _since(groups, worst) if others and "step" in groups else ""
    splits = [
        {name: average_column(groups, name if name == "noise" else name + ending)[worst] for name in _CAUSES}
        for ending in ("", "_alternative")
    ]
    return [f"Group {worst} {how}: {most.mean:.3g} of loss a step{since}.", *_cause_sentences(splits)]


def _since(groups: pd.DataFrame, worst: str) -> str:
    """Text on the first diagnosed epoch from which the group always loses most."""
    epochs = groups.groupby("step")["epoch"].mean()
    table = groups.pivot_table(index="step", columns="group", values="sensitive_excess", aggfunc="mean")
    leads = table.idxmax(axis=1) == worst
    since = leads[::-1].cumprod()[::-1].astype(bool)
    if since.sum() < 2:
        return ""
    return (
        ", from the start" if since.all() else f", always the most since epoch {epochs[since.idxmax()]:.3g}"
    )


def _cause_sentences(splits: list[_Parts]) -> list[str]:
    """Causes of a group's excess risk by both splits of clipping's error, as shares of all raising parts."""
    main, other = (_main_cause(parts) for parts in splits)
    if main is None or other is None:
        return ["The standard errors do not show which cause is the largest."]
    if main != other:
        short, full = (_shares([parts], "direction") for parts in splits)
        return [
            f"At the length that clipping leaves, {short} of that comes from turned gradients, and at full "
            f"length {full}: turned gradients and changed lengths cannot be distinguished here, so look at "
            "both splits, or ablate."
        ]
    sentences = [f"{_shares(splits, main)} of that comes from {_CAUSES[main][2]}."]
    rest = [name for name in _CAUSES if name != main and all(parts[name].exceeds(_ZERO) for parts in splits)]
    if rest:
        listed = " and ".join(f"{' '.join(_CAUSES[name][:2])} {_shares(splits, name)}" for name in rest)
        sentences.append(f"{listed[0].upper()}{listed[1:]}.")
    lowered = [name for name in _CAUSES if all(_ZERO.exceeds(parts[name]) for parts in splits)]
    if lowered:
        names = " and ".join(_CAUSES[name][0] for name in lowered)
        sentences.append(f"Against that, {names} lower its loss.")
    return sentences


def _main_cause(parts: _Parts) -> str | None:
    """Cause that clearly exceeds zero and every other cause."""
    name = max(parts, key=lambda name: parts[name].mean)
    others = [part for other, part in parts.items() if other != name]
    return name if all(parts[name].exceeds(other) for other in [*others, _ZERO]) else None


def _shares(splits: list[_Parts], name: str) -> str:
    """Share of a cause in the parts that raise the loss; a range if the splits differ."""
    raising = [sum(max(part.mean, 0.0) for part in parts.values()) for parts in splits]
    shares = sorted(max(parts[name].mean, 0.0) / of for parts, of in zip(splits, raising, strict=True))
    return " to ".join(dict.fromkeys(f"{share:.0%}" for share in (shares[0], shares[-1])))


def _caution(groups: pd.DataFrame) -> list[str]:
    """Caution if gradient descent would leave the region of second-order terms."""
    too_long = groups["learning_rate"] * groups["sensitive_largest_eigenvalue"] > 2
    keys = [groups[name] for name in ("seed", "step") if name in groups]
    by_step = too_long.groupby(keys or groups["learning_rate"]).any()
    if not by_step.any():
        return []
    return [
        f"Caution: in {by_step.sum()} of {len(by_step)} diagnosed steps the learning rate is above 2 / "
        "largest eigenvalue, so a step without privacy may raise the loss, and second-order terms are "
        "inaccurate."
    ]
