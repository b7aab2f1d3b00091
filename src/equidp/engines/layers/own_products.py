"""Modules whose own forward reads their parameters in products alone, such as `F.linear(x, self.weight)`.

Their forward runs as it is, and each product is recorded as one of a recurrent layer or of attention is
(`decomposed.Products`). A forward that reads a parameter in any other way is left to torch.func.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import prod
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from equidp.engines.layers.projection import Arrange, Block, Record
from equidp.engines.layers.rule import Call, Parameters, Tape

_MATMUL = frozenset((torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__))
_ADDMM = frozenset((torch.addmm, Tensor.addmm))
_ADD = frozenset((torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__))
_tensor: Any = Tensor
_TRANSPOSE = frozenset((Tensor.t, torch.t, _tensor.T.__get__, _tensor.mT.__get__))
_FORM = frozenset(
    (
        *(getattr(Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device", "requires_grad")),
        *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.detach, Tensor.__len__, Tensor.stride),
        *(Tensor.is_floating_point, Tensor.is_complex),
    )
)
"""Functions that read a parameter's form, or its values without their gradients."""


class OtherReading(Exception):
    """A forward reads a parameter in another way than by products whose examples stand first."""


def read_products(
    call: Call,
    record: Record,
    forward: Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    tape: Tape,
) -> Any:
    """Run a module's forward, and record its products with the module's parameters.

    Args:
        call: of a module that owns all of its trained parameters itself.
        record: takes the products, and returns their outputs.
        forward: the module's own.
        arguments, keywords: what it was called with.
        tape: of the forward pass.

    Raises:
        OtherReading: a parameter is read in another way, or not at all; the module was run in part.
    """
    if torch.compiler.is_compiling():
        raise OtherReading
    reading = ReadProducts(call.parameters, record, tape.batch)
    with reading:
        outputs = forward(*arguments, **keywords)
    if reading.given_up or not reading.names >= call.parameters.keys():
        raise OtherReading
    return outputs


def is_saving_watched() -> bool:
    """Return whether something counts or moves the tensors that a forward saves, as checkpointing does.

    It saves others where a forward is given up and the module is run by torch.func.
    """
    hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None


class _Read(NamedTuple):
    """A parameter as a function reads it: its name, and True where it is transposed."""

    name: str
    turned: bool = False


