"""Models by name: the papers', and some that suit noise.

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

    Esipova et al. on MNIST, and on 64x64 images of CelebA, where it has 120,722 parameters.
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


def noise_cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Two convolutions, 16 maps of 8x8 and 32 of 4x4, each pooled, then 32 units, with tanh throughout.

    26,010 parameters on MNIST (Papernot et al. 2021, "Tempered Sigmoid Activations for Deep Learning with
    Differential Privacy"; Tramer and Boneh 2021): few, and bounded, so that noise and clipping do less harm.
    """
    channels, height, width = _image(input_shape, smallest=18, name="noise-cnn")
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


def deep_tanh_cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Eight 3x3 convolutions with tanh between, the first six in pairs of 32, 64 and 128 maps.

    Each pair is averaged by 2. 256 maps and then one for each class follow, averaged over the image: 605,226
    parameters on CIFAR-10 (Papernot et al. 2021, as `noise-cnn`, which is theirs for MNIST).
    """
    channels, *_ = _image(input_shape, smallest=8, name="deep-tanh-cnn")
    layers: list[nn.Module] = []
    for outputs in (32, 64, 128):
        for inputs in (channels, outputs):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.Tanh()]
        layers.append(nn.AvgPool2d(2))
        channels = outputs
    layers += [nn.Conv2d(channels, 256, 3, padding=1), nn.Tanh(), nn.Conv2d(256, num_classes, 3, padding=1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


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


def ws_cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Three convolutions with standardised weights, GroupNorm and ReLU, then the average of 64 maps.

    Weight standardisation and GroupNorm as De et al. (2022, "Unlocking High-Accuracy Differentially Private
    Image Classification through Scale") have them.
    """
    channels, *_ = _image(input_shape, smallest=8, name="ws-cnn")
    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((channels, 32, 1), (32, 64, 2), (64, 64, 2)):
        layers += [_StandardisedConv(inputs, outputs, stride), nn.GroupNorm(8, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, num_classes))


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
    """ResNet-20 for small images (He et al. 2016) with GroupNorm in place of BatchNorm (Yu et al. 2023).

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


def wrn16_4(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """WRN-16-4 (Zagoruyko and Komodakis 2016) with GroupNorm of 16 groups and standardised weights.

    As De et al. (2022) and Yu et al. (2023) train on CIFAR-10; 2,748,890 parameters there. Without the gains
    and biases of convolutions in De et al.'s code, most of which the GroupNorm behind them undoes.
    """
    channels, *_ = _image(input_shape, smallest=8, name="wrn16-4")
    blocks: list[nn.Module] = [_StandardisedConv(channels, 16, 1)]
    width = 16
    for stage, outputs in enumerate((64, 128, 256)):
        for block in range(2):
            blocks.append(_WideResidual(width, outputs, stride=2 if stage and not block else 1))
            width = outputs
    head = (nn.GroupNorm(16, width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*blocks, *head, nn.Linear(width, num_classes))


MODELS: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {
    "logistic": logistic,
    "mlp": mlp,
    "lenet": lenet,
    "small-cnn": small_cnn,
    "tanh-cnn": tanh_cnn,
    "resnet20": resnet20,
    "noise-cnn": noise_cnn,
    "scatter-cnn": scatter_cnn,
    "ws-cnn": ws_cnn,
    "deep-tanh-cnn": deep_tanh_cnn,
    "wrn16-4": wrn16_4,
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
            f"{name} reads images [channels, height, width] of at least {smallest}x{smallest} pixels; this "
            f"data has inputs of shape {list(shape)}. Choose another model, such as mlp or logistic."
        )
    return shape
