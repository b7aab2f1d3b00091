"""Views of an example: random, data-independent, averaged, and one contribution."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import equidp
from equidp.data.views import AUGMENTATIONS, Views
from equidp.errors import DataError, SettingError
from equidp.kernel.noise import SeededRandomness, SystemRandomness
from equidp.kernel.run import Batch
from support.errors import raises_field
from support.toy import make_trainer, note_samples, toy


def images(n: int = 60, side: int = 8) -> equidp.GroupedDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(n, 2, side, side, generator=generator)
    targets = (inputs.mean(dim=(1, 2, 3)) > 0.5).long()
    return equidp.GroupedDataset(inputs, targets, torch.arange(n) % 2, ("a", "b"), ("no", "yes"))


def batch_of(data: equidp.GroupedDataset) -> Batch:
    return Batch(data.inputs, data.trained_targets, data.groups, torch.arange(len(data)))


def model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(108, 2))


def test_a_view_is_a_flip_and_a_shift_of_its_image():
    image = torch.arange(64.0).reshape(1, 1, 8, 8)
    data = equidp.GroupedDataset(image, torch.tensor([0]), torch.tensor([0]), ("a",), ("no", "yes"))
    seen = {"flip": set(), "shift": set()}
    for name, found in seen.items():
        views = Views(64, name).of(batch_of(data), SeededRandomness(1)).inputs
        assert views.shape == (1, 64, 1, 8, 8)
        found.update(tuple(each.flatten().tolist()) for each in views[0])
    assert seen["flip"] == {tuple(image.flatten().tolist()), tuple(image.flip(3).flatten().tolist())}
    # Nine shifts by one pixel; one of them is absent in 64 draws with probability 9 (8/9)^64 = 0.5%.
    assert len(seen["shift"]) == 9
    padded = torch.nn.functional.pad(image, (1, 1, 1, 1), mode="replicate")
    windows = {
        tuple(padded[..., down : down + 8, right : right + 8].flatten().tolist())
        for down in range(3)
        for right in range(3)
    }
    assert seen["shift"] == windows


def test_views_follow_from_the_runs_randomness():
    made = [Views(3, "flip-shift").of(batch_of(images()), SeededRandomness(7)).inputs for _ in range(2)]
    assert torch.equal(*made)
    other = Views(3, "flip-shift").of(batch_of(images()), SeededRandomness(8)).inputs
    assert not torch.equal(made[0], other)


class Wordless(SystemRandomness):
    def words(self, count):
        raise AssertionError("a word makes a seed, of which torch keeps 32 bits")


def test_views_of_a_run_for_release_come_from_no_small_seed():
    made = [Views(3, "flip-shift").of(batch_of(images()), Wordless()).inputs for _ in range(2)]
    assert not torch.equal(*made)


@pytest.mark.parametrize("engine", ["ghost", "functional"])
def test_the_gradient_of_an_example_is_the_mean_over_its_views(engine):
    net = model()
    trainer = make_trainer(images(), model=net, engine=engine, views=4, augmentation="flip-shift", seed=3)
    seen = note_samples(trainer)
    trainer.step()
    (batch,) = seen
    measured = trainer.engine(batch.inputs, batch.targets)
    for place, norm in enumerate(measured.norms.tolist()):
        loss = nn.functional.cross_entropy(net(batch.inputs[place]), batch.targets[place, :, 0].long())
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        assert norm == pytest.approx(
            float(torch.cat([each.flatten() for each in gradients]).norm()), rel=1e-4
        )


@pytest.mark.soak
def test_views_cost_no_privacy_and_predictions_are_of_plain_images():
    runs = [
        make_trainer(images(), model=model(), **views).fit()
        for views in ({}, {"views": 3, "augmentation": "flip"})
    ]
    assert runs[0].epsilon() == runs[1].epsilon()
    assert runs[1].facts.views == Views(3, "flip")
    assert runs[1].metrics(images())["count"].tolist() == [30, 30, 60]


def test_what_cannot_be_is_refused():
    with raises_field(SettingError, "views"):
        Views(4)
    with raises_field(SettingError, "views"):
        Views(0, "flip")
    with raises_field(SettingError, "augmentation"):
        equidp.Plan(augmentation="flip-shfit")
    with raises_field(DataError, "augmentation"):
        make_trainer(toy(), views=2, augmentation="flip")
    with raises_field(SettingError, "views", "'flip'"):
        make_trainer(images(), model=model(), views=2, augmentation="flip", individual=equidp.Individual(1))


@pytest.mark.parametrize("name", [name for name in AUGMENTATIONS if name != "none"])
def test_an_empty_batch_stays_empty(name):
    empty = images().subset(torch.arange(0))
    assert Views(3, name).of(batch_of(empty), SystemRandomness()).inputs.shape == (0, 3, 2, 8, 8)
