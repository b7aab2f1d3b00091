"""Everything that computes, on a device that is not the CPU; tests/test_devices.py runs it in a process.

    python -m pytest tests/support/device_checks.py

The device is the one of EQUIDP_TEST_DEVICE, such as cuda; or else the CPU by another name, which shows
code that takes all tensors to be on one device.
"""

from __future__ import annotations

import os
import warnings
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import sparse, stats
from torch import nn

import equidp
from equidp.advice.norm_profile import private_profile
from equidp.engines.model import exact_products
from equidp.kernel import keystream, noise
from equidp.kernel.noise import SeededRandomness, SystemRandomness, exact_place
from equidp.kernel.noisy_sum import private_sum
from equidp.ledger.file import LedgerFile
from equidp.models import resnet20, small_cnn
from equidp.policies.methods import make_policy
from equidp.policies.table import METHODS
from equidp.training.checkpoint import Checkpoints

from .second_device import second_device
from .toy import toy

NAMED = os.environ.get("EQUIDP_TEST_DEVICE")
DEVICE = torch.device(NAMED) if NAMED else second_device()
CPU = torch.device("cpu")


@pytest.fixture(params=["float64", "float32 alone"], autouse=True)
def numbers(request):
    """Both kinds of devices: with numbers of 64 bits, and without, as Apple's GPUs are."""
    if not NAMED:
        torch.ops.second_device.refuse_doubles(request.param != "float64")
        noise.exact_place.cache_clear()
    elif request.param != "float64":
        pytest.skip("a real device is what it is")
    with warnings.catch_warnings(), exact_products(DEVICE):  # CUDA's default for convolutions is TF32
        warnings.simplefilter("ignore")
        yield request.param


def mlp():
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))


def trained(device, make=mlp, method="dpsgd-f", train=None, **settings):
    """A trainer after four steps under one seed."""
    policy = make_policy(method, {})
    given = {"batch_size": 30, "steps": 4, "delta": 1e-5, "secure": False, "seed": 3, **settings}
    torch.manual_seed(0)
    model = make().to(device)
    trainer = equidp.Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5),
        toy() if train is None else train,
        policy=policy,
        noise_multiplier=1.0 if policy.private else 0.0,
        **given,
    )
    trainer.fit()
    return trainer


def assert_same(one, other):
    for ours, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs.cpu(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_one_seed_gives_the_same_model_by_every_method(method):
    there = trained(DEVICE, method=method)
    assert {each.device.type for each in there.model.parameters()} == {DEVICE.type}
    assert_same(there, trained_on_cpu(method))


@cache
def trained_on_cpu(method):
    """The trainer of a method, once for both kinds of devices."""
    return trained(CPU, method=method)


def test_rates_and_bounds_by_group_give_the_same_model():
    """With statistics, whose rows are bounded by group, and without."""
    settings = {"rates": {"a": 2.0}, "bound_shares": {"b": 0.5}}
    for method in ("dpsgd", "dpsgd-f"):
        there = trained(DEVICE, method=method, **settings)
        assert_same(there, trained(CPU, method=method, **settings))


class Recurrent(nn.Module):
    """Embeddings and a recurrent layer, which CUDA computes by cuDNN."""

    def __init__(self, layer):
        super().__init__()
        self.tokens, self.cells, self.out = (
            nn.Embedding(20, 6),
            layer(6, 5, batch_first=True),
            nn.Linear(5, 2),
        )

    def forward(self, inputs):
        return self.out(self.cells(self.tokens(inputs))[0][:, -1])


class Attending(nn.Module):
    """Embeddings, positions and a transformer's layer."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places, self.out = nn.Embedding(20, 8), nn.Embedding(7, 8), nn.Linear(8, 2)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, inputs):
        places = torch.arange(inputs.shape[1], device=inputs.device).expand(len(inputs), -1)
        return self.out(self.layer(self.tokens(inputs) + self.places(places)).mean(1))


class Own(nn.Module):
    """A parameter that no layer rule knows."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 2) * 0.1)

    def forward(self, inputs):
        return inputs.flatten(1) @ self.weight


def normed():
    norms = nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True), nn.Flatten(), nn.LayerNorm(144)
    return nn.Sequential(nn.Conv2d(1, 4, 3), *norms, nn.Linear(144, 2))


