"""The private step: the one place where gradients meet noise.

Nothing here trusts a policy. What it returns is bounded, what it may see of an example is that example's norm and group, and what
it remembers from raw data is thrown away. A wrong policy therefore costs accuracy, never privacy:

- Statistics rows are rescaled to norm <= 1, weights capped at sensitivity / norm: one example moves either query by at most its
  sensitivity.
- Rows and weights are computed as under `torch.vmap`, one example at a time as far as the policy can tell: adding an example cannot
  change what another one contributes.
- Both are computed by a copy of the policy that is dropped at once: state changes through `observe` alone, which sees noisy sums.
- The sensitivity is read before the weights, from the policy that has seen releases only.
- An example whose gradient is not finite contributes nothing. An empty sample releases noise as any other.
- The ledger is charged before a sample is looked at. Whatever fails later is a step spent, never a step forgotten or tried again.

What the guarantee rests on besides: the engine's norms (tests hold them to single-example backward passes), the sampler, the
ledger, the source of randomness, and, where individual clipping is used, that its limits do not mix examples.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from equidp.engines.base import GradientEngine
from equidp.errors import PolicyError, SettingError, shape_in_words
from equidp.ledger import Ledger, StepEvent
from equidp.noise import Randomness, grid
from equidp.policies.base import Policy

try:
    from torch._functorch.vmap import (  # type: ignore[attr-defined]
        _add_batch_dim,
        _remove_batch_dim,
        lazy_load_decompositions,
        vmap_increment_nesting,
    )
except ImportError:  # a PyTorch that makes torch.vmap of other parts
    vmap_increment_nesting = None  # type: ignore[assignment]

ShareLimits = Callable[[Tensor, Tensor], Tensor | None]
"""(indices, norms) of a batch's examples, [batch] -> the share of the sensitivity that each may use at most, [batch]; None: all."""

_SMALLEST_NORM = 1e-10
"""Norms below this may have underflowed (their squares vanish in float32), so the cap treats them as this large."""

_NOISE_BLOCK, _DEVICE_NOISE_BLOCK = 2**16, 2**22
"""Numbers that noise is drawn for at a time: what stays in a processor's cache; another device is not to wait for many calls."""


def private_sum(rows: Tensor, *, bound: float, noise_multiplier: float, randomness: Randomness) -> Tensor:
    """The sum of rows, each scaled to norm <= bound, plus Gaussian noise.

    Args:
        rows: [batch, d]; rows that are not finite count as 0. The batch may be empty.
        bound: L2 sensitivity of the sum, > 0 and finite.
        noise_multiplier: sigma; the noise scale is sigma * bound.
        randomness: where the noise comes from.

    Returns:
        [d], float64, on the grid of its noise (`equidp.noise.grid`).
    """
    rows = rows.to(torch.float64)
    rows = torch.where(torch.isfinite(rows).all(dim=1, keepdim=True), rows, 0.0)
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    total = (rows * torch.clamp(bound / norms.clamp_min(_SMALLEST_NORM), max=1.0)).sum(dim=0)
    scale = noise_multiplier * bound
    return total if scale == 0 else _noisy([total], scale, randomness)


def _noisy(sums: Sequence[Tensor], scale: float, randomness: Randomness, divisor: float = 1.0) -> Tensor:
    """Flat sums, side by side, plus noise: added in float64, rounded to the noise's grid, and only then divided."""
    step = grid(scale)
    sizes = [part.numel() for part in sums]
    noisy = randomness.normal(sum(sizes), sums[0].device, scale / step)
    for part, noise in zip(sums, noisy.split(sizes), strict=True):
        noise.add_(part, alpha=1 / step)
    return noisy.round_().mul_(step / divisor)


def capped_weights(weights: Tensor, norms: Tensor, sensitivity: float | Tensor) -> Tensor:
    """Weights brought into [0, sensitivity / norm]; 0 where the weight is not a number. Shapes [batch]."""
    caps = sensitivity / norms.clamp_min(_SMALLEST_NORM)
    weights = weights.to(norms.dtype).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    return torch.minimum(weights.clamp_min_(0.0), caps)


