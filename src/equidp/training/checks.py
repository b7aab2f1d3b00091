"""Checks that the parts of a Trainer fit together, before any budget is spent."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau
from torch.utils.data import DataLoader, IterableDataset

from equidp._validate import check_some_weight, check_whole
from equidp.accounting.budget import PrivacyBudget
from equidp.data.dataset import GroupedDataset
from equidp.errors import DataError, ModelError, SettingError
from equidp.kernel.inputs import Inputs, map_tensors, tensors
from equidp.kernel.ledger import Ledger
from equidp.kernel.policy import Policy, check_settings
from equidp.policies.checks import check_policy


def check_kinds(
    model: object, train: object, policy: object, ledger: object, budget: object, callbacks: object
) -> None:
    """Refuses arguments of another kind that are easily mistaken for the right one.

    Raises:
        ModelError, DataError, SettingError, PolicyError: names the argument and what was expected.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"model={model!r}; expected a torch.nn.Module.")
    if isinstance(train, DataLoader):
        raise DataError(
            "train is a DataLoader, whose batches are not Poisson samples; pass its dataset (loader.dataset)."
        )
    by_index = hasattr(train, "__len__") and hasattr(train, "__getitem__")
    if isinstance(train, IterableDataset) or not (by_index or isinstance(train, GroupedDataset)):
        raise DataError(
            f"train is a {type(train).__name__}; expected an equidp.GroupedDataset, or a dataset with "
            "__len__ and __getitem__: a Poisson sample takes examples by index."
        )
    if isinstance(train, GroupedDataset) and train.weights is not None:
        check_some_weight(train.weights.cpu().numpy(), "the dataset's weight")
    check_settings(policy)
    if not isinstance(ledger, Ledger | None):
        raise SettingError(f"ledger={ledger!r}; expected a ledger, such as equidp.LedgerFile('run.ledger').")
    if not isinstance(budget, PrivacyBudget | None):
        raise SettingError(
            f"budget={budget!r}; expected an equidp.PrivacyBudget, such as PrivacyBudget(epsilon=3.0, "
            "delta=1e-6)."
        )
    watching = isinstance(callbacks, Sequence) and all(
        hasattr(each, "after_step") and not isinstance(each, type) for each in callbacks
    )
    if not watching:
        raise SettingError(
            f"callbacks={callbacks!r}; expected a list of equidp.Callback objects, such as "
            "[equidp.ProgressBar()]."
        )


def check_examples(examples: object, row: tuple[Inputs, Tensor], train: object) -> None:
    """Refuses public examples that are not of the form of the data, too few, or rows of the data itself.

    Args:
        examples: what the user gave.
        row: inputs and targets [1, ...] of the data, of which shapes and types are read.
        train: the data.

    Raises:
        DataError: says what was expected.
    """
    form = map_tensors(lambda each: f"{list(each.shape[1:])} {each.dtype}", row)
    try:
        assert isinstance(examples, tuple)
        inputs, targets = examples
        given = map_tensors(lambda like, each: f"{list(each.shape[1:])} {each.dtype}", row, (inputs, targets))
        counts = {len(each) for each in tensors((inputs, targets))}
    except Exception as error:
        raise DataError(
            f"examples={type(examples).__name__}; expected (inputs, targets) of public rows, inputs in the "
            f"form of the data's: {form[0]}."
        ) from error
    if given != form:
        raise DataError(
            f"examples have {given}; expected rows of the shapes and types of the data's, {form}."
        )
    if len(counts) != 1 or min(counts) < 2:
        raise DataError(
            f"examples have {sorted(counts)} rows; expected as many inputs as targets, 2 at least, that "
            "differ in what rows can differ in."
        )
    own = {each.untyped_storage().data_ptr() for each in tensors(getattr(train, "inputs", ()))}
    if any(each.untyped_storage().data_ptr() in own for each in tensors(inputs)):
        raise DataError(
            "examples are rows of the training data, and what is accepted would tell about them. Give rows "
            "that are public: made up, or of another source."
        )


