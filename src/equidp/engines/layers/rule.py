"""Rules of layers: how a call is run, and the per-example gradients that follow from it.

A `Tape` records the calls of a forward pass. The backward pass hands each `Call` what its `Gradients` need.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from copy import copy
from functools import partial
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from equidp.engines.layers.sums import (
    KEPT,
    ByName,
    add_tensors,
    join_parts,
    precise,
    squared_lengths,
    sum_of_rows,
    weighted_sums,
    zero_left_out,
)
from equidp.errors import ModelError

Parameters = dict[str, nn.Parameter]
"""Trained parameters of a module, by their names in it."""
Norms = tuple[Tensor, ByName | None]
"""Squared norms of per-example gradients over all parameters of a call, [batch]; and these gradients, if they
were computed on the way and are small."""
Forward = Callable[[Tensor], Tensor]
"""A layer's own forward on one tensor [batch, ...]."""


class NotByExample(ModelError):
    """A layer reads something else than a row for each example; `module` is the layer."""

    def __init__(self, message: str, module: nn.Module) -> None:
        super().__init__(message, field=type(module).__name__)
        self.module = module


class Rule(NamedTuple):
    """Rule for calls of one kind of layer, whose computation is known from the layer's class.

    Attributes:
        run: (call, the layer's own forward, inputs [batch, ...], tape) -> the layer's outputs; watches the
            tensors that the call's gradients need.
        covers: returns True if the rule knows this layer's settings.
    """

    run: Callable[[Call, Forward, Tensor, Tape], Tensor]
    covers: Callable[[Any], bool] = lambda layer: True


def run_layer(
    read: Callable[[Call, Tensor, Tensor], Gradients],
    call: Call,
    forward: Forward,
    inputs: Tensor,
    tape: Tape,
) -> Tensor:
    """Run a layer whose gradients `read` finds from the call, its inputs and its output's gradient.

    Takes norms as soon as that gradient arrives, to free activations during the backward pass.
    """
    known = inputs.detach() if inputs.requires_grad else inputs
    outputs = without_base(forward(inputs))
    tape.watch(call.module, inputs, outputs, lambda gradient: call.take(read(call, known, gradient)))
    return outputs


def without_base(values: Tensor) -> Tensor:
    """Return values as a tensor that is not a view: an in-place change of a view bypasses its hook.

    Products with a bias of several positions are such views.

    >>> without_base(torch.zeros(2, 3).flatten())._is_view()
    False
    """
    if not values._is_view():
        return values
    apart: Tensor = torch.ops.aten._unsafe_view(values, values.shape)
    return apart


def copies_of(call: Call, name: str, count: int, tape: Tape) -> Tensor:
    """Return copies of a parameter, [count, *shape], one for each row, whose gradients the call takes."""
    parameter = call.parameters[name]
    copies: Tensor = parameter.detach().expand(count, *parameter.shape).requires_grad_()

    def receive(gradient: Tensor) -> None:
        call.received[name] = sum_of_rows(precise(gradient, gradient)[0], call.rows)
        call.pending = partial(KnownGradients, call.received)

    tape.watch_copy(copies, receive)
    return copies


