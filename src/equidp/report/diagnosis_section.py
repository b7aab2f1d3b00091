"""Report section on the causes of the disparity. Everything in it is sensitive."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from equidp.comparison.result import Comparison
from equidp.report.findings import Figure, average_column, findings
from equidp.report.plots import DIAGNOSIS_PLOTS
from equidp.report.plots.plot import draw_plots
from equidp.report.render import filled
from equidp.report.summary import Summary, by_kind

_RISKS = ("excess", "direction", "magnitude", "noise", "direction_alternative", "magnitude_alternative")
_FIGURES = (
    *("group_gradient_norm", "mean_norm", "share_clipped", "cosine_before", "cosine_after"),
    *("error_bias", "error_variance", "best_bound"),
)


class MethodDiagnosis(NamedTuple):
    """Diagnosis of one kind of run; risks and figures: (group, cells) in the order of the headings."""

    name: str
    finding: list[str]
    risks: list[tuple[str, list[Figure]]]
    figures: list[tuple[str, list[float]]]
    best_bound_all: float
    bounds: list[str]


def diagnosis_section(summary: Summary) -> str:
    """Return the section in HTML; "" without a diagnosis."""
    diagnosis = summary.comparison.sensitive_diagnosis
    if diagnosis is None:
        return ""
    pairs = by_kind(diagnosis.sensitive_pairs)
    methods = []
    for kind, part in by_kind(diagnosis.sensitive_groups).items():
        risks = [average_column(part, name) for name in _RISKS]
        means = part.groupby("group", sort=False)[[f"sensitive_{name}" for name in _FIGURES]].mean()
        methods.append(
            MethodDiagnosis(
                name=kind.label,
                finding=_finding(part),
                risks=[(group, [risk[group] for risk in risks]) for group in risks[0]],
                figures=[(str(group), row.to_list()) for group, row in means.iterrows()],
                best_bound_all=float(part["sensitive_best_bound_all"].mean()),
                bounds=bound_sentences(pairs[kind]) if kind in pairs else [],
            )
        )
    return filled("diagnosis.html", methods=methods, plots=draw_plots(DIAGNOSIS_PLOTS.values(), summary))


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
