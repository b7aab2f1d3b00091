"""Makes the weights of `--features random-process` from images of random processes: no photograph is read.

Images are dead leaves: shapes of sizes by a power law that cover each other, plain, shaded, or textured by
noise with a spectrum of 1 / f^a and by waves (Baradad et al. 2021, "Learning to See by Looking at Noise").
Filters are the centres that k-means finds among whitened patches of these images (Coates, Lee and Ng 2011,
"An Analysis of Single-Layer Networks in Unsupervised Feature Learning"). Features of other images of the
process give their mean and the matrices that whiten them.

    python benchmarks/random_process.py --out src/equidp/data/random_process.npz

The same seed gives the same weights, up to rounding. The defaults take about a minute and a half of a core;
--filters 8 --patches 400 --images 20 makes small weights in a second.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from equidp.data.random_process import DRAWN_SIDE, LEAST_VARIANCE, PATCH, RandomProcess, RandomProcessWeights

SIDE = 48
"""Side of drawn images before they are resized to `DRAWN_SIDE`."""
_PATCHES_OF_AN_IMAGE = 20
_RIDGE = 0.1
"""Variance that is added before patches are whitened; theirs is 1 on average."""
_LEAST_SHARE = 0.01
"""Variance that is added before features are whitened, as a share of their mean variance."""


def _uniform(n: int, low: float, high: float) -> Tensor:
    """Return [n, 1, 1, 1] uniform numbers."""
    return low + (high - low) * torch.rand((n, 1, 1, 1))


def _log_uniform(n: int, low: float, high: float) -> Tensor:
    return _uniform(n, math.log(low), math.log(high)).exp()


def _coloured(fields: Tensor) -> Tensor:
    """Mix three independent channels by a random matrix, near grey more often than not, into [0, 1]."""
    n = len(fields)
    fields = (fields - fields.mean((2, 3), keepdim=True)) / (fields.std((2, 3), keepdim=True) + 1e-4)
    grey = torch.rand((n, 1, 1))
    mixture = 0.6 * torch.randn((n, 3, 3)) * (1 - grey)
    mixture[:, :, 0] += torch.randn((n, 1)).sign() * (0.5 + grey[:, 0])
    mixture = mixture * _uniform(n, 0.03, 0.35)[..., 0]
    mean = 0.5 * torch.rand((n, 3, 1, 1)) + 0.5 * torch.rand((n, 1, 1, 1))
    return (torch.einsum("nij,njhw->nihw", mixture, fields) + mean).clamp(0, 1)


def draw_spectra(n: int) -> Tensor:
    """Return noise [n, 3, 48, 48] with a spectrum of 1 / f^a, a from 0.5 to 3.5, turned and stretched."""
    fy = SIDE * torch.fft.fftfreq(SIDE)[:, None]
    fx = SIDE * torch.fft.rfftfreq(SIDE)
    angle, stretch = _uniform(n, 0, math.pi), _log_uniform(n, 0.3, 3.3)
    u, v = fx * angle.cos() + fy * angle.sin(), fy * angle.cos() - fx * angle.sin()
    frequency = (u.square() * stretch + v.square() / stretch + 0.3).sqrt()
    amplitude = frequency ** -_uniform(n, 0.5, 3.5)
    peak = _log_uniform(n, 1, 12)
    ring = torch.exp(-0.5 * ((frequency - peak) / (0.25 * peak)).square())
    amplitude = torch.where(_uniform(n, 0, 1) < 0.3, ring, amplitude)
    amplitude[..., 0, 0] = 0
    phases = torch.fft.rfft2(torch.randn((n, 3, SIDE, SIDE)))
    return _coloured(torch.fft.irfft2(phases * amplitude, s=(SIDE, SIDE)))


def draw_waves(n: int) -> Tensor:
    """Return sums [n, 3, 48, 48] of four waves of random frequency and direction, some bent."""
    place = torch.arange(SIDE) / SIDE
    y, x = place[:, None], place
    total = torch.zeros((n, 3, SIDE, SIDE))
    for _ in range(4):
        frequency, angle = _log_uniform(n, 0.5, 14), _uniform(n, 0, math.pi)
        bend = torch.randn((n, 1, 1, 1)) * (_uniform(n, 0, 1) < 0.5)
        phase = 2 * math.pi * torch.rand((n, 3, 1, 1))
        along = x * angle.cos() + y * angle.sin() + 0.7 * bend * ((x - 0.5).square() + (y - 0.5).square())
        total += torch.randn((n, 3, 1, 1)) * torch.sin(2 * math.pi * frequency * along + phase)
    return _coloured(torch.tanh(total * _log_uniform(n, 0.37, 7.4)))


def draw_leaves(n: int, leaves: int = 22) -> Tensor:
    """Return images [n, 3, 48, 48] of dead leaves, in [0, 1]."""
    textures = torch.cat([draw_spectra(n - n // 3), draw_waves(n // 3)])[torch.randperm(n)]
    textures = textures - textures.mean((2, 3), keepdim=True)
    palette = 0.6 * torch.rand((n, 1, 3, 1, 1)) + 0.4 * torch.rand((n, leaves + 1, 3, 1, 1))
    free = torch.rand((n, leaves + 1, 3, 1, 1))
    colours = torch.where(torch.rand((n, 1, 1, 1, 1)) < 0.5, palette, free)
    image = colours[:, 0] + textures * _uniform(n, 0, 2)
    least = _log_uniform(n, 1.5, 8)
    for leaf in range(1, leaves + 1):
        # large shapes first, so that no ground is left bare
        radius = _uniform(n, 0.25, 0.7) * SIDE if leaf <= 4 else _power_law(n, least, 0.6 * SIDE)
        mask, u, v = _draw_shape(n, radius)
        texture = textures.roll(leaf * 7 + 1, 0) * _uniform(n, -0.3, 1.6).clamp(min=0)
        shade = torch.randn((n, 1, 1, 1)) * u + torch.randn((n, 1, 1, 1)) * v
        paint = colours[:, leaf] + texture + 0.12 * shade / radius
        image = image + mask * (paint - image)
    return image.clamp(0, 1)


def _power_law(n: int, least: Tensor, most: float, exponent: float = 1.5) -> Tensor:
    low, high = least**-exponent, most**-exponent
    return (high + _uniform(n, 0, 1) * (low - high)) ** (-1 / exponent)


def _draw_shape(n: int, radius: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Masks [n, 1, 48, 48] of shapes between a diamond and a rectangle, perhaps lobed, and coordinates along
    their axes."""
    place = torch.arange(SIDE, dtype=torch.float32)
    dy, dx = place[:, None] - _uniform(n, 0, SIDE), place - _uniform(n, 0, SIDE)
    angle, aspect = _uniform(n, 0, math.pi), _log_uniform(n, 0.4, 2.5)
    u = (dx * angle.cos() + dy * angle.sin()) / aspect
    v = (dy * angle.cos() - dx * angle.sin()) * aspect
    power = _log_uniform(n, 0.8, 8)
    reach = ((u / radius).abs() + 1e-3) ** power + ((v / radius).abs() + 1e-3) ** power
    lobes = torch.randint(2, 7, (n, 1, 1, 1))
    wave = _uniform(n, 0, 0.5) * (_uniform(n, 0, 1) < 0.4)
    distance = reach ** (1 / power) * (1 + wave * torch.sin(lobes * torch.atan2(v, u)))
    return torch.sigmoid((1 - distance) * radius * 2 / _log_uniform(n, 0.4, 2)), u, v


