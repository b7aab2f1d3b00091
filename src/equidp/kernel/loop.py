"""A Poisson sample is used once and complete, or it is charged anyway; the optimizer sees private gradients
alone."""

from __future__ import annotations

import operator
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor, nn

from equidp.errors import ModelError, PrivacyWarning, SettingError, TrainingStopped
from equidp.kernel.inputs import Inputs, moved_to, tensors
from equidp.kernel.ledger import GroupedStepEvent
from equidp.kernel.processes import EndOfRun
from equidp.kernel.sampling import PoissonSampler
from equidp.kernel.step import PrivateStep


class Batch(NamedTuple):
    """One Poisson sample. It may be empty.

    Attributes:
        inputs: [batch, ...]; a tuple or a mapping of such where the model reads several tensors.
        targets: [batch, ...]; a tuple or a mapping of such where the loss reads several tensors.
        groups: [batch], int64.
        indices: [batch], int64, where the examples stand in the dataset.

    Example:
        >>> import torch
        >>> from equidp.kernel.loop import Batch
        >>> batch = Batch(torch.ones(2, 3), torch.tensor([0, 1]), torch.tensor([0, 0]), torch.tensor([4, 7]))
        >>> batch._replace(inputs=batch.inputs[:, :2]).inputs.shape
        torch.Size([2, 2])
    """

    inputs: Inputs
    targets: Inputs
    groups: Tensor
    indices: Tensor


_stepping: ContextVar[bool] = ContextVar("_stepping", default=False)
"""True while an optimizer steps by a private gradient, in its thread alone."""


def _stop_of_other_process() -> TrainingStopped:
    """Error that the first process raises instead of a further step."""
    message = "stopped, since another of the processes was asked to stop. The run can be resumed."
    return TrainingStopped(message, signal.SIGTERM)