def transposed():
    return nn.Sequential(nn.ConvTranspose2d(1, 3, 3, stride=2), nn.Flatten(), nn.Linear(867, 2))


IMAGES = {
    "convolutions": lambda: small_cnn((1, 8, 8), 2),
    "resnet20": lambda: resnet20((1, 8, 8), 2),
    "own": Own,
    "norms": normed,
    "transposed": transposed,
}


TEXTS = {"rnn": lambda: Recurrent(nn.RNN), "attention": Attending}
if NAMED:  # the made-up device has no fused layers
    TEXTS |= {"lstm": lambda: Recurrent(nn.LSTM), "gru": lambda: Recurrent(nn.GRU)}


def labelled(inputs):
    halves = torch.arange(len(inputs)) % 2
    return equidp.GroupedDataset(inputs, halves, halves, ("a", "b"), ("no", "yes"))


@pytest.mark.parametrize("engine", ["ghost", "functional"])
@pytest.mark.parametrize("model", [*IMAGES, *TEXTS])
def test_every_kind_of_layer_gives_the_same_model(model, engine):
    assert_same(trained_layers(DEVICE, model, engine), layers_on_cpu(model, engine))


def trained_layers(device, model, engine):
    generator = torch.Generator().manual_seed(0)
    if model in IMAGES:
        make, inputs = IMAGES[model], torch.randn(12, 1, 8, 8, generator=generator)
    else:
        make = TEXTS[model]
        inputs = torch.randint(0, 20, (12, 7), generator=generator)
    train = labelled(inputs)
    return trained(device, make=make, train=train, engine=engine, batch_size=6, steps=2)


@cache
def layers_on_cpu(model, engine):
    """The trainer of a model, once for both kinds of devices."""
    return trained_layers(CPU, model, engine)


@pytest.mark.parametrize("engine", ["ghost", "functional"])
def test_dropout_trains_from_the_systems_randomness_and_leaves_the_callers(engine):
    before = torch.get_rng_state()
    make = lambda: nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 2))  # noqa: E731
    with torch.random.fork_rng():
        trained(DEVICE, make, secure=True, seed=None, engine=engine, physical_batch_size=7)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("data", "model"), [(DEVICE, CPU), (DEVICE, DEVICE), (CPU, DEVICE)])
@pytest.mark.parametrize("physical", [None, 7])
def test_data_and_model_may_be_on_two_devices(data, model, physical):
    mixed = trained(model, train=toy().to(data), physical_batch_size=physical)
    assert_same(mixed, trained(CPU, physical_batch_size=physical))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_that_is_loaded_by_workers(workers):
    data = toy()
    rows = [(data.inputs[at], data.targets[at], data.groups[at]) for at in range(len(data))]
    assert_same(trained(DEVICE, train=rows, num_groups=2, workers=workers), trained(CPU))


@pytest.mark.parametrize("data", [CPU, DEVICE])
@pytest.mark.parametrize(
    "make",
    [
        lambda: equidp.IndividualAccountant(interval=1),
        lambda: equidp.IndividualAccountant(interval=2),
        lambda: equidp.IndividualAccountant("sampled"),
        lambda: equidp.IndividualClipping(interval=2),
    ],
)
def test_individual_epsilons_are_the_same(make, data):
    found = []
    for device in (DEVICE, CPU):
        accountant = make()
        trainer = trained(device, train=toy().to(data), callbacks=[accountant])
        report = accountant.report(trainer)
        report.release_by_group(0.1, 1e-5)
        found.append(report.sensitive_epsilons)
    np.testing.assert_allclose(*found, rtol=0.02)  # a share may round to the next cell of the grid


@pytest.mark.parametrize("data", [CPU, DEVICE])
def test_figures_of_epochs_and_of_the_end(data):
    record = equidp.RunRecord()
    trainer = trained(DEVICE, callbacks=[equidp.EpochRecorder(record, toy().to(data))], steps=10)
    assert len(record.table()) == 2
    assert trainer.run().metrics(toy().to(data))["accuracy"].between(0, 1).all()


