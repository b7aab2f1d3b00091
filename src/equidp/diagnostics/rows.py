"""The tables of a diagnosis: one row per group, and one per pair of groups, from what was measured."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from equidp._extras import require_extra
from equidp.diagnostics.excess_risk import (
    batch_risk,
    best_clipping_bound,
    clipping_error,
    direction_gap_bound,
    noise_risk,
    norm_condition,
)
from equidp.diagnostics.gradients import BatchGradients, cosine
from equidp.diagnostics.measure import GroupCurvature, GroupView, Step
from equidp.kernel.noise import to_double

with require_extra("tables"):
    import pandas as pd

_ROUNDING = 1e-5
"""An eigenvalue below zero by less than this share of the largest may be a rounding error of float32."""


@dataclass(frozen=True, eq=False)
class GroupMeasures:
    """One group's part of a diagnosis: what was measured, and the terms of each batch, one row per batch."""

    view: GroupView
    curvature: GroupCurvature
    by_batch: pd.DataFrame


def measure_batches(
    view: GroupView,
    curvature: GroupCurvature,
    batches: Sequence[BatchGradients],
    data_gradient: Tensor,
    step: Step,
) -> GroupMeasures:
    """Return the terms, cosines and lengths of each batch for one group."""
    rows = []
    for gradients, (mean, clipped) in zip(batches, curvature.along, strict=True):
        risk = batch_risk(
            gradients,
            view.gradient,
            data_gradient,
            mean_curvature=mean,
            clipped_curvature=clipped,
            learning_rate=step.learning_rate,
        )
        rows.append(
            {
                "clipping": risk.clipping,
                **asdict(risk),
                "cosine_before": cosine(gradients.mean, view.gradient),
                "cosine_after": cosine(gradients.clipped, view.gradient),
                "cosine_turned": cosine(gradients.mean, gradients.clipped),
                "batch_norm": float(gradients.mean.norm()),
                "clipped_norm": float(gradients.clipped.norm()),
                "ratio": float(gradients.ratio),
            }
        )
    return GroupMeasures(view, curvature, pd.DataFrame(rows))


def group_row(measured: GroupMeasures, step: Step) -> dict[str, Any]:
    """Return means over batches with their standard errors (`_se`), and values that need no batch."""
    view, curvature = measured.view, measured.curvature
    row: dict[str, Any] = {"group": view.name, "examples": view.count, "learning_rate": step.learning_rate}
    for name, values in measured.by_batch.items():
        row |= {str(name): float(values.mean()), f"{name}_se": float(values.sem())}
    trace, ends, rate = curvature.trace, curvature.eigenvalues, step.learning_rate
    scale = step.noise_multiplier * step.sensitivity
    for name, noise_scale in (("noise", scale / step.batch_size), ("noise_published", scale)):
        row[name] = noise_risk(trace.value, learning_rate=rate, noise_scale=noise_scale)
        row[f"{name}_se"] = noise_risk(trace.standard_error, learning_rate=rate, noise_scale=noise_scale)
    row["excess"] = row["clipping"] + row["noise"]
    row["excess_se"] = math.hypot(row["clipping_se"], row["noise_se"])
    row |= {"trace": trace.value, "trace_se": trace.standard_error, "trace_vectors": trace.vectors}
    row |= {"smallest_eigenvalue": ends.smallest, "largest_eigenvalue": ends.largest}
    return row | {"eigenvalue_residual": ends.residual} | _gradient_row(view, step)


def _gradient_row(view: GroupView, step: Step) -> dict[str, float]:
    epsilon, count = step.laplace_epsilon, step.batch_size * view.share
    error = clipping_error(
        view.norms, view.weights, sensitivity=step.sensitivity, epsilon=epsilon, expected_count=count
    )
    return {
        "loss": view.loss,
        "group_gradient_norm": float(view.gradient.norm()),
        "mean_norm": float(to_double(view.norms).mean()),
        "max_norm": float(view.norms.max()),
        "share_clipped": view.share_clipped,
        "not_finite": view.not_finite,
        "error_bias": error.bias,
        "error_variance": error.variance,
        "error_lower": error.lower,
        "error_upper": error.upper,
        "best_bound": best_clipping_bound(view.norms, epsilon=epsilon, expected_count=count),
    }


def pair_rows(groups: Mapping[int, GroupMeasures], step: Step) -> list[dict[str, Any]]:
    """Return one row per ordered pair: how their excess risks differ, and two papers' bounds on that."""
    return [_pair_row(one, other, step) for one, other in itertools.permutations(groups.values(), 2)]


def _pair_row(one: GroupMeasures, other: GroupMeasures, step: Step) -> dict[str, Any]:
    ends = one.curvature.eigenvalues, other.curvature.eigenvalues
    gap = one.by_batch["direction"] - other.by_batch["direction"]
    bound: Any = direction_gap_bound(  # of each batch
        one.by_batch["direction_first_order"],
        other.by_batch["direction_first_order"],
        largest_eigenvalue=ends[0].largest,
        other_largest_eigenvalue=ends[1].largest,
        squared_clipped_norm=one.by_batch["clipped_norm"] ** 2,
        learning_rate=step.learning_rate,
    )
    by_norms = norm_condition(
        float(one.view.gradient.norm()),
        float(other.view.gradient.norm()),
        share=one.view.share,
        other_share=other.view.share,
        clipping_bound=step.sensitivity,
        learning_rate=step.learning_rate,
    )
    return {
        "group": one.view.name,
        "other": other.view.name,
        "direction_gap": float(gap.mean()),
        "direction_gap_se": float(gap.sem()),
        "direction_bound": float(bound.mean()),
        "direction_bound_se": float(bound.sem()),
        "convex": all(each.smallest >= -_ROUNDING * abs(each.largest) for each in ends),
        "step_small": all(step.learning_rate * each.largest <= 1 for each in ends),
        "clipping_gap": float((one.by_batch["clipping"] - other.by_batch["clipping"]).mean()),
        "norm_bound": by_norms.gap_bound,
        "norm_condition": by_norms.holds,
        "norm_assumed": by_norms.assumed,
    }