class PrivateLoop:
    """Draws Poisson samples, takes each of them once, and moves the parameters by private gradients.

    Formal guarantee: the parameters that the optimizer holds follow from their start and from at most
    `steps_done` calls of the private step, each on a Poisson sample of its own at `step.event.sample_rate`,
    or at the rates of its groups where the event has some (`GroupedStepEvent.drawn_rates`).
    Each sample is in the ledger before it is given out, whatever happens to it. The sampler draws some steps
    ahead, and workers load ahead; nothing but what is given out is used.

    | case | what happens |
    | --- | --- |
    | empty sample | a step like any other |
    | a sample fails to load or to reach the device, or is interrupted | charged; the error goes on |
    | loading draws random numbers (augmentation) | `Randomness.for_model`, while a sample loads |
    | a sample is drawn and not taken | charged; a PrivacyWarning when another is asked for |
    | the optimizer steps by other gradients while samples are drawn | a PrivacyWarning |
    | the ledger cannot record | BudgetError before the sample is given out |
    | others spend steps of the run in the same ledger | `batches` ends once all are spent |
    | `batches` or `close` is called | iterators from before give no more samples: SettingError |
    | another batch than the last sample, or the same one twice | SettingError |
    | inputs (any of their tensors), targets or groups of another length | SettingError |
    | inputs, targets or groups with other content than was drawn, also after a change in place; cuts of the
      rows at either end of a dimension, other types and devices excepted | SettingError |
    | a change in place that torch does not count, through `.data` or an array of NumPy | not noticed |
    | groups differ in rate or bound, and labels are not given or name no group | SettingError, before
      anything is spent |
    | such groups of a batch, or labels of the data, changed since the start | SettingError: an example is
      bounded as of the group that it was drawn by |
    | parameters frozen, added or replaced since the start | SettingError, before a sample is drawn too |
    | gradients of parameters that the noise does not cover | dropped before the optimizer steps |
    | a buffer of the model is changed or added by a step | ModelError; what it held is put back, and the
      optimizer does not step |
    | the same through `.data` or an array of NumPy | not noticed |
    | `stop` was called | its reason is raised before another sample is paid for; other processes stop too |
    | `stop` was called without a reason | `batches` ends before another sample is paid for, in all |
    | `stop` was called before `batches` | the first sample is not paid for either |
    | a step fails in one of several processes, or it skips a sample | it leaves the group; the others stop |

    Args:
        step: the private step.
        model: whose parameters it trains.
        optimizer: takes the private gradients.
        num_examples: n.
        steps: T, of the whole plan; the ledger may hold some of them.
        load: indices of samples, [batch] each -> their batches, in the same order.
        load_draws: whether `load` may draw random numbers, as a Dataset of the user's may; rows that are in
            memory draw none.
        labels: group of each example, [n], of which the loop keeps a copy; for an event whose groups differ.

    Attributes:
        has_stepped: whether the model took steps of this plan, here or before it was restored.
    """

    def __init__(
        self,
        step: PrivateStep,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        num_examples: int,
        steps: int,
        load: Callable[[Iterable[Tensor]], Iterator[Batch]],
        load_draws: bool = True,
        labels: Tensor | None = None,
    ) -> None:
        self.private_step, self.model, self.optimizer = step, model, optimizer
        self.num_examples, self.steps = num_examples, steps
        self._load, self._load_draws = load, load_draws
        self._parameters = list(model.parameters())
        self._trained = [parameter.requires_grad for parameter in self._parameters]
        self._sample: Tensor | None = None
        self._drawn: tuple[tuple[Tensor, ...], tuple[int, ...]] = (), ()
        self._drawing: object = None  # which iterator of `batches` may draw
        self._stopping: BaseException | None = None
        self._buffers: dict[str, _Buffer] = {}
        self._labels: Tensor | None = None
        self._rates: tuple[float, ...] = ()
        if isinstance(step.event, GroupedStepEvent):
            if labels is None:
                raise SettingError(
                    "groups differ in rate or bound, and examples have no labels; give the group of each "
                    "example.",
                    field="labels",
                )
            self._rates, self._labels = step.event.drawn_rates, labels.detach().cpu().clone()
            self._make_sampler(0)  # refuses labels that name no group
        self.has_stepped = False

    @property
    def steps_done(self) -> int:
        """Private steps spent; the ledger may hold releases of another kind too."""
        return self.private_step.ledger.count_of(self.private_step.event)

    def batches(self) -> Iterator[Batch]:
        """Poisson samples for the steps that are left; give each to `take` before you ask for the next.

        Each is paid for before it is given out. An iterator from before gives no more samples.

        Raises:
            BudgetError: they do not fit into the budget any more.
        """
        self._forget_unused()
        if self._drawing is not None:  # a stop was of the iterator before, which has not ended
            self._stopping = None
        step = self.private_step
        left = max(0, self.steps - self.steps_done)
        step.processes.run_on_first(lambda: step.ledger.expect(step.event, left))
        self._drawing = drawing = object()
        sampler = self._make_sampler(left)
        return self._draw_samples(self._load(sampler), left, drawing) if left else iter(())

    def _make_sampler(self, steps: int) -> PoissonSampler:
        step = self.private_step
        return PoissonSampler(
            self.num_examples,
            step.event.sample_rate,
            steps,
            step.randomness,
            step.processes,
            labels=self._labels,
            rates=self._rates,
        )

    def _draw_samples(self, loaded: Iterator[Batch], left: int, drawing: object) -> Iterator[Batch]:
        watch = _unwrap_optimizer(self.optimizer).register_step_pre_hook(_warn_of_other_steps)
        try:
            for _ in range(left):
                if drawing is not self._drawing:
                    raise SettingError(
                        "batches() was called again since, or the trainer has another ledger now: one "
                        "iterator at a time draws samples. Use the newest.",
                        field="batches",
                    )
                if self.steps_done >= self.steps:  # by another trainer of this run, on the same ledger
                    return
                processes = self.private_step.processes
                with processes.leave_group_on_failure():
                    self._forget_unused()
                    self._check_parameters()
                try:
                    self.private_step.pay(
                        self._stopping or (_stop_of_other_process() if processes.asked_to_stop else None)
                    )
                except EndOfRun:
                    return
                with processes.leave_group_on_failure(), self._loading():
                    batch = next(loaded)
                self._note_sample(batch)
                yield batch
        finally:
            watch.remove()
            if drawing is self._drawing:
                self._drawing = self._stopping = None

    def _note_sample(self, batch: Batch) -> None:
        """Note what is given out, by which `take` knows it."""
        self._sample = batch.indices
        held = tensors(batch)
        self._drawn = held, tuple(map(count_changes, held))

    def _loading(self) -> AbstractContextManager[None]:
        """A context in which a sample is loaded."""
        devices = (parameter.device for parameter in self._parameters)
        return self.private_step.randomness.for_model(*devices) if self._load_draws else nullcontext()

    def stop(self, reason: BaseException | None = None) -> None:
        """Make `batches` raise `reason`, or end where there is none, instead of drawing another sample.

        Several processes stop together. With a reason, another than the first tells that one in its next
        step, and stops with it. Without one, the first alone decides: all see the same released values.
        """
        processes = self.private_step.processes
        if processes.first:
            self._stopping = EndOfRun() if reason is None else reason
        elif reason is not None:
            processes.asks_to_stop = True

    def mark_stepped(self) -> None:
        """Note that the model took steps of this plan before, as one that is restored did."""
        self.has_stepped = True

    def close(self) -> None:
        """Give out no more samples: iterators of `batches` so far raise SettingError, and charge nothing."""
        self._drawing = None

    @property
    def has_unused_sample(self) -> bool:
        """True where a sample was drawn and paid for, but not yet passed to `take`."""
        return self._sample is not None

    def _forget_unused(self) -> None:
        """Warn of a sample that was drawn and not taken; it stays paid for."""
        if not self.has_unused_sample:
            return
        self._sample = None
        if self.private_step.processes.count > 1:
            raise SettingError(
                "a sample was drawn from batches() and not given to step(), where other processes wait for "
                "it; its step is charged. Give every sample to step(), also an empty one.",
                field="batch",
            )
        warnings.warn(
            "a sample was drawn from batches() and not given to step(); its step is charged. Give every "
            "sample to step(), also an empty one: choosing among samples by what is in them shows in the "
            "model, and epsilon does not count it.",
            PrivacyWarning,
            stacklevel=4,
        )

    def take(self, batch: Batch) -> None:
        """One private step: puts the private gradient into `p.grad` and steps the optimizer.

        Raises:
            SettingError, ModelError: see the table above.
        """
        with self.private_step.processes.leave_group_on_failure():
            self._check_parameters()
            self._check_sample(batch)
            self._sample, self._drawn, self.has_stepped = None, ((), ()), True
            self._note_buffers()
            self.private_step(*self.on_device(self._with_drawn_groups(batch)))
            self._check_buffers()
            self._drop_other_gradients()
            stepping = _stepping.set(True)
            try:
                self.optimizer.step()
            finally:
                _stepping.reset(stepping)

    def on_device(self, batch: Batch) -> Batch:
        """The batch, on the device of the first parameter."""
        device = next((parameter.device for parameter in self._parameters), batch.groups.device)
        if all(tensor.device == device for tensor in tensors(batch)):
            return batch
        return Batch(*moved_to(tuple(batch), device))

    def _check_parameters(self) -> None:
        """Refuse a model that is not the one that the noise covers."""
        if [parameter.requires_grad for parameter in self._parameters] != self._trained:
            raise SettingError(
                "parameters were frozen or unfrozen after the Trainer was made, and the noise covers those "
                "that were trained then; make a new Trainer.",
                field="requires_grad",
            )
        now = list(self.model.parameters())
        if len(now) != len(self._parameters) or not all(map(operator.is_, now, self._parameters)):
            raise SettingError(
                "parameters were added, removed or replaced after the Trainer was made, and the noise covers "
                "those that were there then; make a new Trainer.",
                field="parameters",
            )

    def _check_sample(self, batch: Batch) -> None:
        """Refuse what is not the last Poisson sample, each of its examples once."""
        drawn = self._sample
        if (
            not isinstance(batch, Batch)
            or drawn is None
            or not (batch.indices is drawn or torch.equal(batch.indices.to(drawn.device), drawn))
        ):
            raise SettingError(
                "step() was given a batch that is not the last of trainer.batches(), or was used already: "
                "epsilon holds for Poisson samples, each used once. Write `for batch in trainer.batches(): "
                "trainer.step(batch)`.",
                field="batch",
            )
        given = tensors(batch)
        if any(each.shape[:1] != drawn.shape for each in given):
            raise SettingError(
                "step() was given inputs, targets or groups of another number of examples than was drawn: "
                "each may be in a sample once. Average augmentations of an example inside the model or the "
                "loss.",
                field="batch",
            )
        held, versions = self._drawn
        changed = len(given) != len(held) or any(
            count_changes(each) != at for each, at in zip(held, versions, strict=True)
        )
        if changed or not all(map(_is_cut_of, given, held)):
            raise SettingError(
                "step() was given inputs, targets or groups with other content than was drawn. What changes "
                "a batch may mix its examples (mixup, cutmix, centring by the batch's mean), and epsilon "
                "does not count that. Give Trainer(augment=...) a function of one example, or let the "
                "dataset change it; rows may be cut at their ends.",
                field="batch",
            )

    def _with_drawn_groups(self, batch: Batch) -> Batch:
        """The batch with the groups that its examples were drawn by; refuses others, where groups differ."""
        if self._labels is None:
            return batch
        drawn = self._labels[batch.indices.cpu()].to(torch.int64)
        if not torch.equal(batch.groups.cpu().to(torch.int64), drawn):
            raise SettingError(
                "examples of the sample are of other groups than those that they were drawn by, whose rates "
                "and bounds they have; leave the groups of the data as they are while it is trained on, and "
                "make a new Trainer for others.",
                field="groups",
            )
        return batch._replace(groups=drawn.to(batch.groups.device))

    def _note_buffers(self) -> None:
        """Note what buffers hold before a step; others than steps may change them, by public data."""
        held = self._buffers
        self._buffers = {
            name: held[name] if name in held and held[name].is_of(buffer) else _Buffer.of(buffer)
            for name, buffer in self.model.named_buffers()
        }

    def _check_buffers(self) -> None:
        """Put back buffers that the step changed, and refuse the model, which is released with them."""
        changed = []
        for name, buffer in list(self.model.named_buffers()):
            held = self._buffers.get(name)
            if held is None or not (held.is_of(buffer) or held.equals(buffer)):
                changed.append(name)
                owner, _, own_name = name.rpartition(".")
                buffers = self.model.get_submodule(owner)._buffers
                del buffers[own_name]
                if held is not None:
                    buffers[own_name] = held.content.clone()
        if changed:
            raise ModelError(
                f"buffer {changed[0]} of the model changed in a private step: it carries data past the noise "
                "into what is released. What it held before is put back. Let no forward or backward pass "
                "write to buffers (track_running_stats=False, no running means).",
                field=changed[0],
            )

    def _drop_other_gradients(self) -> None:
        """Remove gradients that have no noise: the optimizer may hold a frozen layer with gradients from
        before."""
        private = {id(parameter) for parameter in self.private_step.parameters}
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in private:
                    parameter.grad = None


