"""The private step: the one place where gradients meet noise.

A policy decides how much each gradient counts. It may adapt to *statistics*: a noisy sum of one short row per
example, such as whether its norm was above a bound. A policy that changes losses also receives *terms*, the
numbers that it added to each loss, and gives each example a *context* of public numbers (`policy.Policy`).

No policy is trusted. A wrong one costs accuracy, not privacy:

- Rows are scaled to norm <= 1 and weights capped at sensitivity / norm (`bounding`), so one example moves
  either query by at most its sensitivity.
- Rows, weights and contexts are computed for each example alone, from a copy of the state (`each_alone`).
- The state changes only by noisy sums, and the sensitivity is read from it before the weights.
- Examples are added in float64, and noise covers what rounding adds to the sensitivity (`bounding.ROUNDING`).

The guarantee also depends on the engine's norms (tests compare them with single-example backward passes), on
the sampler, the ledger and the source of randomness (`run`). With individual clipping, it also depends on
limits that do not mix examples. The kernel does not stop a policy that deliberately passes values around it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from equidp._validate import check_number, check_whole
from equidp.errors import SettingError
from equidp.kernel.bounding import (
    bounded_rows,
    bounded_shares,
    capped_weights,
    checked_sensitivity,
    example_context,
    example_rows,
    example_weights,
    measured_terms,
)
from equidp.kernel.engine import Context, Engine, Measured
from equidp.kernel.event import Event
from equidp.kernel.inputs import Inputs, in_parts
from equidp.kernel.noise import Randomness
from equidp.kernel.noisy_sum import join_sums, parameter_blocks, private_sum, release, split_sums
from equidp.kernel.policy import (
    Policy,
    Setting,
    checked_state,
    copy_state,
    restored_state,
    statistics_noise,
)
from equidp.kernel.processes import ALONE, Processes

Limits = Callable[[Tensor, Tensor], Tensor]
"""(indices, norms), [batch] -> the largest share of the sensitivity that each example may use, [batch]."""

Part = tuple[Inputs, Inputs, Tensor, Tensor, Context]
"""Inputs, targets, groups, indices and context of the examples that the engine processes at once."""


class PrivateStep:
    """Turns a sample into a private mean gradient: norms, statistics, weights, noisy sum divided by b.

    Formal guarantee: take two datasets that differ in one example of group k, added or removed, and a Poisson
    sample that has such an example with probability `event.drawn_rates[k]`. One call is then the
    Poisson-subsampled Gaussian mechanism of the event's cost for the group. The reasons are that weights of
    the group are capped at c_k S / norm and its rows at norm r_k, that each is a function of the example and
    of earlier releases, and that both queries use one sample (Andrew et al. 2021, Theorem 1). Without shares,
    c_k = r_k = 1. A policy of infinite sensitivity (plain SGD) gets no noise and gives no guarantee.

    | case | what happens |
    | --- | --- |
    | empty sample | only noise is released |
    | gradient zero | its weight is capped as if its norm were 1e-10 |
    | gradient or term infinite or NaN | the example is in no row and in no sum |
    | a group that is absent from the sample | counts in the sensitivity like any other |
    | a group with no share of the bound, or of the row | adds zeros there |
    | a policy that changes losses | contexts of the whole batch are computed before any of it is measured |
    | the model draws random numbers (dropout) | new ones for each forward pass, `Randomness.for_model` |
    | engine, policy or device fails | nothing is released |

    Args:
        engine: measures gradients.
        policy: turns norms and groups into weights and a sensitivity.
        parameters: all parameters whose gradients the engine sums, and frozen ones.
        event: cost of one step. Its noise multipliers are the ones used.
        expected_batch_size: expected batch size b = q n. The realised size is private and never divides
            anything.
        num_groups: number of groups K.
        randomness: source of the noise and of the model's own random numbers (dropout).
        physical_batch_size: most examples that the engine sees at a time. None: all. It bounds memory. Sums
            of parts are added before noise. With statistics, the engine then sees each part twice.
        processes: processes that take the step together, each with its shard of the sample.

    Attributes:
        state: state of the policy, a NamedTuple of tensors; a function of releases.
        weights_state: state that determined weights and sensitivity of the last step.
        limits: lowers weights before they are used; must be a function of the example and of releases.

    Raises:
        SettingError, PolicyError: the parts are incompatible.

    Example:
        >>> import torch, equidp
        >>> from equidp.engines import make_engine
        >>> from equidp.kernel.event import Event
        >>> from equidp.kernel.noise import SystemRandomness
        >>> model, loss = torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(reduction="none")
        >>> step = equidp.kernel.step.PrivateStep(
        ...     make_engine("ghost", model, loss), equidp.DPSGD(), list(model.parameters()),
        ...     event=Event(rate=0.1, noise=1.0), expected_batch_size=4.0, num_groups=1,
        ...     randomness=SystemRandomness())
        >>> means = step(torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1]), torch.zeros(5, dtype=torch.int64))
        >>> means[0].shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        engine: Engine,
        policy: Policy,
        parameters: Sequence[nn.Parameter],
        *,
        event: Event,
        expected_batch_size: float,
        num_groups: int,
        randomness: Randomness,
        physical_batch_size: int | None = None,
        processes: Processes = ALONE,
    ) -> None:
        check_number("(0, inf)", expected_batch_size=expected_batch_size)
        if physical_batch_size is not None:
            check_whole(1, ", or None for all at once", physical_batch_size=physical_batch_size)
        if event.statistics_noise != statistics_noise(policy, event.noise):
            raise SettingError(
                f"the event charges statistics noise {event.statistics_noise}, and the policy uses "
                f"{statistics_noise(policy, event.noise)}; make the event for this policy.",
                field="event",
            )
        if policy.loss_terms and getattr(engine, "objective", None) is None:
            raise SettingError(
                f"engine={engine!r} measures losses as they are, and {type(policy).__name__} adds terms to "
                "them; make the engine by make_engine('functional', model, loss, policy)."
            )
        self._bound_shares, self._row_shares = _shares_of(event, policy, num_groups)
        self.engine, self.policy, self.event, self.num_groups = engine, policy, event, num_groups
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.randomness, self.processes = randomness, processes
        self._devices = dict.fromkeys(parameter.device for parameter in parameters)
        self.expected_batch_size = float(expected_batch_size)
        self.physical_batch_size = physical_batch_size
        self.limits: Limits | None = None
        size = sum(parameter.numel() for parameter in self.parameters)
        setting = Setting(num_groups, self.expected_batch_size, event.noise, size)
        self.state = self.weights_state = self._checked_copy(policy.init(setting))
        known = self._sensitivity()
        self._constant = None if self.state else known  # what follows from no state never changes

    def __call__(
        self, inputs: Inputs, targets: Inputs, groups: Tensor, indices: Tensor | None = None
    ) -> list[Tensor]:
        """Return the private mean gradient of a sample, one tensor for each trained parameter, [*shape].

        Args:
            inputs, targets: [batch, ...], or several such tensors each. The batch may be empty.
            groups: [batch], int64, the groups by which examples were drawn.
            indices: [batch], int64, positions in the dataset, for `limits`.
        """
        indices = torch.arange(len(groups), device=groups.device) if indices is None else indices
        context = example_context(self.policy, self.state, groups)
        parts: list[Part] = in_parts((inputs, targets, groups, indices, context), self.physical_batch_size)
        measured: list[Measured | None] = [None] * len(parts)
        if self.event.statistics_noise is not None:
            measured = self._release_statistics(parts, groups)
        sensitivity, self.weights_state = self._constant or self._sensitivity(), self.state
        blocks = parameter_blocks(self.parameters)
        totals: list[Tensor] = []
        for place, part in enumerate(parts):
            known, measured[place] = measured[place] or self._measure(part), None
            sums = join_sums(blocks, known.sums(self._weights(part, known, sensitivity)))
            del known
            totals = [total.add_(each) for total, each in zip(totals, sums, strict=True)] if totals else sums
        totals = totals or join_sums(blocks, {})
        noise = self.event.noise
        release(totals, sensitivity, noise, self.randomness, self.expected_batch_size, self.processes)
        means = split_sums(blocks, totals)
        if self.policy.loss_terms:  # what follows from a release is one
            gradient = torch.cat([each.flatten() for each in means]).to("cpu", torch.float32)
            self.state = self._checked_copy(self.policy.after_gradient(copy_state(self.state), gradient))
        return means

    def restore(self, values: Mapping[str, Tensor]) -> None:
        """Set the state to saved values, by name.

        Raises:
            SettingError: the values belong to another policy or another number of groups.
        """
        self.state = self.weights_state = restored_state(self.policy, self.state, values)

    def _measure(self, part: Part) -> Measured:
        inputs, targets, _, _, context = part
        with self.randomness.for_model(*self._devices):
            return self.engine(inputs, targets, *context)

    def _release_statistics(self, parts: Sequence[Part], groups: Tensor) -> list[Measured | None]:
        """Update the state by the noisy sum of rows; return the measured batch if it is only one part."""
        assert self.event.statistics_noise is not None
        rows: list[Tensor] = []
        kept: list[Measured | None] = []
        for part in parts:
            measured = self._measure(part)
            rows.append(self._rows(part[2], *measured_terms(self.policy, measured)))
            kept.append(measured if len(parts) == 1 else None)
            del measured  # frees its activations before the next part's forward pass
        if not rows:  # a made-up example shows how many cells an empty sample has, and is dropped
            rows = [self._rows(groups.new_zeros(1), torch.ones(1, device=groups.device))[:0]]
        released = private_sum(
            torch.cat(rows),
            bound=1.0,
            noise_multiplier=self.event.statistics_noise,
            randomness=self.randomness,
            processes=self.processes,
        )
        update = self.policy.update(copy_state(self.state), released.to("cpu", torch.float32))
        self.state = self._checked_copy(update)
        return kept

    def _rows(self, groups: Tensor, norms: Tensor, terms: Tensor | None = None) -> Tensor:
        """Rows of statistics within the shares of the groups, [batch, cells]; zeros without a finite norm."""
        rows = example_rows(self.policy, self.state, norms, groups, terms)
        if self._row_shares is not None:
            rows = bounded_rows(rows, self._row_shares[groups.cpu()])
        return torch.where(norms.isfinite().unsqueeze(1), rows, 0.0)

    def _weights(self, part: Part, measured: Measured, sensitivity: float) -> Tensor:
        """The capped weights of a measured part, [batch], or 0 without a finite norm."""
        _, _, groups, indices, _ = part
        norms, _ = measured_terms(self.policy, measured)
        shares: float | Tensor = 1.0
        if self._bound_shares is not None:
            shares = self._bound_shares[groups.cpu()].to(norms)
        if self.limits is not None:
            shares = bounded_shares(self.limits(indices, norms.clone()), norms).clamp(max=shares)
        weights = example_weights(self.policy, self.state, norms, groups)
        return capped_weights(weights, norms, sensitivity * shares)

    def _sensitivity(self) -> float:
        """Return the sensitivity under the current state; raise an error if noise cannot be scaled to it."""
        return checked_sensitivity(self.policy, self.state, self.event.noise, self.num_groups)

    def _checked_copy(self, state: Any) -> Any:
        """Return a copy of a state that a rule returned; raise an error if it is not a state."""
        return copy_state(checked_state(self.policy, state))


def _shares_of(event: Event, policy: Policy, num_groups: int) -> tuple[Tensor | None, Tensor | None]:
    """Return each group's share of the bound and of the row, [groups] in float64. None: all shares are 1."""
    if not event.shares:
        return None, None
    if len(event.shares) != num_groups:
        raise SettingError(
            f"the event has {len(event.shares)} groups, and the data {num_groups}; expected shares for "
            "each group of the data.",
            field="shares",
        )
    bounds, rows = (
        torch.tensor([getattr(each, name) for each in event.shares], dtype=torch.float64)
        for name in ("bound", "row")
    )
    if not policy.private and (bounds != 1).any():
        raise SettingError(
            f"{type(policy).__name__} bounds no gradients, so groups cannot have shares of its bound; "
            "choose a private method, or give only rates.",
            field="bound_shares",
        )
    return bounds, rows
