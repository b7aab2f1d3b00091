"""Measurements of a private step, in two tables: one row per group, and one per ordered pair of groups."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from equidp._extras import require_extra
from equidp._validate import check_whole
from equidp.data.dataset import GroupedDataset
from equidp.diagnostics.curvature import (
    Product,
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
    """Numbers of examples and draws in a diagnosis. Larger numbers lower standard errors and take longer.

    Attributes:
        batches: number of Poisson samples for estimating expectations, >= 2.
        gradient_examples: number of examples per group for its gradient and norms. None: all, which is exact.
        curvature_examples: number of examples per group in a product with its Hessian. None: all. They are
            drawn again for each batch and each trace vector, so that standard errors include the draw.
            Eigenvalues use one draw.
        trace_vectors: number of random sign vectors for a trace, >= 2.
        eigenvalue_products: most products for the extreme eigenvalues.

    Raises:
        SettingError: a number is outside its range.

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


@dataclass(eq=False)
class Group:
    """Measurements of one group.

    Attributes:
        name, count, share: name, count and share of the group in the data.
        usable: indices of its examples, without those whose gradient was found not to be finite.
        gradient: g_a, [parameters].
        norms: norms of the measured examples whose gradient is finite, [measured].
        row: row of the table of groups.
        by_batch: terms of each batch, a row per batch.
    """

    name: str
    count: int
    share: float
    usable: Tensor
    gradient: Tensor
    norms: Tensor
    row: dict[str, Any]
    by_batch: pd.DataFrame = field(default_factory=pd.DataFrame)


