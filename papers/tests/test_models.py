"""The model has the size that its paper states, exact gradients, and refuses data that does not fit."""

from __future__ import annotations

from equidp.errors import ModelError
from papers.models import noise_cnn
from support.errors import raises_field
from support.oracle import assert_exact, drawn


def test_the_model_is_that_of_the_paper():
    assert sum(p.numel() for p in noise_cnn((1, 28, 28), 10).parameters()) == 26_010
    assert_exact(noise_cnn((1, 18, 19), 4).double(), drawn(5, 1, 18, 19), engine="ghost", classes=4)
    with raises_field(ModelError, "input_shape"):
        noise_cnn((40,), 2)
