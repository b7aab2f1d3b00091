"""Replacements for layers that mix examples."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def make_compatible(model: nn.Module) -> tuple[nn.Module, list[str]]:
    """Returns a copy of the model with GroupNorm in place of BatchNorm, and one sentence per change.

    GroupNorm starts from the BatchNorm's scale and shift. Running statistics have no counterpart: train a
    trained model again.

    >>> model, changes = make_compatible(nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)))
    >>> changes
    ['1: BatchNorm2d(8) became GroupNorm(1, 8).']
    """
    model = copy.deepcopy(model)
    changes = []
    for parent_name, parent in list(model.named_modules()):
        for child_name, child in list(parent.named_children()):
            if isinstance(child, _BatchNorm):
                name = f"{parent_name}.{child_name}".lstrip(".")
                replacement = _group_norm(child)
                setattr(parent, child_name, replacement)
                changes.append(
                    f"{name}: {type(child).__name__}({child.num_features}) became "
                    f"GroupNorm({replacement.num_groups}, {replacement.num_channels})."
                )
    return model, changes


def _group_norm(norm: _BatchNorm) -> nn.GroupNorm:
    groups = next(size for size in range(min(32, norm.num_features), 0, -1) if norm.num_features % size == 0)
    # One group per channel would be InstanceNorm, which is 0 everywhere on 1x1 maps.
    groups = groups if groups < norm.num_features else 1
    replacement = nn.GroupNorm(groups, norm.num_features, eps=norm.eps, affine=norm.affine)
    if norm.affine:
        replacement.load_state_dict({"weight": norm.weight.detach(), "bias": norm.bias.detach()})
    return replacement.to(next(iter([*norm.parameters(), *norm.buffers()]), torch.empty(0)).device)
