"""Measurements of a private step, in two tables: one row per group, and one per ordered pair of groups."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from equidp._extras import require_extra
from equidp._validate import check_whole
from equidp.data.dataset import GroupedDataset
from equidp.diagnostics.curvature import (
    estimate_trace,
    extreme_eigenvalues,
    hessian_product,
    quadratic_form,
)
from equidp.diagnostics.excess_risk import (
    batch_risk,
    best_clipping_bound,
    clipping_error,
    direction_gap_bound,
    noise_risk,
    norm_condition,
)
from equidp.diagnostics.gradients import BatchGradients, Subject, batch_gradients, cosine
from equidp.engines.model import call_model, in_evaluation_mode
from equidp.errors import DataError
from equidp.kernel.noise import SeededRandomness, to_double
from equidp.kernel.policy import Policy
from equidp.kernel.sampling import PoissonSampler
from equidp.policies.weights import sensitivity_of, share_clipped, step_weights

with require_extra("tables"):
    import pandas as pd

_ROUNDING = 1e-5
"""An eigenvalue below zero by less than this share of the largest may be a rounding error of float32."""


@dataclass(frozen=True)
class Effort:
    """Amount that a diagnosis measures. More of everything lowers standard errors and takes longer.

    Attributes:
        batches: Poisson samples that expectations are estimated from, >= 2.
        gradient_examples: examples of each group for its gradient and norms; None: all, which is exact.
        curvature_examples: examples of a group in a product with its Hessian, drawn again for each batch and
            each trace vector, so that standard errors count the drawing (eigenvalues are those of one draw);
            None: all.
        trace_vectors: vectors of random signs for a trace, >= 2.
        eigenvalue_products: the most products for the extreme eigenvalues.

    Raises:
        SettingError: a number outside its range.

    Example:
        >>> import equidp
        >>> equidp.Effort(batches=4, gradient_examples=2000).trace_vectors
        30
    """

    batches: int = 8
    gradient_examples: int | None = None
    curvature_examples: int | None = 64
    trace_vectors: int = 30
    eigenvalue_products: int = 20

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None:
                check_whole(2 if name in ("batches", "trace_vectors") else 1, **{name: value})


@dataclass(frozen=True, eq=False)
class Step:
    """A private step by plain gradient descent.

    Attributes:
        policy, state: what weights and the sensitivity come from.
        learning_rate: eta.
        noise_multiplier: sigma.
        batch_size: b, expected.
        num_groups: K.
    """

    policy: Policy
    state: Any
    learning_rate: float
    noise_multiplier: float
    batch_size: float
    num_groups: int

    @property
    def sensitivity(self) -> float:
        """S, under the state."""
        return sensitivity_of(self.policy, self.state, self.num_groups)

    @property
    def laplace_epsilon(self) -> float:
        """The epsilon at which Xu et al.'s Laplace noise is as large as this step's Gaussian noise."""
        return 1 / self.noise_multiplier if self.noise_multiplier else math.inf


@dataclass(frozen=True, eq=False)
class GroupGradients:
    """Gradients of one group.

    Attributes:
        name, count, share: of the group in the data.
        usable: indices of its examples, without those whose gradient was found not to be finite.
        gradient: g_a, [parameters].
        norms: of the measured examples whose gradient is finite, [measured].
        row: of the table, what follows from them.
    """

    name: str
    count: int
    share: float
    usable: Tensor
    gradient: Tensor
    norms: Tensor
    row: dict[str, Any]


def measure_group(
    subject: Subject, step: Step, data: GroupedDataset, group: int, effort: Effort, generator: torch.Generator
) -> GroupGradients:
    """Measure a group's examples, or as many of them as `effort` allows, in one pass.

    Raises:
        DataError: none of them has a finite gradient.
    """
    everyone = torch.nonzero(data.groups == group).flatten()
    members = draw(everyone, effort.gradient_examples, generator)
    total, loss, norms, finite = subject.zeros(), 0.0, [], [members[:0]]
    for measured, (inputs, targets, _, which) in subject.measure_chunks(data, members):
        norms.append(measured.norms.detach())
        finite.append(which.to(members.device))
        total += subject.sum_gradients(measured, torch.ones_like(norms[-1]))
        with torch.no_grad():
            loss += float(to_double(subject.loss(call_model(subject.model, inputs), targets)).sum())
    if not norms:
        raise DataError(
            f"no example of group {data.group_names[group]!r} has a finite gradient; look at its inputs and "
            "the learning rate.",
            field="group",
        )
    left_out = members[~torch.isin(members, torch.cat(finite))]
    lengths = torch.cat(norms)
    lengths = lengths.to(torch.promote_types(lengths.dtype, torch.float32))
    of_group = torch.full_like(lengths, group, dtype=torch.int64)
    weights = step_weights(step.policy, step.state, lengths, of_group, data.num_groups)
    share = len(everyone) / len(data)
    epsilon, count = step.laplace_epsilon, step.batch_size * share
    error = clipping_error(
        lengths, weights, sensitivity=step.sensitivity, epsilon=epsilon, expected_count=count
    )
    gradient = total / len(lengths)
    row = {
        "loss": loss / len(lengths),
        "group_gradient_norm": float(gradient.norm()),
        "mean_norm": float(to_double(lengths).mean()),
        "max_norm": float(lengths.max()),
        "share_clipped": share_clipped(step.policy, step.state, weights, of_group, data.num_groups),
        "not_finite": len(left_out),
        "error_bias": error.bias,
        "error_variance": error.variance,
        "error_lower": error.lower,
        "error_upper": error.upper,
        "best_bound": best_clipping_bound(lengths, epsilon=epsilon, expected_count=count),
    }
    usable = everyone[~torch.isin(everyone, left_out)]
    return GroupGradients(data.group_names[group], len(everyone), share, usable, gradient, lengths, row)


def draw(members: Tensor, size: int | None, generator: torch.Generator) -> Tensor:
    """Return so many of the members at random; all, if there are no more or size is None."""
    if size is None or size >= len(members):
        return members
    return members[torch.randperm(len(members), generator=generator)[:size].to(members.device)]


@dataclass(frozen=True, eq=False)
class GroupMeasures:
    """Everything that is measured of one group: its row, and the terms of each batch, a row per batch."""

    gradients: GroupGradients
    row: dict[str, Any]
    by_batch: pd.DataFrame


def measure_curvature(
    subject: Subject,
    step: Step,
    data: GroupedDataset,
    group: GroupGradients,
    data_gradient: Tensor,
    batches: Sequence[BatchGradients],
    effort: Effort,
    generator: torch.Generator,
) -> GroupMeasures:
    """Measure a group's Hessian by its products with vectors, and with it the excess risk of each batch."""
    like, rate = subject.zeros(), step.learning_rate

    def drawn_product() -> partial[Tensor]:
        return partial(
            hessian_product, subject, data, draw(group.usable, effort.curvature_examples, generator)
        )

    trace, error = estimate_trace(
        lambda vector: drawn_product()(vector), like, vectors=effort.trace_vectors, generator=generator
    )
    smallest, largest, residual = extreme_eigenvalues(
        drawn_product(), like, products=effort.eigenvalue_products, generator=generator
    )
    rows = []
    for batch in batches:
        product = drawn_product()
        risk = batch_risk(
            batch,
            group.gradient,
            data_gradient,
            mean_curvature=quadratic_form(product, batch.mean),
            clipped_curvature=quadratic_form(product, batch.clipped),
            learning_rate=rate,
        )
        rows.append(
            {
                "clipping": risk.clipping,
                **asdict(risk),
                "cosine_before": cosine(batch.mean, group.gradient),
                "cosine_after": cosine(batch.clipped, group.gradient),
                "cosine_turned": cosine(batch.mean, batch.clipped),
                "batch_norm": float(batch.mean.norm()),
                "clipped_norm": float(batch.clipped.norm()),
                "ratio": float(batch.ratio),
            }
        )
    by_batch = pd.DataFrame(rows)
    row: dict[str, Any] = {"group": group.name, "examples": group.count, "learning_rate": rate}
    for name, values in by_batch.items():
        row |= {str(name): float(values.mean()), f"{name}_se": float(values.sem())}
    scale = step.noise_multiplier * step.sensitivity
    for name, noise_scale in (("noise", scale / step.batch_size), ("noise_published", scale)):
        row[name] = noise_risk(trace, learning_rate=rate, noise_scale=noise_scale)
        row[f"{name}_se"] = noise_risk(error, learning_rate=rate, noise_scale=noise_scale)
    row |= {
        "excess": row["clipping"] + row["noise"],
        "excess_se": math.hypot(row["clipping_se"], row["noise_se"]),
        "trace": trace,
        "trace_se": error,
        "trace_vectors": effort.trace_vectors,
        "smallest_eigenvalue": smallest,
        "largest_eigenvalue": largest,
        "eigenvalue_residual": residual,
    }
    return GroupMeasures(group, row | group.row, by_batch)


