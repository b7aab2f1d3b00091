"""Gradients as flat vectors, of batches before and after clipping. They are raw: never release them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from equidp.data.dataset import GroupedDataset
from equidp.engines.model import call_model, device_of, flat, flat_sums
from equidp.kernel.bounding import example_context, measured_terms
from equidp.kernel.engine import Engine, LossFunction, Measured
from equidp.kernel.inputs import Inputs, moved_to, taken
from equidp.kernel.noise import to_double
from equidp.kernel.policy import Policy
from equidp.policies.weights import step_weights


@dataclass(frozen=True, eq=False)
class Subject:
    """The model to diagnose, at its present parameters, with the loss and the engine it is trained with.

    Attributes:
        model: any module whose outputs for one example do not depend on others.
        loss: (outputs, targets) -> losses [batch].
        engine: engine of this model and loss.
        chunk_size: examples at a time; bounds memory and changes nothing else.
    """

    model: nn.Module
    loss: LossFunction
    engine: Engine
    chunk_size: int = 256

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The trained parameters, in the order of flat vectors."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def chunks(
        self, data: GroupedDataset, members: Tensor, size: int | None = None
    ) -> Iterator[tuple[Any, ...]]:
        """Yield inputs, targets, groups and indices of examples, in chunks, on the model's device."""
        for which in members.split(size or self.chunk_size):
            if len(which):
                columns = taken((data.inputs, data.trained_targets, data.groups), which)
                yield moved_to((*columns, which), device_of(self.model))

    def zeros(self) -> Tensor:
        """Return a flat vector of zeros, [parameters]."""
        return flat([None] * len(self.parameters), self.parameters)

    def measure_chunks(
        self, data: GroupedDataset, members: Tensor, policy: Policy | None = None, state: Any = None
    ) -> Iterator[tuple[Measured, tuple[Any, ...]]]:
        """Measure the chunks of `chunks`, and yield each without examples whose gradient is not finite.

        Training leaves these out too. If a policy is given, losses are as in a step with it.
        """

        def measure() -> Measured:
            context = () if policy is None else example_context(policy, state, chunk[2])
            return self.engine(chunk[0], chunk[1], *context)

        for chunk in self.chunks(data, members):
            measured = measure()
            norms = measured.norms if policy is None else measured_terms(policy, measured)[0]
            finite = torch.isfinite(norms)
            if not finite.all():
                chunk = taken(chunk, finite)
                if not len(chunk[1]):
                    continue
                measured = measure()
            yield measured, chunk

    def sum_gradients(self, measured: Measured, weights: Tensor) -> Tensor:
        """Return sum_i weights[i] * gradient_i of measured examples, [parameters]."""
        return flat_sums(measured.sums(weights), self.parameters)

    def plain_sum(self, inputs: Inputs, targets: Tensor) -> Tensor:
        """Return the sum of one chunk's gradients, by an ordinary backward pass, [parameters]."""
        with torch.enable_grad():
            total = self.loss(call_model(self.model, inputs), targets).sum()
            return flat(torch.autograd.grad(total, self.parameters, allow_unused=True), self.parameters)


@dataclass(frozen=True, eq=False)
class BatchGradients:
    """Gradients of one Poisson sample without and with clipping, both divided by the expected batch size b.

    Attributes:
        mean: g_B = sum_i g_i / b, [parameters].
        clipped: c_B = sum_i w_i g_i / b, [parameters], for the losses of a step with the policy.
    """

    mean: Tensor
    clipped: Tensor

    @property
    def ratio(self) -> Tensor:
        """r = |c_B| / |g_B|, or 1 if both are zero."""
        mean, clipped = self.mean.norm(), self.clipped.norm()
        return torch.where(mean > 0, clipped / mean, torch.ones_like(mean))

    @property
    def rescaled_mean(self) -> Tensor:
        """r g_B: the direction before clipping, the length after it."""
        return self.ratio * self.mean

    @property
    def rescaled_clipped(self) -> Tensor:
        """c_B / r: the direction after clipping, the length before it; zero if clipping leaves nothing."""
        ratio = self.ratio
        return torch.where(ratio > 0, self.clipped / ratio, torch.zeros_like(self.clipped))


def cosine(one: Tensor, other: Tensor) -> float:
    """Return the cosine of two vectors, [parameters], or NaN if one is zero."""
    one, other = to_double(one), to_double(other)
    return float((one @ other) / (one.norm() * other.norm()))


def batch_gradients(
    subject: Subject, policy: Policy, state: Any, data: GroupedDataset, sample: Tensor, *, batch_size: float
) -> BatchGradients:
    """Return the gradients of one sample of the data. Those that are not finite count for nothing.

    Args:
        subject, policy, state: subject, policy and state that gradients and weights come from.
        sample: indices, [batch]; may be empty.
        batch_size: b, expected.
    """
    mean, clipped = subject.zeros(), subject.zeros()
    for measured, (inputs, targets, groups, _) in subject.measure_chunks(data, sample, policy, state):
        norms, _ = measured_terms(policy, measured)
        weights = step_weights(policy, state, norms, groups, data.num_groups)
        clipped += subject.sum_gradients(measured, weights)
        mean += subject.plain_sum(inputs, targets)
    return BatchGradients(mean / batch_size, clipped / batch_size)
