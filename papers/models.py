"""Models of papers that no published settings of equidp use: `--model papers.models:noise_cnn`."""

from __future__ import annotations

from torch import nn

from equidp import ModelError


def noise_cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Two convolutions, 16 maps of 8x8 and 32 of 4x4, each pooled, then 32 units, with tanh throughout.

    26,010 parameters on MNIST (Papernot et al. 2021, "Tempered Sigmoid Activations for Deep Learning with
    Differential Privacy"; Tramer and Boneh 2021): few, and bounded, so that noise and clipping do less harm.
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < 18:
        raise ModelError(
            f"input_shape={list(input_shape)}; noise_cnn expects images [channels, height, width] of at "
            "least 18x18 pixels. Choose another model, such as mlp or logistic."
        )
    channels, height, width = input_shape
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
