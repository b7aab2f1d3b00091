"""Predictions of a trained model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from equidp.engines.model import call_model, device_of
from equidp.kernel.inputs import Inputs, moved_to, taken, tensors
from equidp.kernel.processes import ALONE, Processes

_CHUNK = 4096  # examples predicted at a time


def has_diverged(model: nn.Module) -> bool:
    """Return True where a weight of the model is NaN or infinite."""
    return not all(torch.isfinite(parameter).all() for parameter in model.parameters())


def predict(model: nn.Module, inputs: Inputs, processes: Processes = ALONE) -> Tensor:
    """Returns the model's outputs in evaluation mode, [n, ...], on the CPU; in chunks, to bound memory.

    Of a model that returns a mapping, as those of `transformers` do, the `logits`.

    Args:
        model: the same in all processes.
        inputs: n examples.
        processes: that predict a part each and get the outputs of all; fewer examples than processes are
            predicted by each of them.
    """
    if 1 < processes.count <= (number := len(tensors(inputs)[0])):
        return processes.gather_shards(predict(model, taken(inputs, processes.shard(number))), number)
    was_training = model.training
    device = device_of(model)
    model.eval()
    try:
        with torch.no_grad():
            starts = range(0, max(1, len(tensors(inputs)[0])), _CHUNK)
            chunks = (taken(inputs, slice(start, start + _CHUNK)) for start in starts)
            return torch.cat([call_model(model, moved_to(chunk, device)).cpu() for chunk in chunks])
    finally:
        model.train(was_training)
