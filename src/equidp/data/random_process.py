"""Features of images by filters that were learned on images of random processes alone."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

PATCH = 6
"""Side of a patch in pixels."""
DRAWN_SIDE = 32
"""Side of the images that filters were learned on."""
GRID = 2
"""Side of the grid of places that activations are averaged over."""
LEAST_VARIANCE = 0.01
"""Variance that is added to that of a patch, of pixels in [-1, 1]."""
_THRESHOLD = 0.25
_BLOCK = 4  # images at a time: activations take 1.5 MB each

WEIGHTS = Path(__file__).with_name("random_process.npz")
"""Weights that `benchmarks/random_process.py` of the repository makes."""


class RandomProcessWeights(NamedTuple):
    """Filters, and what whitens their features.

    Attributes:
        filters: [F, 3 * PATCH^2].
        offsets: [F]; taken from the products with filters.
        mean: [2 F, GRID^2]; of the features of images of random processes.
        channels: [2 F, 2 F], symmetric; whitens the channels.
        cells: [GRID^2, GRID^2], symmetric; whitens the cells of the grid.
    """

    filters: Tensor
    offsets: Tensor
    mean: Tensor
    channels: Tensor
    cells: Tensor

    @classmethod
    def skip_whitening(cls, filters: Tensor, offsets: Tensor) -> RandomProcessWeights:
        """Return weights that leave features as they are."""
        channels = 2 * len(filters)
        return cls(filters, offsets, torch.zeros(channels, GRID**2), torch.eye(channels), torch.eye(GRID**2))

    def write(self, path: Path) -> None:
        """Write the weights as float16, of the channels' matrix its upper triangle."""
        rows, columns = torch.triu_indices(*self.channels.shape)
        upper = self.channels[rows, columns]
        parts = {**self._asdict(), "channels": upper / upper.abs().max()}
        np.savez_compressed(path, **{name: part.half().numpy() for name, part in parts.items()})

    @classmethod
    def read(cls, path: Path) -> RandomProcessWeights:
        """Return the weights that a file of `write` holds."""
        with np.load(path) as file:
            parts = {name: torch.from_numpy(file[name]).float() for name in cls._fields}
        size = len(parts["mean"])
        upper = torch.zeros(size, size)
        rows, columns = torch.triu_indices(size, size)
        upper[rows, columns] = parts["channels"]
        return cls(**{**parts, "channels": upper + upper.T - upper.diag().diag()})


class RandomProcess(nn.Module):
    """Images [n, 3, height, width] in [-1, 1] -> features [n, 8 F] of norm 1 (Coates, Lee and Ng 2011).

    Each patch of 6x6 pixels, less its mean and over its deviation, is multiplied with each of F filters, and
    the products are rectified from both sides beyond a threshold. Their means over the four quarters of an
    image are centred and whitened by those of images of random processes. An image's features follow from
    that image and the weights alone.

    >>> RandomProcess(RandomProcessWeights.read(WEIGHTS))(torch.zeros(2, 3, 32, 32)).norm(dim=1).round()
    tensor([1., 1.])
    """

    kernel: Tensor
    offsets: Tensor
    mean: Tensor
    channels: Tensor
    cells: Tensor

    def __init__(self, weights: RandomProcessWeights) -> None:
        super().__init__()
        centred = weights.filters - weights.filters.mean(1, keepdim=True)  # takes the mean from each patch
        self.register_buffer("kernel", centred.reshape(-1, 3, PATCH, PATCH))
        for name in ("offsets", "mean", "channels", "cells"):
            self.register_buffer(name, getattr(weights, name))

    def forward(self, images: Tensor) -> Tensor:
        """Return features of norm 1."""
        found = self.pool_activations(images) - self.mean
        return functional.normalize((self.channels @ (found @ self.cells)).flatten(1))

    def pool_activations(self, images: Tensor) -> Tensor:
        """Return mean activations [n, 2 F, GRID^2] before whitening."""
        return torch.cat([self._pool_block(each) for each in images.split(_BLOCK)])

    def _pool_block(self, images: Tensor) -> Tensor:
        grey = torch.stack([images.mean(1), images.square().mean(1)], 1)
        mean, square = functional.avg_pool2d(grey, PATCH, 1).unbind(1)
        deviation = ((square - mean.square()).clamp(min=0) + LEAST_VARIANCE).sqrt()
        products = functional.conv2d(images, self.kernel) / deviation[:, None]
        products = products - self.offsets[:, None, None]
        sides = [functional.relu(each - _THRESHOLD) for each in (products, -products)]
        return torch.cat([functional.adaptive_avg_pool2d(each, GRID).flatten(2) for each in sides], 1)