@pytest.mark.parametrize(("method", "data"), [("dpsgd", CPU), ("dpsgd-f", DEVICE)])
def test_a_diagnosis(method, data):
    effort = equidp.Effort(2, 20, 8, trace_vectors=2, eigenvalue_products=2)
    found = []
    for device in (DEVICE, CPU):
        torch.manual_seed(0)
        step = {"batch_size": 30, "learning_rate": 0.1, "noise_multiplier": 1.0, "effort": effort}
        found.append(equidp.diagnose(mlp().to(device), make_policy(method, {}), toy().to(data), **step))
    for ours, theirs in zip(*(each.sensitive_groups.select_dtypes("number") for each in found), strict=True):
        assert ours == theirs
    numbers = [each.sensitive_groups.select_dtypes("number").to_numpy() for each in found]
    np.testing.assert_allclose(*numbers, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("places", list(pairwise([CPU, DEVICE, CPU])))
def test_a_run_goes_on_on_another_device(places, tmp_path):
    class Stop(equidp.Callback):
        def after_step(self, trainer):
            if trainer.steps_done == 2:
                trainer.stop(InterruptedError())

    first, second = places
    with LedgerFile(tmp_path / "run.ledger") as ledger, pytest.raises(InterruptedError):
        trained(first, ledger=ledger, callbacks=[Stop(), Checkpoints(tmp_path, seconds=0)])
    with LedgerFile(tmp_path / "run.ledger") as ledger:
        torch.manual_seed(0)
        model, checkpoints = mlp().to(second), Checkpoints(tmp_path, seconds=0)
        plan = {"policy": make_policy("dpsgd-f", {}), "batch_size": 30, "steps": 4, "delta": 1e-5}
        trainer = equidp.Trainer(
            model,
            torch.optim.SGD(model.parameters(), lr=0.5),
            toy(),
            noise_multiplier=1.0,
            ledger=ledger,
            callbacks=[checkpoints],
            **plan,
        )
        assert checkpoints.restore(trainer) == 0
        assert trainer.fit().facts.steps == 4


@pytest.mark.parametrize(("method", "data"), [("dpsgd", CPU), ("dpsgd-f", DEVICE)])
def test_audits_see_the_same(method, data):
    assert audited(str(DEVICE), method, data) == pytest.approx(audited_on_cpu(method, data), abs=1e-3)


def audited(device, method, data):
    """Bounds of a step, and of training with each kind of canaries."""
    settings = {"device": device, "secure": False}
    step = equidp.audit_step(
        toy().to(data), method, plan=equidp.Plan(batch_size=20), runs=100, seed=1, **settings
    )
    plan = equidp.Plan("mlp", batch_size=180, epochs=2, noise_multiplier=0.7)
    training = [
        equidp.audit_training(toy().to(data), method, plan=plan, count=200, canaries=canaries, **settings)
        for canaries in ("gradient", "data")
    ]
    return [each.bound for each in (step, *training)]


@cache
def audited_on_cpu(method, data):
    """Bounds on the CPU, once for both kinds of devices."""
    return audited("cpu", method, data)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
def test_estimators(form):
    data = toy()
    rows, answers, groups = form(data.inputs.numpy()), data.targets.numpy(), data.groups.numpy()
    weights = np.linspace(0.1, 1.0, len(answers))
    settings = {"epsilon": 3.0, "epochs": 2, "random_state": 0}
    found = []
    for name in (str(DEVICE), "cpu"):
        classifier = equidp.PrivateClassifier("dpsgd-f", class_weight="balanced", device=name, **settings)
        classifier.fit(rows, answers, sensitive_features=groups, sample_weight=weights)
        classifier.partial_fit(rows, answers, sensitive_features=groups)
        regressor = equidp.PrivateRegressor(target_bounds=(0, 1), device=name, **settings)
        numbers = regressor.fit(rows, answers.astype(float)).predict(rows)
        found.append(
            np.concatenate([classifier.predict_proba(rows).ravel(), classifier.coef_.ravel(), numbers])
        )
    np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-3)


