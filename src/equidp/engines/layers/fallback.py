"""A module without a rule: run under `vmap`, with a copy of its parameters for each example.

The gradients of the copies are the examples' own, and the model's backward pass computes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from equidp.engines.layers.decomposed import quiet_vmap, without_fused_layers
from equidp.engines.layers.rule import Call, Tape, copies_of
from equidp.engines.model import call_with, replaced
from equidp.errors import ModelError


def run_module(
    call: Call,
    forward: Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    whole: set[tuple[int, int]],
    tape: Tape,
) -> Any:
    """Run a module for each example by itself, all at once, by its own forward.

    Arguments that are tensors with the batch as first dimension, of any size in earlier calls, are split by
    example. All other arguments are passed to every example as they are. If an output has no row per example,
    such as a table of positions [positions, features], it becomes [batch, positions, features], which
    broadcasts to the same values.

    Args:
        call: call of a module that computes each example's output from that example's inputs.
        forward: original forward of the module.
        arguments, keywords: arguments of the call.
        whole: places of arguments that do not follow the batch; what this call shows is added.
        tape: tape of the forward pass.

    Raises:
        ModelError: the module cannot be computed one example at a time.
    """
    flat, structure = tree_flatten((arguments, keywords))
    split = _follow_batch(call.module, flat, whole, tape.batch)
    if not split:
        tape.read_once = call.module
    trained = {name: copies_of(call, name, tape.batch, tape) for name in call.parameters}
    # Hooks run around the module, but those that make its weights, as in pruning, belong to the pass.
    by_hooks = call.module._forward_pre_hooks and not call.module._forward_hooks
    run = _Run(call.module, call.module.__call__ if by_hooks else forward)
    results: list[Any] = []

    def one(trained: dict[str, Tensor], own: list[Tensor]) -> list[Tensor]:
        parts = iter(own)
        given = [next(parts).unsqueeze(0) if place in split else each for place, each in enumerate(flat)]
        arguments, keywords = tree_unflatten(given, structure)
        made, form = tree_flatten(call_with(run, trained, arguments, keywords))
        results[:] = [made, form]
        return [each for each in made if isinstance(each, Tensor)]

    names = {f"module.{name}": each for name, each in trained.items()}
    try:
        with (
            replaced([(vars(tape), "is_within_module", True)]),
            without_fused_layers(call.module),
            sdpa_kernel(SDPBackend.MATH),
            _Padding(),
            quiet_vmap(),
        ):
            outputs = vmap(one, randomness="different")(names, [flat[place] for place in split])
    except RuntimeError as error:
        kind = type(call.module).__name__
        raise ModelError(
            f"{kind} cannot be computed one example at a time by torch.func ({error}). Replace it by layers "
            "that can.",
            field=kind,
        ) from error
    made, form = results
    outputs = [each.clone() if 0 in each.stride() else each for each in outputs]
    parts = iter(each.flatten(0, 1) if each.shape[1:2] == (1,) else each for each in outputs)
    return tree_unflatten([next(parts) if isinstance(each, Tensor) else each for each in made], form)


@final
class _Run(nn.Module):
    """A module, as one that is called by a function."""

    def __init__(self, module: nn.Module, run: Callable[..., Any]) -> None:
        super().__init__()
        self.module, self._run = module, run

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        return self._run(*arguments, **keywords)


@final
class _Padding(TorchFunctionMode):
    """Keeps gradients off the padding of tables, which vmap forgets if each example has its own."""

    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: Any = None
    ) -> Any:
        outputs = function(*arguments, **(keywords or {}))
        if function is not torch.nn.functional.embedding:
            return outputs
        given = dict(zip(("input", "weight", "padding_idx"), arguments, strict=False)) | (keywords or {})
        padding = given.get("padding_idx")
        if padding is None:
            return outputs
        is_padding = given["input"] == padding % given["weight"].shape[-2]
        return torch.where(is_padding.unsqueeze(-1), outputs.detach(), outputs)


def _follow_batch(module: nn.Module, flat: list[Any], whole: set[tuple[int, int]], batch: int) -> list[int]:
    """Return the places of arguments that are split by example; add to `whole` those that are not."""
    for place, each in enumerate(flat):
        if isinstance(each, Tensor) and each.shape[:1] == (batch,):
            continue
        if isinstance(each, Tensor) and each.requires_grad and each.shape[:1] != (1,):
            kind = type(module).__name__
            raise ModelError(
                f"{kind} reads a tensor whose first dimension is not the batch: examples must come first "
                "(batch_first=True?).",
                field=kind,
            )
        whole.add((len(flat), place))
    return [place for place in range(len(flat)) if (len(flat), place) not in whole]
