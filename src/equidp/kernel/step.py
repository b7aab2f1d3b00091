"""The private step: the one place where gradients meet noise.

A policy says how much each gradient counts, and may adapt to *statistics*: a noisy sum of one short row per
example, such as whether its norm was above a bound. One that changes losses also gets *terms*, numbers that
it added to each loss, and gives each example a *context* of public numbers (`policy.Policy`).

Nothing here trusts a policy. What it returns is bounded, what it sees of an example is that example's norm
and group, and its state changes by releases alone. A wrong policy costs accuracy, not privacy:

- Statistics rows are scaled to norm <= 1, weights capped at sensitivity / norm (`bounding`): one example
  moves either query by at most its sensitivity.
- Rows and weights are computed for each example alone, from a copy of the state (`bounding.each_alone`).
- The state changes through `Policy.update` alone, which sees noisy sums. Policies are frozen.
- The sensitivity is read before the weights, from a state that follows from releases.
- Examples are added in float64, and noise covers what rounding adds to the sensitivity (`bounding.ROUNDING`).
- A sample is measured once. An example without a finite gradient changes nothing for the others.
- What a policy adds to the loss of an example follows from that example and from the releases of earlier
  steps (`bounding.example_context`). Its terms reach its own row alone (`bounding.measured_terms`).
- An empty sample releases noise like any other.
- The ledger is charged before a sample is looked at. A step that fails later is spent.

The guarantee also rests on the engine's norms (tests hold them to single-example backward passes), on the
sampler, the ledger and the source of randomness, and, with individual clipping, on limits that do not mix
examples. Policies are trusted not to be malicious: smuggling values past the kernel is not held off.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from equidp._validate import check_number, check_whole
from equidp.errors import SettingError
from equidp.kernel.bounding import (
    are_finite,
    bounded_rows,
    bounded_shares,
    capped_weights,
    example_context,
    example_rows,
    example_weights,
    measured_terms,
)
from equidp.kernel.engine import Context, Engine, Measured, measure
from equidp.kernel.inputs import Inputs, in_parts, tensors
from equidp.kernel.ledger import GroupedStepEvent, Ledger, StepEvent
from equidp.kernel.noise import Randomness
from equidp.kernel.noisy_sum import (
    Blocks,
    join_sums,
    parameter_blocks,
    private_sum,
    release,
    split_sums,
)
from equidp.kernel.policy import (
    Policy,
    Setting,
    check_settings,
    checked_sensitivity,
    checked_state,
    copy_state,
    restored_state,
    statistics_noise,
)
from equidp.kernel.processes import ALONE, Processes

ShareLimits = Callable[[Tensor, Tensor], Tensor | None]
"""(indices, norms), [batch] -> the share of the sensitivity that each may use at most, [batch]; None: all."""

Part = tuple[Inputs, Tensor, Tensor, Tensor, Context]
"""Inputs, targets, groups, indices and context of examples that the engine takes at once."""


class PrivateStep:
    """Turns a batch into a private gradient in `p.grad`: norms, statistics, weights, noisy sum over b.

    Formal guarantee: for two datasets that differ in one example, added or removed, one call with a Poisson
    sample at `event.sample_rate` is a Poisson-subsampled Gaussian mechanism with effective noise multiplier
    (sigma^-2 + sigma_s^-2)^(-1/2) (Andrew et al. 2021, Theorem 1). A policy of infinite sensitivity (plain
    SGD) gets no noise and gives no guarantee; it is refused unless the event says noise multiplier 0.

    With a `GroupedStepEvent`, and a sample in which an example of group k is with probability
    `event.drawn_rates[k]`: for two datasets that differ in one example of group k, it is that mechanism of
    `event.of_group(k)`, since weights of the group are capped at c_k S / norm and its rows at norm r_k.

    | case | what happens |
    | --- | --- |
    | empty sample | charged; noise alone is released |
    | gradient zero | its weight is capped as if its norm were 1e-10 |
    | gradient infinite or NaN | the example is in no statistics and in no sum; the others are as without it |
    | a policy that changes losses | contexts of the whole batch are from before any of it was measured |
    | such a policy, and an engine without its objective | SettingError, before anything is spent |
    | a group that is absent from the sample | counts in the sensitivity like any other |
    | a group with no share of the bound, or of the row | adds zeros there |
    | a group below 0, beyond the groups or not in int64, where shares differ | SettingError, before anything
      is spent |
    | another number of groups than `num_groups`, or no bound to have shares of (SGD) | the same |
    | the model draws random numbers (dropout) | afresh for each forward pass, `Randomness.for_model`; passes
      are as many as parts, or twice as many with statistics of several parts |
    | engine, policy or device fails | charged; no un-noised sum is left in `p.grad` |
    | ledger cannot record | BudgetError before the sample is looked at |
    | another process fails or is gone | charged; ProcessError, no un-noised sum is left in `p.grad` |

    Args:
        engine, policy: what measures gradients, and what turns norms and groups into weights and sensitivity.
        parameters: all whose gradients the engine sums (others would keep raw ones), and frozen ones.
        event: what one step costs; its noise multipliers are the ones used.
        expected_batch_size: b = q n. The realised size is private and never divides anything.
        num_groups: K.
        ledger: charged with `event` before the batch is looked at.
        randomness: where the noise and the model's own random numbers (dropout) come from.
        physical_batch_size: the most examples that the engine sees at a time; None: all. It bounds memory:
            sums of parts are added before noise. With statistics, the engine then sees each part twice.
        processes: that take the step together, each with its shard of the sample (`kernel.processes`).

    Attributes:
        state: of the policy, a NamedTuple of tensors; follows from releases.
        weights_state: state that weights and sensitivity of the last step followed from. A policy that
            changes losses may have learnt from the gradient of that step since.
        share_limits: sees each part's indices and norms before it is weighted. What it returns can only lower
            weights, and must follow from the example itself and from releases (individual accounting).

    Example:
        >>> import torch, equidp
        >>> from equidp.engines import make_engine
        >>> from equidp.kernel.ledger import MemoryLedger, StepEvent
        >>> from equidp.kernel.noise import SystemRandomness
        >>> model, loss = torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(reduction="none")
        >>> step = equidp.kernel.step.PrivateStep(
        ...     make_engine("ghost", model, loss), equidp.DPSGD(), list(model.parameters()),
        ...     event=StepEvent(sample_rate=0.1, noise_multiplier=1.0), expected_batch_size=4.0, num_groups=1,
        ...     ledger=MemoryLedger(), randomness=SystemRandomness())
        >>> step(torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1]), torch.zeros(5, dtype=torch.int64))
        >>> step.ledger.steps, model.weight.grad.shape
        (1, torch.Size([2, 3]))
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
        num_groups: int,
        ledger: Ledger,
        randomness: Randomness,
        physical_batch_size: int | None = None,
        processes: Processes = ALONE,
    ) -> None:
        check_settings(policy)
        check_number("(0, inf)", expected_batch_size=expected_batch_size)
        if physical_batch_size is not None:
            check_whole(1, ", or None for all at once", physical_batch_size=physical_batch_size)
        if event.statistics_noise != statistics_noise(policy, event.noise_multiplier):
            raise SettingError(
                f"the event charges statistics noise {event.statistics_noise}, and the policy uses "
                f"{statistics_noise(policy, event.noise_multiplier)}; make the event for this policy.",
                field="event",
            )
        self._bound_shares, self._row_shares = _shares_of(event, policy, num_groups)
        if policy.loss_terms and getattr(engine, "objective", None) is None:
            raise SettingError(
                f"engine={engine!r} measures losses as they are, and {type(policy).__name__} adds terms to "
                "them; make the engine by make_engine('functional', model, loss, policy)."
            )
        self.engine, self.policy = engine, policy
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.event, self.ledger, self.randomness, self.processes = event, ledger, randomness, processes
        self.expected_batch_size = float(expected_batch_size)
        self.physical_batch_size = None if physical_batch_size is None else int(physical_batch_size)
        size = sum(parameter.numel() for parameter in self.parameters)
        setting = Setting(num_groups, self.expected_batch_size, event.noise_multiplier, size)
        self.state = self.weights_state = self._checked_copy(policy.init(setting))
        self._paid_by = 0  # id of the process that paid for the next call; 0: none did

    def __call__(
        self, inputs: Inputs, targets: Inputs, groups: Tensor, indices: Tensor | None = None
    ) -> None:
        """Replace `p.grad` of every trainable parameter by the private mean gradient of this batch.

        Args:
            inputs, targets: [batch, ...], each perhaps several such; the batch may be empty.
            groups: [batch], int64; those that examples were drawn by.
            indices: [batch], int64, places in the dataset, for `share_limits`; default: 0 to batch - 1.
        """
        self._clear_gradients()
        try:
            self._check_groups(groups)
            indices = torch.arange(len(groups), device=groups.device) if indices is None else indices
            if self._paid_by != os.getpid():  # a forked process has no payment
                self.pay()
            self._paid_by = 0
            context = example_context(self.policy, self.state, groups)
            examples = inputs, targets, groups, indices, context
            parts: list[Part] = in_parts(examples, self.physical_batch_size)
            measured: list[tuple[Part, Measured | None]] = [(part, None) for part in parts]
            if self.event.statistics_noise is not None:
                measured = self._release_statistics(parts, groups)
            sensitivity, self.weights_state = self._sensitivity(), self.state
            blocks = parameter_blocks(self.parameters)
            totals: list[Tensor] = []
            for part, already in measured:
                sums = self._weighted_sums(blocks, part, already or self._measure_part(part), sensitivity)
                if totals:
                    sums = [total.add_(each) for total, each in zip(totals, sums, strict=True)]
                totals = sums
            self._release(blocks, totals or join_sums(blocks, {}), sensitivity)
        except BaseException as error:
            self._clear_gradients()  # a release that failed halfway
            if not self.processes.failed_everywhere(error):
                self.processes.leave_group()
            raise

    def pay(self, stop: BaseException | None = None) -> None:
        """Spend the budget of the next call, whose sample may then be used; at most one call ahead.

        Args:
            stop: raised in place of paying, so that all processes stop between two steps.
        """

        def spend() -> None:
            if stop is not None:
                raise stop
            self.ledger.spend(self.event)

        self.processes.run_on_first(spend)
        self._paid_by = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        """A copy has no payment: it would draw a second time for one."""
        return {**vars(self), "_paid_by": 0}

    def rehearse(self, groups: Tensor) -> None:
        """Refuse a policy whose rules cannot be applied to examples of these groups; nothing is spent.

        Raises:
            PolicyError: names the rule and why.
        """
        norms = torch.ones(len(groups), device=groups.device)
        self._sensitivity()
        example_context(self.policy, self.state, groups)
        example_weights(self.policy, self.state, norms, groups)
        if self.event.statistics_noise is not None:
            example_rows(self.policy, self.state, norms, groups)

    def restore(self, values: Mapping[str, Tensor]) -> None:
        """Set the state to saved values, by name.

        Raises:
            SettingError: they are of another policy, or for another number of groups.
        """
        self.state = self.weights_state = restored_state(self.policy, self.state, values)

    def _clear_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def _measure_part(self, part: Part) -> Measured:
        inputs, targets, _, _, context = part
        with self.randomness.for_model(tensors(inputs)[0].device):
            return measure(self.engine, inputs, targets, context)

    def _release_statistics(
        self, parts: Sequence[Part], groups: Tensor
    ) -> list[tuple[Part, Measured | None]]:
        """Update the state by the noisy sum of rows; return the parts, measured if there is one alone."""
        seen: list[tuple[Tensor, Tensor]] = []
        known: list[tuple[Part, Measured | None]] = []
        for part in parts:
            measured = self._measure_part(part)
            seen.append(measured_terms(self.policy, measured))
            known.append((part, measured if len(parts) == 1 else None))
            del measured  # frees its activations before the next part's forward pass
        if not seen:
            none = torch.empty(0, device=groups.device)
            seen.append((none, none.new_zeros(0, self.policy.loss_terms)))
        norms, terms = (torch.cat(column) for column in zip(*seen, strict=True))
        finite = torch.isfinite(norms)
        self._update_state(norms[finite], groups[finite], terms[finite])
        return known

    def _update_state(self, norms: Tensor, groups: Tensor, terms: Tensor) -> None:
        assert self.event.statistics_noise is not None
        if len(norms):
            rows = example_rows(self.policy, self.state, norms, groups, terms)
        else:  # one made-up example shows how many cells an empty batch has, and is dropped
            rows = example_rows(self.policy, self.state, norms.new_zeros(1), groups.new_zeros(1))[:0]
        if self._row_shares is not None:
            rows = bounded_rows(rows, self._row_shares[groups.cpu()])
        noise = self.event.statistics_noise
        released = private_sum(
            rows,
            bound=1.0,
            noise_multiplier=noise,
            randomness=self.randomness,
            processes=self.processes,
        )
        self.state = self._checked_copy(
            self.policy.update(copy_state(self.state), released.to("cpu", torch.float32))
        )

    def _weighted_sums(
        self, blocks: Blocks, part: Part, measured: Measured, sensitivity: float
    ) -> list[Tensor]:
        """The weighted sums of the gradients of a measured part, [numbers] of each block."""
        _, _, groups, indices, _ = part
        norms, _ = measured_terms(self.policy, measured)
        if len(norms) and are_finite(norms):
            weights = self._capped_weights(norms, groups, indices, sensitivity)
        else:
            finite = torch.isfinite(norms)
            weights, norms = torch.zeros_like(norms), norms[finite]
            if len(norms):
                own = groups[finite], indices[finite]
                weights[finite] = self._capped_weights(norms, *own, sensitivity)
        return join_sums(blocks, measured.sum_gradients(weights))

    def _capped_weights(
        self,
        norms: Tensor,
        groups: Tensor,
        indices: Tensor,
        sensitivity: float,
    ) -> Tensor:
        """The capped weights of examples with finite norms, [batch]."""
        weights = example_weights(self.policy, self.state, norms, groups)
        limits = None if self.share_limits is None else self.share_limits(indices, norms.clone())
        shares = None if limits is None else bounded_shares(limits, norms)
        if self._bound_shares is not None:
            own = self._bound_shares[groups.cpu()].to(norms)
            shares = own if shares is None else torch.minimum(shares, own)
        return capped_weights(weights, norms, sensitivity if shares is None else sensitivity * shares)

    def _check_groups(self, groups: Tensor) -> None:
        """Refuse groups that no share is of, where shares differ."""
        if self._bound_shares is None or not len(groups):
            return
        if groups.dtype != torch.int64:  # true and false would choose among groups, in place of examples
            raise SettingError(f"groups of type {groups.dtype}; expected torch.int64.", field="groups")
        least, largest = int(groups.min()), int(groups.max())
        if least < 0 or largest >= len(self._bound_shares):
            raise SettingError(
                f"groups from {least} to {largest}; expected numbers from 0 to "
                f"{len(self._bound_shares) - 1}, of the groups of the event.",
                field="groups",
            )

    def _sensitivity(self) -> float:
        """The sensitivity under the present state; refuses one that noise cannot be scaled to."""
        return checked_sensitivity(self.policy, self.state, self.event.noise_multiplier)

    def _release(self, blocks: Blocks, totals: list[Tensor], sensitivity: float) -> None:
        """Put the private mean of all processes into `p.grad`."""
        noise, divisor = self.event.noise_multiplier, self.expected_batch_size
        release(totals, sensitivity, noise, self.randomness, divisor, self.processes)
        means = split_sums(blocks, totals)
        for parameter, mean in zip(self.parameters, means, strict=True):
            parameter.grad = mean
        if self.policy.loss_terms:  # what follows from a release is one
            gradient = torch.cat([each.flatten() for each in means]).to("cpu", torch.float32)
            self.state = self._checked_copy(self.policy.after_gradient(copy_state(self.state), gradient))

    def _checked_copy(self, state: Any) -> Any:
        """Copy of a state that a rule returned; refuses what is no state."""
        return copy_state(checked_state(self.policy, state))


def _shares_of(event: StepEvent, policy: Policy, num_groups: int) -> tuple[Tensor | None, Tensor | None]:
    """Shares of the bound and of the row by group, [groups] in float64; None: all have all of both.

    Args:
        num_groups: of the data.
    """
    if not isinstance(event, GroupedStepEvent):
        return None, None
    if len(event.by_group) != num_groups:
        raise SettingError(
            f"the event has {len(event.by_group)} groups, and the data {num_groups}; expected shares for "
            "each group of the data.",
            field="by_group",
        )
    bounds, rows = (
        torch.tensor([getattr(each, name) for each in event.by_group], dtype=torch.float64)
        for name in ("bound_share", "row_share")
    )
    if not policy.private and (bounds != 1).any():
        raise SettingError(
            f"{type(policy).__name__} bounds no gradient, so that no group can have a share of its bound; "
            "choose a private method, or give rates alone.",
            field="bound_shares",
        )
    return bounds, rows
