"""Accounts of single examples: one whose account is full is drawn no more (Feldman and Zrnic 2021)."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from equidp._validate import check_whole
from equidp.errors import SettingError
from equidp.kernel.epsilon import renyi_accountant, run_event
from equidp.kernel.ledger import SMALLEST_SHARE, FilteredStepEvent, StepEvent

WHOLE = 2**32
"""Units that a step at the whole bound costs. Accounts are whole numbers of units, so that no rounding adds
up."""
_SLACK = 2**8
"""Units that each charge is rounded up by, far above what dp_accounting rounds in a divergence."""
CELLS = 256
"""Parts of the bound that shares are rounded up to."""
_FEWEST = math.ceil(SMALLEST_SHARE * CELLS)


@lru_cache(maxsize=16)
def charges_of(event: FilteredStepEvent) -> tuple[int, ...]:
    """Units that a step costs an example by its share of the bound, in parts: 0, 1 / CELLS, ..., 1.

    A step at share c of the bound is the Poisson-subsampled Gaussian mechanism of noise multiplier sigma / c.
    Its charge is its Renyi divergence at the event's order over that of a whole step.

    | share | charge |
    | --- | --- |
    | 0 | 0: the example is not drawn |
    | below 1/16 | that of 1/16, which shares are rounded up to (`ledger.SMALLEST_SHARE`) |
    | 1, or a divergence that cannot be worked out | WHOLE |

    >>> event = FilteredStepEvent(1.0, 2.0, order=4.0, full_steps=8)
    >>> charges = charges_of(event)
    >>> charges[0], round(charges[CELLS // 2] / WHOLE, 6), charges[CELLS] == WHOLE  # c^2 without sampling
    (0, 0.25, True)
    """
    whole = _divergence(event, 1.0)
    if not 0 < whole < math.inf:
        raise SettingError(
            f"order={event.order}: the Renyi divergence of a step is {whole} there; choose a lower order, or "
            "more noise."
        )
    found = [0]
    for part in range(1, CELLS + 1):
        share = _divergence(event, max(part, _FEWEST) / CELLS) / whole if part < CELLS else 1.0
        found.append(WHOLE if not share < 1 else min(WHOLE, math.ceil(share * WHOLE) + _SLACK))
    return tuple(found)


def _divergence(event: FilteredStepEvent, share: float) -> float:
    step = StepEvent(event.sample_rate, event.noise_multiplier / share)
    return float(renyi_accountant(run_event([(step, 1)]), (event.order,)).rdp[0])


class ExampleAccounts:
    """Account of each example: what its steps cost it so far, and how much of the bound it may use next.

    Formal guarantee: let the shares that `set_shares` is given follow, for each example, from that example
    and from earlier releases, and let each step be taken after one `charge`, with examples weighted to at
    most their `drawn_shares` of the bound, and without those of share 0. Then, whatever is released, the
    Renyi divergences at the event's order of the steps that an example could be in add up to at most those of
    `event.full_steps` whole steps. By the Renyi filter (Feldman and Zrnic 2021, in its form for single
    examples), all steps together have at most that divergence, for datasets that differ in one
    example, added or removed. Who is drawn no more follows from private data and is no release.

    | case | what happens |
    | --- | --- |
    | the next charge does not fit | the example is not in the step; a smaller one may fit later |
    | a share that is NaN, or above 1 | 1 |
    | a share that is negative or 0 | 0: neither charged nor drawn |
    | a gradient that is longer than its share | cut to it by the step, so that the charge holds |
    | a step is charged and not taken, or fails | its charges stay |
    | steps of the ledger that these accounts did not charge: from before, or of another Trainer | count as
      whole for everyone, to a full account |
    | no shares were set | SettingError, before anything is spent |

    Args:
        event: of each step.
        num_examples: n.
        steps_before: of this event that the ledger holds already.

    Attributes:
        sensitive_spent: units that each example was charged, [n], int64; private.
        drawn_shares: share of the bound that each example may use in the step charged last, [n], float64;
            private.

    Example:
        >>> import torch
        >>> from equidp.kernel.filter import ExampleAccounts
        >>> from equidp.kernel.ledger import FilteredStepEvent
        >>> event = FilteredStepEvent(1.0, 2.0, order=4.0, full_steps=1)
        >>> accounts = ExampleAccounts(event, num_examples=2)
        >>> accounts.set_shares(torch.tensor([1.0, 0.5]))
        >>> for _ in range(2):
        ...     accounts.charge()
        ...     accounts.drawn_shares.tolist()
        [1.0, 0.5]
        [0.0, 0.5]
    """

    def __init__(self, event: FilteredStepEvent, num_examples: int, steps_before: int = 0) -> None:
        check_whole(1, num_examples=num_examples)
        check_whole(0, steps_before=steps_before)
        self.event, self.num_examples = event, num_examples
        self._charges = torch.tensor(charges_of(event), dtype=torch.int64)
        self._most = event.full_steps * WHOLE
        self.sensitive_spent = torch.zeros(num_examples, dtype=torch.int64)
        self.drawn_shares = torch.zeros(num_examples, dtype=torch.float64)
        self._cells: Tensor | None = None
        self._steps = 0  # of the ledger that accounts hold
        self.catch_up(steps_before)

    def set_shares(self, shares: Tensor) -> None:
        """Set the shares of the bound that examples may use from the next charge on, [n]; rounded up.

        Raises:
            SettingError: they are not one for each example.
        """
        if shares.shape != (self.num_examples,):
            raise SettingError(
                f"shares of shape {list(shares.shape)}; expected one for each of {self.num_examples} "
                "examples.",
                field="shares",
            )
        parts = torch.ceil(shares.detach().cpu().double().nan_to_num(nan=1.0).clamp(0.0, 1.0) * CELLS)
        parts = parts.to(torch.int64)
        self._cells = torch.where(parts > 0, parts.clamp_min(_FEWEST), 0)

    def check_ready(self) -> None:
        """Refuse to charge before shares were set."""
        if self._cells is None:
            raise SettingError(
                "examples have accounts, and nothing says how much of the bound each may use; give the "
                "Trainer the callback IndividualFilter, and put a loop of your own into "
                "`with trainer.open_loop():`.",
                field="callbacks",
            )

    def catch_up(self, steps: int) -> None:
        """Charge everyone whole steps for those of the ledger that these accounts did not charge.

        Args:
            steps: of this event that the ledger holds.
        """
        if steps > self._steps:
            self._add_whole(steps - self._steps)
            self._steps = steps

    def charge(self) -> None:
        """Charge each example that the next step fits for; the others are not in it."""
        self.check_ready()
        assert self._cells is not None
        costs = self._charges[self._cells]
        fits = self.sensitive_spent + costs <= self._most
        self.sensitive_spent += torch.where(fits, costs, 0)
        self.drawn_shares = torch.where(fits, self._cells.double() / CELLS, 0.0)
        self._steps += 1

    def check_indices(self, indices: Tensor | None, size: int) -> None:
        """Refuse a batch of this size unless it says which examples it has, each once.

        Raises:
            SettingError: no indices, not one for each row, beyond the examples, or one twice.
        """
        if indices is None or indices.shape != (size,) or indices.dtype != torch.int64:
            got = "none" if indices is None else f"{list(indices.shape)} in {indices.dtype}"
        elif size and not 0 <= int(indices.min()) <= int(indices.max()) < self.num_examples:
            got = f"numbers from {int(indices.min())} to {int(indices.max())}"
        elif len(indices.unique()) < size:
            got = "one of them twice"
        else:
            return
        raise SettingError(
            f"indices: {got}; expected the place of each of {size} examples among the {self.num_examples} "
            "that have accounts, in int64, each once. Give the indices of the sample.",
            field="indices",
        )

    def shares(self, indices: Tensor) -> Tensor:
        """Shares of the bound that these examples may use in the step charged last, [batch], float64."""
        return self.drawn_shares[indices.cpu()].to(indices.device)

    def state(self) -> dict[str, Tensor]:
        """Tensors that `restore` continues from; private."""
        self.check_ready()
        assert self._cells is not None
        return {"spent": self.sensitive_spent.clone(), "cells": self._cells.clone()}

    def restore(self, spent: Tensor, cells: Tensor, lost: int) -> None:
        """Continue from a `state`, which stands in place of what these accounts hold.

        Args:
            spent, cells: of the state, [n].
            lost: steps that the ledger holds since then; they count as whole for everyone, to a full account.

        Raises:
            SettingError: another number of examples, values that no state has, or fewer than 0 steps lost.
        """
        check_whole(0, lost=lost)
        shape, most = (self.num_examples,), self._most
        valid = spent.shape == cells.shape == shape and spent.dtype == cells.dtype == torch.int64
        if not (valid and ((spent >= 0) & (spent <= most) & (cells >= 0) & (cells <= CELLS)).all()):
            raise SettingError(
                f"accounts of shape {list(spent.shape)}; expected one for each of {self.num_examples} "
                f"examples, in whole numbers from 0 to {most}.",
                field="spent",
            )
        self.sensitive_spent, self._cells = spent.clone(), cells.clone()
        self._add_whole(lost)

    def _add_whole(self, steps: int) -> None:
        """Charge whole steps that were taken without these accounts; an account holds at most a full one."""
        room = self._most - self.sensitive_spent
        self.sensitive_spent += room.clamp_max(min(steps, self.event.full_steps) * WHOLE)