def rowwise(rule: Callable[[Tensor, Tensor], Tensor], norms: Tensor, groups: Tensor) -> Tensor:
    """`rule(norms, groups)` applied to each example alone, so that no row can depend on another example.

    The rule gets copies: what it changes in place is not what the cap is computed from.

    Args:
        rule: maps norms [1] and groups [1] to a tensor [1, ...]; from torch operations without control flow on the values.
        norms, groups: [batch], not empty.

    Raises:
        PolicyError: the rule cannot be applied example by example.
    """

    try:
        return _vmapped(rule, norms.unsqueeze(1).clone(), groups.unsqueeze(1).clone()).squeeze(1)
    except IndexError as error:
        raise PolicyError(
            f"{getattr(rule, '__qualname__', rule)} failed on some group ({error}); make the policy for as many as the data has."
        ) from error
    except Exception as error:
        raise PolicyError(
            f"{getattr(rule, '__qualname__', rule)} cannot be applied to one example at a time ({error}). Use torch operations "
            "without Python branches on the values (torch.where instead of if), and return one row per example."
        ) from error


def _vmapped(rule: Callable[[Tensor, Tensor], Tensor], norms: Tensor, groups: Tensor) -> Tensor:
    """torch.vmap(rule)(norms, groups) from its parts, without its care for nested arguments: a tenth of a small model's step."""
    if vmap_increment_nesting is None:
        return torch.vmap(rule)(norms, groups)
    lazy_load_decompositions()
    with vmap_increment_nesting(len(norms), "error") as level:
        rows = rule(_add_batch_dim(norms, 0, level), _add_batch_dim(groups, 0, level))
        return _remove_batch_dim(rows, level, len(norms), 0)


def _shape(values: Tensor, norms: Tensor) -> str:
    return shape_in_words(values, "batch" if values.shape[:1] == norms.shape else "?")


def _joined(measured: list[tuple[Tensor, Tensor, Tensor]], groups: Tensor) -> tuple[Tensor, Tensor]:
    """Norms and groups of all parts; of none, nothing, on the device of `groups`."""
    if not measured:
        return torch.empty(0, device=groups.device), groups
    norms_of, groups_of, _ = zip(*measured, strict=True)
    return torch.cat(norms_of), torch.cat(groups_of)


