"""Models with recalibrated logits: z becomes a z + b."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from equidp.engines.called import outputs_in
from equidp.training.run import copy_model


@final
@dataclass(frozen=True)
class Recalibration:
    """Affine recalibration of logits: z becomes scale z + shift.

    Attributes:
        scale: of all classes, > 0.
        shift: of each class.
        payment: random id of the payment for the fit; "" if nothing was paid.

    >>> mended = Recalibration(2.0, (0.0, 1.0)).apply_to(nn.Sequential(nn.Linear(3, 2)))
    >>> type(mended[-1]).__name__
    'Linear'
    """

    scale: float
    shift: tuple[float, ...]
    payment: str = ""

    @classmethod
    def identity(cls, classes: int) -> Recalibration:
        """Recalibration that changes no logits."""
        return cls(1.0, (0.0,) * classes)

    def apply_to(self, model: nn.Module) -> nn.Module:
        """Return a copy of the model with recalibrated logits.

        The last linear layer of a `Sequential` takes scale and shift into its weights; other models are
        wrapped in `Recalibrated`. Which of the two it is follows from the model's layers alone.

        Raises:
            ModelError: the model cannot be copied.
        """
        model = copy_model(model, "recalibration")
        last = model
        while type(last) is nn.Sequential and len(last):
            last = last[-1]
        if type(last) is not nn.Linear or last.bias is None:
            return Recalibrated(model, self)
        with torch.no_grad():
            last.weight.mul_(self.scale)
            last.bias.mul_(self.scale).add_(torch.tensor(self.shift).to(last.bias))
        return model


@final
class Recalibrated(nn.Module):
    """Model with recalibrated logits; its `state_dict` holds scale and shift.

    >>> Recalibrated(nn.Identity(), Recalibration(2.0, (0.0, 1.0)))(torch.ones(1, 2))
    tensor([[2., 3.]])
    """

    def __init__(self, model: nn.Module, by: Recalibration) -> None:
        super().__init__()
        self.model = model
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self.register_buffer("scale", torch.tensor(by.scale, device=device))
        self.register_buffer("shift", torch.tensor(by.shift, device=device))

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """Logits, [batch, classes]."""
        logits = outputs_in(self.model(*inputs, **named))
        return logits * self.scale + self.shift  # type: ignore[operator]
