"""Features of a source are computed once, of each example alone, and kept for other processes."""

from __future__ import annotations

import pickle
import sys

import pytest
import torch
from torch import nn

from equidp.comparison.cells import source_digest
from equidp.data import open_source
from equidp.data.extractors import Extractor
from equidp.data.features import FEATURES, WithFeatures
from equidp.errors import SettingError
from equidp.tables.cache import table_store
from support.errors import raises_field
from support.own_modules import own_module
from support.toy import RandomImages

OWN = """
import torch
from torch import nn

torch.manual_seed(1)
network = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Dropout(0.5))
def depends(inputs): return inputs.flatten(1) - inputs.flatten(1).mean(0)
def fails(inputs): return inputs @ torch.zeros(3, 3)
def shorter(inputs): return inputs.flatten(1)[:1]
def whole_numbers(inputs): return inputs.flatten(1).long()
def first(inputs): return inputs.flatten(1)[:, :FIRST]
FIRST = 3
number = 3
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIDP_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of the user's own, which can be imported by name."""
    with own_module("my_features", OWN, tmp_path, monkeypatch) as name:
        yield name


@pytest.mark.soak
def test_a_named_source_keeps_its_split_and_has_features_as_inputs():
    plain, found = open_source("digits").split(3), open_source("digits", features="scattering").split(3)
    for part, expected in ((found.train, plain.train), (found.test, plain.test)):
        assert torch.equal(part.targets, expected.targets)
        assert part.source == "digits"
        assert torch.allclose(part.inputs, FEATURES["scattering"].transform(expected.one_tensor), atol=1e-5)
    assert any("cost no privacy" in note for note in found.notes)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["digits", "equidp.data.digits:Digits"])
def test_features_are_computed_once_for_all_seeds_and_processes(monkeypatch, name):
    calls = []
    transform = FEATURES["scattering"].transform
    counted = Extractor(lambda: lambda rows: calls.append(len(rows)) or transform(rows))
    monkeypatch.setitem(FEATURES, "scattering", counted)
    source = open_source(name, features="scattering")
    source.split(0)
    assert sum(calls) > 1797
    calls.clear()
    again = pickle.loads(pickle.dumps(source))
    assert again == source
    assert hash(again) == hash(source)
    again.split(1)
    assert sum(calls) < 10  # made-up rows alone


def test_a_source_whose_seeds_give_other_examples_has_their_features():
    source, transform = WithFeatures(RandomImages(), "scattering"), FEATURES["scattering"].transform
    for seed in (0, 1, 0):
        plain, found = RandomImages().split(seed), source.split(seed)
        assert torch.allclose(found.train.inputs, transform(plain.train.inputs), atol=1e-5)
        assert torch.allclose(found.test.inputs, transform(plain.test.inputs), atol=1e-5)
        assert found.notes[0] == "as it is"
    assert len(table_store().entries()) == 4


def test_a_network_of_ones_own_is_called_in_evaluation_mode(own):
    found = open_source("digits", features=f"{own}:network").split(0).train.inputs
    network = sys.modules[own].network
    assert not network.training
    with torch.no_grad():
        expected = network(open_source("digits").split(0).train.inputs)
    assert torch.allclose(found, expected, atol=1e-5)


def test_a_network_that_changed_under_its_name_gives_new_features_and_back_the_old_ones(own):
    source = open_source("digits", features=f"{own}:network")
    before, code = source.split(0).train.inputs, source_digest(source)
    layer = sys.modules[own].network[1]
    assert isinstance(layer, nn.Linear)
    with torch.no_grad():
        layer.bias += 1
    assert torch.allclose(source.split(0).train.inputs, before + 1, atol=1e-5)
    assert source_digest(source) != code
    with torch.no_grad():
        layer.bias -= 1
    assert torch.allclose(source.split(0).train.inputs, before, atol=1e-5)
    assert len(table_store().entries()) == 2


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("depends", "other examples"),
        ("fails", "inputs of shape"),
        ("shorter", "torch.float32 [1, 64]"),
        ("whole_numbers", "floating point"),
        ("number", "int"),
        ("netwrk", "'my_features:network'"),
    ],
)
def test_what_gives_no_features_of_single_examples_is_refused(own, name, given):
    with raises_field(SettingError, "features", given):
        open_source("digits", features=f"{own}:{name}").split(0)
    assert table_store().entries() == []


def test_unknown_names_and_tables_are_refused(tmp_path):
    table = tmp_path / "people.csv"
    table.write_text("age,sex,ill\n1,F,no\n2,M,yes\n")
    with raises_field(SettingError, "features"):
        open_source("digits", features="scatering")
    with raises_field(SettingError, "features"):
        open_source("adult", features="scattering")
    with raises_field(SettingError, "features"):
        open_source(str(table), features="scattering", target="ill", group="sex")