def _pair_row(one: GroupMeasures, other: GroupMeasures, step: Step) -> dict[str, Any]:
    """How the excess risks of two groups differ, and two papers' bounds on that."""
    rate = step.learning_rate
    gap = one.by_batch["direction"] - other.by_batch["direction"]
    bound: Any = direction_gap_bound(  # of each batch
        one.by_batch["direction_first_order"],
        other.by_batch["direction_first_order"],
        largest_eigenvalue=one.row["largest_eigenvalue"],
        other_largest_eigenvalue=other.row["largest_eigenvalue"],
        squared_clipped_norm=one.by_batch["clipped_norm"] ** 2,
        learning_rate=rate,
    )
    by_norms = norm_condition(
        one.row["group_gradient_norm"],
        other.row["group_gradient_norm"],
        share=one.gradients.share,
        other_share=other.gradients.share,
        clipping_bound=step.sensitivity,
        learning_rate=rate,
    )
    ends = [(each.row["smallest_eigenvalue"], each.row["largest_eigenvalue"]) for each in (one, other)]
    return {
        "group": one.row["group"],
        "other": other.row["group"],
        "direction_gap": float(gap.mean()),
        "direction_gap_se": float(gap.sem()),
        "direction_bound": float(bound.mean()),
        "direction_bound_se": float(bound.sem()),
        "convex": all(smallest >= -_ROUNDING * abs(largest) for smallest, largest in ends),
        "step_small": all(rate * largest <= 1 for _, largest in ends),
        "clipping_gap": float((one.by_batch["clipping"] - other.by_batch["clipping"]).mean()),
        "norm_bound": by_norms.gap_bound,
        "norm_condition": by_norms.holds,
        "norm_assumed": by_norms.assumed,
    }


