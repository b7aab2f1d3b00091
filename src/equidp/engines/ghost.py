"""The fast engine: one forward and one backward pass, per-example norms and weighted sums from what the layers saw.

Each layer's parameters meet the loss only through its input and the gradient of its output, so these two give per-example norms and
weighted sums of gradients without storing a gradient per example (Goodfellow 2015; ghost clipping, Li et al. 2022; book-keeping, Bu
et al. 2023). The backward pass computes output gradients alone: no parameter gradient is formed before the weights are known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.utils._pytree import tree_flatten

from equidp.engines.layers import (
    Call,
    FallbackCall,
    OpenedCall,
    RandomState,
    Tape,
    attention_in_full,
    forward_for,
    replaced,
    rule_for,
)
from equidp.engines.layers.sums import squared_lengths
from equidp.engines.measured import MeasuredBatch
from equidp.errors import ModelError
from equidp.kernel.engine import LossFunction

_COARSE = ("tf32", "bf16")
_backends: Any = torch.backends
_PRECISION: dict[str, tuple[Any, ...]] = (
    {
        "cpu": (_backends.mkldnn.matmul, _backends.mkldnn.conv),
        "cuda": (_backends.cuda.matmul, _backends.cudnn.conv),
    }
    if hasattr(_backends.mkldnn, "conv")
    else {}
)
"""Where PyTorch 2.9 and newer is told how precise products of float32 are to be, by device."""


class GhostEngine:
    """See the module's docstring.

    Layers with a rule (`equidp.engines.layers.RULES`) are read directly; recurrent layers and attention are run from products
    (`equidp.engines.layers.decomposed`); any other module that owns trainable parameters is run again by torch.func, alone.
    Parameters that several calls share (tied weights, a layer used twice) get their
    cross terms from per-example gradients of those calls.
    Other forwards are on the model during a call only.

    Args:
        model: any module whose outputs for one example do not depend on others.
        loss: (outputs, targets) -> losses [batch].
    """

    def __init__(self, model: nn.Module, loss: LossFunction) -> None:
        self.model, self.loss = model, loss
        self._sites = list(_sites(model))

    def __call__(self, inputs: Tensor, targets: Tensor) -> MeasuredBatch:
        """See `kernel.engine.Engine`."""
        tape = Tape()
        with self._watched(tape):
            with torch.enable_grad():
                # An input that requires a gradient of its own would hide where the backward pass may end.
                losses = self.loss(self.model(inputs.detach()), targets)
            if losses.shape != (len(inputs),):
                raise ModelError(
                    "the loss is not of shape [batch]; expected one per example. Pass one that does not average, such as "
                    "CrossEntropyLoss(reduction='none')."
                )
            precisely = _full_precision(losses.device)
            with precisely():
                _mark_shared(tape.calls)
                calls = tape.backward(losses)
        with precisely():
            for call in calls:
                if call.squares is None and call.kept is None:
                    call.settle()
            norms = _squared_norms(calls, len(inputs), losses.device).sqrt()
        return MeasuredBatch(norms, partial(_add_weighted, calls), _drew_otherwise(calls))

    @contextmanager
    def _watched(self, tape: Tape) -> Iterator[None]:
        """Forwards that take notes in the modules that own trained parameters, while inside."""
        with replaced({site.module: partial(site.run, tape) for site in self._sites}), attention_in_full():
            yield


def _squared_norms(calls: list[Call], batch: int, device: torch.device) -> Tensor:
    parts = [_one_per_example(call.squares, call.module, batch) for call in calls if call.squares is not None]
    parts += [squared_lengths({"": gradient}) for gradient in _shared_gradients(calls, batch).values()]
    return sum(parts[1:], start=parts[0]) if parts else torch.zeros(batch, device=device)


def _shared_gradients(calls: list[Call], batch: int) -> dict[nn.Parameter, Tensor]:
    """Per-example gradients of the parameters of several calls, summed over the calls before any norm is taken."""
    gradients: dict[nn.Parameter, Tensor] = {}
    for call in calls:
        for name, gradient in (call.kept or {}).items() if call.shared else ():
            _one_per_example(gradient, call.module, batch)
            parameter = call.parameters[name]
            gradients[parameter] = gradients[parameter] + gradient if parameter in gradients else gradient
    return gradients


def _drew_otherwise(calls: list[Call]) -> Tensor | None:
    drawn = [call.drew_otherwise for call in calls if isinstance(call, FallbackCall)]
    known = [each for each in drawn if each is not None]
    return torch.stack(known).any(dim=0) if known else None


def _add_weighted(calls: list[Call], weights: Tensor) -> None:
    with _full_precision(weights.device)():  # asked anew: a policy's code ran since
        for call in calls:
            for name, gradient in call.sums(weights).items():
                _accumulate(call.parameters[name], gradient)


class _Site:
    """A module to watch, with those of its parameters that are trained."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.parameters = {
            name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad
        }
        self._own = module.forward
        self._opened = forward_for(module)
        self._rule = rule_for(module)
        self._whole: set[tuple[int, int]] = set()

    def run(self, tape: Tape, *arguments: Any, **keywords: Any) -> Any:
        """The module's forward, noted on the tape."""
        if self._opened is not None:
            opened = OpenedCall(self.module, self.parameters, tape)
            tape.note(opened)
            return self._opened(self.module, opened.project, *arguments, **keywords)
        if self._rule is not None and not keywords and len(arguments) == 1:
            call = self._rule(self.module, self.parameters)
            tape.note(call)
            return call.run(self._own, arguments[0], tape)
        random = RandomState(next(iter(self.parameters.values())).device)
        output = self._own(*arguments, **keywords)
        unknown = FallbackCall(self.module, self.parameters, arguments, keywords, self._whole)
        outputs = tree_flatten(output)[0]
        if random.moved():
            unknown.draw_again(random, outputs)
        for position, each in enumerate(outputs):
            if isinstance(each, Tensor):
                tape.watch(self.module, unknown.inputs, each, partial(unknown.receive_at, position))
        tape.note(unknown)
        return output


