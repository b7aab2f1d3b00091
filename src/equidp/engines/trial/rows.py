"""Rows and examples made up from shapes and types: no row of the data decides which model is accepted."""

from __future__ import annotations

import copy
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count, islice, product
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from equidp.engines.model import call_model
from equidp.engines.trial.running import check_parameters, losses_of, try_model
from equidp.engines.units import UnitModel
from equidp.kernel.engine import LossFunction
from equidp.kernel.inputs import Inputs, count_in, join_batches, map_tensors, taken, tensors
from equidp.losses import output_tensors


def made_up_examples(
    model: nn.Module,
    loss: LossFunction,
    inputs: Inputs,
    targets: Inputs,
    num_classes: int | None = None,
    count: int = 16,
) -> tuple[Any, Any]:
    """Return `count` inputs and targets of the same shapes and types as these; no value of them is read.

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
    targets: Any
    running: list[int]
    error: Exception | None

    @classmethod
    def like(
        cls,
        model: nn.Module,
        loss: LossFunction,
        inputs: Inputs,
        targets: Inputs,
        num_classes: int | None = None,
        count: int = 16,
    ) -> MadeUp:
        """Make examples up; arguments as for `made_up_examples`."""
        check_parameters(model)
        first: MadeUp | None = None
        for number, rows in enumerate(MadeUpInputs.choices(inputs, model)):
            drawn = _targets(model, rows, targets, num_classes, count, centred=number != 1)
            varied = rows.varied_rows(count, seed=1)
            made = cls(rows, varied, drawn, *_running(model, loss, varied, drawn))
            if made.running:
                return made
            first = first or made
        assert first is not None
        return first

    def takes(self, model: nn.Module, loss: LossFunction) -> bool:
        """Return True if model and loss accept a batch of the examples that they accept alone."""
        return bool(self.running) and not _running(model, loss, *self.examples())[1]

    def examples(self) -> tuple[Any, Any]:
        """Return `count` examples that model and loss accept; some twice in place of those left out."""
        if not self.running:
            return self.inputs, self.targets
        count = count_in(self.targets)
        places = (self.running * count)[:count]
        return taken(self.inputs, places), self.targets


def _targets(
    model: nn.Module,
    rows: MadeUpInputs,
    targets: Inputs,
    num_classes: int | None,
    count: int,
    *,
    centred: bool,
) -> Any:
    """Targets of the types of these, [count, ...]: numbers, or classes in no order, as many of each."""

    def draw(like: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(3)
        size = (count, *like.shape[1:])
        if like.dtype.is_floating_point and num_classes is None:
            drawn = (
                torch.randn(size, generator=generator) if centred else torch.rand(size, generator=generator)
            )
        else:
            classes = _classes(model, rows.full(2, seed=1)) if num_classes is None else num_classes
            classes = 2 if like.dtype == torch.bool else classes
            drawn = torch.arange(count).reshape(-1, *[1] * (len(size) - 1)).expand(size) % classes
            drawn = drawn[torch.randperm(count, generator=generator)]
        return drawn.to(like.dtype).to(like.device)

    return map_tensors(draw, targets)


def _classes(model: nn.Module, inputs: Inputs) -> int:
    """Return the smallest output dimension above 1 as the number of classes; 2 if the model fails."""
    try:
        with try_model(model):
            outputs = output_tensors(call_model(model, inputs))
        return min((size for each in outputs for size in each.shape[1:] if size > 1), default=2)
    except Exception:
        return 2  # check_model will say what is wrong


def _running(
    model: nn.Module, loss: LossFunction, inputs: Inputs, targets: Inputs
) -> tuple[list[int], Exception | None]:
    """The places of rows that model and loss take, none if the loss of none is a number, and an error."""

    def finite(places: list[int]) -> bool:
        losses = losses_of(loss, call_model(model, taken(inputs, places)), taken(targets, places))
        return bool(torch.isfinite(losses).any())

    every = list(range(count_in(targets)))
    with try_model(model):
        failed: Exception | None = None
        found: dict[int, bool] = {}
        for place in every:
            try:
                found[place] = finite([place])
            except Exception as error:
                failed = error
    return (list(found) if any(found.values()) else []), failed


_LARGE = 1e6
_BYTES = 256
_LENGTHS = (2, 3, 7, 1000)
"""Whole numbers to try too where no table says how large they are: lengths and indices trim and look up."""
_SHARES = (0.5, 1.0, 0.25, 0.75, 0.0, 1.0, 0.4, 0.1, 0.9, 0.25, 1.0, 0.6, 0.0, 0.75, 1.0, 0.5)
"""Shares of a row's first dimension that are filled, in turns: unordered, with ties, full and empty rows."""
_FEWEST, _MOST_COMBINED = (8, 4, 3, 2), 64
"""Bounds of whole numbers that nothing else tells of, and how many combinations of bounds are tried."""


