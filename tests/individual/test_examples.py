"""How training data is read for individual accounting."""

from __future__ import annotations

import pytest
import torch

from equidp.individual.accountant import chunk_of


@pytest.mark.parametrize(
    ("shape", "device", "expected"),
    [((5, 3), "cpu", 4096), ((5, 1, 2, 2), "cpu", 128), ((5, 1, 2, 2), "cuda", 256), ((5, 3, 2), "cpu", 256)],
)
def test_more_rows_than_images_are_measured_at_a_time(shape, device, expected):
    assert chunk_of(torch.zeros(shape), torch.device(device)) == expected
