"""The fast engine: per-example norms and weighted sums from one forward and one backward pass.

A layer's parameters affect the loss only through its output. Its input and the gradient of its output
therefore suffice for per-example norms and weighted sums, without a stored gradient per example (Goodfellow
2015; ghost clipping, Li et al. 2022; book-keeping, Bu et al. 2023). The backward pass computes only output
gradients. No parameter's gradient is formed before the weights are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from equidp.engines.layers import rule_for
from equidp.engines.layers.decomposed import Products, attention_in_full, forward_for
from equidp.engines.layers.fallback import run_module
from equidp.engines.layers.rule import Call, NotByExample, Tape
from equidp.engines.layers.sums import squared_lengths, weighted_sum, zero_left_out
from equidp.engines.model import are_finite, call_model, full_precision, replaced
from equidp.engines.units import UnitModel, rows_in
from equidp.errors import ModelError, error_text
from equidp.kernel.engine import LossFunction, Measured, Sums
from equidp.kernel.inputs import Inputs, count_in, map_tensors
from equidp.kernel.noise import exact_place


class GhostEngine:
    """Measures batches by layer rules; see the module's docstring and `kernel.engine.Engine`.

    Layers with a rule (`equidp.engines.layers.RULES`) are read directly. Recurrent layers and attention are
    run from single products (`equidp.engines.layers.decomposed`). torch.func runs any other module that owns
    trainable parameters (`equidp.engines.layers.fallback`). Parameters that several calls share (tied
    weights, a layer used twice) get their cross terms from per-example gradients. The modules' forwards are
    replaced during a call only.

    Args:
        model: any module whose outputs for one example do not depend on others; a `UnitModel` for examples of
            several rows.
        loss: (outputs, targets) -> losses [batch].
        whole: modules of it that torch.func runs as a whole, with all layers in them.
    """

    def __init__(self, model: nn.Module, loss: LossFunction, whole: Sequence[nn.Module] = ()) -> None:
        self.model, self.loss, self.whole = model, loss, tuple(whole)
        self._sites = list(_sites(model, set(), self.whole))

    def __call__(self, inputs: Inputs, targets: Inputs, *context: Tensor) -> Measured:
        """See `kernel.engine.Engine`."""
        assert not context, "losses with terms of a policy are measured by the functional engine"
        batch = count_in(targets)
        rows = rows_in(inputs) if isinstance(self.model, UnitModel) else 1
        tape = Tape(batch * rows, rows)
        forwards = [(vars(site.module), "forward", partial(site.run, tape)) for site in self._sites]
        with replaced(forwards), attention_in_full():
            with torch.enable_grad():
                losses = self._losses(tape, inputs, targets)
            if losses.shape[:1] != (batch,) or losses.numel() != batch:
                raise ModelError(
                    "the loss is not of shape [batch]; expected one per example. Pass one that does not "
                    "average, such as CrossEntropyLoss(reduction='none').",
                    field="loss",
                )
            with full_precision(losses.device):
                with torch.enable_grad():
                    calls = tape.backward(losses)
                for call in calls:
                    if call.pending is not None:
                        call.take(call.pending())
                backward = _Backward(calls, batch, losses.device)
        return Measured(backward.norms, None, backward.sum_gradients)

    def _losses(self, tape: Tape, inputs: Inputs, targets: Inputs) -> Tensor:
        # Detached: inputs that require gradients would hide where the backward pass may end.
        inputs = map_tensors(Tensor.detach, inputs)
        try:
            return self.loss(call_model(self.model, inputs), targets)
        except Exception as error:
            if tape.read_once is None or isinstance(error, ModelError):
                raise
            raise _reads_no_rows(tape.read_once, f" ({error_text(error)})") from error


class _Backward:
    """Gradients of a batch after its backward pass: norms, and once a weighted sum.

    Args:
        calls: calls that the losses depend on.
        batch: number of examples.
        device: device of the losses.

    Attributes:
        norms: [batch].
        calls: those whose parameters no other call uses.
    """

    def __init__(self, calls: list[Call], batch: int, device: torch.device) -> None:
        squares = [
            _one_per_example(call.squares, call.module, batch) for call in calls if call.squares is not None
        ]
        # Gradients of the parameters of several calls are added over calls before any norm is taken.
        self._shared: dict[nn.Parameter, Tensor] = {}
        for call in calls:
            if call.squares is None and call.gradients is not None:
                for name, gradient in call.gradients.example_gradients().items():
                    _one_per_example(gradient, call.module, batch)
                    parameter, known = call.parameters[name], self._shared.get(call.parameters[name])
                    self._shared[parameter] = gradient.clone() if known is None else known.add_(gradient)
        self.calls = [call for call in calls if call.squares is not None]
        squares += [squared_lengths({"": gradient}) for gradient in self._shared.values()]
        total = sum(squares[1:], start=squares[0]) if squares else torch.zeros(batch, device=device)
        self.norms = total.sqrt()

    def sum_gradients(self, weights: Tensor) -> Sums:
        """Return sum_i weights[i] * gradient_i in float64, over the examples whose norms are finite."""
        left_out = None if are_finite(self.norms) else ~torch.isfinite(self.norms)
        if left_out is not None:
            weights = weights.masked_fill(left_out, 0.0)
        if exact_place(weights.device) == weights.device:
            weights = weights.double()  # once for all layers
        sums: Sums = {}
        with full_precision(weights.device):  # asked again: a policy's code ran in between
            for call in self.calls:
                for name, total in call.weighted_gradients(weights, left_out).items():
                    sums[call.parameters[name]] = total
            for parameter, gradients in self._shared.items():
                kept = gradients if left_out is None else zero_left_out(gradients, left_out)
                sums[parameter] = weighted_sum(weights, kept)
        return sums


class _Site:
    """A module to watch, with its trained parameters.

    If a layer reads an input once for all examples, such as position ids [positions] or [1, positions], it is
    repeated for each example. Each example then has its own gradient, and outputs broadcast to the same
    values.

    Args:
        module: module of the model.
        whole: whether torch.func runs it in any case.
    """

    def __init__(self, module: nn.Module, *, whole: bool = False) -> None:
        self.module = module
        self.parameters = {
            name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad
        }
        self._own, self._reads_positions = module.forward, False
        self.decomposed, self.rule = (None, None) if whole else (forward_for(module), rule_for(module))
        self._whole: set[tuple[int, int]] = set()

    def run(self, tape: Tape, *arguments: Any, **keywords: Any) -> Any:
        """Run the module and record the call on the tape, unless a module around it has its gradients."""
        if tape.is_within_module:
            return self._own(*arguments, **keywords)
        if self.decomposed is not None:
            products = Products(self.module, self.parameters, tape)
            return self.decomposed(self.module, products.project, *arguments, **keywords)
        call = Call(self.module, self.parameters, tape.rows)
        tape.note(call)
        if self.rule is not None and not keywords and len(arguments) == 1:
            return self.rule.run(call, self._own, self._of_each(arguments[0], tape), tape)
        return run_module(call, self._own, arguments, keywords, self._whole, tape)

    def _of_each(self, inputs: Any, tape: Tape) -> Any:
        if not isinstance(inputs, Tensor) or inputs.requires_grad or not inputs.dim():
            return inputs  # of trained layers before: examples that stand in another dimension, perhaps
        table = isinstance(self.module, nn.Embedding)
        # A table that once read another number of rows than the batch has reads positions in any batch.
        self._reads_positions |= table and len(inputs) not in (1, tape.batch)
        once = len(inputs) == 1 < tape.batch and inputs.dim() >= (2 if table else 3)
        if not (once or self._reads_positions):
            return inputs
        tape.read_once = self.module
        shape = inputs.shape[1:] if once else inputs.shape
        return inputs.expand(tape.batch, *shape)


def _sites(module: nn.Module, seen: set[nn.Module], whole: Sequence[nn.Module]) -> Iterator[_Site]:
    """Modules with a rule or a forward of ours, and the outermost of the others that own parameters."""
    if module in seen:
        return
    seen.add(module)
    if not _is_called(module):  # its parameters are those of the module around it
        for child in module.children():
            yield from _sites(child, seen, whole)
        return
    site = _Site(module, whole=module in whole)
    own = module in whole or any(parameter.requires_grad for parameter in _own_parameters(module))
    if site.decomposed is not None or site.rule is not None or own or is_parametrized(module):
        if site.parameters:
            yield site
        return
    for child in module.children():
        yield from _sites(child, seen, whole)


def _is_called(module: nn.Module) -> bool:
    """Return whether the module computes anything, as lists of modules or parameters do not."""
    return "forward" in vars(module) or type(module).forward is not nn.Module.forward


def _own_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Parameters that the module's own forward uses: also those in lists and dictionaries of it."""
    yield from module.parameters(recurse=False)
    for child in module.children():
        if not _is_called(child):
            yield from _own_parameters(child)


def _one_per_example(rows: Tensor, module: nn.Module, batch: int) -> Tensor:
    if len(rows) != batch:
        raise _reads_no_rows(module)
    return rows


def _reads_no_rows(module: nn.Module, why: str = "") -> NotByExample:
    return NotByExample(
        f"{type(module).__name__} reads a tensor whose first dimension is not the batch{why}: in every "
        "layer, examples must come first (batch_first=True?). Look up positions once for each example, with "
        "self.p(positions.expand(len(x), -1)). If a layer gets only some examples, or all valid tokens as "
        "one row, pass it all of them and drop results with torch.where.",
        module,
    )