@final
@dataclass(frozen=True)
class MadeUpRows:
    """Rows of one tensor of the inputs.

    Whole numbers are below `below`, and 0 or `padding` is what fills up short rows.

    Attributes:
        shape: of one row.
        dtype, device: of the rows.
        centred: whether floating-point numbers are normal; otherwise they are in [0, 1).
        below: what whole numbers are smaller than.
        padding: what short rows end or begin with.
        mask: whether the numbers tell which positions count: 1, and 0 where rows are short.
        ranged: whether the bound is what the model took, so that larger numbers may be tried too.
        end: the whole number that stands once in each row, behind all others but padding; None: none does.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    centred: bool
    below: int
    padding: int
    mask: bool = False
    ranged: bool = False
    end: int | None = None

    @classmethod
    def like(
        cls, inputs: Tensor, tables: Sequence[Any], *, centred: bool = True, mask: bool = False
    ) -> MadeUpRows:
        """Rows like these inputs [batch, ...], of which shape, type and device are read, no value.

        Whole numbers stay below the rows of the smallest of these tables of embeddings; without one they are
        0 or 1 but for a few extremes, and bytes any byte: nothing else says which numbers a model can read.
        """
        unknown = _BYTES if inputs.dtype == torch.uint8 and inputs.device.type == "cpu" else 2
        smallest = min(tables, key=lambda table: table.num_embeddings, default=None)
        below = unknown if smallest is None else int(smallest.num_embeddings)
        if inputs.dtype != torch.bool and not inputs.dtype.is_floating_point and not inputs.dtype.is_complex:
            below = min(below, torch.iinfo(inputs.dtype).max)
        padding = 0 if smallest is None or smallest.padding_idx is None else int(smallest.padding_idx)
        shape = tuple(inputs.shape[1:])
        # A table may be read by numbers that are not whole by type; out of range, a GPU stops for good.
        centred = centred and not (tables and inputs.device.type != "cpu")
        return cls(shape, inputs.dtype, inputs.device, centred, below, padding, mask)

    @property
    def real(self) -> bool:
        """True for floating-point and complex types."""
        return self.dtype.is_floating_point or self.dtype.is_complex

    def full(self, count: int, seed: int) -> Tensor:
        """Return ordinary rows, [count, *shape]; whole numbers without padding, where there are others."""
        generator = torch.Generator().manual_seed(seed)
        size = (count, *self.shape)
        if self.mask:
            rows = torch.ones(size)
        elif self.real:
            draw = torch.randn if self.centred else torch.rand
            rows = draw(size, generator=generator)
        elif self.dtype == torch.bool or self.below < 2:
            rows = torch.randint(0, min(self.below, 2), size, generator=generator)
        else:
            rows = torch.randint(0, self.below - 1, size, generator=generator)
            rows = rows + (rows >= self.padding)
        return self._with_end_marks(rows).to(self.dtype).to(self.device)

    def _with_end_marks(self, rows: Tensor) -> Tensor:
        """The rows, each with the end mark after its last number that is no padding, and nowhere else."""
        if self.end is None or not self.shape:
            return rows
        other = next(each for each in range(self.below) if each not in (self.end, self.padding))
        rows = torch.where(rows == self.end, other, rows)
        places = torch.arange(self.shape[0]) * (rows != self.filler)
        rows[torch.arange(len(rows)), places.amax(dim=1)] = self.end
        return rows

    def short(self, count: int, seed: int) -> Tensor:
        """Return rows that are padded but for a quarter of their first dimension, in turns at either end."""
        rows = self.full(count, seed)
        if self.shape:
            kept = max(1, self.shape[0] // 4)
            rows[0::2, kept:] = self.filler
            rows[1::2, :-kept] = self.filler
        return self._with_end_marks(rows)

    def varied_rows(self, count: int, seed: int) -> Tensor:
        """Return rows of all lengths in no order, padded at the end and at the beginning in turns."""
        rows = self.full(count, seed)
        for place in range(count if self.shape else 0):
            size = self.shape[0]
            kept = max(math.ceil(_SHARES[place % len(_SHARES)] * size), int(self.mask))
            filled = slice(kept, None) if place % 2 == 0 else slice(0, size - kept)
            rows[place, filled] = self.filler
        return self._with_end_marks(rows)

    @property
    def filler(self) -> int:
        """The number that short rows are padded with."""
        return 0 if self.mask or self.real or self.dtype == torch.bool else self.padding

    @property
    def large(self) -> float:
        """The largest number to try; on a GPU, a number out of a table's range would end the process."""
        if not self.real or (self.device.type != "cpu" and not self.centred):
            return 1.0
        return min(_LARGE, torch.finfo(self.dtype).max / 100)

    def extremes(self) -> list[Tensor]:
        """Return rows unlike any other, [2, *shape] of each kind: constant, huge, empty, without padding."""
        if self.mask:
            return [self.full(2, seed=7), self.short(2, seed=7)]
        rows, large = self.full(2, seed=7), self.large
        constants = [0, 1, large, -large] if self.real else [0, self.padding, 1, self.below - 1]
        if self.dtype == torch.bool or self.below < 2 or (large == 1.0 and self.real):
            constants = [0, 1] if self.real or self.dtype == torch.bool else [0]
        if (
            (self.below == 2 or self.ranged)
            and not self.real
            and self.dtype != torch.bool
            and self.device.type == "cpu"
        ):
            # Out of range, a CPU fails, and the rows are left out; a GPU would stop for good.
            constants += [each for each in _LENGTHS if each <= torch.iinfo(self.dtype).max]
        kinds = [torch.full_like(rows, constant) for constant in constants]
        kinds += [each.expand_as(rows).clone() for each in self._missing()] if self.real else []
        return [*kinds, 3 * rows + 1, rows * large, rows] if large > 1.0 else [*kinds, rows]

    def moderate(self) -> list[Tensor]:
        """Return one row of each kind whose gradient is no matter of rounding, as a huge constant's is."""
        rows = self.full(1, seed=8)
        if self.mask:
            return [rows, self.short(1, seed=8)]
        spread = (rows * self.large).to(self.dtype)
        kinds = [torch.zeros_like(rows), torch.full_like(rows, min(1, self.below - 1)), spread]
        if not self.real:
            return [*kinds, torch.full_like(rows, self.padding)]
        return [*kinds, *self._missing()]

    def _missing(self) -> list[Tensor]:
        """One row whose last number is missing, and one of nothing else; not on a GPU, nor of masks.

        There a table that is read by rounded numbers would stop for good.
        """
        if not self.dtype.is_floating_point or self.device.type != "cpu":
            return []
        rows = self.full(2, seed=9)
        rows[0].flatten()[-1:] = math.nan
        rows[1] = math.nan
        return [rows[:1], rows[1:]]


