"""Where a model is."""

from __future__ import annotations

import torch
from torch import nn


def device_of(model: nn.Module) -> torch.device:
    """Returns the device of the model's first parameter: examples are moved there."""
    return next(model.parameters()).device