def measure_step(
    subject: Subject, data: GroupedDataset, step: Step, chosen: Sequence[int], effort: Effort, seed: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the tables of groups and of pairs of groups; chosen: indices of those groups."""
    generator = torch.Generator().manual_seed(seed)
    present = [group for group, size in enumerate(data.group_sizes().tolist()) if size]
    sampler = PoissonSampler(len(data), step.batch_size / len(data), effort.batches, SeededRandomness(seed))
    with in_evaluation_mode(subject.model):
        groups = {each: measure_group(subject, step, data, each, effort, generator) for each in present}
        batches = [
            batch_gradients(
                subject,
                step.policy,
                step.state,
                data,
                sample.to(data.groups.device),
                batch_size=step.batch_size,
            )
            for sample in sampler
        ]
        data_gradient = subject.zeros()
        for group in groups.values():
            data_gradient += group.share * group.gradient
        measured = [
            measure_curvature(subject, step, data, groups[each], data_gradient, batches, effort, generator)
            for each in chosen
        ]
    norms = torch.cat([group.norms for group in groups.values()])
    best = best_clipping_bound(norms, epsilon=step.laplace_epsilon, expected_count=step.batch_size)
    rows = [{**each.row, "best_bound_all": best} for each in measured]
    pairs = [_pair_row(one, other, step) for one, other in itertools.permutations(measured, 2)]
    return pd.DataFrame(rows), pd.DataFrame(pairs)
