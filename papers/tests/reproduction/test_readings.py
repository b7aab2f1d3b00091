"""Readings: with no choice changed the loop is equidp's training, and each choice changes what it says."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import pytest
import torch
from torch import nn

import equidp
from equidp.data import open_source
from equidp.errors import SettingError
from equidp.kernel.noise import SeededRandomness
from equidp.policies import DPSGD, DPSGDF, SGD, DPSGDFCode, Naive
from papers.reproduction import readings
from papers.reproduction.item import COLUMNS, Request
from papers.reproduction.readings import (
    READINGS,
    Learner,
    Planned,
    Reading,
    ReadingStudy,
    epoch_of_batches,
    learner_of,
    steps_before,
    take_epoch,
    worth,
)
from papers.reproduction.xu import READING_ITEMS
from support.errors import raises_field
from support.toy import toy

DATA = toy(40)
BATCH = DATA.inputs[:12], DATA.targets[:12], DATA.groups[:12]
PLANNED = Planned(40, 10, noise_multiplier=0.5, learning_rate=0.1)
SILENT = replace(PLANNED, noise_multiplier=0.0)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))


BASE, CLIPPED = Reading(), DPSGD(0.3)


def take_steps(reading=BASE, policy=CLIPPED, planned=SILENT, batch=BATCH, steps=1):
    """Move of each parameter in these steps."""
    learner = Learner(model(), policy, reading, planned, num_groups=2)
    randomness = SeededRandomness(0)
    before = [parameter.detach().clone() for parameter in learner.parameters]
    for _ in range(steps):
        learner.step(*batch, randomness)
    return [now.detach() - then for now, then in zip(learner.parameters, before, strict=True)]


def flat(parts):
    return torch.cat([part.flatten() for part in parts])


def gradients(batch=BATCH):
    """The gradient of each example, by parameter."""
    own, found = model(), []
    for one, target in zip(*batch[:2], strict=True):
        loss = nn.functional.cross_entropy(own(one[None]), target[None])
        found.append(torch.autograd.grad(loss, list(own.parameters())))
    return found


@pytest.mark.soak
@pytest.mark.parametrize("policy", [DPSGD(0.5), DPSGDF(0.5), DPSGDFCode(0.5), Naive(0.5), SGD()])
def test_with_no_choice_changed_an_epoch_is_the_trainers(policy):
    noise, data = (0.0 if isinstance(policy, SGD) else 1.0), toy(300)
    torch.manual_seed(0)
    ours, theirs = nn.Linear(5, 2), nn.Linear(5, 2)
    theirs.load_state_dict(ours.state_dict())
    trainer = equidp.Trainer(
        theirs,
        torch.optim.SGD(theirs.parameters(), lr=0.5, weight_decay=0.1),
        data,
        method=policy,
        batch_size=30,
        epochs=1,
        noise_multiplier=noise,
        delta=1e-5,
        seed=3,
    )
    trainer.fit()
    learner = Learner(ours, policy, Reading(), Planned(300, 30, noise, 0.5, 0.1), num_groups=2)
    take_epoch(learner, data, 0, SeededRandomness(3), lambda norms, groups: None)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=1e-7)


def test_an_empty_batch_is_a_step_of_noise_alone():
    empty = tuple(part[:0] for part in BATCH)
    for reading in (Reading(), Reading(realised_size=True), Reading(layer_bound=1.0)):
        assert flat(take_steps(reading, DPSGDF(0.3), PLANNED, empty)).abs().min() > 0
        assert flat(take_steps(reading, DPSGDF(0.3), SILENT, empty)).abs().max() == 0


def test_shuffled_batches_are_of_one_size_and_hold_no_example_twice():
    found = list(epoch_of_batches(Reading(shuffled=True), Planned(45, 10), 0, SeededRandomness(0)))
    assert [len(batch) for batch in found] == [10, 10, 10, 10]
    assert len(torch.cat(found).unique()) == 40
    again = list(epoch_of_batches(Reading(shuffled=True), Planned(45, 10), 1, SeededRandomness(0, 4)))
    assert not torch.equal(found[0], again[0])


def test_epochs_of_poisson_samples_add_up_to_the_trainers_steps():
    planned = Planned(45, 10)
    counts = [len(list(epoch_of_batches(Reading(), planned, at, SeededRandomness(at)))) for at in range(4)]
    assert counts == [4, 5, 4, 5]
    assert [steps_before(Reading(), planned, at) for at in range(5)] == [0, 4, 9, 13, 18]


def test_realised_size_divides_by_the_batch():
    torch.testing.assert_close(flat(take_steps(Reading(realised_size=True))), flat(take_steps()) * 10 / 12)


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        (Reading(noise_factor=3.0), 3.0),
        (Reading(noise_per_bound=False), 1 / 0.3),
        (Reading(learning_rate_factor=2.0), 2.0),
    ],
)
def test_noise_is_of_the_size_that_a_reading_says(reading, expected):
    """Equal draws, up to the grid that noisy sums are rounded to: a thousandth of the noise."""
    empty = tuple(part[:0] for part in BATCH)
    base, found = (flat(take_steps(each, planned=PLANNED, batch=empty)) for each in (Reading(), reading))
    torch.testing.assert_close(found, expected * base, rtol=0, atol=3e-3 * expected * float(base.std()))


@pytest.mark.parametrize(
    "reading", [Reading(noise_factor=3.0), Reading(noise_per_bound=False), Reading(present_groups=True)]
)
def test_readings_of_noise_leave_the_sum_as_it_is(reading):
    torch.testing.assert_close(take_steps(reading), take_steps(), rtol=0, atol=0)


def test_present_groups_scale_noise_to_the_bounds_of_the_batch():
    """Group b has a bound of its own; without it in the batch, noise follows that of group a."""
    policy, alone = DPSGDF(0.3), tuple(part[::2] for part in BATCH)
    learner = Learner(model(), policy, Reading(present_groups=True), PLANNED, num_groups=2)
    learner.state = learner.state._replace(bounds=torch.tensor([0.4, 0.9]))
    assert learner._bounds(alone[2]).tolist() == pytest.approx([0.4, 0.0])
    assert learner._bounds(BATCH[2]).tolist() == pytest.approx([0.4, 0.9])
    own = Learner(model(), policy, Reading(), PLANNED, num_groups=2)
    assert own._bounds(alone[2]).tolist() == pytest.approx([0.6, 0.6])


def test_layers_are_clipped_each_to_its_share():
    """Against clipping by hand."""
    own = model()
    expected = [torch.zeros_like(parameter) for parameter in own.parameters()]
    for example in gradients():
        for layer in (slice(0, 2), slice(2, 4)):
            norm = flat(example[layer]).norm()
            for place in range(4)[layer]:
                expected[place] -= 0.1 * example[place] * min(1.0, 0.7 * 0.3 / float(norm)) / 10
    torch.testing.assert_close(take_steps(Reading(layer_bound=0.7)), expected, rtol=1e-4, atol=1e-7)


def test_bounds_as_weights_multiply_clipped_gradients_by_their_bound_over_the_mean():
    """Against weighting by hand; bounds are those that a first step without noise releases."""
    reading, policy = Reading(bounds_as_weights=True), DPSGDFCode(0.95)
    learner = Learner(model(), policy, reading, SILENT, num_groups=2)
    before = [parameter.detach().clone() for parameter in learner.parameters]
    learner.step(*BATCH, SeededRandomness(0))
    bounds = learner.state.bounds
    assert bounds[0] != bounds[1], "else the test tells nothing"
    expected = [torch.zeros_like(part) for part in before]
    for example, group in zip(gradients(), BATCH[2], strict=True):
        norm, bound = float(flat(example).norm()), float(bounds[group])
        weight = min(1.0, bound / norm) * bound / float(bounds.mean())
        for total, part in zip(expected, example, strict=True):
            total -= 0.1 * weight * part / 10
    found = [now.detach() - then for now, then in zip(learner.parameters, before, strict=True)]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)


def test_floored_counts_are_whole_numbers():
    for reading, whole in ((Reading(floored_counts=True), True), (Reading(), False)):
        learner = Learner(model(), DPSGDF(0.3), reading, PLANNED, num_groups=2)
        learner.step(*BATCH, SeededRandomness(0))
        counts = learner.state.counts
        assert torch.equal(counts, counts.floor()) == whole


def test_momentum_goes_on_with_the_step_before():
    """One step is as without it; the second adds half of the first."""
    reading = Reading(momentum=0.5)
    torch.testing.assert_close(take_steps(reading), take_steps(), rtol=0, atol=0)
    policy = DPSGD(0.01)  # moves little, so both gradients are about equal
    first, both = (flat(take_steps(reading, policy, steps=steps)) for steps in (1, 2))
    torch.testing.assert_close(both, 2.5 * first, rtol=1e-2, atol=1e-6)


def test_penalty_2_takes_off_twice_as_much_of_the_weights():
    weights = flat([parameter.detach() for parameter in model().parameters()])
    penalized = replace(SILENT, weight_decay=0.2)
    for reading, factor in ((BASE, 1), (READINGS["penalty-2"], 2)):
        off = flat(take_steps(reading, planned=penalized)) - flat(take_steps(reading))
        torch.testing.assert_close(off, -factor * SILENT.learning_rate * 0.2 * weights)


def test_readings_by_name_change_one_choice_but_for_whole_programs():
    for name, reading in READINGS.items():
        expected = 0 if name == "base" else 1
        assert name.startswith("code-of") or len(reading.changes()) == expected
    assert len(set(READINGS.values())) == len(READINGS)


def study_of(name, epochs=60, method="dpsgd"):
    return ReadingStudy("digits", method, (name,), 0.1, epochs)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["epoch-more", "decay"])
def test_a_run_that_was_stopped_goes_on_to_the_same_figures(name, tmp_path, monkeypatch):
    study, steps = study_of(name, 4, "dpsgd-f-code"), []
    whole, _ = study.rows(Request((0,), tmp_path / "whole"))

    def take(learner, train, epoch, *rest, own=take_epoch):
        own(learner, train, epoch, *rest)
        steps.append(epoch)

    def stop(learner, train, epoch, *rest):
        if epoch == 1:
            raise KeyboardInterrupt
        take_epoch(learner, train, epoch, *rest)

    monkeypatch.setattr(readings, "take_epoch", stop)
    with pytest.raises(KeyboardInterrupt):
        study.rows(Request((0,), tmp_path / "parts"))
    monkeypatch.setattr(readings, "take_epoch", take)
    again, _ = study.rows(Request((0,), tmp_path / "parts"))
    pd.testing.assert_frame_equal(again, whole)
    assert steps == ([1, 2, 3, 4] if name == "epoch-more" else [1, 2, 3])
    study.rows(Request((0,), tmp_path / "parts"))
    assert len(steps) == len(set(steps)), "it is read, not trained again"


def test_each_epoch_has_a_row_for_each_figure(tmp_path):
    found = readings._train(study_of("momentum-.5", 1), 2, tmp_path)
    assert set(found["quantity"]) == {"accuracy", "loss", "norm"}
    assert set(found["group"]) == {*"0123456789", "all"}
    assert len(found) == 33
    assert list(found.columns) == ["data", "method", "group", "quantity", "at", "seed", "value"]


def test_other_weights_alone_start_elsewhere():
    train = open_source("digits").split(0).train
    starts = {
        name: flat(learner_of(study_of(name), train, 0).parameters)
        for name in ("base", "fixed-batches", "other-weights")
    }
    assert torch.equal(starts["base"], starts["fixed-batches"])
    assert not torch.equal(starts["base"], starts["other-weights"])


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"readings": ("momentun-.5",)}, "reading"),
        ({"method": "dpsg"}, "method"),
        ({"epochs": 0}, "epochs"),
    ],
)
def test_a_study_that_cannot_be_is_refused(wrong, field):
    with raises_field(SettingError, field):
        replace(study_of("base"), **wrong)


@pytest.mark.soak
def test_a_study_gives_rows_for_an_item_and_trains_once(tmp_path, monkeypatch):
    study, request = ReadingStudy("digits", "dpsgd", ("base", "momentum-.5"), 0.1, 2), Request((0,), tmp_path)
    rows, _ = study.rows(request)
    assert list(rows.columns) == COLUMNS
    assert set(rows["method"]) == {"dpsgd, base", "dpsgd, momentum-.5"}
    last, curve = rows[rows["at"].isna()], rows[rows["at"].notna()]
    assert set(last["quantity"]) == {"accuracy", "loss", "norm", "epsilon"}
    assert len(last) == 2 * 34
    base, momentum = last[last["quantity"] == "epsilon"]["value"]
    assert 0 < base == momentum
    assert set(curve["group"]) == {"2", "8", "all"}  # what the plots show
    assert len(curve) == 2 * 2 * 3
    monkeypatch.setattr(readings, "_train", lambda *_: pytest.fail("trained again"))
    pd.testing.assert_frame_equal(study.rows(request)[0], rows)


def test_items_name_readings_that_there_are():
    for item in READING_ITEMS:
        for study in item.studies:
            assert set(study.readings) <= set(READINGS)
            assert study.shorten().epochs == 2


XU = {"planned": Planned(54_649), "epochs": 60, "delta": 1e-6}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("base", {}, 5.429),
        ("base", {"statistics_noise": 8.0}, 5.497),
        ("momentum-.5", {}, 5.429),
        ("layers", {}, 5.429),
        ("layers-whole", {}, 59.14),
        ("noise-as-variance", {}, 4.201),
        ("noise-by-example", {}, 0.156),
        ("noise-without-bound", {"largest_bound": 2.65}, 178.6),
        ("fixed-batches", {}, 92.09),
    ],
)
def test_a_reading_is_worth_what_the_accounting_says(name, settings, expected):
    assert worth(READINGS[name], **XU, **settings).epsilon == pytest.approx(expected, rel=2e-3)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["present-groups", "realised-size", "bounds-as-weights", "no-noise"])
def test_readings_whose_noise_tells_of_the_batch_have_no_epsilon(name):
    assert math.isinf(worth(READINGS[name], **XU, largest_bound=2.5).epsilon)
