"""A run says where its initial weights came from, and warns where something trained them before."""

from __future__ import annotations

import copy
import warnings
from functools import partial

import pytest
import torch
from torch import nn

import equidp
from equidp.errors import ModelError, PrivacyWarning
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import MemoryLedger
from equidp.models import MODELS
from equidp.training.build import build_model
from support.errors import raises_field
from support.toy import make_trainer, toy

WITHOUT = {"policy": equidp.SGD(), "noise_multiplier": None}
BEFORE = "this model was trained before"


def start_of(trainer):
    return trainer.run().facts.start


@pytest.fixture(autouse=True)
def warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        yield


@pytest.mark.soak
@pytest.mark.parametrize("first", [WITHOUT, {}])
def test_a_second_run_on_one_model_warns_and_knows_what_the_first_spent(first):
    data = toy()
    before = make_trainer(data, **first).fit()
    with pytest.warns(PrivacyWarning, match=rf"{BEFORE}, in 20 steps on the same data"):
        second = make_trainer(data, model=before.model)
    start = start_of(second)
    assert start.earlier == before.entries
    assert start.same_data
    with pytest.warns(PrivacyWarning, match=rf"{BEFORE}, in 20 steps on data that may be of the same people"):
        other = make_trainer(toy(seed=1), model=before.model)
    assert not start_of(other).same_data
    for rows in (torch.randperm(300), torch.arange(150)):
        with pytest.warns(PrivacyWarning, match=rf"{BEFORE}, in 20 steps on the same data"):
            part = make_trainer(toy().subset(rows), model=make_trainer(data, **first).fit().model)
        assert start_of(part).same_data


def test_a_list_of_examples_is_data_too():
    data = [(torch.randn(5), i % 2, 0) for i in range(60)]
    before = make_trainer(data, batch_size=10).fit()
    with pytest.warns(PrivacyWarning, match="on data that may be of the same people"):
        make_trainer(data, model=before.model, batch_size=10)


@pytest.mark.soak
def test_two_runs_before_add_up():
    data, model = toy(), nn.Linear(5, 2)
    spent = make_trainer(data, model=model).fit().entries
    with pytest.warns(PrivacyWarning, match=BEFORE):
        spent += make_trainer(data, model=model, noise_multiplier=2.0).fit().entries
    with pytest.warns(PrivacyWarning, match=rf"{BEFORE}, in 40 steps"):
        third = make_trainer(data, model=model)
    earlier = start_of(third).earlier
    assert epsilon(earlier, 1e-5) == pytest.approx(epsilon(spent, 1e-5))


def test_a_new_head_on_a_trained_backbone_is_noticed():
    backbone = nn.Sequential(nn.Linear(5, 4), nn.Tanh())
    make_trainer(model=nn.Sequential(backbone, nn.Linear(4, 2)), **WITHOUT).fit()
    for parameter in backbone.parameters():
        parameter.requires_grad_(False)
    with pytest.warns(PrivacyWarning, match=BEFORE):
        make_trainer(model=nn.Sequential(backbone, nn.Linear(4, 2)))


def test_a_run_of_steps_in_the_callers_own_loop_counts_and_so_does_a_copy_from_before_its_end():
    trainer = make_trainer()
    trainer.step(next(trainer.batches()))
    for model in (trainer.model, trainer.run().model):
        with pytest.warns(PrivacyWarning, match=rf"{BEFORE}, in 1 steps"):
            make_trainer(model=model)


@pytest.mark.parametrize(
    "copied", [lambda trainer: copy.deepcopy(trainer.model), lambda trainer: trainer.run().model]
)
def test_a_copy_counts_the_steps_up_to_it_and_no_later_ones(copied):
    first = make_trainer()
    batches = first.batches()
    first.step(next(batches))
    model = copied(first)
    with pytest.warns(PrivacyWarning, match=rf"{BEFORE}, in 1 steps"):
        second = make_trainer(model=model)
    for batch in batches:
        first.step(batch)
    ((_, steps),) = second.fit().facts.start.earlier
    assert steps == 1


def test_a_run_that_goes_on_with_its_own_ledger_is_no_second_run():
    ledger = MemoryLedger()
    first = make_trainer(ledger=ledger)
    first.step(next(first.batches()))
    again = make_trainer(ledger=ledger, model=first.model, optimizer=first.optimizer)
    assert start_of(again).earlier == ()
    assert not start_of(again).optimizer_state


@pytest.mark.parametrize("other", [WITHOUT, {"noise_multiplier": 5.0}])
def test_runs_that_take_turns_on_one_model_know_of_each_other(other):
    data, model = toy(), nn.Linear(5, 2)
    one, two = make_trainer(data, model=model), make_trainer(data, model=model, **other)

    def take_turns():
        for batch, beside in zip(one.batches(), two.batches(), strict=True):
            one.step(batch)
            two.step(beside)

    with pytest.warns(PrivacyWarning, match=r"(before|between steps of this run), in 1 steps on the same"):
        take_turns()
    assert start_of(one).earlier == two.ledger.entries
    assert start_of(two).earlier == one.ledger.entries


