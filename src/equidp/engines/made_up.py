"""Examples made up from shapes and types, to try models on: no row of the data decides what is accepted."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from equidp.engines.called import called
from equidp.engines.made_up_rows import MadeUpInputs
from equidp.engines.trying import check_parameters, losses_of, tried
from equidp.kernel.engine import LossFunction
from equidp.kernel.inputs import Inputs, taken


def made_up_examples(
    model: nn.Module,
    loss: LossFunction,
    inputs: Inputs,
    targets: Tensor,
    num_classes: int | None = None,
    count: int = 16,
) -> tuple[Any, Tensor]:
    """Returns `count` inputs and targets of the same shapes and types as these; no value of them is read.

    Rows have all lengths, in no order, and two are the same. Numbers are normal, or in [0, 1) where the model
    or the loss cannot take those. Rows that the model or the loss fails on are left out, and others stand
    twice. Classes are below `num_classes`; where that is None, below the model's smallest output dimension
    that is larger than 1.

    Args:
        model: is left as it was.
        loss: (outputs, targets) -> losses [batch].
        inputs, targets: at least one example each, [batch, ...].
        num_classes: how many there are, which is public; None: not known.
        count: how many to make up, >= 2.

    Raises:
        ModelError: parameters that cannot be trained.

    >>> model, loss = nn.Linear(3, 2), nn.CrossEntropyLoss(reduction="none")
    >>> x, y = made_up_examples(model, loss, torch.zeros(1, 3), torch.tensor([1]), num_classes=2)
    >>> x.shape, y.unique()
    (torch.Size([16, 3]), tensor([0, 1]))
    """
    return MadeUp.like(model, loss, inputs, targets, num_classes, count).examples()


class MadeUp(NamedTuple):
    """Examples that were made up, and which of them the model and the loss take alone.

    Attributes:
        rows: that the inputs are some of.
        inputs, targets: [count, ...].
        running: places of those that are taken, in order.
        error: of one that is not; None: all are.
    """

    rows: MadeUpInputs
    inputs: Any
    targets: Tensor
    running: list[int]
    error: Exception | None

    @classmethod
    def like(
        cls,
        model: nn.Module,
        loss: LossFunction,
        inputs: Inputs,
        targets: Tensor,
        num_classes: int | None = None,
        count: int = 16,
    ) -> MadeUp:
        """Makes examples up; arguments as of `made_up_examples`."""
        check_parameters(model)
        first: MadeUp | None = None
        for number, rows in enumerate(MadeUpInputs.choices(inputs, model)):
            drawn = _targets(model, rows, targets, num_classes, count, centred=number != 1)
            varied = rows.varied(count, seed=1)
            made = cls(rows, varied, drawn, *_running(model, loss, varied, drawn))
            if made.running:
                return made
            first = first or made
        assert first is not None
        return first

    def takes(self, model: nn.Module, loss: LossFunction) -> bool:
        """Returns whether model and loss take a batch of those that they take alone."""
        return bool(self.running) and not _running(model, loss, *self.examples())[1]

    def examples(self) -> tuple[Any, Tensor]:
        """As many examples, of those that are taken; some twice where others are left out."""
        if not self.running:
            return self.inputs, self.targets
        places = (self.running * len(self.targets))[: len(self.targets)]
        return taken(self.inputs, places), self.targets


def _targets(
    model: nn.Module,
    rows: MadeUpInputs,
    targets: Tensor,
    num_classes: int | None,
    count: int,
    *,
    centred: bool,
) -> Tensor:
    """Targets of the type of these, [count, ...]: numbers, or classes in no order, as many of each."""
    generator = torch.Generator().manual_seed(3)
    size = (count, *targets.shape[1:])
    if targets.dtype.is_floating_point and num_classes is None:
        drawn = torch.randn(size, generator=generator) if centred else torch.rand(size, generator=generator)
    else:
        classes = _classes(model, rows.full(2, seed=1)) if num_classes is None else num_classes
        classes = 2 if targets.dtype == torch.bool else classes
        drawn = torch.arange(count).reshape(-1, *[1] * (len(size) - 1)).expand(size) % classes
        drawn = drawn[torch.randperm(count, generator=generator)]
    return drawn.to(targets.dtype).to(targets.device)


def _classes(model: nn.Module, inputs: Inputs) -> int:
    """As many classes as the outputs have for certain."""
    try:
        with tried(model):
            outputs = called(model, inputs)
        return min((size for size in outputs.shape[1:] if size > 1), default=2)
    except Exception:
        return 2  # check_model will say what is wrong


def _running(
    model: nn.Module, loss: LossFunction, inputs: Inputs, targets: Tensor
) -> tuple[list[int], Exception | None]:
    """The places of rows that model and loss take, none if the loss of none is a number, and an error."""

    def finite(places: list[int]) -> bool:
        losses = losses_of(loss, called(model, taken(inputs, places)), targets[places])
        return bool(torch.isfinite(losses).any())

    every = list(range(len(targets)))
    with tried(model, loss):
        failed: Exception | None = None
        found: dict[int, bool] = {}
        for place in every:
            try:
                found[place] = finite([place])
            except Exception as error:
                failed = error
    return (list(found) if any(found.values()) else []), failed
