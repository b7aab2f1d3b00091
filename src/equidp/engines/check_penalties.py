"""Holds the functional engine's penalised gradients to those of autograd, before any budget is spent."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from equidp.engines.called import called
from equidp.engines.functional import FunctionalEngine, closeness, second_derivatives
from equidp.engines.preserved import flat, flat_sums
from equidp.engines.trying import in_words, outputs_of, tried
from equidp.errors import ModelError
from equidp.kernel.engine import LossFunction
from equidp.kernel.inputs import Inputs, taken

_TOLERANCE = 0.02


def check_penalties(model: nn.Module, loss: LossFunction, inputs: Inputs, targets: Tensor) -> None:
    """Refuses a model whose losses cannot be penalised, or whose penalised gradients are not autograd's.

    The model is tried in evaluation mode, in which it draws no random numbers.

    Args:
        model: is left as it was.
        loss: (outputs, targets) -> losses [batch].
        inputs, targets: a few examples, [batch, ...], best made up.

    Raises:
        ModelError: outputs are not [batch, classes], or there are no second derivatives.

    >>> model, loss = nn.Linear(3, 2), nn.CrossEntropyLoss(reduction="none")
    >>> few = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    >>> check_penalties(model, loss, *few)
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    inputs, targets = taken((inputs, targets), slice(4))
    with tried(model, loss), torch.enable_grad(), second_derivatives():
        model.eval()
        model.zero_grad(set_to_none=True)
        outputs = outputs_of(model, inputs)
        if outputs.dim() != 2 or outputs.shape[1] < 2 or targets.is_floating_point() or targets.dim() > 1:
            raise ModelError(
                f"the model gives {list(outputs.shape)} for {len(targets)} examples; penalties need a "
                "classifier with one output per class, [batch, classes >= 2], and one class per example. "
                "Choose another method."
            )
        generator = torch.Generator().manual_seed(0)
        size = sum(parameter.numel() for parameter in trained)
        direction = torch.nn.functional.normalize(torch.randn(size, generator=generator), dim=0)
        factors = torch.randn(len(targets), 2, generator=generator).to(outputs)
        try:
            measured = FunctionalEngine(model, loss).penalised(inputs, targets, factors, direction)
            found = flat_sums(measured.sum_gradients(torch.ones_like(measured.norms)), trained)
            outputs = called(model, inputs)
            losses = loss(outputs, targets)
            slopes = torch.autograd.grad(
                factors[:, 0] @ losses, trained, create_graph=True, materialize_grads=True
            )
            parts = direction.to(losses.device).split([parameter.numel() for parameter in trained])
            slope = sum((each.flatten() @ part.to(each)) for each, part in zip(slopes, parts, strict=True))
            total = losses.sum() + slope + factors[:, 1] @ closeness(outputs).to(factors)
            true = flat(torch.autograd.grad(total, trained, materialize_grads=True), trained)
        except Exception as error:
            raise ModelError(
                f"penalised losses need second derivatives of model and loss: {in_words(error)}. Choose "
                "another method, or a model of plain layers."
            ) from error
        if not torch.linalg.vector_norm(found - true) <= _TOLERANCE * torch.linalg.vector_norm(true):
            raise ModelError(
                f"the penalised gradients of {len(targets)} examples differ from those of one backward pass "
                "for all; choose another method, or a model of plain layers."
            )
