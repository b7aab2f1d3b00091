"""Setup of an audit: data, plan, model and engine, checked."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from equidp._validate import check_seed
from equidp.data.dataset import GroupedDataset
from equidp.data.views import Views
from equidp.engines import checked_engine
from equidp.errors import DataError, SettingError
from equidp.evaluation.intervals import check_level
from equidp.kernel.engine import Engine
from equidp.kernel.inputs import moved_to
from equidp.kernel.noise import Randomness, SeededRandomness, SystemRandomness
from equidp.policies.methods import MethodLike
from equidp.training.assemble import check_own_policy
from equidp.training.build import build_model
from equidp.training.plan import Plan, ResolvedPlan


def checked_data(train: object) -> GroupedDataset:
    """Return the data on the CPU; DataError unless it is a `GroupedDataset` with examples."""
    if not isinstance(train, GroupedDataset) or not len(train):
        raise DataError(
            f"train is a {type(train).__name__} without examples that can be audited; expected an "
            "equidp.GroupedDataset with at least one.",
            field="train",
        )
    return train.to("cpu")


def resolve_plan(plan: Plan, method: MethodLike, train: GroupedDataset) -> ResolvedPlan:
    """Resolve the plan for a method by name or import path, or for a user-defined policy, with equal groups.

    Args:
        plan: how to train.
        method: a name from `METHODS`, an import path, or a policy.
        train: the data.

    Raises:
        SettingError, DataError, PolicyError: data, plan or method cannot be audited.
    """
    if plan.class_weight is not None:
        raise SettingError("an audit trains without class weights; leave them out.", field="class_weight")
    Views(plan.views, plan.augmentation).refuse("an audit needs")
    found = plan.for_method(method).without_groups().resolve(method, len(train))
    check_own_policy(found.policy, train.num_groups, found.noise_multiplier)
    if not (found.policy.private and found.noise_multiplier):
        raise SettingError(
            f"{found.method} without noise claims no epsilon; there is nothing to audit.",
            field="noise_multiplier",
        )
    if found.policy.loss_terms:
        raise SettingError(
            f"an audit puts canaries of known gradients into the data, and {found.method} adds terms to "
            "losses, which canaries have not; audit dpsgd, whose weights are the same.",
            field="method",
        )
    return found


def make_subject(
    plan: ResolvedPlan, train: GroupedDataset, engine: str, seed: int, device: torch.device
) -> tuple[nn.Module, Engine]:
    """Return a model with the seed's initial weights, in training mode, and its engine, tried on the data.

    Raises:
        ModelError, SettingError: see `Trainer`.
    """
    model = build_model(plan.plan.factory, train.input_shape, train.num_classes, seed)
    model.to(device).train()
    row = moved_to(train.one_row(), device)
    loss = train.training_loss(plan.plan.loss_function)
    return model, checked_engine(engine, model, loss, row, train.class_names)


def procedure_text(steps: int, train: GroupedDataset) -> str:
    """Text that names the audited procedure.

    >>> targets, groups = torch.tensor([[0, 1]]), torch.tensor([0])
    >>> procedure_text(2, GroupedDataset(torch.zeros(1, 2, 3), targets, groups, ("a",), ("no", "yes")))
    '2 steps on people of up to 2 rows'
    """
    taken = "one step" if steps == 1 else f"{steps} steps"
    return taken if train.rows is None else f"{taken} on people of up to {train.rows} rows"


def check_audit(level: float, seed: int) -> None:
    """Check that the level is in (0, 1) and the seed in [0, 2^32)."""
    check_level(level)
    check_seed(seed)


def smallest_enough(start: int, enough: Callable[[int], bool]) -> int | None:
    """Return a number above `start` that is enough, at most a tenth above the least; None beyond ten
    million.

    >>> smallest_enough(10, lambda number: number >= 1000)
    1040
    """
    low, high = start, 2 * start
    while not enough(high):
        low, high = high, 2 * high
        if high > 10**7:
            return None
    while high > 1.1 * low and high > low + 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def make_randomness(secure: bool, seed: int, *part: int) -> Randomness:
    """Return the operating system's randomness, or a separate stream for each seed and part."""
    return SystemRandomness() if secure else SeededRandomness(seed, *part)
