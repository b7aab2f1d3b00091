"""Examples made up from shapes and types, to try models on: no row of the data decides what is accepted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from equidp.engines.trying import check_parameters, tried
from equidp.kernel.engine import LossFunction

_LARGE = 1e6
_BYTES = 256


@final
@dataclass(frozen=True)
class MadeUpRows:
    """Inputs of one shape and type.

    Whole numbers are below `below`, and 0 or `padding` is what fills up short rows.

    Attributes:
        shape: of one row.
        dtype, device: of the rows.
        centred: whether floating-point numbers are normal; otherwise they are in [0, 1).
        below: what whole numbers are smaller than.
        padding: what short rows end or begin with.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    centred: bool
    below: int
    padding: int

    @classmethod
    def like(cls, inputs: Tensor, model: nn.Module, *, centred: bool = True) -> MadeUpRows:
        """Rows like these inputs [batch, ...], of which shape, type and device are read, no value.

        Whole numbers stay below the rows of the model's smallest table of embeddings; without one they are 0
        or 1, and bytes any byte: nothing else says which numbers a model can read.
        """
        tables = [each for each in model.modules() if isinstance(each, nn.Embedding | nn.EmbeddingBag)]
        unknown = _BYTES if inputs.dtype == torch.uint8 and inputs.device.type == "cpu" else 2
        smallest = min(tables, key=lambda table: table.num_embeddings, default=None)
        below = unknown if smallest is None else int(smallest.num_embeddings)
        if inputs.dtype != torch.bool and not inputs.dtype.is_floating_point and not inputs.dtype.is_complex:
            below = min(below, torch.iinfo(inputs.dtype).max)
        padding = 0 if smallest is None or smallest.padding_idx is None else int(smallest.padding_idx)
        shape = tuple(inputs.shape[1:])
        # A table may be read by numbers that are not whole by type; out of range, a GPU stops for good.
        centred = centred and not (tables and inputs.device.type == "cuda")
        return cls(shape, inputs.dtype, inputs.device, centred, below, padding)

    @property
    def real(self) -> bool:
        """Whether the numbers are not whole by type."""
        return self.dtype.is_floating_point or self.dtype.is_complex

    def full(self, count: int, seed: int) -> Tensor:
        """Returns ordinary rows, [count, *shape]; whole numbers without padding, where there are others."""
        generator = torch.Generator().manual_seed(seed)
        size = (count, *self.shape)
        if self.real:
            draw = torch.randn if self.centred else torch.rand
            rows = draw(size, generator=generator)
        elif self.dtype == torch.bool or self.below < 2:
            rows = torch.randint(0, min(self.below, 2), size, generator=generator)
        else:
            rows = torch.randint(0, self.below - 1, size, generator=generator)
            rows = rows + (rows >= self.padding)
        return rows.to(self.dtype).to(self.device)

    def short(self, count: int, seed: int) -> Tensor:
        """Returns rows that are padded but for a quarter of their first dimension, in turns at either end."""
        rows = self.full(count, seed)
        if self.shape:
            kept = max(1, self.shape[0] // 4)
            rows[0::2, kept:] = self.filler
            rows[1::2, :-kept] = self.filler
        return rows

    @property
    def filler(self) -> int:
        """The number that short rows are padded with."""
        return 0 if self.real or self.dtype == torch.bool else self.padding

    @property
    def large(self) -> float:
        """The largest number to try; on a GPU, a number out of a table's range would end the process."""
        if not self.real or (self.device.type == "cuda" and not self.centred):
            return 1.0
        return min(_LARGE, torch.finfo(self.dtype).max / 100)

    def extremes(self) -> list[Tensor]:
        """Returns rows unlike any other, [2, *shape] of each kind: constant, huge, empty, without padding."""
        rows, large = self.full(2, seed=7), self.large
        constants = [0, 1, large, -large] if self.real else [0, self.padding, 1, self.below - 1]
        if self.dtype == torch.bool or self.below < 2 or (large == 1.0 and self.real):
            constants = [0, 1] if self.real or self.dtype == torch.bool else [0]
        kinds = [torch.full_like(rows, constant) for constant in constants]
        return [*kinds, 3 * rows + 1, rows * large, rows] if large > 1.0 else [*kinds, rows]

    def moderate(self) -> list[Tensor]:
        """Returns one row of each kind whose gradient is no matter of rounding, as a huge constant's is."""
        rows = self.full(1, seed=8)
        spread = (rows * self.large).to(self.dtype)
        return [torch.zeros_like(rows), torch.full_like(rows, min(1, self.below - 1)), spread]


def made_up_examples(
    model: nn.Module,
    loss: LossFunction,
    inputs: Tensor,
    targets: Tensor,
    num_classes: int | None = None,
    count: int = 16,
) -> tuple[Tensor, Tensor]:
    """Returns `count` inputs and targets of the same shapes and types as these; no value of them is read.

    Numbers are normal, or in [0, 1) where the model or the loss cannot take those. Classes are below
    `num_classes`; where that is None, below the model's smallest output dimension that is larger than 1.

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
    check_parameters(model)
    first = _examples(model, inputs, targets, num_classes, count, centred=True)
    if _finite(model, loss, *first):
        return first
    second = _examples(model, inputs, targets, num_classes, count, centred=False)
    return second if _finite(model, loss, *second) else first


def _examples(
    model: nn.Module, inputs: Tensor, targets: Tensor, num_classes: int | None, count: int, *, centred: bool
) -> tuple[Tensor, Tensor]:
    rows = MadeUpRows.like(inputs, model, centred=centred)
    half = count // 2
    made = torch.cat([rows.full(count - half, seed=1), rows.short(half, seed=2)])
    generator = torch.Generator().manual_seed(3)
    size = (count, *targets.shape[1:])
    if targets.dtype.is_floating_point and num_classes is None:
        drawn = torch.randn(size, generator=generator) if centred else torch.rand(size, generator=generator)
    else:
        classes = _classes(model, made[:2]) if num_classes is None else num_classes
        classes = 2 if targets.dtype == torch.bool else classes
        drawn = torch.arange(count).reshape(-1, *[1] * (len(size) - 1)).expand(size) % classes
        drawn = drawn[torch.randperm(count, generator=generator)]
    return made, drawn.to(targets.dtype).to(targets.device)


def _classes(model: nn.Module, inputs: Tensor) -> int:
    """As many classes as the outputs have for certain."""
    try:
        with tried(model):
            outputs = model(inputs)
        return min((size for size in outputs.shape[1:] if size > 1), default=2)
    except Exception:
        return 2  # check_model will say what is wrong


def _finite(model: nn.Module, loss: LossFunction, inputs: Tensor, targets: Tensor) -> bool:
    """Returns whether model and loss take such examples, and the loss of some is a number."""
    few = [0, 1, -2, -1]
    try:
        with tried(model, loss):
            losses = loss(model(inputs[few]), targets[few])
        return bool(torch.isfinite(losses).any())
    except Exception:
        return False
