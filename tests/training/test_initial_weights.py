"""A run says where its initial weights came from, and warns of an optimizer with state of other steps."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

import equidp
from equidp.errors import PrivacyWarning
from equidp.ledger.ledger import Ledger
from equidp.models import MODELS
from equidp.report.guarantee import Guarantee
from equidp.training.build import build_model
from equidp.training.initial_weights import Start
from support.toy import make_trainer, toy


def start_of(trainer):
    return trainer.run().facts.start


@pytest.fixture(autouse=True)
def warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        yield


@pytest.mark.soak
def test_momentum_of_raw_gradients_is_noticed_and_the_state_of_a_new_optimizer_is_not():
    model, data = nn.Linear(5, 2), toy()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    nn.functional.cross_entropy(model(data.inputs), data.targets).backward()
    optimizer.step()
    model.reset_parameters()
    with pytest.warns(PrivacyWarning, match="the optimizer comes with state of earlier steps"):
        trainer = make_trainer(data, model=model, optimizer=optimizer)
    assert start_of(trainer).optimizer_state
    ledger = Ledger()
    ledger.release(ledger.new_run(), "counts of classes", 20.0, float)  # which is no step of this run
    with pytest.warns(PrivacyWarning, match="the optimizer comes with state of earlier steps"):
        make_trainer(data, model=model, optimizer=optimizer, ledger=ledger)
    fresh = nn.Linear(5, 2)
    trainer = make_trainer(data, model=fresh, optimizer=torch.optim.Adagrad(fresh.parameters(), lr=0.1))
    assert not start_of(trainer).optimizer_state


@pytest.mark.soak
def test_weights_are_fresh_until_something_changes_them():
    model = build_model(MODELS["logistic"], (5,), 2, 0)
    assert start_of(make_trainer(model=model)).weights == "fresh"
    assert start_of(make_trainer(model=copy.deepcopy(model))).weights == "given"
    with torch.no_grad():
        next(iter(model.parameters())).add_(1.0)
    assert start_of(make_trainer(model=model)).weights == "given"
    assert start_of(make_trainer()).weights == "given"


@pytest.mark.parametrize("when", ["between steps", "without a step"])
def test_a_loop_that_was_left_in_is_noticed(when):
    model, data = nn.Linear(5, 2), toy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = make_trainer(data, model=model, optimizer=optimizer)
    if when == "between steps":
        trainer.step()
    nn.functional.cross_entropy(model(data.inputs), data.targets).backward()
    optimizer.step()
    with pytest.warns(PrivacyWarning, match="changed outside of the private steps"):
        trainer.step() if when == "between steps" else trainer.run()
    assert "weights between steps" in Guarantee.of(trainer.run()).exclusions


def test_a_resumed_run_keeps_what_is_known_of_its_start(tmp_path):
    model, ledger = build_model(MODELS["logistic"], (5,), 2, 0), Ledger()
    checkpoints = equidp.Checkpoints(tmp_path)
    first = make_trainer(model=model, ledger=ledger, callbacks=[checkpoints])
    first.step()
    with torch.no_grad():
        next(iter(model.parameters())).add_(1.0)
    with pytest.warns(PrivacyWarning, match="changed outside of the private steps"):
        first.step()
    first.run()
    again = make_trainer(model=build_model(MODELS["logistic"], (5,), 2, 0), ledger=ledger)
    checkpoints.restore(again)
    assert again.start == first.start
    assert again.fit().facts.start == Start("fresh", between_steps=True)


def test_weights_that_callbacks_or_a_late_start_set_are_no_loop():
    trainer = make_trainer()
    trainer.model.load_state_dict(trainer.model.state_dict())  # public weights, before the first step
    assert not trainer.fit().facts.start.between_steps
