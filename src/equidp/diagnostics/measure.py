"""What a diagnosis measures on the model: each group's gradient, norms and curvature, and some batches' gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from equidp.data.dataset import GroupedDataset
from equidp.diagnostics.curvature import (
    ExtremeEigenvalues,
    GroupHessian,
    TraceEstimate,
    extreme_eigenvalues,
    hutchinson_trace,
)
from equidp.diagnostics.effort import Effort
from equidp.diagnostics.gradients import BatchGradients, Subject, batch_gradients
from equidp.errors import DataError
from equidp.kernel.bounding import share_clipped, step_weights
from equidp.kernel.noise import SeededRandomness
from equidp.kernel.policy import Policy
from equidp.kernel.sampling import PoissonSampler


@dataclass(frozen=True, eq=False)
class GroupView:
    """One group at the model's present parameters.

    Attributes:
        name, count, share: of the group in the data.
        usable: indices of its examples, without those whose gradient was found not to be finite.
        gradient: g_a, [parameters].
        loss: mean loss.
        norms, weights: of the examples seen whose gradient is finite, [seen].
        share_clipped: share of them whose weight is below that of a vanishing gradient.
        not_finite: how many were left out for a gradient that is not finite, as the private step leaves them out.
    """

    name: str
    count: int
    share: float
    usable: Tensor
    gradient: Tensor
    loss: float
    norms: Tensor
    weights: Tensor
    share_clipped: float
    not_finite: int


def view_group(
    subject: Subject,
    policy: Policy,
    data: GroupedDataset,
    group: int,
    effort: Effort,
    generator: torch.Generator,
) -> GroupView:
    """One pass over a group's examples, or over those that `effort` allows."""
    everyone = torch.nonzero(data.groups == group).flatten()
    members = everyone
    if effort.gradient_examples is not None and effort.gradient_examples < len(everyone):
        order = torch.randperm(len(everyone), generator=generator)[: effort.gradient_examples]
        members = everyone[order.to(everyone.device)]
    total, loss, parts, kept = subject.zeros(), 0.0, [], []
    for measured, (inputs, targets, _, which) in subject.measured(data, members):
        norms = measured.norms.detach()
        total += subject.summed(measured, torch.ones_like(norms))
        with torch.no_grad():
            loss += float(subject.loss(subject.model(inputs), targets).double().sum())
        parts.append(norms)
        kept.append(which.to(members.device))
    seen = sum(len(part) for part in parts)
    if not seen:
        raise DataError(
            f"no example of group {data.group_names[group]!r} has a finite gradient; look at its inputs and the learning rate."
        )
    norms = torch.cat(parts)
    groups = torch.full_like(norms, group, dtype=torch.int64)
    weights = step_weights(policy, norms, groups)
    left_out = members[~torch.isin(members, torch.cat(kept))]
    return GroupView(
        data.group_names[group],
        len(everyone),
        len(everyone) / len(data),
        everyone[~torch.isin(everyone, left_out)],
        total / seen,
        loss / seen,
        norms,
        weights,
        share_clipped(policy, weights, groups),
        len(left_out),
    )


def draw_batches(
    subject: Subject, policy: Policy, data: GroupedDataset, *, batch_size: float, count: int, seed: int
) -> list[BatchGradients]:
    """Gradients of Poisson samples of the data."""
    sampler = PoissonSampler(len(data), batch_size / len(data), count, SeededRandomness(seed))
    return [
        batch_gradients(subject, policy, data, sample.to(data.groups.device), expected_batch_size=batch_size)
        for sample in sampler
    ]


@dataclass(frozen=True)
class GroupCurvature:
    """Second-order figures of a group.

    Attributes:
        trace, eigenvalues: of H_a.
        along: per batch, g_B' H_a g_B and c_B' H_a c_B.
    """

    trace: TraceEstimate
    eigenvalues: ExtremeEigenvalues
    along: list[tuple[float, float]]


def group_curvature(
    subject: Subject,
    data: GroupedDataset,
    members: Tensor,
    batches: Sequence[BatchGradients],
    effort: Effort,
    generator: torch.Generator,
) -> GroupCurvature:
    """Everything that products with a group's Hessian say; members: indices of its examples."""
    hessian = GroupHessian(subject, data, members, sample_size=effort.curvature_examples, generator=generator)
    trace = hutchinson_trace(
        hessian.product,
        subject.zeros(),
        generator=generator,
        relative_error=effort.trace_error,
        max_vectors=effort.trace_vectors,
    )
    eigenvalues = extreme_eigenvalues(
        hessian.drawn().product,
        subject.zeros(),
        generator=generator,
        relative_error=effort.eigenvalue_error,
        max_products=effort.eigenvalue_products,
    )
    along = [hessian.quadratic(batch.mean, batch.clipped) for batch in batches]
    return GroupCurvature(trace, eigenvalues, [(mean, clipped) for mean, clipped in along])
