"""The callback diagnoses the steps it was asked to, puts them into the record, and leaves training as it
was."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from torch import nn

import equidp
from equidp.diagnostics import Diagnosis, Diagnostics, Effort
from equidp.errors import ApproximationWarning, DataError, SettingError
from support.errors import raises_field
from support.toy import make_trainer, toy

LITTLE = Effort(batches=2, trace_vectors=2, eigenvalue_products=2, curvature_examples=10)


def watched(diagnostics, policy=None, **settings):
    return make_trainer(method=policy, seed=1, callbacks=[diagnostics], **settings)


def quiet(every=4, groups=None, **settings) -> Diagnostics:
    return Diagnostics(every, groups, effort=LITTLE, **settings)


@pytest.mark.soak
def test_the_first_step_and_every_so_many_are_diagnosed_and_a_second_run_begins_anew():
    diagnostics = quiet()
    watched(diagnostics, steps=6, epochs=None).fit()
    watched(diagnostics, steps=10, epochs=None).fit()
    groups = diagnostics.diagnosis.sensitive_groups
    assert groups[["step", "group"]].values.tolist() == [[s, g] for s in (0, 4, 8) for g in ("a", "b")]
    assert groups["epoch"].tolist() == pytest.approx([0, 0, 0.4, 0.4, 0.8, 0.8])
    assert len(diagnostics.diagnosis.sensitive_pairs) == 6
    again = Diagnosis.of_table(diagnostics.table(None))  # as a comparison keeps it
    pd.testing.assert_frame_equal(again.sensitive_groups, groups, check_dtype=False)
    pd.testing.assert_frame_equal(again.sensitive_pairs, diagnostics.diagnosis.sensitive_pairs)


@pytest.mark.soak
def test_watching_does_not_change_training():
    states, policy = [], equidp.GlobalAdapt(0.5, initial_bound=2.0)
    for callbacks in ([], [quiet(every=1)]):
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        trainer = make_trainer(
            model=model,
            method=policy,
            seed=1,
            steps=6,
            epochs=None,
            callbacks=callbacks,
        )
        torch.manual_seed(6)
        states.append((trainer.fit().model.state_dict(), trainer.policy_state._asdict()))
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)


def in_two_groups(model):
    weight, bias = model.parameters()
    return torch.optim.SGD([{"params": [weight], "lr": 0.1}, {"params": [bias], "lr": 0.2}])


def test_what_cannot_be_diagnosed_is_refused_before_it_costs():
    data, rows = toy(), list(zip(toy().inputs, toy().targets, toy().groups, strict=True))
    empty = equidp.GroupedDataset(
        data.inputs, data.targets, torch.zeros_like(data.groups), ("a", "b"), ("no", "yes")
    )
    for trainer, error, field in (
        (watched(quiet(), equidp.SGD(), noise_multiplier=None), SettingError, "policy"),
        (watched(quiet(), train=empty), DataError, "group"),
        (watched(quiet(groups=["c"])), SettingError, "group"),
        (watched(quiet(), train=rows), SettingError, "train"),
    ):
        with raises_field(error, field):
            trainer.fit()
        assert trainer.steps_done == 0
    trainer = watched(quiet(), individual=equidp.Individual(1, clipping=True))
    with raises_field(SettingError, "individual"):
        trainer.fit()
    trainer = watched(quiet())
    trainer.optimizer = in_two_groups(trainer.model)
    with raises_field(SettingError, "optimizer", "0.1", "0.2"):
        trainer.fit()
    assert trainer.steps_done == 0
    with raises_field(SettingError, "every"):
        Diagnostics(0)


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.Adam(parameters),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, weight_decay=0.01),
    ],
)
def test_other_steps_than_plain_ones_are_warned_of(make):
    model = torch.nn.Linear(5, 2)
    optimizer = make(model.parameters())
    trainer = watched(quiet(), model=model, optimizer=optimizer, steps=1, epochs=None)
    with pytest.warns(ApproximationWarning, match="plain gradient step"):
        trainer.fit()
