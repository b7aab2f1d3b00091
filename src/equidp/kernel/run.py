"""A private run: pay for a sample, read it once and completely, and update the parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from equidp.errors import ModelError, SettingError
from equidp.kernel.event import Account
from equidp.kernel.generators import restore_generators
from equidp.kernel.inputs import Inputs, count_changes, moved_to, same
from equidp.kernel.sampling import PoissonSampler
from equidp.kernel.step import PrivateStep


class Batch(NamedTuple):
    """One Poisson sample. It may be empty.

    Attributes:
        inputs: [batch, ...]; a tuple or a mapping of such tensors if the model has several inputs.
        targets: [batch, ...]; a tuple or a mapping of such tensors if the loss has several targets.
        groups: [batch], int64.
        indices: [batch], int64, positions of the examples in the dataset.
    """

    inputs: Inputs
    targets: Inputs
    groups: Tensor
    indices: Tensor


class PrivateRun:
    """Trains step by step. No sample leaves it, and none can be passed to it.

    Formal guarantee: the trained parameters and the policy's state are functions of their start and of
    `steps_done` calls of the private step. Each call is on its own Poisson sample at the event's rates. Each
    sample is in the ledger before its rows are used, and always stays there. The sampler draws and workers
    load some steps ahead, but only the sample of a paid step is used.

    | case | what happens |
    | --- | --- |
    | empty sample | a step like any other |
    | the ledger cannot record | BudgetError before a row is used |
    | a row fails to load, model or loss fails, an interrupt | the step is charged; parameters are as before;
        the error is raised with a note that says so |
    | loading draws random numbers (augmentation) | `Randomness.for_model`, while a sample loads |
    | groups differ in rate or bound | each example keeps the group that it had when the run was made |
    | a pass changes a buffer or parameter, also a frozen one | ModelError; the optimizer does not step |
    | parameters frozen, added or replaced since the start | SettingError, before anything is spent |
    | gradients of parameters that the noise does not cover | dropped before the optimizer steps |
    | `stop` was called | its reason is raised, or False returned, before another step is paid for |

    The caller must ensure that labels belong to their examples, and that `load` and the engine do not mix
    examples.

    Args:
        step: private step.
        model: model whose parameters are trained.
        optimizer: optimizer that receives the private gradients.
        ledger: ledger that records the steps under the name `run`. It may have some of them already.
        num_examples: number of examples n.
        steps: number of steps T of the whole plan.
        load: indices of samples, [batch] each -> their batches, in the same order.
        load_draws: whether `load` may draw random numbers, as a user's Dataset may.
        groups: group of each example, [n], for an event whose groups differ. The run keeps a copy. Otherwise
            groups come with the rows.
        check: (inputs, targets) of a sample -> None; raises if the engine measures the sample wrongly. Called
            inside charged steps 1, 2, 4, 8 and so on.
        run: name of the run in the ledger.
    """

    def __init__(
        self,
        step: PrivateStep,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        ledger: Account,
        *,
        num_examples: int,
        steps: int,
        load: Callable[[Iterable[Tensor]], Iterator[Batch]],
        load_draws: bool = True,
        groups: Tensor | None = None,
        check: Callable[[Inputs, Inputs], None] | None = None,
        run: str = "run",
    ) -> None:
        self.private_step, self.model, self.optimizer = step, model, optimizer
        self.ledger, self.run = ledger, run
        self.num_examples, self.steps = num_examples, steps
        self._load, self._load_draws, self._check = load, load_draws, check
        self._groups: Tensor | None = None
        if step.event.shares:
            if groups is None:
                raise SettingError(
                    "groups differ in rate or bound, and examples have no labels; give the group of each "
                    "example.",
                    field="labels",
                )
            self._groups = groups.detach().cpu().clone()
        self._make_sampler(0)  # refuses labels that name no group
        self._samples: Iterator[Batch] | None = None
        self._stop: BaseException | bool = False

    @property
    def steps_done(self) -> int:
        """Number of steps spent, including earlier ones in the ledger."""
        return self.ledger.count(self.run, self.private_step.event)

    def step(self) -> bool:
        """Take one step; return False if none is left or the run was stopped.

        Raises:
            BudgetError: the ledger cannot record the step. No row was used.
            SettingError, ModelError: see the table above.
        """
        self._check_parameters()
        if not self.private_step.processes.from_first(self._pay):
            return False
        if not self.private_step.processes.first:
            self.ledger.charge(self.run, self.private_step.event)
        try:
            means = self._private_gradient()
        except BaseException as error:
            error.add_note(f"Step {self.steps_done} of {self.steps} is charged, and was not taken.")
            raise
        for group in self.optimizer.param_groups:  # of what the noise does not cover, too
            for parameter in group["params"]:
                parameter.grad = None
        for parameter, mean in zip(self.private_step.parameters, means, strict=True):
            parameter.grad = mean
        self.optimizer.step()
        return True

    def stop(self, reason: BaseException | None = None) -> None:
        """Make the next `step` raise `reason`, or return False if it is None. The one after it continues."""
        self._stop = True if reason is None else reason

    def _pay(self) -> bool:
        stop, self._stop = self._stop, False
        left = self.steps - self.steps_done
        if isinstance(stop, BaseException) and left > 0:
            raise stop
        if stop or left <= 0:
            return False
        self.ledger.charge(self.run, self.private_step.event, left)
        return True

    def _private_gradient(self) -> list[Tensor]:
        inputs, targets, groups, indices = self._next_sample()
        if self._groups is not None:
            groups = self._groups[indices.cpu()].to(torch.int64)
        device = self.private_step.parameters[0].device
        inputs, targets, groups, indices = moved_to((inputs, targets, groups, indices), device)
        buffers, parameters = _tensors_of(self.model)
        before = {name: buffer.detach().clone() for name, buffer in buffers.items()}
        done = self.steps_done
        if self._check is not None and len(groups) and not done & (done - 1):
            with restore_generators(device):
                self._check(inputs, targets)
        changes = {name: count_changes(each) for name, each in parameters.items()}
        means = self.private_step(inputs, targets, groups, indices)
        buffers, parameters = _tensors_of(self.model)
        changed = [name for name in buffers if name not in before or not same(buffers[name], before[name])]
        changed += [name for name, each in parameters.items() if count_changes(each) != changes.get(name)]
        if changed:
            raise ModelError(
                f"{changed[0]} of the model changed in a private step: it carries data past the noise into "
                "what is released. Do not use this model; let no forward or backward pass write to buffers "
                "or parameters (track_running_stats=False, no running means).",
                field=changed[0],
            )
        return means

    def _next_sample(self) -> Batch:
        if self._samples is None:
            self._samples = self._load(self._make_sampler(self.steps - self.steps_done + 1))
        devices = [parameter.device for parameter in self.private_step.parameters]
        loading = self.private_step.randomness.for_model(*devices) if self._load_draws else nullcontext()
        try:
            with loading:
                return next(self._samples)
        except BaseException:
            self._samples = None  # a generator that failed has ended
            raise

    def _make_sampler(self, steps: int) -> PoissonSampler:
        step = self.private_step
        return PoissonSampler(
            self.num_examples,
            step.event.rate,
            steps,
            step.randomness,
            step.processes,
            labels=self._groups,
            rates=step.event.drawn_rates,
        )

    def _check_parameters(self) -> None:
        """Raise an error unless the trained parameters are exactly the ones that the noise covers."""
        now = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        if [*map(id, now)] != [*map(id, self.private_step.parameters)]:
            raise SettingError(
                "parameters were frozen, added or replaced after the Trainer was made, and the noise covers "
                "those that were trained then; make a new Trainer.",
                field="parameters",
            )


def _tensors_of(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return buffers and parameters by name. A module with several names counts once."""
    buffers: dict[str, Tensor] = {}
    parameters: dict[str, Tensor] = {}
    for path, module in model.named_modules():
        for tensors, by_name in ((module._buffers, buffers), (module._parameters, parameters)):
            for name, each in tensors.items():
                if each is not None:
                    by_name[f"{path}.{name}" if path else name] = each
    return buffers, parameters
