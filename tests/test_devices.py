"""What computes gives the same on the device of `pytest --device cuda` as on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import equidp
from equidp.engines.model import exact_products
from equidp.kernel import noise
from equidp.kernel.noise import SeededRandomness, SystemRandomness, exact_place
from equidp.kernel.noisy_sum import private_sum
from equidp.policies.methods import make_policy
from equidp.policies.table import METHODS
from support.oracle import DEVICE
from support.toy import make_trainer, toy

CPU = torch.device("cpu")
BY = ["dpsgd-f"] if DEVICE == "cpu" else METHODS
"""Methods that are tried: all where devices differ."""


def trained(device, method="dpsgd-f", train=None, **settings):
    """A trainer after four steps under one seed."""
    policy = make_policy(method, {})
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    sigma = 1.0 if policy.private else 0.0
    given = {"epochs": None, "steps": 4, "noise_multiplier": sigma, "seed": 3, **settings}
    trainer = make_trainer(train, policy, model, **given)
    with exact_products(device):  # CUDA's default is TF32
        trainer.fit()
    return trainer


def assert_same(one, other):
    for ours, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs.cpu(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", BY)
def test_one_seed_gives_the_same_model_by_every_method(method, device):
    assert_same(trained(device, method), trained(CPU, method))


def test_data_and_model_may_be_on_two_devices(device):
    alone = trained(CPU, physical_batch_size=7)
    for data, model in ((device, CPU), (CPU, device)):
        assert_same(trained(model, train=toy().to(data), physical_batch_size=7), alone)


def test_individual_epsilons_are_the_same(device):
    individual = equidp.Individual(2, clipping=True)
    found = [
        trained(place, individual=individual).individual_report().sensitive_epsilons
        for place in (device, CPU)
    ]
    np.testing.assert_allclose(*found, rtol=0.02)  # a share may round to the next cell of the grid


def test_a_diagnosis_is_the_same(device):
    effort = equidp.Effort(2, 20, 8, trace_vectors=2, eigenvalue_products=2)
    found = []
    for place in (device, CPU):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)).to(place)
        step = {"batch_size": 30, "learning_rate": 0.1, "noise_multiplier": 1.0, "effort": effort}
        diagnosis = equidp.diagnose(model, equidp.DPSGD(), toy().to(place), **step)
        found.append(diagnosis.sensitive_groups.select_dtypes("number").to_numpy())
    np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("source", [SystemRandomness, lambda: SeededRandomness(0)], ids=["system", "seeded"])
def test_noise_is_normal_and_on_the_device_if_that_has_float64(source, device):
    """Kolmogorov-Smirnov, false-alarm rate 1e-6 (the system's source has no seed to fix)."""
    draws = source().normal(2**18, device, deviation=2.0)
    assert (draws.dtype, draws.device.type) == (torch.float64, exact_place(device).type)
    assert stats.kstest(draws.cpu().numpy() / 2.0, "norm").pvalue > 1e-6


def test_noisy_sums_are_on_the_grid_of_their_noise_and_the_same(device):
    rows = torch.randn(50, 1000, generator=torch.Generator().manual_seed(0))
    given = {"bound": 1.0, "noise_multiplier": 3.0}
    total = private_sum(rows.to(device), **given, randomness=SeededRandomness(1)).cpu()
    points = total / noise.grid(3.0)
    assert torch.equal(points, points.round())
    torch.testing.assert_close(total, private_sum(rows, **given, randomness=SeededRandomness(1)))


@pytest.mark.soak
def test_commands_take_a_device(command, tmp_path, device):
    rows = np.random.default_rng(0).normal(size=(400, 3))
    lines = [f"{a:.3f},{b:.3f},{'yes' if a > c else 'no'},{'x' if b > 0 else 'y'}" for a, b, c in rows]
    (tmp_path / "people.csv").write_text("\n".join(["a,b,answer,group", *lines]))
    table = ["people.csv", "--target", "answer", "--group", "group", "--epochs", "1", "--batch-size", "64"]
    for arguments in (
        ["train", *table, "--epsilon", "3", "--set", "privacy.individual=true", "--out", "run"],
        ["evaluate", "run"],
        ["predict", "run", "people.csv", "--out", "predictions.csv"],
        ["compare", *table, "--seeds", "1", "--methods", "dpsgd-f", "--jobs", "1"],
    ):
        code, _, said = command(*arguments, "--device", str(device), cwd=tmp_path)
        assert code == 0, (arguments, said)
    assert command("predict", "run", "people.csv", "--out", "here.csv", cwd=tmp_path)[0] == 0