class TrialRows(ABC):
    """Rows that a model is tried on, in the form of its inputs."""

    @abstractmethod
    def full(self, count: int, seed: int) -> Any:
        """Return ordinary rows, [count, ...]."""

    @abstractmethod
    def varied_rows(self, count: int, seed: int) -> Any:
        """Return rows that differ in every way that rows can, in no order; two of them are the same."""

    @abstractmethod
    def short(self, count: int, seed: int) -> Any | None:
        """Return rows that are mostly padding; None where there are none."""

    @abstractmethod
    def extremes(self) -> list[Any]:
        """Return kinds of rows that are unlike others, two of each."""

    @abstractmethod
    def moderate(self) -> Any | None:
        """Return unlike rows whose gradients are no matter of rounding, in a batch; None: no more."""


@final
class MadeUpInputs(TrialRows):
    """Rows made up from shapes and types; no row of the data decides what they are.

    Args:
        parts: `MadeUpRows` in the form of the inputs.
    """

    def __init__(self, parts: Any) -> None:
        self._parts = parts

    @classmethod
    def choices(cls, inputs: Inputs, model: nn.Module) -> Iterator[MadeUpInputs]:
        """Rows like these inputs, the most usual first: centred, not centred, and with end marks."""
        yield cls.like(inputs, model)
        yield cls.like(inputs, model, centred=False)
        end = getattr(getattr(model, "config", None), "eos_token_id", None)
        if isinstance(end, int):
            yield cls.like(inputs, model, end=end)

    @classmethod
    def like(
        cls, inputs: Inputs, model: nn.Module, *, centred: bool = True, end: int | None = None
    ) -> MadeUpInputs:
        """Rows like these inputs: see `MadeUpRows.like`. Each tensor is bounded by the tables that read it.

        Of several tensors, one with "mask" in its name or in that of the model's argument is a mask. Whole
        numbers that no table was seen to read, such as lengths, are as large as the model takes them. With an
        end mark, those of one dimension end with it that are read by a table of more than two rows.
        """
        readings = Reading.of(model, inputs)
        found = iter(readings)

        def part(each: Tensor) -> MadeUpRows:
            reading = next(found)
            rows = MadeUpRows.like(each, reading.tables, centred=centred, mask=reading.mask)
            text = end is not None and not (rows.mask or rows.real or reading.unread) and len(rows.shape) == 1
            return replace(rows, end=end) if text and 2 < rows.below > (end or 0) else rows

        made = cls(map_tensors(part, inputs))
        bytes_or_flags = (torch.uint8, torch.bool)
        places = [
            place
            for place, (rows, reading) in enumerate(zip(made._rows, readings, strict=True))
            if reading.unread and not (rows.mask or rows.real or rows.dtype in bytes_or_flags)
        ]
        return made._within_range(model, places) if places else made

    def _within_range(self, model: nn.Module, places: list[int]) -> MadeUpInputs:
        """These rows, with the largest whole numbers at these places that the model takes.

        Sizes of tables and of dimensions are tried, the largest first. On a GPU, where a number out of range
        would end the process, a copy of the model on the CPU is tried.
        """
        if any(rows.device.type != "cpu" for rows in self._rows):
            try:
                model = copy.deepcopy(model).to("cpu")
            except Exception:
                return self
        sizes = {
            *(size + more for rows in self._rows for size in rows.shape for more in (0, 1)),
            *(self._rows[place].below for place in places),
            *(each.num_embeddings for each in model.modules() if hasattr(each, "num_embeddings")),
            *_FEWEST,
        }
        bounds = sorted((size for size in sizes if size > 1), reverse=True)
        alike = ((bound,) * len(places) for bound in bounds)
        combined = islice(product(bounds, repeat=len(places)), _MOST_COMBINED) if len(places) > 1 else ()
        with suppress(Exception), try_model(model), torch.no_grad():
            for each in chain(alike, combined):
                made = self._with_bounds(dict(zip(places, each, strict=True)))
                if made._runs(model, places):
                    return made
        longest = max((size for rows in self._rows for size in rows.shape), default=1)
        return self._with_bounds(dict.fromkeys(places, 2 if len(self._rows) == 1 else longest + 1))

    def _with_bounds(self, bounds: Mapping[int, int]) -> MadeUpInputs:
        """These rows, with whole numbers below these bounds by place, and no padding there."""
        left = count()

        def part(rows: MadeUpRows) -> MadeUpRows:
            place = next(left)
            if place not in bounds:
                return rows
            below = min(bounds[place], torch.iinfo(rows.dtype).max)
            return replace(rows, below=below, padding=0, ranged=True)

        return MadeUpInputs(map_tensors(part, self._parts))

    def _runs(self, model: nn.Module, places: list[int]) -> bool:
        """Return whether the model takes rows with all numbers up to the bounds at these places."""
        rows = map_tensors(lambda each: each.to("cpu"), self.full(8, seed=10))
        for place in places:
            values = torch.linspace(1, self._rows[place].below - 1, 8).round()
            values = values[torch.tensor([3, 0, 7, 2, 5, 1, 6, 4])]
            each = tensors(rows)[place]
            each.copy_(values.reshape(-1, *[1] * (each.dim() - 1)).expand_as(each))
        try:
            call_model(model, rows)
        except Exception:
            return False
        return True

    @property
    def shaped(self) -> bool:
        """True if rows can be short."""
        return any(rows.shape for rows in self._rows)

    def full(self, count: int, seed: int) -> Any:
        """See `MadeUpRows.full`."""
        return self._each(lambda rows, seed: rows.full(count, seed), seed)

    def describe_row(self, place: int) -> str:
        """Return a description of the row at this place of `varied_rows`, in words."""
        share = _SHARES[place % len(_SHARES)]
        if not self.shaped or share == 1.0:
            return "made up"
        ends = "end" if place % 2 == 0 else "beginning"
        return "nothing but padding" if share == 0.0 else f"padded at their {ends}"

    def varied_rows(self, count: int, seed: int) -> Any:
        """See `MadeUpRows.varied_rows`; all tensors are equally short at the same end; two rows are equal."""
        made = self._each(lambda rows, seed: rows.varied_rows(count, seed), seed)
        for each in tensors(made) if count > 3 else ():
            each[-2] = each[1]
        return made

    def short(self, count: int, seed: int) -> Any | None:
        """See `MadeUpRows.short`; all tensors are short at the same end."""
        return self._each(lambda rows, seed: rows.short(count, seed), seed) if self.shaped else None

    def extremes(self) -> list[Any]:
        """See `MadeUpRows.extremes`; each tensor's kinds in turns, as many as the one with most has."""
        lengths = self.varied_rows(8, seed=11)
        kinds = [taken(lengths, slice(first, first + 2)) for first in range(0, 8, 2)] if self.shaped else []
        return [*self._in_turns([rows.extremes() for rows in self._rows]), *kinds]

    def moderate(self) -> Any:
        """See `MadeUpRows.moderate`; one batch."""
        return join_batches(*self._in_turns([rows.moderate() for rows in self._rows]))

    @property
    def _rows(self) -> tuple[Any, ...]:
        return tensors(self._parts)

    def _each(self, make: Callable[[MadeUpRows, int], Tensor], seed: int) -> Any:
        """Rows of each tensor; seeds that differ by tensor, so that two are not the same."""
        places = iter(range(len(self._rows)))
        return map_tensors(lambda rows: make(rows, seed + 1000 * next(places)), self._parts)

    def _in_turns(self, kinds: list[list[Tensor]]) -> list[Any]:
        def kind(number: int) -> Any:
            left = iter(kinds)
            return map_tensors(lambda _: (own := next(left))[number % len(own)], self._parts)

        return [kind(number) for number in range(max(map(len, kinds)))]


