"""Models by name: models of published settings, and some that work well with noise.

A model is made from the shape of one input and the number of classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from equidp._parts import is_import_path, own_part
from equidp._validate import unknown_name
from equidp.errors import ModelError


def logistic(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Logistic regression: one linear layer on the flattened input."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), num_classes))


def additive(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Sum of one function a column, for columns cut into intervals: a linear layer without a bias.

    Each row has an input in every block, so a bias would only lengthen gradients.
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), num_classes, bias=False))


def mlp(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Two hidden layers of 256 with tanh (Esipova et al., Adult)."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(input_shape), 256),
        nn.Tanh(),
        nn.Linear(256, 256),
        nn.Tanh(),
        nn.Linear(256, num_classes),
    )


def lenet(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Two convolutions, 20 and 50 maps of 5x5, each pooled by 2, then 500 units (Xu et al., MNIST)."""
    channels, height, width = _image(input_shape, smallest=16, name="lenet")
    side = [((size - 4) // 2 - 4) // 2 for size in (height, width)]
    return nn.Sequential(
        nn.Conv2d(channels, 20, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(50 * side[0] * side[1], 500),
        nn.ReLU(),
        nn.Linear(500, num_classes),
    )


def small_cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Two convolutions, 16 and 32 maps of 3x3, each pooled by 2, and one linear layer: for 8x8 digits."""
    channels, height, width = _image(input_shape, smallest=4, name="small-cnn")
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), num_classes),
    )


def tanh_cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Two convolutions, 32 and 16 maps of 3x3, with tanh, and one linear layer.

    Esipova et al. on MNIST, and on 64x64 images of CelebA with 120,722 parameters.
    """
    channels, height, width = _image(input_shape, smallest=5, name="tanh-cnn")
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.Tanh(),
        nn.Conv2d(32, 16, 3),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(16 * (height - 4) * (width - 4), num_classes),
    )


def scatter_cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Two convolutions of 64 maps of 3x3 with tanh, the first pooled by 2, and one linear layer.

    For scattering features of CIFAR-10 (Tramer and Boneh 2021).
    """
    channels, height, width = _image(input_shape, smallest=2, name="scatter-cnn")
    return nn.Sequential(
        nn.Conv2d(channels, 64, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(64 * (height // 2) * (width // 2), num_classes),
    )


class _Residual(nn.Module):
    """Two 3x3 convolutions with GroupNorm and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            nn.GroupNorm(8, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.GroupNorm(8, outputs),
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.relu(self.body(inputs) + self.shortcut(inputs))


def resnet20(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """ResNet-20 for small images (He et al. 2016) with GroupNorm instead of BatchNorm (Yu et al. 2023).

    272,282 parameters on CIFAR-10. Shortcuts that change the number of maps are 1x1 convolutions.
    """
    channels, *_ = _image(input_shape, smallest=8, name="resnet20")
    blocks = [nn.Conv2d(channels, 16, 3, padding=1, bias=False), nn.GroupNorm(8, 16), nn.ReLU()]
    width = 16
    for stage, outputs in enumerate((16, 32, 64)):
        for block in range(3):
            blocks.append(_Residual(width, outputs, stride=2 if stage and not block else 1))
            width = outputs
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, num_classes))


class PrototypeModel(nn.Module):
    """Linear in inputs of norm 1, from weights of zero; in evaluation, cosines times `_SHARPNESS`.

    Noise lengthens the weights of a class, for a rare class by more than its features do. Cosines therefore
    use the length of only the features, estimated from the public deviation of the noise. For d numbers it is
    the squared length minus d squared deviations. If only noise could reach a class's estimate, two standard
    errors are used instead, so that its cosines stay small.

    Attributes:
        noise: deviation of the noise in each weight, or 0 before training, and without noise.

    >>> model = PrototypeModel(2, num_classes=2).eval()
    >>> model.linear.weight.data = torch.tensor([[3.0, 4.0], [0.0, 5.0]])
    >>> model(torch.tensor([[0.0, 1.0]])).tolist()
    [[12.800000190734863, 16.0]]
    """

    noise: Tensor

    def __init__(self, numbers: int, num_classes: int) -> None:
        super().__init__()
        self.flatten, self.linear = nn.Flatten(), nn.Linear(numbers, num_classes, bias=False)
        nn.init.zeros_(self.linear.weight)
        self.register_buffer("noise", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.linear(nn.functional.normalize(self.flatten(inputs)))
        return outputs if self.training else _SHARPNESS * outputs / self.lengths

    @property
    def lengths(self) -> Tensor:
        """Length of each class's weights without their noise, [classes]."""
        numbers, variance = self.linear.in_features, self.noise.square()
        squares = self.linear.weight.square().sum(1) - numbers * variance
        return torch.maximum(squares, _ERRORS * math.sqrt(2 * numbers) * variance).sqrt().clamp(min=1e-30)


_SHARPNESS = 16.0
"""Logits of a class for a cosine of 1."""
_ERRORS = 2.0
"""Least squared length of a class's weights, in standard errors of its estimate."""


def prototypes(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Cosines of the flattened input with one vector a class; for the method `prototypes`."""
    return PrototypeModel(math.prod(input_shape), num_classes)


MODELS: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {
    "logistic": logistic,
    "additive": additive,
    "mlp": mlp,
    "lenet": lenet,
    "small-cnn": small_cnn,
    "tanh-cnn": tanh_cnn,
    "resnet20": resnet20,
    "scatter-cnn": scatter_cnn,
    "prototypes": prototypes,
}
"""Name -> factory(shape of one input, number of classes); weights come from torch's global generator.

>>> MODELS["logistic"]((40,), 2)(torch.zeros(5, 40)).shape
torch.Size([5, 2])
"""


def model_named(name: str) -> Callable[[tuple[int, ...], int], nn.Module]:
    """The factory of a name from `MODELS`, or of an import path such as "my_module:make_model".

    Raises:
        SettingError: an unknown name, whose closest one it names, or a path that leads nowhere.
    """
    if name in MODELS:
        return MODELS[name]
    if not is_import_path(name):
        raise unknown_name("model", name, MODELS)
    expected = "a function of (shape of one input, number of classes) that makes a torch module"
    factory: Callable[[tuple[int, ...], int], nn.Module] = own_part(
        name, "model", lambda part: callable(part) and not isinstance(part, nn.Module), expected
    )
    return factory


def _image(shape: tuple[int, ...], *, smallest: int, name: str) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise ModelError(
            f"input_shape={list(shape)}; {name} expects images [channels, height, width] of at least "
            f"{smallest}x{smallest} pixels. Choose another model, such as mlp or logistic."
        )
    return shape