def _unwrap_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the optimizer that one of accelerate or Fabric wraps; itself where it is none of these."""
    wrapped: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)
    return wrapped


def _warn_of_other_steps(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Warn where an optimizer steps while samples are drawn, and no loop takes the step."""
    if _stepping.get():
        return
    if all(each.grad is None for group in optimizer.param_groups for each in group["params"]):
        return
    warnings.warn(
        "optimizer.step() was called in the loop, outside step(): gradients of data without noise move "
        "the model past epsilon. step(batch) takes gradients, adds noise and steps the optimizer: leave "
        "out loss.backward() and optimizer.step(). A step by gradients of public data alone is sound.",
        PrivacyWarning,
        stacklevel=3,
    )


class _Buffer(NamedTuple):
    """A buffer of the model as it was at a number of changes in place, and a copy of what it held."""

    buffer: Tensor
    version: int
    content: Tensor

    @classmethod
    def of(cls, buffer: Tensor) -> _Buffer:
        return cls(buffer, count_changes(buffer), buffer.detach().clone())

    def is_of(self, buffer: Tensor) -> bool:
        return self.buffer is buffer and self.version == count_changes(buffer)

    def equals(self, buffer: Tensor) -> bool:
        """Return whether a buffer holds the same, also where it was written or replaced."""
        old, new = self.content, buffer.detach()
        if (old.shape, old.dtype, old.device) != (new.shape, new.dtype, new.device):
            return False
        return bool(((old == new) | ((old != old) & (new != new))).all())


def count_changes(values: Tensor) -> int:
    """Return the number of changes in place so far, as torch counts them; 0 where it counts none."""
    return 0 if values.is_inference() else values._version


def _is_cut_of(given: Tensor, drawn: Tensor) -> bool:
    """Return whether values are those that were drawn, cut at the ends of rows, in any type and place."""
    if given is drawn:
        return True
    if given.dim() != drawn.dim() or any(
        own > whole for own, whole in zip(given.shape, drawn.shape, strict=True)
    ):
        return False
    for at_end in (False, True):
        cut = drawn
        for dimension, (own, whole) in enumerate(zip(given.shape, drawn.shape, strict=True)):
            cut = cut.narrow(dimension, (whole - own) * at_end, own)
        cut = cut.to(given)
        if bool(((cut == given) | ((cut != cut) & (given != given))).all()):
            return True
    return False
