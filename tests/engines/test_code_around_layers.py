"""Changes in place, calls repeated and parts without gradients: gradients are exact, or the trial refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from equidp.engines import check_engine, check_model, make_engine
from equidp.errors import ModelError
from support.oracle import assert_exact, drawn, loss

BATCH = 6


class Own(nn.Module):
    """A module whose forward is a function of its parameters and its inputs."""

    def __init__(self, compute: Callable[..., Any], **parameters: Tensor) -> None:
        super().__init__()
        self.compute = compute
        for name, value in parameters.items():
            self.register_parameter(name, nn.Parameter(value))

    def forward(self, values: Tensor) -> Any:
        return self.compute(self, values)


class Around(nn.Module):
    """A layer, user's code around it, and a head.

    Args:
        layer: reads [batch, 2, 4], tokens [batch, 4] if it is a table, or the same three times if it is
            attention, and gives [batch, 2 or 4, 4].
        use: (call of the layer, its inputs) -> tensor [batch, ...].
    """

    def __init__(self, layer: nn.Module, use: Callable[[Callable[..., Tensor], Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.layer, self.head, self.use = nn.Linear(8, 8), layer, nn.Linear(4, 2), use

    def forward(self, values: Tensor) -> Tensor:
        inputs = self.first(values).unflatten(1, (2, 4))
        if isinstance(self.layer, nn.Embedding):
            inputs = (values[:, :4] > 0).long()

        times = 3 if isinstance(self.layer, nn.MultiheadAttention) else 1

        def call(given: Tensor) -> Tensor:
            made = self.layer(*[given] * times)
            return made[0] if isinstance(made, tuple) else made

        return self.head(torch.tanh(self.use(call, inputs).flatten(1, -2).sum(1)))


LAYERS: dict[str, Callable[[], nn.Module]] = {  # one of each kind of rule, and one without
    "linear": lambda: nn.Linear(4, 4),
    "table": lambda: nn.Embedding(2, 4),
    "recurrent": lambda: nn.GRU(4, 4, batch_first=True),
    "attention": lambda: nn.MultiheadAttention(4, 2, batch_first=True),
    "scale": lambda: Own(lambda own, values: values * own.scale, scale=drawn(4)),
}


def changed_in_place(call: Callable[..., Tensor], inputs: Tensor) -> Tensor:
    return call(inputs).mul_(2.0).add_(1.0).tanh_()


def added_to_in_place(call: Callable[..., Tensor], inputs: Tensor) -> Tensor:
    made = call(inputs)
    made += torch.tanh(made) if made.shape != inputs.shape else inputs
    return relu(made, inplace=True)


def changed_in_place_without_gradients(call: Callable[..., Tensor], inputs: Tensor) -> Tensor:
    made = call(inputs)
    with torch.no_grad():
        made.mul_(2.0)
    return made


def inputs_changed_before(call: Callable[..., Tensor], inputs: Tensor) -> Tensor:
    return call(inputs.mul_(2) if inputs.is_floating_point() else inputs.neg_().add_(1))


def called_twice(call: Callable[..., Tensor], inputs: Tensor) -> Tensor:
    return call(inputs) * torch.tanh(call(inputs.flip(1)))


def detached_in_part(call: Callable[..., Tensor], inputs: Tensor) -> Tensor:
    made = call(inputs)
    return made * made.detach() + (made.sign() - made).detach()


def plainly(call: Callable[..., Tensor], inputs: Tensor) -> Tensor:
    return call(inputs)


USES = [
    plainly,
    changed_in_place,
    added_to_in_place,
    changed_in_place_without_gradients,
    inputs_changed_before,
    called_twice,
    detached_in_part,
]


def takes_exactly(name: str, model: nn.Module) -> bool:
    """Return whether the trial takes a model with an engine, whose norms and sums are then exact."""
    torch.manual_seed(3)
    inputs, targets = drawn(BATCH, 8), torch.arange(BATCH) % 2
    try:
        check_model(model, loss, inputs, targets)
        check_engine(make_engine(name, model, loss), model, loss, inputs, targets)
    except ModelError:
        return False
    assert_exact(model, inputs, targets, engine=name, tolerance=1e-9)
    return True


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("layer", LAYERS)
def test_gradients_are_those_of_a_loop_over_single_examples(layer, use):
    torch.manual_seed(0)
    model = Around(LAYERS[layer](), use).double()
    assert takes_exactly("ghost", model)


def inputs_changed_after(call: Callable[..., Tensor], inputs: Tensor) -> Tensor:
    made = call(inputs)
    inputs.mul_(2)
    return made


@pytest.mark.parametrize("layer", ["linear", "attention", "scale"])
def test_inputs_that_change_after_a_layer_read_them_are_refused_as_pytorch_refuses_them(layer):
    torch.manual_seed(0)
    model = Around(LAYERS[layer](), inputs_changed_after).double()
    inputs, targets = drawn(BATCH, 8), torch.arange(BATCH) % 2
    with pytest.raises(ModelError):
        check_engine(make_engine("ghost", model, loss), model, loss, inputs, targets)
