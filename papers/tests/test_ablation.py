"""Each error of clipping comes alone, without noise, and with all else equal."""

from __future__ import annotations

import pytest
import torch

from equidp.diagnostics.gradients import BatchGradients
from papers.ablation import ERRORS


def test_each_error_is_of_length_or_of_direction_alone():
    generator = torch.Generator().manual_seed(0)
    mean, clipped = torch.randn(2, 9, generator=generator, dtype=torch.float64)
    made = {name: make(BatchGradients(mean, clipped)) for name, make in ERRORS.items()}

    def cosine_with_gradient(vector):
        return float(torch.cosine_similarity(vector, mean, dim=0))

    assert torch.equal(made["none"], mean)
    assert torch.equal(made["both"], clipped)
    assert cosine_with_gradient(made["magnitude"]) == pytest.approx(1)
    assert float(made["magnitude"].norm()) == pytest.approx(float(clipped.norm()))
    assert cosine_with_gradient(made["direction"]) == pytest.approx(cosine_with_gradient(clipped))
    assert float(made["direction"].norm()) == pytest.approx(float(mean.norm()))
