"""Models of papers have the sizes that papers state, exact gradients, and refuse data that does not fit."""

from __future__ import annotations

import pytest
import torch

from equidp.errors import ModelError
from papers.models import deep_tanh_cnn, noise_cnn, wrn16_4, ws_cnn
from support.errors import raises_field
from support.oracle import assert_exact, drawn

SMALLEST = {noise_cnn: (1, 18, 19), ws_cnn: (2, 8, 8), deep_tanh_cnn: (2, 9, 8), wrn16_4: (2, 8, 8)}
"""Model -> a small shape of its images."""


@pytest.mark.parametrize("make", SMALLEST, ids=lambda make: make.__name__)
def test_outputs_one_logit_per_class(make):
    assert make((3, 33, 18), 7)(torch.zeros(3, 3, 33, 18)).shape == (3, 7)


@pytest.mark.soak
@pytest.mark.parametrize("engine", ["ghost", "functional"])
@pytest.mark.parametrize("make", SMALLEST, ids=lambda make: make.__name__)
def test_gradients_are_those_of_single_examples(engine, make):
    assert_exact(make(SMALLEST[make], 4).double(), drawn(5, *SMALLEST[make]), engine=engine, classes=4)


@pytest.mark.parametrize(
    ("make", "shape", "count"),
    [
        (noise_cnn, (1, 28, 28), 26_010),
        (deep_tanh_cnn, (3, 32, 32), 605_226),
        (wrn16_4, (3, 32, 32), 2_748_890),  # Zagoruyko and Komodakis: 2.7M
    ],
)
def test_models_have_as_many_parameters_as_the_papers_say(make, shape, count):
    assert sum(p.numel() for p in make(shape, 10).parameters()) == count


def test_outputs_of_ws_cnn_do_not_depend_on_scale_or_mean_of_its_weights():
    model, images = ws_cnn((3, 16, 16), 5).double(), torch.rand(2, 3, 16, 16).double()
    before = model(images)
    with torch.no_grad():
        for layer in (model[0], model[3], model[6]):
            layer.weight.mul_(3.0).add_(2.0)
    assert torch.allclose(model(images), before, atol=1e-4)


@pytest.mark.parametrize("make", SMALLEST, ids=lambda make: make.__name__)
def test_data_that_is_no_image_is_refused(make):
    with raises_field(ModelError, "input_shape"):
        make((40,), 2)
