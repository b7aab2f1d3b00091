"""Measurements of a diagnosed step: gradients, norms and curvature of groups, and gradients of batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
from equidp.engines.model import call_model
from equidp.errors import DataError
from equidp.kernel.noise import SeededRandomness, to_double
from equidp.kernel.policy import Policy
from equidp.kernel.sampling import PoissonSampler
from equidp.policies.weights import sensitivity_of, share_clipped, step_weights


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
    num_groups: int = 1

    @property
    def sensitivity(self) -> float:
        """S, under the state."""
        return sensitivity_of(self.policy, self.state, self.num_groups)

    @property
    def laplace_epsilon(self) -> float:
        """The epsilon at which Xu et al.'s Laplace noise is as large as this step's Gaussian noise."""
        return math.inf if self.noise_multiplier == 0 else 1 / self.noise_multiplier


@dataclass(frozen=True, eq=False)
class GroupView:
    """Measurements of one group's gradients.

    Attributes:
        name, count, share: of the group in the data.
        usable: indices of its examples, without those whose gradient was found not to be finite.
        gradient: g_a, [parameters].
        loss: mean loss.
        norms, weights: of the examples measured whose gradient is finite, [measured].
        share_clipped: share of them whose weight is below that of a vanishing gradient.
        not_finite: how many were left out for a gradient that is not finite, as in the private step.
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
    subject: Subject, step: Step, data: GroupedDataset, group: int, effort: Effort, generator: torch.Generator
) -> GroupView:
    """Measure a group's examples, or as many of them as `effort` allows, in one pass.

    Raises:
        DataError: none of them has a finite gradient.
    """
    everyone = torch.nonzero(data.groups == group).flatten()
    members = everyone
    if effort.gradient_examples is not None and effort.gradient_examples < len(everyone):
        order = torch.randperm(len(everyone), generator=generator)[: effort.gradient_examples]
        members = everyone[order.to(everyone.device)]
    total, loss = subject.zeros(), torch.zeros(1, dtype=torch.float64)
    precision = torch.promote_types(total.dtype, torch.float32)
    known = torch.full((len(members),), math.nan, dtype=precision, device=total.device)
    for measured, (inputs, targets, _, which) in subject.measure_chunks(data, members):
        norms = measured.norms.detach()
        total += subject.sum_gradients(measured, torch.ones_like(norms))
        with torch.no_grad():
            loss += to_double(subject.loss(call_model(subject.model, inputs), targets)).sum().cpu()
        known[torch.isin(members, which.to(members.device)).to(known.device)] = norms.to(precision)
    finite = torch.isfinite(known)
    if not finite.any():
        raise DataError(
            f"no example of group {data.group_names[group]!r} has a finite gradient; look at its inputs and "
            "the learning rate.",
            field="group",
        )
    norms = known[finite]
    groups = torch.full_like(norms, group, dtype=torch.int64)
    weights = step_weights(step.policy, step.state, norms, groups, data.num_groups)
    left_out = members[~finite.to(members.device)]
    return GroupView(
        name=data.group_names[group],
        count=len(everyone),
        share=len(everyone) / len(data),
        usable=everyone[~torch.isin(everyone, left_out)],
        gradient=total / len(norms),
        loss=float(loss) / len(norms),
        norms=norms,
        weights=weights,
        share_clipped=share_clipped(step.policy, step.state, weights, groups, data.num_groups),
        not_finite=len(left_out),
    )


def draw_batches(
    subject: Subject, step: Step, data: GroupedDataset, *, count: int, seed: int
) -> list[BatchGradients]:
    """Return the gradients of `count` Poisson samples of the data."""
    size, state = step.batch_size, step.state
    sampler = PoissonSampler(len(data), size / len(data), count, SeededRandomness(seed))
    samples = (sample.to(data.groups.device) for sample in sampler)
    return [
        batch_gradients(subject, step.policy, state, data, sample, expected_batch_size=size)
        for sample in samples
    ]


@dataclass(frozen=True)
class GroupCurvature:
    """Second-order values of a group.

    Attributes:
        trace, eigenvalues: of H_a.
        along: g_B' H_a g_B and c_B' H_a c_B of each batch.
    """

    trace: TraceEstimate
    eigenvalues: ExtremeEigenvalues
    along: list[list[float]]


def group_curvature(
    subject: Subject,
    data: GroupedDataset,
    members: Tensor,
    batches: Sequence[BatchGradients],
    effort: Effort,
    generator: torch.Generator,
) -> GroupCurvature:
    """Measure a group's Hessian by its products with vectors; members: indices of the group's examples."""
    hessian = GroupHessian(subject, data, members, sample_size=effort.curvature_examples, generator=generator)
    like = subject.zeros()
    trace = hutchinson_trace(
        hessian.product,
        like,
        generator=generator,
        relative_error=effort.trace_error,
        max_vectors=effort.trace_vectors,
    )
    eigenvalues = extreme_eigenvalues(
        hessian.fix_draw().product,
        like,
        generator=generator,
        relative_error=effort.eigenvalue_error,
        max_products=effort.eigenvalue_products,
    )
    return GroupCurvature(
        trace, eigenvalues, [hessian.quadratic(batch.mean, batch.clipped) for batch in batches]
    )
