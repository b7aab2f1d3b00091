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
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from equidp.errors import PolicyError, SettingError, shape_in_words
from equidp.kernel.bounding import capped_weights, rowwise
from equidp.kernel.engine import Engine, Measured
from equidp.kernel.ledger import Ledger, StepEvent
from equidp.kernel.noise import Randomness
from equidp.kernel.noisy_sum import _blocks, _noisy, private_sum
from equidp.kernel.policy import Policy

ShareLimits = Callable[[Tensor, Tensor], Tensor | None]
"""(indices, norms) of a batch's examples, [batch] -> the share of the sensitivity that each may use at most, [batch]; None: all."""


def _shape(values: Tensor, norms: Tensor) -> str:
    return shape_in_words(values, "batch" if values.shape[:1] == norms.shape else "?")


def _joined(measured: Sequence[tuple[Tensor, Tensor]], groups: Tensor) -> tuple[Tensor, Tensor]:
    """Norms and groups of all parts; of none, nothing, on the device of `groups`."""
    if not measured:
        return torch.empty(0, device=groups.device), groups
    norms_of, groups_of = zip(*measured, strict=True)
    return torch.cat(norms_of), torch.cat(groups_of)


def _norms(measured: Measured | None, groups: Tensor) -> Tensor:
    return torch.empty(0, device=groups.device) if measured is None else measured.norms.detach()


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
        engine: Engine,
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
                if len(parts) == 1:
                    measured, known, indices = self._measured(*parts[0])
                    self._release_statistics(_norms(measured, known), known)
                    sensitivity = self._sensitivity()
                    self._add_weighted(measured, known, indices, sensitivity)
                else:
                    self._release_statistics(*_joined([self._norms_of(part) for part in parts], groups))
                    sensitivity = self._sensitivity()
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
            self._add_weighted(*self._measured(inputs, targets, groups, indices), sensitivity)

    def _add_weighted(
        self, measured: Measured | None, groups: Tensor, indices: Tensor, sensitivity: float
    ) -> None:
        """Adds the weighted gradients of measured examples to `p.grad`."""
        if measured is None:
            return
        norms = measured.norms.detach()
        weights = self._weights(norms, groups)
        limits = self._limits(indices, norms)
        measured.weighted_sum(
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

    def _norms_of(self, part: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Norms and groups of a part's examples whose gradient is finite; nothing else of it is kept."""
        measured, groups, _ = self._measured(*part)
        return _norms(measured, groups), groups

    def _measured(
        self, inputs: Tensor, targets: Tensor, groups: Tensor, indices: Tensor
    ) -> tuple[Measured | None, Tensor, Tensor]:
        """The examples whose gradient is finite, None where there are none, with their groups and indices."""
        if not len(inputs):
            return None, groups, indices
        measured = self.engine(inputs, targets)
        norms = measured.norms.detach()
        if math.isfinite(norms.sum()):  # then each of them is
            return measured, groups, indices
        finite = torch.isfinite(norms)
        if finite.all():
            return measured, groups, indices
        del measured
        return self._measured(inputs[finite], targets[finite], groups[finite], indices[finite])

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
