"""Scattering coefficients are Kymatio's, of each image and each channel alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from equidp.data.scattering import COEFFICIENTS, normalised_scattering, scattering
from equidp.errors import DataError
from support.errors import raises_field

KYMATIO = Path(__file__).parent / "fixtures" / "kymatio_scattering.npz"


def made_up(height: int, width: int) -> torch.Tensor:
    """The image of the fixture's README."""
    down, right = np.mgrid[:height, :width]
    levels = (37 * down * down + 101 * right * right + 59 * down * right + 17 * down) % 256
    return torch.from_numpy((levels / 255).astype(np.float32))


@pytest.mark.parametrize("size", [(32, 32), (28, 28), (9, 14)], ids=str)
def test_coefficients_are_those_of_kymatio(size):
    """(9, 14) is padded by another number of pixels on each side."""
    expected = torch.from_numpy(np.load(KYMATIO)["{}x{}".format(*size)])
    found = scattering(made_up(*size)[None, None])[0]
    assert found.shape == expected.shape == (81, size[0] // 4, size[1] // 4)
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_each_image_and_each_channel_is_transformed_alone():
    images = torch.rand(5, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    together = scattering(images)
    for image in range(5):
        for channel in range(3):
            alone = scattering(images[image : image + 1, channel : channel + 1])[0]
            block = together[image, channel * COEFFICIENTS : (channel + 1) * COEFFICIENTS]
            assert torch.allclose(block, alone, atol=1e-6)


def test_normalised_coefficients_have_mean_0_and_deviation_1_in_each_group():
    images = 100 * torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    groups = normalised_scattering(images).reshape(2, 27, -1)
    assert torch.allclose(groups.mean(-1), torch.zeros(2, 27), atol=1e-5)
    assert torch.allclose(groups.std(-1), torch.ones(2, 27), atol=0.01)


@pytest.mark.parametrize("shape", [(2, 1, 7, 28), (2, 40)], ids=str)
def test_what_is_no_image_of_8_pixels_a_side_is_refused(shape):
    with raises_field(DataError, "inputs"):
        scattering(torch.zeros(shape))
