"""Named models have the sizes that papers state, and refuse data that does not fit them."""

from __future__ import annotations

import pytest
import torch

from equidp.errors import ModelError
from equidp.models import MODELS
from support.errors import raises_field

SHAPES = {
    "logistic": (40,),
    "additive": (40,),
    "mlp": (98,),
    "lenet": (1, 28, 28),
    "small-cnn": (1, 8, 8),
    "tanh-cnn": (1, 28, 28),
    "resnet20": (3, 32, 32),
    "scatter-cnn": (243, 8, 7),
    "prototypes": (40,),
}


@pytest.mark.parametrize("name", MODELS)
def test_outputs_one_logit_per_class(name):
    assert MODELS[name](SHAPES[name], 7)(torch.zeros(3, *SHAPES[name])).shape == (3, 7)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "count"),
    [
        ("lenet", (1, 28, 28), 10, 431_080),  # Xu et al.: 431K
        ("tanh-cnn", (3, 64, 64), 2, 120_722),  # Esipova et al.: its square is about 14.5 billion
        ("resnet20", (3, 32, 32), 10, 272_282),  # He et al.: 0.27M
    ],
)
def test_models_have_as_many_parameters_as_the_papers_say(name, shape, classes, count):
    assert sum(p.numel() for p in MODELS[name](shape, classes).parameters()) == count


def test_scatter_cnn_has_the_layers_of_tramer_and_boneh():
    shapes = [tuple(p.shape) for p in MODELS["scatter-cnn"]((243, 8, 8), 10).parameters() if p.dim() > 1]
    assert shapes == [(64, 243, 3, 3), (64, 64, 3, 3), (10, 1024)]


@pytest.mark.parametrize("name", ["lenet", "small-cnn", "tanh-cnn", "resnet20", "scatter-cnn"])
def test_data_that_is_no_image_is_refused(name):
    with raises_field(ModelError, "input_shape"):
        MODELS[name]((40,), 2)


def test_images_too_small_are_refused():
    with raises_field(ModelError, "input_shape"):
        MODELS["lenet"]((1, 8, 8), 10)