class Measurement:
    """Measures what one step does to groups.

    Args:
        subject, data: subject and data that are measured.
        step: step whose effect is measured.
        effort: how much is drawn and measured.
        seed: seed of the batches and vectors that are drawn.
    """

    def __init__(self, subject: Subject, data: GroupedDataset, step: Step, effort: Effort, seed: int) -> None:
        self.subject, self.data, self.step, self.effort = subject, data, step, effort
        self._generator, self._seed = torch.Generator().manual_seed(seed), seed

    def tables(self, chosen: Sequence[int]) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the tables of groups and of pairs of groups; chosen: indices of those groups.

        Raises:
            DataError: no example of a group has a finite gradient.
        """
        step, sizes = self.step, self.data.group_sizes().tolist()
        with in_evaluation_mode(self.subject.model):
            groups = {index: self._measure_gradients(index) for index, size in enumerate(sizes) if size}
            batches = self._draw_batches()
            data_gradient = self.subject.zeros()
            for group in groups.values():
                data_gradient += group.share * group.gradient
            for index in chosen:
                self._measure_risks(groups[index], data_gradient, batches)
        norms = torch.cat([group.norms for group in groups.values()])
        best = best_clipping_bound(norms, epsilon=step.laplace_epsilon, expected_count=step.batch_size)
        measured = [groups[index] for index in chosen]
        rows = [{**group.row, "best_bound_all": best} for group in measured]
        pairs = [self._pair_row(one, other) for one, other in itertools.permutations(measured, 2)]
        return pd.DataFrame(rows), pd.DataFrame(pairs)

    def _draw(self, members: Tensor, size: int | None) -> Tensor:
        if size is None or size >= len(members):
            return members
        order = torch.randperm(len(members), generator=self._generator)[:size]
        return members[order.to(members.device)]

    def _draw_batches(self) -> list[BatchGradients]:
        data, step = self.data, self.step
        rate = step.batch_size / len(data)
        sampler = PoissonSampler(len(data), rate, self.effort.batches, SeededRandomness(self._seed))
        samples = (sample.to(data.groups.device) for sample in sampler)
        size = step.batch_size
        return [
            batch_gradients(self.subject, step.policy, step.state, data, sample, batch_size=size)
            for sample in samples
        ]

    def _measure_gradients(self, index: int) -> Group:
        """Measure a group's examples, or as many of them as the effort allows, in one pass."""
        subject, step, data = self.subject, self.step, self.data
        name, everyone = data.group_names[index], torch.nonzero(data.groups == index).flatten()
        members = self._draw(everyone, self.effort.gradient_examples)
        total, loss, lengths, finite = subject.zeros(), 0.0, [], [members[:0]]
        for measured, (inputs, targets, _, which) in subject.measure_chunks(data, members):
            lengths.append(measured.norms.detach())
            finite.append(which.to(members.device))
            total += subject.sum_gradients(measured, torch.ones_like(lengths[-1]))
            with torch.no_grad():
                loss += float(to_double(subject.loss(call_model(subject.model, inputs), targets)).sum())
        if not lengths:
            raise DataError(
                f"no example of group {name!r} has a finite gradient; look at its inputs and the learning "
                "rate.",
                field="group",
            )
        left_out = members[~torch.isin(members, torch.cat(finite))]
        norms = torch.cat(lengths)
        norms = norms.to(torch.promote_types(norms.dtype, torch.float32))
        groups = torch.full_like(norms, index, dtype=torch.int64)
        weights = step_weights(step.policy, step.state, norms, groups, data.num_groups)
        gradient, share = total / len(norms), len(everyone) / len(data)
        expected = {"epsilon": step.laplace_epsilon, "expected_count": step.batch_size * share}
        error = clipping_error(norms, weights, sensitivity=step.sensitivity, **expected)
        row = {
            "loss": loss / len(norms),
            "group_gradient_norm": float(gradient.norm()),
            "mean_norm": float(to_double(norms).mean()),
            "max_norm": float(norms.max()),
            "share_clipped": share_clipped(step.policy, step.state, weights, groups, data.num_groups),
            "not_finite": len(left_out),
            "error_bias": error.bias,
            "error_variance": error.variance,
            "error_lower": error.lower,
            "error_upper": error.upper,
            "best_bound": best_clipping_bound(norms, **expected),
        }
        usable = everyone[~torch.isin(everyone, left_out)]
        return Group(name, len(everyone), share, usable, gradient, norms, row)

    def _measure_risks(self, group: Group, data_gradient: Tensor, batches: Sequence[BatchGradients]) -> None:
        """Add the excess risk of each batch, and the curvature that it follows from."""
        step, effort, like = self.step, self.effort, self.subject.zeros()
        rate, scale = step.learning_rate, step.noise_multiplier * step.sensitivity

        def drawn() -> partial[Tensor]:
            members = self._draw(group.usable, effort.curvature_examples)
            return partial(hessian_product, self.subject, self.data, members)

        trace, trace_error = estimate_trace(
            lambda vector: drawn()(vector), like, vectors=effort.trace_vectors, generator=self._generator
        )
        smallest, largest, residual = extreme_eigenvalues(
            drawn(), like, products=effort.eigenvalue_products, generator=self._generator
        )
        group.by_batch = pd.DataFrame(
            [_batch_row(batch, group.gradient, data_gradient, drawn(), rate) for batch in batches]
        )
        row: dict[str, Any] = {"group": group.name, "examples": group.count, "learning_rate": rate}
        for name, values in group.by_batch.items():
            row |= {str(name): float(values.mean()), f"{name}_se": float(values.sem())}
        for name, noise_scale in (("noise", scale / step.batch_size), ("noise_published", scale)):
            row[name] = noise_risk(trace, learning_rate=rate, noise_scale=noise_scale)
            row[f"{name}_se"] = noise_risk(trace_error, learning_rate=rate, noise_scale=noise_scale)
        row |= {
            "excess": row["clipping"] + row["noise"],
            "excess_se": math.hypot(row["clipping_se"], row["noise_se"]),
            "trace": trace,
            "trace_se": trace_error,
            "trace_vectors": effort.trace_vectors,
            "smallest_eigenvalue": smallest,
            "largest_eigenvalue": largest,
            "eigenvalue_residual": residual,
        }
        group.row = row | group.row

    def _pair_row(self, one: Group, other: Group) -> dict[str, Any]:
        """Return how the excess risks of two groups differ, and two papers' bounds on that."""
        rate = self.step.learning_rate
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
            share=one.share,
            other_share=other.share,
            clipping_bound=self.step.sensitivity,
            learning_rate=rate,
        )
        ends = [(each.row["smallest_eigenvalue"], each.row["largest_eigenvalue"]) for each in (one, other)]
        return {
            "group": one.name,
            "other": other.name,
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


def _batch_row(
    batch: BatchGradients, gradient: Tensor, data_gradient: Tensor, product: Product, rate: float
) -> dict[str, float]:
    risk = batch_risk(
        batch,
        gradient,
        data_gradient,
        mean_curvature=quadratic_form(product, batch.mean),
        clipped_curvature=quadratic_form(product, batch.clipped),
        learning_rate=rate,
    )
    return {
        "clipping": risk.clipping,
        **asdict(risk),
        "cosine_before": cosine(batch.mean, gradient),
        "cosine_after": cosine(batch.clipped, gradient),
        "cosine_turned": cosine(batch.mean, batch.clipped),
        "batch_norm": float(batch.mean.norm()),
        "clipped_norm": float(batch.clipped.norm()),
        "ratio": float(batch.ratio),
    }