def _sites(module: nn.Module) -> Iterator[_Site]:
    """Those we know, and the outermost of those that use parameters of their own and that we do not know."""
    seen: set[nn.Module] = set()

    def visit(module: nn.Module) -> Iterator[_Site]:
        if module in seen:
            return
        seen.add(module)
        site = _Site(module)
        own = is_parametrized(module) or any(
            parameter.requires_grad for parameter in module.parameters(recurse=False)
        )
        if rule_for(module) is not None or forward_for(module) is not None or own:
            if site.parameters:
                yield site
            return
        for child in module.children():
            yield from visit(child)

    return visit(module)


def _full_precision(device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Makes a context for norms and sums of the same vectors: autocast, and products coarser than float32 (TF32, bfloat16), off."""
    coarse = [setting for setting in _PRECISION.get(device.type, ()) if setting.fp32_precision in _COARSE]
    autocast = torch.is_autocast_enabled(device.type)
    return partial(_exactly, device, coarse, autocast) if coarse or autocast else nullcontext


@contextmanager
def _exactly(device: torch.device, coarse: list[Any], autocast: bool) -> Iterator[None]:
    before = [setting.fp32_precision for setting in coarse]
    if autocast:
        torch.clear_autocast_cache()  # copies of parameters from before the next step
    try:
        for setting in coarse:
            setting.fp32_precision = "ieee"
        with torch.autocast(device.type, enabled=False) if autocast else nullcontext():
            yield
    finally:
        for setting, precision in zip(coarse, before, strict=True):
            setting.fp32_precision = precision


def _mark_shared(calls: list[Call]) -> None:
    """Tells calls that use the same parameters."""
    users = Counter(parameter for call in calls for parameter in call.parameters.values())
    for call in calls:
        call.shared = any(users[parameter] > 1 for parameter in call.parameters.values())


def _one_per_example(rows: Tensor, module: nn.Module, batch: int) -> Tensor:
    """Refuses what a layer says of other rows than the batch's."""
    if len(rows) != batch:
        raise ModelError(
            f"{type(module).__name__} reads a tensor whose first dimension is not the batch: examples must come first in every "
            "layer (batch_first=True?). Or use engine='functional'."
        )
    return rows


def _accumulate(parameter: nn.Parameter, gradient: Tensor) -> None:
    gradient = gradient.to(parameter.dtype)
    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