def check_own_policy(policy: Policy, num_groups: int, noise_multiplier: float) -> None:
    """Tries a policy that equidp did not bring; the kernel holds the guarantee, and this tells of mistakes.

    Raises:
        PolicyError: names the promise that it breaks.
    """
    if not type(policy).__module__.startswith("equidp.policies."):
        check_policy(policy, num_groups, noise_multiplier=noise_multiplier)


def checked_groups(policy: Policy, train: object, num_groups: int | None) -> int | None:
    """K: the dataset's own, or as given for a torch Dataset; None where the method needs none."""
    if isinstance(train, GroupedDataset):
        if num_groups not in (None, train.num_groups):
            raise SettingError(
                f"num_groups={num_groups}, and the data has {train.num_groups} groups; leave num_groups out "
                "for a GroupedDataset."
            )
        return train.num_groups
    if num_groups is not None:
        check_whole(1, num_groups=num_groups)
    elif policy.needs_groups:
        raise SettingError(
            f"{type(policy).__name__} treats groups differently, and a torch Dataset does not say how many "
            "there are; let it give (input, target, group), and give num_groups=..., which is public."
        )
    return num_groups


def check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Refuses an optimizer that lacks parameters the model trains, or takes several gradients a step."""
    if not isinstance(getattr(optimizer, "param_groups", None), list):
        raise SettingError(
            f"optimizer={optimizer!r}; expected a torch optimizer, such as "
            "torch.optim.SGD(model.parameters(), lr=0.1)."
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise SettingError(
            "LBFGS asks for several gradients in a step, and each of them costs; use SGD, Adam or another "
            "that takes one."
        )
    _check_step(optimizer)
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    left = [name for name, parameter in trained.items() if id(parameter) not in held]
    if trained and len(left) == len(trained):
        raise SettingError(
            "the optimizer holds no parameter of the model; make it from model.parameters(), after "
            "make_compatible or any other call that returns a new model."
        )
    if left:
        raise SettingError(
            f"the optimizer does not hold {', '.join(left[:3])}{' and others' if len(left) > 3 else ''}: "
            "their gradients would be clipped and noised for nothing. Make the optimizer after the last "
            "change to the model, or freeze those (requires_grad_(False))."
        )


def _check_step(optimizer: torch.optim.Optimizer) -> None:
    """Refuses an optimizer that cannot take dense gradients, by one step of a copy with copied parameters."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return
    held = {
        name: value
        for name, value in vars(optimizer).items()
        if name != "step" and not name.endswith("_hooks")
    }
    try:
        copied = type(optimizer).__new__(type(optimizer))
        copied.__setstate__(copy.deepcopy(held))
    except Exception:
        return  # it holds what cannot be copied
    for parameter in (each for group in copied.param_groups for each in group["params"]):
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    try:
        type(optimizer).step(copied)
    except Exception as error:
        raise SettingError(
            f"{type(optimizer).__name__} cannot take a step on dense gradients, which private ones are "
            f"({type(error).__name__}: {error}); use SGD, Adam or another that can."
        ) from error


def check_scheduler(scheduler: Any, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Refuses a scheduler that is not this optimizer's, needs a figure, or ends within so many steps."""
    if scheduler is None:
        return
    if isinstance(scheduler, ReduceLROnPlateau):
        raise SettingError(
            "ReduceLROnPlateau follows a measured figure, and the Trainer steps a scheduler without one; "
            "step it in a callback's after_epoch, with a figure of public or test data."
        )
    if isinstance(scheduler, type) or not callable(getattr(scheduler, "step", None)):
        raise SettingError(
            f"scheduler={scheduler!r}; expected a scheduler made for the optimizer, such as "
            "torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)."
        )
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise SettingError(
            "the scheduler was made for another optimizer, and would change nothing; make it for this one."
        )
    if isinstance(scheduler, OneCycleLR) and scheduler.total_steps - scheduler.last_epoch < steps:
        raise SettingError(
            f"the scheduler ends after {scheduler.total_steps - scheduler.last_epoch} more steps, and the "
            f"plan has {steps}; set its total_steps to cover them."
        )
