"""The fast engine: one forward and one backward pass, per-example norms and weighted sums from what the layers saw.

Each layer's parameters meet the loss only through its input and the gradient of its output, so these two give per-example norms and
weighted sums of gradients without storing a gradient per example (Goodfellow 2015; ghost clipping, Li et al. 2022; book-keeping, Bu
et al. 2023). The backward pass computes output gradients alone: no parameter gradient is formed before the weights are known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from equidp.engines.base import LossFunction
from equidp.engines.layers import Call, FallbackCall, OpenedCall, forward_for, opened, rule_for, watch
from equidp.engines.layers.base import squared_lengths
from equidp.engines.layers.opened import Projection
from equidp.errors import ModelError


class GhostEngine:
    """See the module's docstring.

    Layers with a rule (`equidp.engines.layers.RULES`) are read directly; recurrent layers and attention are run from products
    (`equidp.engines.layers.opened`); any other module that owns trainable parameters is run again by torch.func, alone. Parameters
    that several calls share (tied weights, a layer used twice) get their cross terms from per-example gradients of those calls.
    Hooks and other forwards are on the model during `norms` only.

    Args:
        model: any module whose outputs for one example do not depend on others.
        loss: (outputs, targets) -> losses [batch].
    """

    def __init__(self, model: nn.Module, loss: LossFunction) -> None:
        self.model, self.loss = model, loss
        self._calls: list[Call] = []

    def norms(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """See `GradientEngine.norms`."""
        self._calls = []
        device = inputs.device.type
        with self._watched() as calls, torch.enable_grad():
            losses = self.loss(self.model(inputs), targets)
            if losses.shape != (len(inputs),):
                raise ModelError(
                    f"the loss has shape {list(losses.shape)}; expected one per example, [{len(inputs)}]. "
                    "Pass one that does not average, such as CrossEntropyLoss(reduction='none')."
                )
            with torch.autocast(device, enabled=False):
                torch.autograd.backward(losses.sum())
        self._calls = [call for call in calls if call.reached]
        with torch.autocast(device, enabled=False):
            return self._squared_norms(len(inputs), losses.device).sqrt()

    def _squared_norms(self, batch: int, device: torch.device) -> Tensor:
        total = torch.zeros(batch, device=device)
        alone, shared = self._sorted_calls()
        for call in alone:
            total = total + _one_per_example(call.squared_norms(), call.module, batch)
        for gradient in self._shared_gradients(shared, batch).values():
            total = total + squared_lengths({"": gradient})
        return total

    def weighted_sum(self, weights: Tensor) -> None:
        """See `GradientEngine.weighted_sum`."""
        alone, shared = self._sorted_calls()
        with torch.autocast(weights.device.type, enabled=False):
            for call in alone:
                for name, gradient in call.weighted_gradients(weights).items():
                    _accumulate(call.module.get_parameter(name), gradient)
            for parameter, gradients in self._shared_gradients(shared, len(weights)).items():
                _accumulate(parameter, torch.tensordot(weights.to(gradients.dtype), gradients, dims=1))
        self._calls = []

    def _sorted_calls(self) -> tuple[list[Call], list[Call]]:
        """Calls whose parameters no other call uses, and the others."""
        users: dict[nn.Parameter, int] = defaultdict(int)
        for call in self._calls:
            for name in call.names:
                users[call.module.get_parameter(name)] += 1
        alone: list[Call] = []
        shared: list[Call] = []
        for call in self._calls:
            single = all(users[call.module.get_parameter(name)] == 1 for name in call.names)
            (alone if single else shared).append(call)
        return alone, shared

    @staticmethod
    def _shared_gradients(calls: list[Call], batch: int) -> dict[nn.Parameter, Tensor]:
        """Per-example gradients of the parameters of several calls, summed over the calls before any norm is taken."""
        gradients: dict[nn.Parameter, Tensor] = {}
        for call in calls:
            for name, gradient in call.example_gradients().items():
                _one_per_example(gradient, call.module, batch)
                parameter = call.module.get_parameter(name)
                gradients[parameter] = gradients[parameter] + gradient if parameter in gradients else gradient
        return gradients

    @contextmanager
    def _watched(self) -> Iterator[list[Call]]:
        """Hooks on every module that owns trainable parameters, and parameters out of the graph, while inside."""
        calls: list[Call] = []
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        handles = []
        fast_path = torch.backends.mha.get_fastpath_enabled()
        anchor = torch.zeros((), requires_grad=True, device=trained[0].device)
        names = {module: _trained_names(module) for module in _owners(self.model)}
        forwards = {module: forward for module in names if (forward := forward_for(module))}

        def start(module: nn.Module) -> Projection:
            call = OpenedCall(module, names[module], anchor)
            calls.append(call)
            return call.project

        try:
            for module in names:
                if module not in forwards:
                    watcher = _Watcher(calls, anchor, names[module])
                    handles.append(module.register_forward_hook(watcher, with_kwargs=True))
            with opened(forwards, start):
                for parameter in trained:
                    parameter.requires_grad_(False)
                torch.backends.mha.set_fastpath_enabled(False)
                yield calls
        finally:
            torch.backends.mha.set_fastpath_enabled(fast_path)
            for handle in handles:
                handle.remove()
            for parameter in trained:
                parameter.requires_grad_(True)


def _trained_names(module: nn.Module) -> list[str]:
    return [name for name, parameter in module.named_parameters() if parameter.requires_grad]


def _owners(module: nn.Module) -> Iterator[nn.Module]:
    """Modules to watch: those we know, and the outermost of those that use parameters of their own and that we do not know."""
    seen: set[nn.Module] = set()

    def visit(module: nn.Module) -> Iterator[nn.Module]:
        if module in seen:
            return
        seen.add(module)
        own = any(parameter.requires_grad for parameter in module.parameters(recurse=False))
        if rule_for(module) is not None or forward_for(module) is not None or own:
            if any(parameter.requires_grad for parameter in module.parameters()):
                yield module
            return
        for child in module.children():
            yield from visit(child)

    return visit(module)


class _Watcher:
    """A forward hook that notes a call and asks for the gradient of its output."""

    def __init__(self, calls: list[Call], anchor: Tensor, names: list[str]) -> None:
        self.calls, self.anchor, self.names = calls, anchor, names

    def __call__(
        self, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any
    ) -> Any:
        rule = rule_for(module)
        if rule is not None and not keywords and len(arguments) == 1:
            call = rule(module, self.names, arguments[0])
            self.calls.append(call)
            return watch(module, arguments[0], output, self.anchor, call.receive)
        unknown = FallbackCall(module, self.names, arguments, keywords)
        self.calls.append(unknown)
        outputs, structure = tree_flatten(output)
        watched = [
            watch(module, unknown.inputs, each, self.anchor, partial(unknown.receive_at, position))
            if isinstance(each, Tensor) and each.is_floating_point()
            else each
            for position, each in enumerate(outputs)
        ]
        return tree_unflatten(watched, structure)


def _one_per_example(rows: Tensor, module: nn.Module, batch: int) -> Tensor:
    """Refuses what a layer says of other rows than the batch's."""
    if len(rows) != batch:
        raise ModelError(
            f"{type(module).__name__} reads a tensor whose first dimension is {len(rows)}, in a batch of {batch}: examples must "
            "come first in every layer (batch_first=True?). Or use engine='functional'."
        )
    return rows


def _accumulate(parameter: nn.Parameter, gradient: Tensor) -> None:
    gradient = gradient.to(parameter.dtype)
    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
