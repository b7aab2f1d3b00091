"""Scattering coefficients of images: fixed wavelets, moduli and averages, with nothing learned."""

from __future__ import annotations

import itertools
import math
import operator
from functools import lru_cache, reduce

import torch
from torch import Tensor
from torch.nn import functional

from equidp.errors import DataError

SCALES, ANGLES = 2, 8
COEFFICIENTS = 1 + SCALES * ANGLES + ANGLES**2
"""Coefficients of each channel: one average, 16 of the first order, 64 of the second."""
GROUPS = 27
SMALLEST = 8
_STRIDE = 2**SCALES
_PI = 3.1415  # as the normalisation of Kymatio's Gaussians has it
_IMAGES = 8  # at a time; more do not fit into a core's cache


def scattering(images: Tensor) -> Tensor:
    """Return the scattering coefficients of order 0, 1 and 2 of each channel, at J = 2 and L = 8.

    They equal the outputs of Kymatio's `Scattering2D(J=2, shape=(H, W), L=8)`, in the same order (Bruna and
    Mallat 2013; Oyallon and Mallat 2015; Andreux et al. 2020, "Kymatio: Scattering Transforms in Python").

    Args:
        images: [n, channels, H, W], each side of 8 pixels or more.

    Returns:
        [n, channels * 81, H // 4, W // 4], float32.

    Raises:
        DataError: inputs of another shape, or smaller images.
    """
    if images.dim() != 4 or min(images.shape[2:]) < SMALLEST:
        raise DataError(
            f"scattering reads images [channels, height, width] of at least {SMALLEST}x{SMALLEST} pixels; "
            f"this data has inputs of shape {list(images.shape[1:])}. Leave out the features.",
            field="inputs",
        )
    n, channels, height, width = images.shape
    singles = images.detach().float().reshape(n * channels, 1, height, width)
    found = singles.new_empty((len(singles), COEFFICIENTS, height // _STRIDE, width // _STRIDE))
    for start in range(0, len(singles), _IMAGES):
        found[start : start + _IMAGES] = _scatter_images(singles[start : start + _IMAGES])
    return found.reshape(n, channels * COEFFICIENTS, *found.shape[2:])


def number_of_features(shape: tuple[int, ...]) -> int:
    """Number of coefficients of images of a shape (channels, H, W)."""
    channels, height, width = shape
    return int(channels * COEFFICIENTS * (height // _STRIDE) * (width // _STRIDE))


def normalised_scattering(images: Tensor) -> Tensor:
    """Return `scattering`, with mean 0 and deviation 1 in each of 27 groups of an image's channels.

    This is GroupNorm without parameters, which Tramer and Boneh (ICLR 2021) train on. Each image's values
    follow only from this image.
    """
    return functional.group_norm(scattering(images), GROUPS)


def _scatter_images(images: Tensor) -> Tensor:
    """Return the coefficients, [m, 81, H // 4, W // 4], of images [m, 1, H, W]."""
    padding, (fine_waves, coarse_waves), averages = _filters(*images.shape[2:])
    padded = functional.pad(images, padding, mode="reflect")
    spectrum = torch.fft.fft2(padded)
    fine = torch.fft.ifft2(spectrum * fine_waves).abs()
    coarse = _halved_modulus(spectrum, coarse_waves)
    second = _halved_modulus(torch.fft.fft2(fine).unsqueeze(2), coarse_waves).flatten(1, 2)
    parts = torch.cat([padded, fine], 1), torch.cat([coarse, second], 1)
    averaged = [rows @ (part @ columns.T) for part, (rows, columns) in zip(parts, averages, strict=True)]
    return torch.cat(averaged, 1)


def _halved_modulus(spectrum: Tensor, wavelets: Tensor) -> Tensor:
    """Modulus of filtered images at every second pixel of every second row."""
    halves = [(slice(0, side // 2), slice(side // 2, None)) for side in wavelets.shape[-2:]]
    parts = (spectrum[..., rows, columns] * wavelets[..., rows, columns]
             for rows, columns in itertools.product(*halves))  # fmt: skip
    modulus: Tensor = torch.fft.ifft2(reduce(operator.iadd, parts)).abs().div_(4)
    return modulus


@lru_cache(maxsize=4)
def _filters(height: int, width: int) -> tuple[list[int], list[Tensor], list[list[Tensor]]]:
    """Filters for images of one size: padding left, right, top and bottom. For scale 0 and 1, they have the
    spectra of wavelets by angle, [8, H', W'], and averages of rows and columns at each fourth pixel, without
    padding."""
    whole = [((side + _STRIDE) // _STRIDE + 1) * _STRIDE for side in (height, width)]
    spare = [padded - side for padded, side in zip(whole, (height, width), strict=True)]
    padding = [half for each in reversed(spare) for half in (each // 2, (each + 1) // 2)]
    waves = [_wavelets(whole, scale).float() for scale in range(SCALES)]
    return padding, waves, [[_average(side, scale).float() for side in whole] for scale in range(SCALES)]


def _wavelets(sides: list[int], scale: int) -> Tensor:
    """Spectra of Morlet wavelets of all angles, [8, H', W']."""
    every = []
    for angle in ((ANGLES // 2 - 1 - turn) * math.pi / ANGLES for turn in range(ANGLES)):
        wave, envelope = (_gabor(sides, scale, angle, xi) for xi in (0.75 * math.pi / 2**scale, 0.0))
        every.append(torch.fft.fft2(wave - wave.sum() / envelope.sum() * envelope).real)
    return torch.stack(every)


def _gabor(sides: list[int], scale: int, angle: float, frequency: float) -> Tensor:
    """A wave below an elliptic Gaussian, twice as long across, on a torus."""
    deviation, slant = 0.8 * 2**scale, 4.0 / ANGLES
    places = [torch.arange(-2 * side, 3 * side, dtype=torch.float64) for side in sides]
    down, right = torch.meshgrid(*places, indexing="ij")
    along = down * math.cos(angle) + right * math.sin(angle)
    across = right * math.cos(angle) - down * math.sin(angle)
    gaussian = torch.exp(-(along**2 + slant**2 * across**2) / (2 * deviation**2))
    wave = torch.polar(gaussian, frequency * along) * slant / (2 * _PI * deviation**2)
    on_torus: Tensor = wave.reshape(5, sides[0], 5, sides[1]).sum((0, 2))
    return on_torus


def _average(side: int, scale: int) -> Tensor:
    """A Gaussian along one padded side at 1 / 2^scale of its resolution, kept at each fourth pixel of it."""
    deviation = 0.8 * 2 ** (SCALES - 1)
    places = torch.arange(-2 * side, 3 * side, dtype=torch.float64)
    gaussian = torch.exp(-(places**2) / (2 * deviation**2)).reshape(5, side).sum(0)
    spectrum = torch.fft.fft(gaussian / math.sqrt(2 * _PI * deviation**2)).real
    size = side // 2**scale
    if scale:
        spectrum = torch.cat([spectrum[: size // 2], spectrum[side - size // 2 :]])
    kernel: Tensor = torch.fft.ifft(spectrum).real
    step = _STRIDE // 2**scale
    shifts = step * torch.arange(1, side // _STRIDE - 1)[:, None] - torch.arange(size)
    return kernel[shifts % size]