class PrivateStep:
    """Turns a batch into a private gradient in `p.grad` (spec: sample, norms, statistics, weights, noisy sum over b).

    Args:
        engine: gives norms and weighted sums of per-example gradients.
        policy: turns norms and groups into weights and a sensitivity.
        parameters: the trainable parameters, those whose gradients the engine sums.
        event: what one step costs; its noise multiplier is the one used.
        expected_batch_size: b = q n. The realised size is private and never divides anything.
        ledger: is charged with `event` before noise is drawn.
        randomness: where the noise comes from.
        physical_batch_size: the most examples that the engine sees at a time; None: all. It bounds memory and changes nothing else:
            a step's parts are summed before noise is added. A policy that reads statistics needs them of the whole batch before
            its first weight, so the engine sees each part twice then.

    Formal guarantee: for any two datasets that differ in one example, added or removed, one call with a Poisson sample at
    `event.sample_rate` is a Poisson-subsampled Gaussian mechanism with effective noise multiplier
    (sigma^-2 + sigma_s^-2)^(-1/2) (Andrew et al. 2021, Theorem 1). A policy of infinite sensitivity (plain SGD) gets no noise
    and gives no guarantee; it is refused unless the event says noise multiplier 0.

    Attributes:
        share_limits: told of each example before it is weighted; what it returns can only lower weights, and must follow from the
            example itself and from releases. Individual accounting watches and limits through it.
    """

    share_limits: ShareLimits | None = None

    def __init__(
        self,
        engine: GradientEngine,
        policy: Policy,
        parameters: Sequence[torch.nn.Parameter],
        *,
        event: StepEvent,
        expected_batch_size: float,
        ledger: Ledger,
        randomness: Randomness,
        physical_batch_size: int | None = None,
    ) -> None:
        if not expected_batch_size > 0:
            raise SettingError(f"expected_batch_size={expected_batch_size}; expected a number > 0.")
        if physical_batch_size is not None and not (
            physical_batch_size >= 1 and physical_batch_size % 1 == 0
        ):
            raise SettingError(
                f"physical_batch_size={physical_batch_size}; expected None or a whole number >= 1."
            )
        if event.statistics_noise != policy.statistics_noise:
            raise SettingError(
                f"the event charges statistics noise {event.statistics_noise}, the policy uses {policy.statistics_noise}; "
                "make the event from the prepared policy."
            )
        self.engine = engine
        self.policy = policy
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.event = event
        self.expected_batch_size = expected_batch_size
        self.ledger = ledger
        self.randomness = randomness
        self.physical_batch_size = None if physical_batch_size is None else int(physical_batch_size)

    def __call__(
        self, inputs: Tensor, targets: Tensor, groups: Tensor, indices: Tensor | None = None
    ) -> None:
        """Replaces `p.grad` of every trainable parameter by the private mean gradient of this batch (which may be empty).

        `indices`, where the examples stand in the dataset, is for `share_limits` alone; default: 0 to batch - 1.
        """
        self._clear()
        try:
            indices = torch.arange(len(groups), device=groups.device) if indices is None else indices
            parts = self._parts(inputs, targets, groups, indices)
            self.ledger.spend(self.event)  # before the data is looked at: a step that fails is no second try
            if self.event.statistics_noise is not None:
                measured = [self._finite_norms(*part) for part in parts]
                self._release_statistics(*_joined(measured, groups))
                sensitivity = self._sensitivity()
                if len(parts) == 1:
                    self._add_weighted(*measured[0], sensitivity)
                else:
                    self._add_parts(parts, sensitivity)
            else:
                sensitivity = self._sensitivity()
                self._add_parts(parts, sensitivity)
            self._add_noise(sensitivity)
        except BaseException:
            self._clear()  # Sums without their noise are nobody's to see.
            raise

    def _clear(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def _parts(self, *batch: Tensor) -> list[tuple[Tensor, ...]]:
        """The batch in parts that the engine can take; none of an empty batch."""
        count = len(batch[0])
        size = self.physical_batch_size or count
        if count <= size:
            return [batch] if count else []
        return list(zip(*(tensor.split(size) for tensor in batch), strict=True))

    def _add_parts(self, parts: Sequence[tuple[Tensor, ...]], sensitivity: float) -> None:
        for inputs, targets, groups, indices in parts:
            self._add_weighted(*self._finite_norms(inputs, targets, groups, indices), sensitivity)

    def _add_weighted(self, norms: Tensor, groups: Tensor, indices: Tensor, sensitivity: float) -> None:
        """Adds to `p.grad` the weighted gradients of the examples that the engine measured last; these are their norms."""
        if not len(norms):
            return
        weights = self._weights(norms, groups)
        limits = self._limits(indices, norms)
        self.engine.weighted_sum(
            capped_weights(weights, norms, sensitivity if limits is None else sensitivity * limits)
        )

    def rehearse(self, groups: Tensor) -> None:
        """Refuses a policy whose rules cannot be applied to examples of these groups at all, while nothing is spent."""
        made_up = torch.ones(len(groups), device=groups.device), groups
        self._sensitivity()
        self._weights(*made_up)
        if self.event.statistics_noise is not None:
            self._statistics(*made_up)

    def _weights(self, norms: Tensor, groups: Tensor) -> Tensor:
        weights = self._rows(lambda policy: policy.weights, norms, groups)
        if weights.shape != norms.shape:
            raise PolicyError(
                f"weights have shape {_shape(weights, norms)}; expected one per example, [batch]."
            )
        return weights

    def _statistics(self, norms: Tensor, groups: Tensor) -> Tensor:
        rows = self._rows(lambda policy: policy.statistics, norms, groups)
        if rows.dim() != 2:
            raise PolicyError(
                f"statistics have shape {_shape(rows, norms)}; expected one row per example, [batch, cells]."
            )
        return rows

    def _limits(self, indices: Tensor, norms: Tensor) -> Tensor | None:
        limits = None if self.share_limits is None else self.share_limits(indices, norms.clone())
        if limits is None:
            return None
        if limits.shape != norms.shape:
            raise PolicyError(
                f"share limits have shape {_shape(limits, norms)}; expected one per example, [batch]."
            )
        return limits.to(norms.dtype).nan_to_num(nan=0.0).clamp(0.0, 1.0)

    def _finite_norms(
        self, inputs: Tensor, targets: Tensor, groups: Tensor, indices: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Norms, groups and indices of the examples whose gradient is finite; the others leave the batch before the engine sums."""
        if not len(inputs):
            return torch.empty(0, device=inputs.device), groups, indices
        norms = self.engine.norms(inputs, targets).detach()
        if math.isfinite(norms.sum()):  # then each of them is
            return norms, groups, indices
        finite = torch.isfinite(norms)
        if finite.all():
            return norms, groups, indices
        return self._finite_norms(inputs[finite], targets[finite], groups[finite], indices[finite])

    def _rows(
        self, rule: Callable[[Policy], Callable[[Tensor, Tensor], Tensor]], norms: Tensor, groups: Tensor
    ) -> Tensor:
        return rowwise(rule(copy.deepcopy(self.policy)), norms, groups)

    def _release_statistics(self, norms: Tensor, groups: Tensor) -> None:
        assert self.event.statistics_noise is not None
        # An empty batch has no row to show how many cells there are, so one made-up example does, and is dropped.
        probe = torch.zeros(1, device=norms.device), torch.zeros(1, dtype=torch.int64, device=norms.device)
        rows = self._statistics(*((norms, groups) if len(norms) else probe))[: len(norms)]
        released = private_sum(
            rows, bound=1.0, noise_multiplier=self.event.statistics_noise, randomness=self.randomness
        )
        self.policy.observe(released.to(torch.float32))

    def _sensitivity(self) -> float:
        sensitivity = float(self.policy.sensitivity)
        if math.isinf(sensitivity) and sensitivity > 0 and self.event.noise_multiplier == 0:
            return sensitivity
        if not (math.isfinite(sensitivity) and sensitivity > 0):
            raise PolicyError(
                f"{type(self.policy).__name__} has sensitivity {sensitivity}; expected a finite number > 0 "
                f"for noise multiplier {self.event.noise_multiplier}."
            )
        return sensitivity

    def _add_noise(self, sensitivity: float) -> None:
        scale = 0.0 if self.event.noise_multiplier == 0 else self.event.noise_multiplier * sensitivity
        totals = [
            parameter.new_zeros(parameter.shape) if parameter.grad is None else parameter.grad.contiguous()
            for parameter in self.parameters
        ]
        if scale:
            for sums in _blocks(totals):
                means = _noisy(sums, scale, self.randomness, self.expected_batch_size)
                for part, mean in zip(sums, means.split([part.numel() for part in sums]), strict=True):
                    part.copy_(mean)
        else:
            for total in totals:
                total.div_(self.expected_batch_size)
        for parameter, total in zip(self.parameters, totals, strict=True):
            parameter.grad = total


def _blocks(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Flat views of all of them, side by side as far as one draw of noise goes."""
    block: list[Tensor] = []
    room = 0
    for tensor in tensors:
        size = _NOISE_BLOCK if tensor.device.type == "cpu" else _DEVICE_NOISE_BLOCK
        flat = tensor.view(-1)
        for part in flat.split(size) if flat.numel() > size else (flat,):
            if block and (part.numel() > room or part.device != block[0].device):
                yield block
                block = []
            if not block:
                room = size
            block.append(part)
            room -= part.numel()
    if block:
        yield block
