"""Parts that do not fit together are refused while nothing is spent."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import equidp
from equidp.errors import DataError, ModelError, PolicyError, SettingError
from equidp.kernel.ledger import MemoryLedger
from equidp.kernel.policy import NoState, Setting
from support.toy import make_trainer, toy


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.zeros(5), 0, 0)])


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            {"train": DataLoader(TensorDataset(torch.zeros(40, 5)))},
            DataError,
            r"pass its dataset \(loader\.dataset\)",
        ),
        (
            {"train": Stream()},
            DataError,
            "train is a Stream; expected an equidp.GroupedDataset, or a dataset with",
        ),
        ({"ledger": "run.ledger"}, SettingError, "ledger='run.ledger'; expected a ledger"),
        ({"budget": 3.0}, SettingError, r"budget=3\.0; expected an equidp\.PrivacyBudget"),
        ({"optimizer": torch.optim.SGD}, SettingError, "expected a torch optimizer, such as"),
        ({"model": nn.Linear(5, 2, device="meta")}, ModelError, "weight is on the meta device"),
    ],
)  # fmt: skip
def test_things_that_are_something_else_get_a_clear_error(given, error, message):
    with pytest.raises(error, match=message):
        make_trainer(**given)


def test_a_class_that_was_not_among_the_examples_that_were_tried():
    """A rare one would end training in the middle."""
    data = toy()
    rare = equidp.GroupedDataset(
        data.inputs, data.targets, data.groups, data.group_names, ("no", "yes", "maybe")
    )
    with pytest.raises(ModelError, match="3 classes, and the loss fails for the last, 'maybe'"):
        make_trainer(rare)
    make_trainer(rare, model=nn.Linear(5, 3))


def of(model, kind=torch.optim.SGD, **settings):
    return kind(model.parameters(), lr=0.1, **settings)


OPTIMIZERS = [
    each
    for each in vars(torch.optim).values()
    if isinstance(each, type) and issubclass(each, torch.optim.Optimizer)
    if each is not torch.optim.Optimizer
]


@pytest.mark.parametrize("kind", [*OPTIMIZERS, equidp.PrivateAdam])
def test_every_optimizer_of_torch_trains_or_is_refused_before_a_step(kind):
    """Also one with a step behind it, whose state stays as it was."""
    model = nn.Linear(5, 2, bias=False)
    optimizer, ledger = kind(model.parameters(), lr=0.1), MemoryLedger()
    refused = kind in (torch.optim.SparseAdam, torch.optim.LBFGS)
    if not refused:
        model.weight.grad = torch.ones(2, 5)
        optimizer.step()
    before = str(optimizer.state_dict()), model.weight.tolist()
    try:
        with pytest.warns(equidp.PrivacyWarning) if optimizer.state else nullcontext():
            trainer = make_trainer(model=model, optimizer=optimizer, ledger=ledger, epochs=None, steps=1)
    except SettingError:
        assert refused
        assert not ledger.steps
        return
    assert not refused
    assert (str(optimizer.state_dict()), model.weight.tolist()) == before
    trainer.fit()


def test_optimizers_that_would_not_train_the_model():
    """As after make_compatible or a new head: nothing, or not all, would be trained, and all spent."""
    with pytest.raises(SettingError, match="holds no parameter of the model"):
        make_trainer(optimizer=of(nn.Linear(5, 2)))
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = of(model)
    model[2] = nn.Linear(4, 2)
    with pytest.raises(SettingError, match=r"does not hold 2\.weight, 2\.bias: .*freeze those"):
        make_trainer(model=model, optimizer=optimizer)
    model[2].requires_grad_(False)
    make_trainer(model=model, optimizer=optimizer).fit()
    model = nn.Linear(5, 2)
    with pytest.raises(SettingError, match="LBFGS asks for several gradients"):
        make_trainer(model=model, optimizer=of(model, torch.optim.LBFGS))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer), "follows a measured figure"),
        (lambda optimizer: lr_scheduler.StepLR, "expected a scheduler made for the optimizer"),
        (lambda optimizer: lr_scheduler.StepLR(of(nn.Linear(5, 2)), 3), "made for another optimizer"),
        (
            lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=5),
            "ends after 5 more steps, and the plan has 20",
        ),
    ],
)  # fmt: skip
def test_schedulers_that_would_stop_training_or_do_nothing(make, message):
    model = nn.Linear(5, 2)
    optimizer = of(model)
    with pytest.raises(SettingError, match=message):
        make_trainer(model=model, optimizer=optimizer, scheduler=make(optimizer))


def test_a_used_up_schedule_is_refused():
    model = nn.Linear(5, 2)
    optimizer = of(model)
    scheduler = lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=20)
    settings = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    make_trainer(**settings).fit()
    with pytest.raises(SettingError, match="ends after 0 more steps, and the plan has 20"):
        make_trainer(**settings)


def test_a_scheduler_of_ones_own_needs_step_alone():
    class Counts:
        steps = 0

        def step(self):
            self.steps += 1

    scheduler = Counts()
    make_trainer(scheduler=scheduler).fit()
    assert scheduler.steps == 20


def test_schedulers_that_fit_are_stepped():
    model = nn.Linear(5, 2)
    optimizer = of(model)
    make_trainer(
        model=model, optimizer=optimizer, scheduler=lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=20)
    ).fit()
    assert optimizer.param_groups[0]["lr"] < 0.01  # of 0.02 at first, by way of 0.5


def test_lazy_layers_are_to_be_run_first():
    model = nn.Sequential(nn.Linear(5, 4), nn.LazyLinear(2))
    with pytest.raises(ModelError, match=r"1\.weight has no shape yet"):
        make_trainer(model=model, optimizer=of(model[0]))


def test_targets_are_tried_as_what_they_are():
    """Binary cross-entropy wants floats."""
    data = toy()
    floats = equidp.GroupedDataset(
        data.inputs, data.targets.float(), data.groups, data.group_names, data.class_names
    )

    def loss(outputs, targets):
        return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], targets, reduction="none")

    make_trainer(floats, model=nn.Linear(5, 1), loss=loss).fit()


@dataclass(frozen=True)
class TooHeavy(equidp.Policy):
    """Gives weights whose contributions exceed the sensitivity: a mistake that the kernel caps silently."""

    statistics_ratio: ClassVar[float | None] = None

    def init(self, setting: Setting) -> NoState:
        return NoState()

    def weight(self, state: NoState, norm: Tensor, group: Tensor) -> Tensor:
        return torch.ones_like(norm)

    def sensitivity(self, state: NoState) -> float:
        return 1.0


def test_a_policy_of_ones_own_is_tried_before_the_first_step():
    """The kernel would cap its weights and train on, with accuracy nobody can explain."""
    ledger = MemoryLedger()
    with pytest.raises(PolicyError, match=r"TooHeavy gives weight .* a contribution above its sensitivity"):
        make_trainer(policy=TooHeavy(), ledger=ledger)
    assert ledger.steps == 0