def test_a_comparison_and_a_profile(tmp_path):
    plan = equidp.Plan(batch_size=256, epochs=1)
    settings = {"methods": ["dpsgd-f"], "seeds": 1, "plan": plan, "jobs": 1, "release_epsilon": 0.1}
    costs = [
        equidp.compare("digits", directory=tmp_path / name, device=name, **settings).costs()["privacy_cost"]
        for name in (str(DEVICE), "cpu")
    ]
    np.testing.assert_allclose(*costs, atol=0.02)
    assert private_profile(toy(), mlp().to(DEVICE), epsilon=1.0, delta=1e-5).counts


def test_every_command_takes_a_device(command, tmp_path, numbers):
    rows = np.random.default_rng(0).normal(size=(400, 2))
    lines = [f"{a:.3f},{b:.3f},{'yes' if a > 0 else 'no'},{'x' if b > 0 else 'y'}" for a, b in rows]
    (tmp_path / "people.csv").write_text("\n".join(["a,b,answer,group", *lines]))
    table = ["people.csv", "--target", "answer", "--group", "group"]
    little = ["--epochs", "1", "--batch-size", "64"]
    for arguments in (
        ["train", *table, *little, "--epsilon", "3", "--individual", "--out", "run"],
        ["train", *table, *little, "--epsilon", "3", "--dry-run"],
        ["evaluate", "run"],
        ["predict", "run", "people.csv", "--out", "predictions.csv"],
        ["advise", *table],
        ["compare", *table, *little, "--seeds", "1", "--methods", "dpsgd-f", "--jobs", "1"],
        ["audit", *table, "--batch-size", "20", "--runs", "100"],
    ):
        code, _, said = command(*arguments, "--device", str(DEVICE), cwd=tmp_path)
        assert code == 0, (arguments, said)
    # What was trained there is read anywhere.
    assert command("predict", "run", "people.csv", "--out", "here.csv", cwd=tmp_path)[0] == 0


@pytest.mark.parametrize("source", [SystemRandomness, lambda: SeededRandomness(0)])
@pytest.mark.parametrize("count", [30_000, 2**18])
def test_noise_is_normal_and_on_the_device_if_that_has_float64(source, count):
    """Kolmogorov-Smirnov, false-alarm rate 1e-6 (the system's source has no seed to fix)."""
    draws = source().normal(count, DEVICE, deviation=2.0)
    assert draws.dtype == torch.float64
    assert draws.device.type == exact_place(DEVICE).type
    assert stats.kstest(draws.cpu().numpy() / 2.0, "norm").pvalue > 1e-6


def test_a_seed_draws_the_same_noise_on_every_device():
    there, here = (SeededRandomness(5).normal(100_000, device) for device in (DEVICE, CPU))
    torch.testing.assert_close(there.cpu(), here, rtol=1e-13, atol=0)


def test_noisy_sums_are_on_the_grid_of_their_noise():
    rows = torch.randn(50, 1000, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    given = {"bound": 1.0, "noise_multiplier": 3.0}
    total = private_sum(rows, **given, randomness=SeededRandomness(1)).cpu()
    points = total / noise.grid(3.0)
    assert torch.equal(points, points.round())
    torch.testing.assert_close(total, private_sum(rows.cpu(), **given, randomness=SeededRandomness(1)))


def test_very_many_words_are_made_on_the_device_unless_it_computes_otherwise(monkeypatch):
    asked = []
    assert keystream.is_exact(DEVICE)  # by the true keystream, once
    monkeypatch.setattr(noise, "keystream", lambda *given: asked.append(given) or torch.zeros(given[1]))
    SystemRandomness().words_on(DEVICE, 2**9 - 1)
    assert not asked
    SystemRandomness().words_on(DEVICE, 2**19)
    assert [(len(key), count, device) for key, count, device in asked] == [(32, 2**19, DEVICE)]
    monkeypatch.setattr(keystream, "is_exact", lambda device: False)
    assert SystemRandomness().words_on(DEVICE, 2**19).device.type == DEVICE.type
    assert len(asked) == 1
