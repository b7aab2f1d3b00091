"""A run says where its initial weights came from, and warns of an optimizer with state of other steps."""

from __future__ import annotations

import copy
import warnings
from functools import partial

import pytest
import torch
from torch import nn

from equidp.errors import ModelError, PrivacyWarning
from equidp.ledger.ledger import Ledger
from equidp.models import MODELS
from equidp.training.build import build_model
from support.errors import raises_field
from support.toy import make_trainer, toy


def start_of(trainer):
    return trainer.run().facts.start


@pytest.fixture(autouse=True)
def warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        yield


def test_a_run_that_goes_on_with_its_own_ledger_is_no_second_run():
    ledger = Ledger()
    first = make_trainer(ledger=ledger)
    first.step()
    again = make_trainer(ledger=ledger, model=first.model, optimizer=first.optimizer)
    assert not start_of(again).optimizer_state


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
    for kind in (torch.optim.Adagrad, torch.optim.Adam, torch.optim.SGD):
        fresh = nn.Linear(5, 2)
        trainer = make_trainer(data, model=fresh, optimizer=kind(fresh.parameters(), lr=0.1))
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


def test_convolutions_have_their_channels_last_unless_group_norms_would_copy_them():
    def factory(shape, outputs, between=nn.Identity):
        return nn.Sequential(nn.Conv2d(3, 4, 3), between(), nn.Conv2d(4, 4, 3))

    def last(model):
        return [model[each].weight.is_contiguous(memory_format=torch.channels_last) for each in (0, 2)]

    assert last(build_model(factory, (3, 8, 8), 2, 0)) == [True, True]
    normed = build_model(partial(factory, between=partial(nn.GroupNorm, 2, 4)), (3, 8, 8), 2, 0)
    assert last(normed) == [False, False]


@pytest.mark.parametrize(
    "put",
    [
        lambda model, values: [
            ours.data.copy_(value) for ours, value in zip(model.parameters(), values, strict=True)
        ],
        lambda model, values: nn.utils.vector_to_parameters(
            nn.utils.parameters_to_vector(values), model.parameters()
        ),
        lambda model, values: next(iter(model.parameters())).data.numpy().fill(1.0),
    ],
)
def test_weights_that_were_put_in_past_the_counter_of_changes_are_not_fresh(put):
    """`.data` and numpy write values without a new version of the tensor."""
    model = build_model(MODELS["logistic"], (5,), 2, 0)
    before = [each._version for each in model.parameters()]
    put(model, [torch.randn_like(each) for each in model.parameters()])
    assert [each._version for each in model.parameters()] == before
    assert start_of(make_trainer(model=model)).weights == "given"


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64])
def test_weights_of_any_kind_of_number_can_be_fresh(kind):
    model = build_model(lambda shape, outputs: nn.Linear(shape[0], outputs).to(kind), (5,), 2, 0)
    assert start_of(make_trainer(model=model.float())).weights == (
        "fresh" if kind is torch.float32 else "given"
    )


def test_a_model_whose_layers_have_no_shape_yet_is_built_and_refused_by_the_trainer():
    model = build_model(lambda _, outputs: nn.LazyLinear(outputs), (5,), 2, None)
    with raises_field(ModelError, "weight"):
        make_trainer(model=model)


def test_weights_that_were_set_after_the_trainer_was_made_are_not_fresh():
    model = build_model(MODELS["logistic"], (5,), 2, seed=0)
    fresh, given = make_trainer(model=model), make_trainer(model=model)
    assert start_of(fresh).weights == "fresh"
    with torch.no_grad():
        model[-1].bias.fill_(1.0)
    given.fit()
    assert start_of(given).weights == "given"