def draw_images(n: int) -> Tensor:
    """Return images [n, 3, 32, 32] of the process, in [-1, 1]."""
    parts = [draw_leaves(min(500, n - start)) for start in range(0, n, 500)]
    return functional.interpolate(torch.cat(parts), DRAWN_SIDE, mode="bilinear", antialias=True) * 2 - 1


def draw_patches(rows: int) -> Tensor:
    """Return patches [rows, 3 * PATCH^2], twenty of each image, with mean 0 and about variance 1."""
    images = draw_images(max(1, rows // _PATCHES_OF_AN_IMAGE)).permute(0, 2, 3, 1)
    y, x = torch.randint(0, DRAWN_SIDE - PATCH + 1, (2, rows))
    step = torch.arange(PATCH)
    places = torch.arange(rows) % len(images)
    patches = images[places[:, None, None], (y[:, None] + step)[:, :, None], (x[:, None] + step)[:, None]]
    patches = patches.permute(0, 3, 1, 2).flatten(1)
    patches = patches - patches.mean(1, keepdim=True)
    return patches / (patches.var(1, keepdim=True, correction=0) + LEAST_VARIANCE).sqrt()


def learn_filters(patches: Tensor, filters: int, rounds: int = 25) -> tuple[Tensor, Tensor]:
    """Return filters [filters, D] of patches and offsets [filters], by whitening and spherical k-means."""
    mean = patches.mean(0)
    centred = patches - mean
    values, vectors = torch.linalg.eigh(centred.T @ centred / len(centred))
    white = (vectors / (values.clamp(min=0) + _RIDGE).sqrt()) @ vectors.T
    unit = functional.normalize(centred @ white, dim=1)
    centres = unit[torch.randperm(len(unit))[:filters]]
    for _ in range(rounds):
        sums = torch.zeros_like(centres)
        for part in unit.split(20_000):
            scores = part @ centres.T
            best = scores.abs().argmax(1)
            sums.index_add_(0, best, scores.gather(1, best[:, None]).sign() * part)
        fresh = unit[torch.randint(0, len(unit), (filters,))]
        centres = torch.where(sums.norm(dim=1, keepdim=True) > 1e-3, functional.normalize(sums, dim=1), fresh)
    found = centres @ white
    scale = (centred[:20_000] @ found.T).std()
    return found / scale, found @ mean / scale


def inverse_root(covariance: Tensor) -> Tensor:
    """Return (covariance + a share of its mean variance) to the power -1/2, symmetric."""
    values, vectors = torch.linalg.eigh(covariance.double())
    least = _LEAST_SHARE * values.mean()
    return ((vectors * (values.clamp(min=0) + least) ** -0.5) @ vectors.T).float()


def make_weights(filters: int, patches: int, images: int) -> RandomProcessWeights:
    """Return filters, and what whitens their features of other images."""
    weights, offsets = learn_filters(draw_patches(patches), filters)
    plain = RandomProcess(RandomProcessWeights.skip_whitening(weights, offsets))
    found = torch.cat(
        [plain.pool_activations(draw_images(min(500, images - start))) for start in range(0, images, 500)]
    )
    mean = found.mean(0)
    centred = found - mean  # [images, channels, cells]
    scaled = centred / (centred.square().mean((0, 2)).sqrt() + 1e-3)[:, None]
    cells = inverse_root(torch.einsum("nci,ncj->ij", scaled, scaled) / scaled[..., 0].numel())
    turned = centred @ cells
    channels = inverse_root(torch.einsum("nic,njc->ij", turned, turned) / turned[:, 0].numel())
    return RandomProcessWeights(weights, offsets, mean, channels, cells)


def main() -> None:
    """Write the weights into one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("random_process.npz"))
    parser.add_argument("--filters", type=int, default=512)
    parser.add_argument("--patches", type=int, default=200_000)
    parser.add_argument("--images", type=int, default=5_000, help="whose features are whitened")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.manual_seed(asked.seed)
    with torch.no_grad():
        make_weights(asked.filters, asked.patches, asked.images).write(asked.out)
    print(f"{asked.out}: {asked.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