def test_weights_of_another_run_that_are_loaded_between_steps_are_noticed():
    data, trainer = toy(), make_trainer()
    other = make_trainer(data).fit()
    batches = trainer.batches()
    trainer.step(next(batches))
    trainer.model.load_state_dict(other.model.state_dict())
    drawn = next(batches)
    with pytest.warns(PrivacyWarning, match="between steps of this run, in 20 steps"):
        trainer.step(drawn)
    for batch in batches:
        trainer.step(batch)
    assert start_of(trainer).earlier == other.entries


@pytest.mark.parametrize("loaded_at", ["between two calls of fit", "after the last step"])
def test_weights_of_another_run_that_are_loaded_outside_the_loop_are_noticed(loaded_at):
    class Stop(equidp.Callback):
        def after_step(self, trainer):
            if trainer.steps_done == 2 and loaded_at == "between two calls of fit":
                trainer.stop()

    data, trainer = toy(), make_trainer(callbacks=[Stop()])
    other = make_trainer(data).fit()
    trainer.fit()
    trainer.model.load_state_dict(other.model.state_dict())
    with pytest.warns(PrivacyWarning, match="between steps of this run, in 20 steps"):
        run = trainer.fit() if trainer.steps_done == 2 else trainer.run()
    assert run.facts.start.earlier == other.entries


@pytest.mark.parametrize("frozen", [False, True])
def test_a_layer_with_weights_of_another_run_is_noticed(frozen):
    data, model = toy(), two_layers()
    before = make_trainer(data, model=two_layers(), noise_multiplier=0.7).fit()
    model[0].load_state_dict(before.model[0].state_dict())
    model[0].requires_grad_(not frozen)
    trained = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
    with pytest.warns(PrivacyWarning, match=rf"{BEFORE}, in 20 steps on the same data"):
        trainer = make_trainer(data, model=model, optimizer=trained)
    assert start_of(trainer).earlier == before.entries


def two_layers():
    return nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2))


def test_layers_that_begin_alike_are_no_copies():
    """Weights of one seed that a run without noise left as they were."""
    data = toy()

    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.used, self.unused = nn.Linear(5, 2), nn.Linear(5, 2)

        def forward(self, inputs):
            return self.used(inputs)

    before = make_trainer(data, model=Unused(), **WITHOUT).fit()
    assert torch.equal(before.model.unused.weight, Unused().unused.weight)
    assert start_of(make_trainer(data, model=Unused())).earlier == ()


def test_a_callback_that_bounds_the_weights_is_no_other_run():
    class Bound(equidp.Callback):
        def after_step(self, trainer):
            with torch.no_grad():
                for each in trainer.model.parameters():
                    each.clamp_(-0.1, 0.1)

    make_trainer().fit()
    assert make_trainer(callbacks=[Bound()]).fit().facts.start.earlier == ()


def test_runs_that_share_a_ledger_count_each_other_and_are_no_other_runs():
    ledger, model = MemoryLedger(), nn.Linear(5, 2)
    one, two = (make_trainer(model=model, ledger=ledger, steps=steps, epochs=None) for steps in (10, 20))
    one.fit()
    assert two.fit().facts.start.earlier == ()


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
    ledger = MemoryLedger()
    ledger.pay("counts of classes", 20.0)  # which is no step of this run
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


def loaded(model):
    other = nn.Linear(5, 2)
    other.load_state_dict(model.state_dict())
    return other


@pytest.mark.soak
@pytest.mark.parametrize("copied", [copy.deepcopy, loaded])
def test_a_copy_of_a_trained_model_is_noticed_while_that_model_is_there(copied):
    data = toy()
    before = make_trainer(data).fit()
    twin = copied(before.model)
    with pytest.warns(PrivacyWarning, match=rf"{BEFORE}, in 20 steps on the same data"):
        again = make_trainer(data, model=twin)
    assert start_of(again).earlier == before.entries
    again.fit()
    with torch.no_grad():
        model = copied(before.model)
        model.bias.zero_()  # no copy of all
    with pytest.warns(PrivacyWarning, match=BEFORE):
        assert start_of(make_trainer(data, model=model)).earlier == before.entries


def test_a_run_without_privacy_is_not_warned_about():
    model = nn.Linear(5, 2)
    make_trainer(model=model).fit()
    make_trainer(model=model, **WITHOUT)


def test_steps_between_the_making_of_a_trainer_and_its_first_are_noticed():
    data, model = toy(), nn.Linear(5, 2)
    first, second = make_trainer(data, model=model), make_trainer(data, model=model)
    before = first.fit()
    with pytest.warns(PrivacyWarning, match=rf"{BEFORE}, in 20 steps on the same data"):
        run = second.fit()
    assert run.facts.start.earlier == before.entries


def test_a_warning_of_earlier_steps_is_given_once():
    model = nn.Linear(5, 2)
    make_trainer(model=model).fit()
    with pytest.warns(PrivacyWarning, match=BEFORE):
        trainer = make_trainer(model=model)
    trainer.fit()


def test_weights_that_were_set_after_the_trainer_was_made_are_not_fresh():
    model = build_model(MODELS["logistic"], (5,), 2, seed=0)
    fresh, given = make_trainer(model=model), make_trainer(model=model)
    assert start_of(fresh).weights == "fresh"
    with torch.no_grad():
        model[-1].bias.fill_(1.0)
    given.fit()
    assert start_of(given).weights == "given"
