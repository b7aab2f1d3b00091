"""Models of papers that no published settings of equidp use: `--model papers.models:wrn16_4`.

A model is made from the shape of one input and the number of classes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from equidp import ModelError


def noise_cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Two convolutions, 16 maps of 8x8 and 32 of 4x4, each pooled, then 32 units, with tanh throughout.

    26,010 parameters on MNIST (Papernot et al. 2021, "Tempered Sigmoid Activations for Deep Learning with
    Differential Privacy"; Tramer and Boneh 2021): few, and bounded, so that noise and clipping do less harm.
    """
    channels, height, width = _check_image(input_shape, smallest=18, name="noise_cnn")
    side = [(((size - 4) // 2) - 4) // 2 for size in (height, width)]
    return nn.Sequential(
        nn.Conv2d(channels, 16, 8, stride=2, padding=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(32 * side[0] * side[1], 32),
        nn.Tanh(),
        nn.Linear(32, num_classes),
    )


def deep_tanh_cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Eight 3x3 convolutions with tanh between, the first six in pairs of 32, 64 and 128 maps.

    Each pair is averaged by 2. 256 maps and then one for each class follow, averaged over the image: 605,226
    parameters on CIFAR-10 (Papernot et al. 2021, as `noise_cnn`, which is theirs for MNIST).
    """
    channels, *_ = _check_image(input_shape, smallest=8, name="deep_tanh_cnn")
    layers: list[nn.Module] = []
    for outputs in (32, 64, 128):
        for inputs in (channels, outputs):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.Tanh()]
        layers.append(nn.AvgPool2d(2))
        channels = outputs
    layers += [nn.Conv2d(channels, 256, 3, padding=1), nn.Tanh(), nn.Conv2d(256, num_classes, 3, padding=1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def ws_cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Three convolutions with standardised weights, GroupNorm and ReLU, then the average of 64 maps.

    Weight standardisation and GroupNorm as De et al. (2022, "Unlocking High-Accuracy Differentially Private
    Image Classification through Scale") have them.
    """
    channels, *_ = _check_image(input_shape, smallest=8, name="ws_cnn")
    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((channels, 32, 1), (32, 64, 2), (64, 64, 2)):
        layers += [_StandardisedConv(inputs, outputs, stride), nn.GroupNorm(8, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, num_classes))


def wrn16_4(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """WRN-16-4 (Zagoruyko and Komodakis 2016) with GroupNorm of 16 groups and standardised weights.

    As De et al. (2022) and Yu et al. (2023) train on CIFAR-10; 2,748,890 parameters there. Without the gains
    and biases of convolutions in De et al.'s code, most of which the GroupNorm behind them undoes.
    """
    channels, *_ = _check_image(input_shape, smallest=8, name="wrn16_4")
    blocks: list[nn.Module] = [_StandardisedConv(channels, 16, 1)]
    width = 16
    for stage, outputs in enumerate((64, 128, 256)):
        for block in range(2):
            blocks.append(_WideResidual(width, outputs, stride=2 if stage and not block else 1))
            width = outputs
    head = (nn.GroupNorm(16, width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*blocks, *head, nn.Linear(width, num_classes))


class _StandardisedConv(nn.Module):
    """A convolution whose weights have mean 0 and variance 1 / (number of inputs) for each output."""

    def __init__(self, inputs: int, outputs: int, stride: int, size: int = 3) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, size, size))
        self.stride = stride

    def forward(self, inputs: Tensor) -> Tensor:
        flat = self.weight.flatten(1)
        standard = nn.functional.layer_norm(flat, flat.shape[1:]) / math.sqrt(flat.shape[1])
        weight = standard.view_as(self.weight)
        return nn.functional.conv2d(inputs, weight, stride=self.stride, padding=weight.shape[-1] // 2)


class _WideResidual(nn.Module):
    """Norm and ReLU before each of two standardised 3x3 convolutions, and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(16, inputs), nn.ReLU())
        self.body = nn.Sequential(
            _StandardisedConv(inputs, outputs, stride),
            nn.GroupNorm(16, outputs),
            nn.ReLU(),
            _StandardisedConv(outputs, outputs, 1),
        )
        self.shortcut = None if inputs == outputs else _StandardisedConv(inputs, outputs, stride, size=1)

    def forward(self, inputs: Tensor) -> Tensor:
        ready = self.first(inputs)
        outputs: Tensor = self.body(ready) + (inputs if self.shortcut is None else self.shortcut(ready))
        return outputs


def _check_image(shape: tuple[int, ...], *, smallest: int, name: str) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise ModelError(
            f"input_shape={list(shape)}; {name} expects images [channels, height, width] of at least "
            f"{smallest}x{smallest} pixels. Choose another model, such as mlp or logistic."
        )
    return shape
