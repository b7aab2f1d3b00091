"""Weight normalisation: a layer's weight is a length times a direction (Salimans and Kingma 2016).

An example's gradient of the weight is the layer's own; those of length and direction follow from it.
"""

from __future__ import annotations

from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from equidp.engines.layers.fallback import KEPT_ANYWAY
from equidp.engines.layers.rule import Call, Forward, Gradients, Rule
from equidp.engines.layers.sums import ByName

_LENGTH, _DIRECTION = (f"parametrizations.weight.original{place}" for place in (0, 1))
_LAYERS = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)
_KIND = "torch.nn.utils.parametrizations._WeightNorm"


def with_weight_norm(rule: Rule, module: nn.Module) -> Rule | None:
    """Return the rule of a layer whose weight `torch.nn.utils.parametrizations.weight_norm` makes.

    Args:
        rule: of the layer itself.
        module: the layer; None is returned where its weight is made in another way.
    """
    if not (is_parametrized(module) and isinstance(module, _LAYERS)):
        return None
    made: Any = module.parametrizations
    kinds = [type(each) for each in made.weight] if set(made) == {"weight"} else []
    if [f"{kind.__module__}.{kind.__qualname__}" for kind in kinds] != [_KIND] or made.weight[0].dim < -1:
        return None
    return Rule(partial(_run, rule))


def _run(rule: Rule, call: Call, forward: Forward, inputs: Tensor, tape: Any) -> Tensor:
    """Run the layer by its own rule, which finds gradients of "weight" and "bias"."""
    names = {_LENGTH: "weight", _DIRECTION: "weight"}
    tensors = {names.get(name, name): parameter for name, parameter in call.parameters.items()}

    def receive(gradients: Gradients) -> None:
        call.take(WeightNormGradients(call, gradients))

    return rule.run(Call(call.module, tensors, call.rows, receive), forward, inputs, tape)


@final
class WeightNormGradients(Gradients):
    """Gradients of g and v in a layer of weight w = g v / |v|, where |v| is of each slice of a dimension.

    dg = <dw, v / |v|> and dv = g / |v| (dw - dg v / |v|), slice by slice.

    Args:
        call: of the layer.
        of_weight: gradients of w, and of the bias.
    """

    budget = KEPT_ANYWAY

    def __init__(self, call: Call, of_weight: Gradients) -> None:
        self._call, self._of_weight, self.held = call, of_weight, of_weight.held

    def example_gradients(self) -> ByName:
        gradients = self._of_weight.example_gradients()
        trained = [name for name in (_LENGTH, _DIRECTION) if name in self._call.parameters]
        if not trained:
            return gradients
        weight = gradients.pop("weight")
        made: Any = self._call.module.parametrizations
        size, direction = made.weight.original0.detach(), made.weight.original1.detach()
        lengths = torch.norm_except_dim(direction, 2, made.weight[0].dim)
        unit = direction / lengths
        others = [place + 1 for place, count in enumerate(lengths.shape) if count == 1]
        others = others if lengths.dim() else list(range(1, weight.dim()))
        along = (weight * unit).sum(dim=others, keepdim=True) if others else weight * unit
        found = {
            _LENGTH: along.reshape(-1, *size.shape),
            _DIRECTION: (size / lengths) * (weight - along * unit),
        }
        return gradients | {name: found[name] for name in trained}

    def without(self, left_out: Tensor) -> WeightNormGradients:
        return WeightNormGradients(self._call, self._of_weight.without(left_out))