class Gradients(ABC):
    """Per-example gradients of one call's parameters, computed as far as they are needed.

    A rule defines `example_gradients`, and norms or weighted sums if there is a cheaper way to compute them.

    Attributes:
        held: model's own tensors that the weighted sum will read. Nothing may change them in between.
    """

    held: tuple[Tensor, ...] = ()

    @abstractmethod
    def example_gradients(self) -> ByName:
        """Return the per-example gradients, [batch, *shape]."""

    def squared_norms(self) -> Norms:
        """Return their squared norms, in the cheapest way."""
        return squared_lengths(self.example_gradients()), None

    @final
    def without(self, left_out: Tensor) -> Gradients:
        """Return these gradients with 0 for some examples, [batch], even if theirs were infinite or NaN."""

        def zeroed(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: zeroed(each) for name, each in value.items()}
            is_row = isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
            if is_row and value.is_floating_point():
                return zero_left_out(value, left_out.repeat_interleave(len(value) // len(left_out)))
            return value

        gradients = copy(self)
        vars(gradients).update(zeroed(vars(self)))
        return gradients

    def weighted_gradients(self, weights: Tensor) -> ByName:
        """Return sum_i weights[i] * gradient_i in float64, [*shape]; weights [batch]. Comes after
        `squared_norms`."""
        return weighted_sums(weights, self.example_gradients())


@final
class KnownGradients(Gradients):
    """Per-example gradients that are stored."""

    def __init__(self, gradients: ByName) -> None:
        self._gradients = gradients

    def example_gradients(self) -> ByName:
        return self._gradients


class LayerGradients(Gradients):
    """Per-example gradients from a layer's input and the gradient of its output.

    Args:
        call: call of the layer.
        inputs: [batch * rows, ...], inputs of the call.
        grad_output: [batch * rows, ...], gradient of its outputs.
    """

    def __init__(self, call: Call, inputs: Tensor, grad_output: Tensor) -> None:
        self.module, self.parameters, self.rows = call.module, call.parameters, call.rows
        self.inputs, self.grad_output = inputs, grad_output
        self.held = (inputs, grad_output)

    def examples_at_a_time(self) -> int:
        """Return how many examples' gradients are computed at a time, to bound memory."""
        return len(self.inputs)

    @final
    def _parts(self) -> Iterator[ByName]:
        size = self.rows * self.examples_at_a_time()
        for inputs, grad_output in zip(self.inputs.split(size), self.grad_output.split(size), strict=True):
            part = copy(self)
            part.inputs, part.grad_output = inputs, grad_output
            yield part.example_gradients()

    def squared_norms(self) -> Norms:
        most = KEPT * (self.inputs.numel() + self.grad_output.numel()) * self.rows // len(self.inputs)
        norms, kept = [], list[ByName]()
        for gradients in self._parts():
            norms.append(squared_lengths(gradients))
            if sum(each[0].numel() for each in gradients.values()) <= most:
                kept.append(gradients)
        names = kept[0] if kept else {}
        small = {name: join_parts([each[name] for each in kept]) for name in names}
        return join_parts(norms), small or None

    def weighted_gradients(self, weights: Tensor) -> ByName:
        parts = zip(weights.split(self.examples_at_a_time()), self._parts(), strict=True)
        sums = [weighted_sums(some, gradients) for some, gradients in parts]
        return {name: add_tensors(each[name] for each in sums) for name in sums[0]}

    @final
    def pair(self) -> tuple[Tensor, Tensor]:
        """Return inputs and output gradient in at least float32."""
        return precise(self.inputs, self.grad_output)


@final
class Call:
    """One call of one module, and what it contributes to norms and to the weighted sum.

    Args:
        module: module.
        parameters: its trained parameters.
        rows: number of rows per example (unit of privacy). The module reads [batch * rows, ...]. Its
            gradients are of units, [batch, ...].

    Attributes:
        shared: whether other calls use some of these parameters too; known before the backward pass.
        pending: computes the gradients after the backward pass if they arrive in pieces; set by the first.
        received: gradients that arrive by parameter, [batch, *shape].
        gradients: what the weighted sum is computed from; None until the losses are known to depend on it.
        squares: squared norms, [batch], or None if shared, because gradients must be added before their norm.
    """

    def __init__(self, module: Any, parameters: Parameters, rows: int = 1) -> None:
        self.module, self.parameters, self.rows = module, parameters, rows
        self.shared = False
        self.pending: Callable[[], Gradients] | None = None
        self.received: ByName = {}
        self.gradients: Gradients | None = None
        self.squares: Tensor | None = None
        self._versions: list[int] = []

    def take(self, gradients: Gradients) -> None:
        """Take norms, and keep of the gradients only what the weighted sum will need."""
        self.pending = None
        if self.shared:
            self.gradients = KnownGradients(gradients.example_gradients())
        else:
            self.squares, small = gradients.squared_norms()
            self.gradients = gradients if small is None else KnownGradients(small)
        self._versions = [each._version for each in self.gradients.held]

    def weighted_gradients(self, weights: Tensor, left_out: Tensor | None) -> ByName:
        """Return the weighted sums in float64, by name.

        Args:
            weights: [batch].
            left_out: mask of examples whose gradients count as 0, [batch]. None: no example.

        Raises:
            ModelError: a tensor that norms were taken of was changed in place.
        """
        if self.gradients is None:
            return {}
        if [each._version for each in self.gradients.held] != self._versions:
            raise ModelError(
                f"the input of {type(self.module).__name__}, or the gradient of its output, was changed in "
                "place after its norms were taken, so the sum would not keep to them. A backward pass of "
                "your own must return a new tensor.",
                field=type(self.module).__name__,
            )
        gradients = self.gradients if left_out is None else self.gradients.without(left_out)
        return gradients.weighted_gradients(weights)


class Tape:
    """Records calls, and passes on the gradients of their outputs or of their copies of parameters.

    No other gradients are computed: the backward pass forms none of the parameters themselves.

    Args:
        batch: number of rows of the forward pass.
        rows: how many of them each example (unit of privacy) has, one after the other.

    Attributes:
        calls: calls in the order of the forward pass.
        read_once: layer that now has a row for each example, although the model has one for all.
        repeats: `torch.utils.checkpoint` repeats calls in the backward pass.
        is_within_module: whether a module runs whose gradients are read as a whole, with all modules in it.
    """

    def __init__(self, batch: int, rows: int = 1) -> None:
        self.batch, self.rows = batch, rows
        self.calls: list[Call] = []
        self.read_once: nn.Module | None = None
        self._ends: list[GradientEdge] = []
        self._reads_results = False  # a layer read what requires a gradient
        self.repeats = False
        self.is_within_module = False

    def note(self, call: Call) -> None:
        """Record the call, but not when `torch.utils.checkpoint` repeats it in the backward pass."""
        if not self.repeats:
            self.calls.append(call)

    def watch(
        self, module: nn.Module, inputs: Tensor, output: Tensor, receive: Callable[[Tensor], None]
    ) -> None:
        """Pass the gradient of `module`'s output to `receive`, if the losses depend on it."""
        if not output.requires_grad:
            return
        if not inputs.requires_grad:
            # The backward pass ends here; it passes all other outputs on its way.
            self._ends.append(get_gradient_edge(output))
        self._reads_results |= inputs.requires_grad
        held = [(inputs, inputs._version, receive)]  # popped at its only use: the graph keeps its hooks

        def pass_on(gradient: Tensor) -> None:
            inputs, version, receive = held.pop()
            if inputs._version != version:
                raise ModelError(
                    f"the input of {type(module).__name__} was changed in place after the layer read it. Use "
                    "operations that are not in place.",
                    field=type(module).__name__,
                )
            receive(gradient)

        output.register_hook(pass_on)

    def watch_copy(self, copied: Tensor, receive: Callable[[Tensor], None]) -> None:
        """Pass the gradient of a parameter's copy, a leaf, to `receive`, if losses depend on it."""
        self._ends.append(get_gradient_edge(copied))
        copied.register_hook(receive)

    def backward(self, losses: Tensor) -> list[Call]:
        """Run the backward pass from the sum of the losses [batch]; return the calls that they depend on.

        Forgets everything afterwards: calls may refer to their tape, and a cycle would hold them until the
        next garbage collection.
        """
        self.repeats = True
        if len(self.calls) > 1:
            users = Counter(parameter for call in self.calls for parameter in call.parameters.values())
            for call in self.calls:
                call.shared = any(users[parameter] > 1 for parameter in call.parameters.values())
        if not self._ends and self._reads_results:
            raise ModelError(
                "its layers read inputs that require gradients. A model that is differentiated by its own "
                "inputs, as for forces that follow from an energy, needs torch.func.grad in place of "
                "requires_grad and torch.autograd.grad, and engine='functional'.",
                field="inputs",
            )
        if not self._ends:
            raise ModelError(
                "no layer that owns a trained parameter was called, so there are no gradients to measure. "
                "Call the layers themselves (self.layer(x)), not functions of their weights.",
                field="model",
            )
        # Of a sum, since gradients of outputs that are given make torch load its compiler.
        torch.autograd.grad(losses.sum(), self._ends, allow_unused=True)
        reached = [call for call in self.calls if call.gradients or call.pending]
        self.calls, self._ends = [], []
        return reached
