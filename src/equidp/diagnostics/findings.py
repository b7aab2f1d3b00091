"""What a diagnosis says in plain words. The rules are in docs/diagnostics.md; what standard errors do not support is not said."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

CLEAR = 2.0
"""Standard errors by which a figure must differ from another, or from zero, to be spoken of."""

_CAUSES = {
    "direction": (
        "comes from gradients turned by clipping; a higher bound, or one scale for all (global-adapt), addresses that",
        "turned gradients add",
    ),
    "magnitude": (
        "comes from gradients shortened by clipping; a higher learning rate addresses that",
        "shortened gradients add",
    ),
    "noise": (
        "comes from noise; a larger batch, or a larger epsilon, addresses that",
        "noise adds",
    ),
}


@dataclass(frozen=True)
class Figure:
    """A mean with its standard error."""

    mean: float
    error: float

    def exceeds(self, other: Figure) -> bool:
        """Clearly; the two are taken as independent."""
        return self.mean - other.mean > CLEAR * math.hypot(self.error, other.error)


_ZERO = Figure(0.0, 0.0)


def averaged(groups: pd.DataFrame, column: str) -> dict[str, Figure]:
    """By group: the mean of a column over diagnosed steps and seeds.

    The standard error adds up those of the steps; where several seeds differ by more, theirs counts.

    Args:
        groups: `Diagnosis.sensitive_groups` of one method, perhaps with a column seed.
        column: without `sensitive_`.
    """
    table = groups if "seed" in groups else groups.assign(seed=0)
    figures = {}
    for name, of_group in table.groupby("group", sort=False):
        runs = [
            Figure(
                float(run[f"sensitive_{column}"].mean()),
                math.sqrt(float((run[f"sensitive_{column}_se"] ** 2).sum())) / len(run),
            )
            for _, run in of_group.groupby("seed")
        ]
        means = pd.Series([run.mean for run in runs])
        within = math.sqrt(sum(run.error**2 for run in runs)) / len(runs)
        between = float(means.std()) / math.sqrt(len(runs)) if len(runs) > 1 else 0.0
        figures[str(name)] = Figure(float(means.mean()), max(within, between))
    return figures


def findings(groups: pd.DataFrame) -> list[str]:
    """Which group loses most by clipping and noise, from what, since when.

    Args:
        groups: `Diagnosis.sensitive_groups` of one method, perhaps with a column seed.
    """
    excess = averaged(groups, "excess")
    worst = max(excess, key=lambda name: excess[name].mean)
    most = excess[worst]
    others = [figure for name, figure in excess.items() if name != worst]
    if not most.exceeds(_ZERO):
        return ["No group clearly loses by clipping and noise in the diagnosed steps."]
    if not all(most.exceeds(other) for other in others):
        return ["Clipping and noise cost loss, but no group clearly loses most of it in the diagnosed steps."]
    sentences = [f"Group {worst} loses most: {most.mean:.3g} of loss a step{_since(groups, worst)}."]
    parts = {name: averaged(groups, name)[worst] for name in _CAUSES}
    return sentences + _causes(parts)


def _since(groups: pd.DataFrame, worst: str) -> str:
    """The first diagnosed epoch from which on the group is always the one that loses most."""
    epochs = groups.groupby("step")["epoch"].mean()
    table = groups.pivot_table(index="step", columns="group", values="sensitive_excess", aggfunc="mean")
    leads = table.idxmax(axis=1) == worst
    since = leads[::-1].cumprod()[::-1].astype(bool)
    if since.all() or since.sum() < 2:
        return ", from the start" if since.all() and len(since) > 1 else ""
    return f", always the most since epoch {epochs[since.idxmax()]:.3g}"


def _causes(parts: dict[str, Figure]) -> list[str]:
    """Shares are of what the parts that raise the loss add up to."""
    clear = {name: part for name, part in parts.items() if part.exceeds(_ZERO)}
    raised = sum(part.mean for part in parts.values() if part.mean > 0)
    order = sorted(clear, key=lambda name: -clear[name].mean)
    sentences = []
    if order and all(clear[order[0]].exceeds(parts[name]) for name in parts if name != order[0]):
        sentences.append(f"{clear[order[0]].mean / raised:.0%} of that {_CAUSES[order[0]][0]}.")
        rest = [f"{_CAUSES[name][1]} {clear[name].mean / raised:.0%}" for name in order[1:]]
        if rest:
            sentences.append(f"{' and '.join(rest).capitalize()}.")
    elif order:
        sentences.append("What it comes from most is within the standard errors.")
    lowered = [name for name, part in parts.items() if _ZERO.exceeds(part)]
    if lowered:
        names = {"direction": "turned gradients", "magnitude": "shortened gradients", "noise": "noise"}
        total = sum(parts[name].mean for name in lowered)
        sentences.append(
            f"Against that, {' and '.join(names[name] for name in lowered)} lower its loss, by {-total:.3g} a step."
        )
    return sentences