@final
class GivenRows(TrialRows):
    """Rows that were given: public examples, for models that cannot read what is made up.

    Args:
        examples: inputs, [count, ...], count >= 2.
    """

    def __init__(self, examples: Inputs) -> None:
        self._examples, self._count = examples, len(tensors(examples)[0])

    def full(self, count: int, seed: int) -> Any:
        """Return the examples in an order of the seed's, again and again."""
        order = torch.randperm(self._count, generator=torch.Generator().manual_seed(seed))
        return taken(self._examples, order[torch.arange(count) % self._count])

    def varied_rows(self, count: int, seed: int) -> Any:
        return self.full(count, seed)

    def short(self, count: int, seed: int) -> None:
        return None

    def extremes(self) -> list[Any]:
        """Return each two that follow each other, of sixteen at most."""
        few = [0, *range(min(self._count, 16))]
        return [taken(self._examples, few[place : place + 2]) for place in range(len(few) - 1)]

    def moderate(self) -> None:
        return None


class Reading(NamedTuple):
    """A model's use of one tensor of its inputs.

    Attributes:
        tables: embedding tables whose rows its whole numbers index.
        mask: True if it marks the positions of other tensors that count.
        unread: True if no table was seen to read the tensor itself, so that `tables` are all of the model.
    """

    tables: list[Any]
    mask: bool
    unread: bool

    @classmethod
    def of(cls, model: nn.Module, inputs: Inputs) -> list[Reading]:
        """Return the reading of each tensor [batch, ...], by its name and by a pass over zeros of its shape.

        Tables that read a tensor itself, all of it, bound its numbers; otherwise any table of the model may.
        """
        tables = [each for each in model.modules() if isinstance(each, nn.Embedding | nn.EmbeddingBag)]
        names = _names(model, inputs)
        masks = [len(names) > 1 and "mask" in name for name in names]
        seen = _tables_that_read(model, inputs, tables, masks) if tables else [([], False) for _ in names]
        return [
            cls(read if whole else tables, mask, not read)
            for (read, whole), mask in zip(seen, masks, strict=True)
        ]


