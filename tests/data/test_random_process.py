"""Filters learned on images of random processes: stored, deterministic, and each image on its own."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from equidp.data import open_source
from equidp.data.extractors import DRAWN_SIDE, RANDOM_PROCESS
from equidp.data.random_process import GRID, PATCH, WEIGHTS, RandomProcess, RandomProcessWeights
from equidp.errors import DataError
from support.errors import raises_field

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "random_process.py"


@pytest.fixture(scope="module")
def stored() -> RandomProcessWeights:
    return RandomProcessWeights.read(WEIGHTS)


def images(count: int, side: int = DRAWN_SIDE) -> torch.Tensor:
    return 2 * torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(0)) - 1


def test_weights_are_small_and_symmetric(stored):
    filters = len(stored.filters)
    assert WEIGHTS.stat().st_size < 2_000_000
    assert stored.filters.shape == (filters, 3 * PATCH**2)
    assert stored.mean.shape == (2 * filters, GRID**2)
    assert torch.equal(stored.channels, stored.channels.T)
    assert all(part.isfinite().all() for part in stored)


def test_features_have_norm_1_and_do_not_change(stored):
    made = RandomProcess(stored)(images(2))
    again = RandomProcess(RandomProcessWeights.read(WEIGHTS))(images(2))
    assert made.shape == (2, 2 * len(stored.filters) * GRID**2)
    assert torch.allclose(made.norm(dim=1), torch.ones(2), atol=1e-5)
    assert torch.equal(made, again)


@pytest.mark.parametrize("side", [8, 27, 32, 48])
def test_features_of_an_image_do_not_depend_on_others_and_any_size_is_read(stored, side):
    transform, rows = RandomProcess(stored), images(6, side)
    alone = torch.cat([transform(row) for row in rows.split(1)])
    assert torch.allclose(transform(rows), alone, atol=1e-5)
    assert torch.allclose(transform(rows.flip(0)).flip(0), alone, atol=1e-5)


def test_activations_are_those_of_single_patches(stored):
    image = images(1, PATCH + 1)
    found = RandomProcess(stored).pool_activations(image).double().reshape(-1, GRID, GRID)
    for top in range(GRID):
        for left in range(GRID):
            patch = image[0, :, top : top + PATCH, left : left + PATCH].double().flatten()
            scaled = (patch - patch.mean()) / (patch.var(correction=0) + 0.01).sqrt()
            product = stored.filters.double() @ scaled - stored.offsets.double()
            sides = [functional.relu(each - 0.25) for each in (product, -product)]
            assert torch.allclose(found[:, top, left], torch.cat(sides), atol=1e-4)


def test_images_of_one_colour_are_read(stored):
    assert RandomProcess(stored)(torch.zeros(1, 3, 8, 8)).isfinite().all()


def test_grey_images_are_repeated_and_resized(tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIDP_CACHE", str(tmp_path))
    split = open_source("digits", features="random-process").split(0)
    plain = open_source("digits").split(0).train.one_tensor[:3]
    prepared = functional.interpolate(
        (2 * plain - 1).expand(-1, 3, -1, -1), (32, 32), mode="bilinear", antialias=True
    )
    transform = RANDOM_PROCESS.transform
    assert torch.allclose(split.train.one_tensor[:3], transform(prepared), atol=1e-5)
    assert "random_process.py of equidp, among which no example can be." in split.notes[-1]


@pytest.mark.parametrize(
    ("shape", "pixel_range", "field"),
    [
        ((4, 16, 16), (0.0, 1.0), "inputs"),
        ((3, 4, 4), (0.0, 1.0), "inputs"),
        ((3, 16, 16), None, "pixel_range"),
    ],
)
def test_images_that_filters_cannot_read_are_refused(shape, pixel_range, field):
    with raises_field(DataError, field):
        RANDOM_PROCESS.check("random-process", shape, None, pixel_range)


def test_the_command_makes_the_same_weights_of_the_same_seed(tmp_path, monkeypatch, capsys):
    main, found = runpy.run_path(str(BENCHMARK))["main"], []
    for name in ("a.npz", "b.npz"):
        small = ["--filters", "8", "--patches", "400", "--images", "20", "--out", str(tmp_path / name)]
        monkeypatch.setattr("sys.argv", ["", *small])
        main()
        found.append(RandomProcessWeights.read(tmp_path / name))
    assert "bytes" in capsys.readouterr().out
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert found[0].filters.shape == (8, 108)
    made = RandomProcess(found[0])(images(3))
    assert np.isfinite(made.numpy()).all()


def test_whitened_features_of_the_process_have_equal_variances():
    script = runpy.run_path(str(BENCHMARK))
    torch.manual_seed(0)
    weights = script["make_weights"](4, 2000, 400)
    found = RandomProcess(weights).pool_activations(script["draw_images"](400)) - weights.mean
    whitened = weights.channels @ (found @ weights.cells)
    variances = whitened.square().mean((0, 2))
    assert float(variances.max() / variances.min()) < 2
