"""A Trainer whose examples chose their epsilon: each pays what it chose, whatever its group."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import equidp
from equidp.errors import DataError, SettingError
from equidp.kernel.ledger import GroupedStepEvent, MemoryLedger, StepEvent
from support.errors import raises_field
from support.toy import make_trainer, toy

LEVELS = (0.5, 1.0, 3.0)
SETTINGS = {
    "secure": False, "seed": 3, "accountant": "rdp", "noise_multiplier": None, "steps": 6, "epochs": None
}  # fmt: skip


def chosen(n: int = 300) -> torch.Tensor:
    """Of three levels, in an order that has nothing to do with the toy's two groups."""
    return torch.tensor(LEVELS, dtype=torch.float64)[(torch.arange(n) // 2) % 3]


def data(n: int = 300) -> equidp.GroupedDataset:
    return dataclasses.replace(toy(n), epsilons=chosen(n))


@pytest.mark.soak
@pytest.mark.parametrize("protect_by", ["sampling", "scaling"])
def test_each_example_pays_what_it_chose_and_groups_change_nothing(protect_by):
    """Every gradient is beyond its bound, so that accounts of examples are those of their levels."""
    accountant = equidp.IndividualAccountant(interval=1, grid=0.1)
    trainer = make_trainer(
        data(), equidp.DPSGDF(1e-3), epsilon_levels=LEVELS, protect_by=protect_by, callbacks=[accountant],
        **SETTINGS,
    )  # fmt: skip
    run = trainer.fit()
    own = np.array(list(run.epsilon_by_level().values()))
    assert (own <= LEVELS).all()
    assert (own >= 0.99 * np.array(LEVELS)).all()
    assert list(run.epsilon_by_level()) == ["level 0.5", "level 1", "level 3"]
    assert run.epsilon() == own[-1]
    assert run.epsilon_by_group() == {"a": own[-1], "b": own[-1]}  # a member may have chosen any level
    report = accountant.report(trainer, accountant="rdp")
    assert (report.sensitive_epsilons <= own[trainer.labels.numpy()] * (1 + 1e-9)).all()
    assert (report.sensitive_epsilons >= 0.5 * own[trainer.labels.numpy()]).all()
    assert (report.group_epsilons <= own[-1]).all()
    assert (report.group_epsilons > own[1]).all()
    assert report.largest == own[-1]


@pytest.mark.soak
def test_levels_are_sampled_at_their_rates():
    """Numbers of examples of each level in 60 samples within 5 standard errors; batches keep their groups."""
    trainer = make_trainer(data(), epsilon_levels=LEVELS, **{**SETTINGS, "steps": 60})
    assert isinstance(trainer.event, GroupedStepEvent)
    drawn, groups = torch.zeros(3), toy().groups
    for batch in trainer.batches():
        drawn += torch.bincount(trainer.labels[batch.indices], minlength=3)
        assert torch.equal(batch.groups, groups[batch.indices])
        trainer.step(batch)
    for number, rate in zip(drawn.tolist(), trainer.event.drawn_rates, strict=True):
        expected = 60 * 100 * rate
        assert abs(number - expected) < 5 * (expected * (1 - rate)) ** 0.5


def test_one_level_is_one_epsilon_for_all():
    one = dataclasses.replace(toy(), epsilons=torch.full((300,), 2.0, dtype=torch.float64))
    trainer = make_trainer(one, epsilon_levels=[2.0], **SETTINGS)
    plain = make_trainer(target_epsilon=2.0, **SETTINGS)
    assert type(trainer.event) is StepEvent
    assert trainer.event == plain.event
    assert trainer.fit().entries == plain.fit().entries
    assert torch.equal(trainer.model.weight, plain.model.weight)


@pytest.mark.soak
def test_a_run_by_level_is_resumed_and_its_data_is_its_own(tmp_path):
    class Stop(equidp.Callback):
        def after_step(self, trainer: equidp.Trainer) -> None:
            if trainer.steps_done == 3:
                trainer.stop()

    checkpoints = equidp.Checkpoints(tmp_path / "kept", seconds=0)
    with equidp.LedgerFile(tmp_path / "ledger") as ledger:
        make_trainer(
            data(), ledger=ledger, callbacks=[Stop(), checkpoints], epsilon_levels=LEVELS, **SETTINGS
        ).fit()
    with equidp.LedgerFile(tmp_path / "ledger") as ledger:
        resumed = make_trainer(data(), ledger=ledger, epsilon_levels=LEVELS, **SETTINGS)
        assert resumed.steps_done == 3
        assert checkpoints.restore(resumed) == 0
        run = resumed.fit()
    assert run.entries == ((resumed.event, 6),)
    assert run.epsilon_by_level()["level 0.5"] <= 0.5


@pytest.mark.soak
def test_a_person_who_chose_several_levels_has_the_smallest():
    """Also where the row of the smallest is left out."""
    rows, people = data(120), np.arange(120) // 4  # rows 0, 1 and 2, 3 of each person differ in level
    smallest = np.minimum(chosen(120).numpy()[0::4], chosen(120).numpy()[2::4])
    for most in (4, 1):
        with pytest.warns() if most == 1 else pytest.MonkeyPatch.context():
            of_people = equidp.by_person(rows, people, most_rows=most)
        assert_allclose(of_people.epsilons.numpy(), smallest)
        trainer = make_trainer(of_people, batch_size=6, epsilon_levels=LEVELS, **SETTINGS)
        assert trainer.labels.tolist() == [LEVELS.index(each) for each in smallest.tolist()]
        assert trainer.fit().epsilon_by_level()["level 0.5"] <= 0.5


@pytest.mark.parametrize(
    ("given", "error", "field"),
    [
        ({"epsilon_levels": [0.5, 1.0]}, DataError, "epsilons"),
        ({"epsilon_levels": [0.5, 1.0, 2.9]}, DataError, "epsilons"),
        ({"target_epsilon": 3.0}, SettingError, "epsilon_levels"),
        ({"noise_multiplier": 2.0}, SettingError, "epsilon_levels"),
        ({"epsilon_levels": LEVELS, "noise_multiplier": 1.0}, SettingError, "epsilon_levels"),
        ({"epsilon_levels": LEVELS, "target_epsilon": 2.0}, SettingError, "epsilon_levels"),
        ({"epsilon_levels": LEVELS, "epsilon_by_group": {"a": 1.0}}, SettingError, "epsilon_levels"),
        ({"epsilon_levels": LEVELS, "rates": {"level 1": 1.0}}, SettingError, "epsilon_levels"),
        ({"epsilon_levels": LEVELS, "rates": {"a": 2.0}}, SettingError, "epsilon_levels"),
        ({"epsilon_levels": LEVELS, "policy": equidp.SGD()}, SettingError, "epsilon_levels"),
        ({"epsilon_levels": [0.001, *LEVELS], "protect_by": "scaling"}, SettingError, "epsilon_levels"),
        (
            {"epsilon_levels": LEVELS, "noise_multiplier": 1.0, "rates": {"*": 1.0}},
            SettingError,
            "epsilon_levels",
        ),
    ],
)
def test_levels_that_cannot_be_promised_are_refused_before_anything_is_spent(given, error, field):
    ledger = MemoryLedger()
    with raises_field(error, field):
        make_trainer(data(), ledger=ledger, **{**SETTINGS, **given})
    assert ledger.steps == 0


def test_levels_of_data_without_choices_are_refused():
    with raises_field(DataError, "epsilons"):
        make_trainer(epsilon_levels=LEVELS, **SETTINGS)


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_a_choice_that_is_no_epsilon_is_refused(wrong):
    epsilons = chosen().clone()
    epsilons[7] = wrong
    with raises_field(DataError, "epsilons"):
        dataclasses.replace(toy(), epsilons=epsilons)


def test_choices_of_single_precision_are_the_levels_they_were_rounded_from():
    epsilons = torch.tensor([0.1, 0.7], dtype=torch.float32).double()
    found = dataclasses.replace(toy(2), epsilons=epsilons)
    assert found.level_codes([0.1, 0.7]).tolist() == [0, 1]
    assert found.subset(torch.tensor([1])).epsilons.tolist() == [epsilons[1]]