def _names(model: nn.Module, inputs: Inputs) -> list[str]:
    """Return the name of each tensor: its key in a mapping, or the model's argument for a tuple."""
    if isinstance(inputs, Mapping):
        return [str(name) for name, each in inputs.items() for _ in tensors(each)]
    if not isinstance(inputs, tuple):
        return [""]
    reads = model.model if isinstance(model, UnitModel) else model
    named = [*inspect.signature(reads.forward).parameters, *("" for _ in inputs)]
    return [name for name, each in zip(named, inputs, strict=False) for _ in tensors(each)]


def _tables_that_read(
    model: nn.Module, inputs: Inputs, tables: list[Any], masks: list[bool]
) -> list[tuple[list[Any], bool]]:
    """The tables that read each tensor's memory, and whether one reads all of it; none where the model fails.

    Where it fails on zeros, it is run on ones too, on a CPU: a length of 0 may fail before a table.
    """
    places: list[tuple[int, int]] = []
    read: list[list[Any]] = [[] for _ in masks]
    whole = [False for _ in masks]

    def note(table: nn.Module, arguments: tuple[Any, ...]) -> None:
        for place, (start, size) in enumerate(places):
            if isinstance(arguments[0], Tensor) and arguments[0].untyped_storage().data_ptr() == start:
                read[place].append(table)
                whole[place] |= arguments[0].numel() == size

    watching = [table.register_forward_pre_hook(note) for table in tables]
    try:
        for value in (0.0, 1.0):
            filled = iter([max(value, float(mask)) for mask in masks])
            rows = map_tensors(partial(_rows_of, filled), inputs)
            places[:] = [(each.untyped_storage().data_ptr(), each.numel()) for each in tensors(rows)]
            with suppress(Exception), try_model(model), torch.no_grad():
                call_model(model, rows)
                break
            if any(each.device.type != "cpu" for each in tensors(rows)):
                break
    finally:
        for each in watching:
            each.remove()
    return list(zip(read, whole, strict=True))


def _rows_of(values: Iterator[float], like: Tensor) -> Tensor:
    """Two rows of the next value."""
    return like.new_full((2, *like.shape[1:]), next(values))