@final
class ReadProducts(TorchFunctionMode):
    """Records products with parameters of a module, and refuses other functions of them.

    | function | gradient of the parameter W or b |
    | --- | --- |
    | linear(x, W, b), addmm(b, x, W.T), x @ W.T | that of a linear layer |
    | x @ W, addmm(b, x, W) | that of a linear layer with W transposed |
    | einsum of x and W, with no letter in both and in the outputs | one of these, over the letters in both |
    | y + b, of b [features] | the gradient of the outputs |

    Args:
        parameters: trained ones, that belong to the module itself.
        record: takes the inputs and outputs of each product.
        batch: number of rows in the first dimension of what the module reads.

    Attributes:
        names: of parameters that were read in products.
        given_up: True after an `OtherReading`, which the forward may have caught.
    """

    given_up = False

    def __init__(self, parameters: Parameters, record: Record, batch: int) -> None:
        super().__init__()
        self._read = {id(parameter): _Read(name) for name, parameter in parameters.items()}
        self._views: list[Tensor] = []  # held, so that no other tensor gets the id of one of them
        self._record, self._batch = record, batch
        self._blocks: dict[str, Block] = {}

    @property
    def names(self) -> set[str]:
        return set(self._blocks)

    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: Any = None
    ) -> Any:
        keywords = keywords or {}
        of_parameter = _any_in(self._read, arguments) or _any_in(self._read, keywords.values())
        if not of_parameter or function in _FORM:
            return function(*arguments, **keywords)
        if function in _TRANSPOSE and arguments[0].dim() == 2:
            name, turned = self._read[id(arguments[0])]
            view = function(*arguments)
            self._views.append(view)
            self._read[id(view)] = _Read(name, not turned)
            return view
        try:
            return self._record_products(function, arguments, keywords)
        except OtherReading:
            self.given_up = True
            raise

    def _record_products(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        products = self._products(function, arguments, keywords)
        outputs = function(*arguments, **keywords)
        for inputs, block, inputs_of, outputs_of in products:
            by_example = inputs.dim() > 1 and inputs.shape[0] == outputs.shape[0] == self._batch
            if not (by_example and outputs.requires_grad):  # else part of an autograd.Function, say
                raise OtherReading
            for name in filter(None, (block.weight, block.bias)):
                if self._blocks.setdefault(name, block) != block:
                    raise OtherReading
            outputs = self._record(block, inputs, outputs, inputs_of, outputs_of)
        return outputs

    def _products(
        self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> list[_Product]:
        """Return the products that a function of the parameters makes."""
        with suppress(TypeError, ValueError):
            if function is linear:
                keywords = {"inputs" if name == "input" else name: each for name, each in keywords.items()}
                return self._of_linear(*arguments, **keywords)
            if function in _MATMUL and not keywords:
                return self._of_matmul(*arguments)
            if function in _ADDMM and not keywords:
                return self._of_addmm(*arguments)
            if function in _ADD and not keywords:
                return self._of_add(*arguments)
            if function is torch.einsum and not keywords:
                return self._of_einsum(*arguments)
        raise OtherReading

    def _of_linear(self, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> list[_Product]:
        read = self._weight(inputs, weight)
        shift = None if bias is None else self._read.get(id(bias))
        if read is None or (shift is not None and shift.turned):
            raise OtherReading
        return [_Product(inputs, Block(read.name, shift and shift.name, turned=read.turned))]

    def _of_matmul(self, inputs: Tensor, weight: Tensor) -> list[_Product]:
        read = self._weight(inputs, weight)
        if read is None:
            raise OtherReading
        return [_Product(inputs, Block(read.name, turned=not read.turned))]

    def _of_addmm(self, bias: Tensor, inputs: Tensor, weight: Tensor) -> list[_Product]:
        (product,) = self._of_matmul(inputs, weight)
        shift = self._read.get(id(bias))
        if shift is not None and bias.dim() != 1:
            raise OtherReading
        return [product._replace(block=product.block._replace(bias=shift and shift.name))]

    def _of_add(self, one: Tensor, other: Tensor) -> list[_Product]:
        values, bias = (other, one) if id(one) in self._read else (one, other)
        if (
            not isinstance(values, Tensor)
            or id(values) in self._read
            or bias.dim() != 1
            or values.shape[-1:] != bias.shape
        ):
            raise OtherReading
        return [_Product(values[..., :0], Block("", self._read[id(bias)].name))]

    def _of_einsum(self, equation: str, *operands: Any) -> list[_Product]:
        left, outputs = equation.replace(" ", "").split("->")
        letters, operands = left.split(","), _list_operands(operands)
        if len(operands) != 2 or any(not each.isalpha() or len(set(each)) < len(each) for each in letters):
            raise OtherReading
        place = 0 if id(operands[0]) in self._read else 1
        weight, inputs = letters[place], letters[1 - place]
        name, turned = self._read[id(operands[place])]
        values = operands[1 - place]
        shared = [each for each in weight if each in inputs]
        own = [each for each in weight if each not in inputs]
        first = inputs[0]
        in_order = weight in ("".join((*shared, *own)), "".join((*own, *shared)))
        if (
            turned
            or id(values) in self._read
            or not (shared and own and in_order)
            or set(shared) & set(outputs)
            or not set(own) <= set(outputs)
            or set(outputs) != {*inputs, *own} - {*shared}
            or outputs[:1] != first
        ):
            raise OtherReading
        kept = [each for each in inputs if each not in shared]
        turned = weight.startswith(shared[0])
        arranged = _arranging(inputs, kept, shared), _arranging(outputs, kept, own)
        return [_Product(values, Block(name, turned=turned), *arranged)]

    def _weight(self, inputs: Tensor, weight: Tensor) -> _Read | None:
        """Return how a weight [.., ..] is read by a product whose inputs are no parameter."""
        if id(inputs) in self._read or weight.dim() != 2:
            return None
        return self._read.get(id(weight))


def _as_it_is(values: Tensor) -> Tensor:
    return values


class _Product(NamedTuple):
    """A product with a block of parameters, and how its inputs and outputs become [batch, ..., features]."""

    inputs: Tensor
    block: Block
    inputs_of: Arrange = _as_it_is
    outputs_of: Arrange = _as_it_is


def _arranging(letters: str, first: list[str], last: list[str]) -> Arrange:
    """Return the function that moves dimensions into this order, and joins the last ones to features."""
    order = [letters.index(each) for each in (*first, *last)]

    def arrange(values: Tensor) -> Tensor:
        moved = values.permute(order)
        return moved.reshape(*moved.shape[: len(first)], prod(moved.shape[len(first) :]))

    return arrange


def _list_operands(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(operands[0]) if len(operands) == 1 and isinstance(operands[0], tuple | list) else operands


def _any_in(known: dict[int, Any], values: Any) -> bool:
    """Return whether a tensor is among values, also in lists and tuples of them."""
    for each in values:
        if isinstance(each, Tensor):
            if id(each) in known:
                return True
        elif isinstance(each, tuple | list) and _any_in(known, each):
            return True
    return False
