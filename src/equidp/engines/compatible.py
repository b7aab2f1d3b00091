"""Replacements for layers that mix examples."""

from __future__ import annotations

import copy
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from equidp.errors import ModelError
from equidp.kernel.noise import to_double


def make_compatible(model: nn.Module) -> tuple[nn.Module, list[str]]:
    """Return a copy of the model without BatchNorm, and one sentence per change.

    A trainable BatchNorm becomes GroupNorm, which starts from its scale and shift. GroupNorm has no running
    statistics, so train a trained model again.

    A frozen BatchNorm (`requires_grad_(False)`; or `eval()`, if it has no scale and shift), for example in a
    pretrained network, becomes the fixed scale and shift that it applies in evaluation mode. It keeps its
    statistics, and none of its numbers are trained. Epsilon does not cover them, so they must come from other
    data.

    >>> model, changes = make_compatible(nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)))
    >>> changes
    ['1: BatchNorm2d(8) became GroupNorm(1, 8).']
    >>> _, changes = make_compatible(nn.Sequential(nn.BatchNorm1d(3).requires_grad_(False), nn.Linear(3, 2)))
    >>> changes
    ['0: BatchNorm1d(3) became FixedNorm(3), with the statistics it had.']
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"model={model!r}; expected a torch.nn.Module.")
    model = copy.deepcopy(model)
    changes = []
    for parent_name, parent in list(model.named_modules()):
        for child_name, child in list(parent.named_children()):
            if isinstance(child, _BatchNorm):
                name = f"{parent_name}.{child_name}".lstrip(".")
                replacement, summary = _replace_norm(child)
                setattr(parent, child_name, replacement)
                changes.append(f"{name}: {type(child).__name__}({child.num_features}) became {summary}.")
    return model, changes


@final
class FixedNorm(nn.Module):
    """A scale and a shift per channel, both fixed: BatchNorm in evaluation mode, in either mode.

    Args:
        norm: normalisation layer with running statistics.

    Shapes: inputs [batch, channels, ...], outputs the same.

    >>> norm = nn.BatchNorm1d(2).eval()
    >>> torch.allclose(FixedNorm(norm)(torch.ones(1, 2)), norm(torch.ones(1, 2)))
    True
    """

    mean: Tensor
    scale: Tensor
    shift: Tensor

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scale = torch.rsqrt(to_double(norm.running_var) + norm.eps)
        if norm.affine:
            scale = scale * to_double(norm.weight.detach())
        shift = norm.bias.detach() if norm.affine else torch.zeros_like(norm.running_mean)
        self.register_buffer("mean", norm.running_mean.clone())
        self.register_buffer("scale", scale.to(norm.running_mean))
        self.register_buffer("shift", shift.clone())

    def forward(self, inputs: Tensor) -> Tensor:
        mean, scale, shift = (
            each.view(-1, *[1] * (inputs.dim() - 2)) for each in (self.mean, self.scale, self.shift)
        )
        return (inputs - mean) * scale + shift


def _replace_norm(norm: _BatchNorm) -> tuple[nn.Module, str]:
    trained = any(parameter.requires_grad for parameter in norm.parameters())
    frozen = not trained if norm.affine else not norm.training
    if frozen and norm.running_mean is not None:
        return FixedNorm(norm), f"FixedNorm({norm.num_features}), with the statistics it had"
    group_norm = _make_group_norm(norm)
    return group_norm, f"GroupNorm({group_norm.num_groups}, {group_norm.num_channels})"


def _make_group_norm(norm: _BatchNorm) -> nn.GroupNorm:
    groups = next(size for size in range(min(32, norm.num_features), 0, -1) if norm.num_features % size == 0)
    # One group per channel would be InstanceNorm, which is 0 everywhere on 1x1 maps.
    groups = groups if groups < norm.num_features else 1
    replacement = nn.GroupNorm(groups, norm.num_features, eps=norm.eps, affine=norm.affine)
    if norm.affine:
        replacement.load_state_dict({"weight": norm.weight.detach(), "bias": norm.bias.detach()})
    return replacement.to(next(iter([*norm.parameters(), *norm.buffers()]), torch.empty(0)).device)
