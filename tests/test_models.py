"""The papers' models have the sizes that the papers state, and say so when data does not fit them."""

from __future__ import annotations

import pytest
import torch

from equidp.errors import ModelError
from equidp.models import MODELS

SHAPES = {
    "logistic": (40,),
    "mlp": (98,),
    "lenet": (1, 28, 28),
    "small-cnn": (1, 8, 8),
    "tanh-cnn": (1, 28, 28),
    "resnet20": (3, 32, 32),
    "noise-cnn": (3, 33, 18),
    "scatter-cnn": (243, 8, 7),
    "ws-cnn": (1, 28, 28),
    "deep-tanh-cnn": (3, 32, 32),
    "wrn16-4": (3, 32, 32),
}


@pytest.mark.parametrize("name", MODELS)
def test_outputs_one_logit_per_class(name):
    assert MODELS[name](SHAPES[name], 7)(torch.zeros(3, *SHAPES[name])).shape == (3, 7)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "count"),
    [
        ("lenet", (1, 28, 28), 10, 431_080),  # Xu et al.: 431K
        ("noise-cnn", (1, 28, 28), 10, 26_010),
        ("tanh-cnn", (3, 64, 64), 2, 120_722),  # Esipova et al.: its square is about 14.5 billion
        ("resnet20", (3, 32, 32), 10, 272_282),  # He et al.: 0.27M
        ("deep-tanh-cnn", (3, 32, 32), 10, 605_226),
        ("wrn16-4", (3, 32, 32), 10, 2_748_890),  # Zagoruyko and Komodakis: 2.7M
    ],
)
def test_models_have_as_many_parameters_as_the_papers_say(name, shape, classes, count):
    assert sum(p.numel() for p in MODELS[name](shape, classes).parameters()) == count


def test_scatter_cnn_has_the_layers_of_tramer_and_boneh():
    shapes = [tuple(p.shape) for p in MODELS["scatter-cnn"]((243, 8, 8), 10).parameters() if p.dim() > 1]
    assert shapes == [(64, 243, 3, 3), (64, 64, 3, 3), (10, 1024)]


def test_outputs_of_ws_cnn_do_not_depend_on_scale_or_mean_of_its_weights():
    model, images = MODELS["ws-cnn"]((3, 16, 16), 5).double(), torch.rand(2, 3, 16, 16).double()
    before = model(images)
    with torch.no_grad():
        for layer in (model[0], model[3], model[6]):
            layer.weight.mul_(3.0).add_(2.0)
    assert torch.allclose(model(images), before, atol=1e-4)


IMAGES = ["lenet", "small-cnn", "tanh-cnn", "resnet20", "noise-cnn", "scatter-cnn", "ws-cnn"]
IMAGES += ["deep-tanh-cnn", "wrn16-4"]


@pytest.mark.parametrize("name", IMAGES)
def test_data_that_is_no_image_is_refused(name):
    with pytest.raises(ModelError, match=r"Choose another model, such as mlp"):
        MODELS[name]((40,), 2)


def test_images_too_small_are_refused():
    with pytest.raises(ModelError, match="at least 16x16"):
        MODELS["lenet"]((1, 8, 8), 10)
