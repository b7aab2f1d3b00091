"""Parts of a Trainer, made from its arguments, or rejected before anything is spent.

Functions are in the order in which `Trainer.__init__` calls them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset

from equidp._validate import check_some_weight, check_whole
from equidp.data.dataset import GroupedDataset, NamedTensors
from equidp.data.targets import hidden_weights_sentence, weights_of_classes
from equidp.errors import BudgetError, DataError, DataWarning, ModelError, PrivacyWarning, SettingError
from equidp.kernel.engine import LossFunction
from equidp.kernel.event import ROWS, Event, EventCounts
from equidp.kernel.noise import Randomness, SeededRandomness, SystemRandomness
from equidp.kernel.policy import Policy
from equidp.kernel.processes import Processes
from equidp.ledger.ledger import Ledger
from equidp.losses import Loss
from equidp.policies.by_group import in_groups
from equidp.policies.checks import check_policy, check_settings
from equidp.training.plan import Plan
from equidp.training.resolved import ResolvedPlan
from equidp.training.run import entries_left
from equidp.training.trial import class_names

_BY_OBJECT = {
    "learning_rate": "the optimizer has it: torch.optim.SGD(model.parameters(), lr=0.1)",
    "momentum": "the optimizer has it",
    "weight_decay": "the optimizer has it",
}
"""Options of a plan that a Trainer receives as parts of objects -> these objects."""


def chosen_plan(plan: object, options: Mapping[str, Any]) -> Plan | ResolvedPlan:
    """Return the given plan, or a plan from options.

    Raises:
        SettingError: both or neither are given, or something else, or an option that a Trainer does not use.
    """
    for name in _BY_OBJECT.keys() & options.keys():
        raise SettingError(f"{name}={options[name]}: {_BY_OBJECT[name]}. Leave it out.", field=name)
    if plan is None:
        return Plan(**options)
    if not isinstance(plan, Plan | ResolvedPlan):
        raise SettingError(f"plan={plan!r}; expected an equidp.Plan, or its options by name.")
    if options:
        raise SettingError(
            f"got {', '.join(options)} and a plan; expected one of the two. Write "
            f"plan.with_changes({next(iter(options))}=...).",
            field=next(iter(options)),
        )
    return plan


def checked_data(data: Any) -> Any:
    """Return a dataset whose rows are taken by index.

    Raises:
        DataError: something else. It says what was expected.
    """
    if isinstance(data, Mapping):
        return NamedTensors.of(data)
    if isinstance(data, DataLoader):
        raise DataError(
            "data is a DataLoader, whose batches are not Poisson samples; pass its dataset (loader.dataset).",
            field="data",
        )
    if isinstance(data, tuple | list) and data and all(isinstance(each, torch.Tensor) for each in data):
        raise DataError(
            f"data is a {type(data).__name__} of tensors; expected a dataset of rows, such as "
            "torch.utils.data.TensorDataset(inputs, targets).",
            field="data",
        )
    parts = getattr(data, "datasets", [getattr(data, "dataset", None)])
    if any(isinstance(each, GroupedDataset) for each in parts):
        raise DataError(
            f"data is a {type(data).__name__} of a GroupedDataset; pass its rows, as a GroupedDataset: "
            "data.subset(torch.tensor(subset.indices)).",
            field="data",
        )
    by_index = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    by_index = by_index and not (isinstance(data, str | bytes) or hasattr(data, "iloc"))
    if isinstance(data, IterableDataset) or not (by_index or isinstance(data, GroupedDataset)):
        raise DataError(
            f"data is a {type(data).__name__}; expected an equidp.GroupedDataset, a mapping of tensors with "
            "labels, or a dataset with len(data) and examples data[i], such as "
            "torch.utils.data.TensorDataset(inputs, targets): a Poisson sample takes examples by index.",
            field="data",
        )
    if isinstance(data, GroupedDataset) and data.weights is not None:
        check_some_weight(data.weights.cpu().numpy(), "the dataset's weight", "weights")
    return data


def check_kinds(model: object, ledger: object, callbacks: object, seed: object) -> None:
    """Reject arguments of another kind that are easily mistaken for the right one.

    Raises:
        ModelError, SettingError: names the argument and what was expected.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"model={model!r}; expected a torch.nn.Module.")
    if not isinstance(ledger, Ledger | None):
        raise SettingError(f"ledger={ledger!r}; expected a ledger, such as equidp.Ledger('people.ledger').")
    watching = isinstance(callbacks, Sequence) and all(
        hasattr(each, "after_step") and not isinstance(each, type) for each in callbacks
    )
    if not watching:
        raise SettingError(
            f"callbacks={callbacks!r}; expected a list of equidp.Callback objects, such as "
            "[equidp.ProgressBar()]."
        )
    if seed is not None and not isinstance(seed, Randomness):
        check_whole(0, " (only for research), or None", seed=seed)


def has_repeats(train: Any) -> bool:
    """Return True if a row of a dataset is several rows of the training data."""
    if not isinstance(train, Subset | ConcatDataset | list | tuple):
        return bool(getattr(train, "repeats_rows", False))
    places = _places_in(train)
    return len({*places}) < len(places)


def _places_in(train: Any) -> list[tuple[int, int]]:
    """Return the dataset and the place in it that each row is taken from, or the row itself of a list."""
    if isinstance(train, Subset):
        within = _places_in(train.dataset)
        return [within[place] for place in train.indices]
    if isinstance(train, ConcatDataset):
        return [place for part in train.datasets for place in _places_in(part)]
    if type(train) in (list, tuple):
        return [(id(row), 0) for row in train]
    return [(id(train), place) for place in range(len(train))]


def warn_of_repeats(train: object) -> None:
    """Warn if a row of a dataset is several rows of the training data: epsilon covers each by itself."""
    if has_repeats(train):
        warnings.warn(
            "some rows occur several times in the training data, as after oversampling, but epsilon protects "
            "one occurrence: a person whose row occurs k times has the larger Run.epsilon(rows=k). To give a "
            "group or class more weight, include each row once, and use rates or weights.",
            PrivacyWarning,
            stacklevel=3,
        )


def names_of_groups(train: Any) -> tuple[str, ...]:
    """Return the names of a dataset's groups, or empty if it does not name them."""
    while isinstance(train, Subset) and not hasattr(train, "group_names"):
        train = train.dataset
    return tuple(getattr(train, "group_names", ()))


def resolved_plan(plan: Plan | ResolvedPlan, train: Any, processes: Processes) -> ResolvedPlan:
    """Return the plan worked out for the data, by the first process for all.

    Raises:
        SettingError: as `Plan.resolve`; or settings by group, and data whose groups are not in memory.
    """
    count, names = len(train), train.group_names if isinstance(train, GroupedDataset) else ()
    own = plan.plan if isinstance(plan, ResolvedPlan) else plan.for_examples(count)
    groups = own.groups
    if groups and not isinstance(train, GroupedDataset):
        raise SettingError(
            f"{groups.field} by group needs the group of each example before a sample is drawn, and the data "
            f"is a {type(train).__name__}; give an equidp.GroupedDataset.",
            field=groups.field,
        )
    if isinstance(plan, ResolvedPlan):
        plan.check_data(count, names)
        return plan

    def numbers() -> dict[str, Any]:
        resolved = plan.resolve(count, names)
        return {each.name: getattr(resolved, each.name) for each in fields(resolved) if each.name != "plan"}

    return ResolvedPlan(plan=own, **processes.from_first(numbers))


def policy_for(resolved: ResolvedPlan, train: Any) -> Policy:
    """Return the method for the groups of the data.

    Raises:
        SettingError, PolicyError: a setting names unknown groups, or the method is not a policy.
    """
    check_settings(resolved.policy)
    return in_groups(resolved.policy, train.group_names if isinstance(train, GroupedDataset) else ())


def checked_groups(policy: Policy, train: object) -> int | None:
    """Return the number of groups K, or None if the data does not have groups, and none are needed."""
    names = names_of_groups(train)
    if not names and policy.needs_groups:
        raise SettingError(
            f"{type(policy).__name__} treats groups differently, and the data does not say which there are; "
            "let it give (input, target, group), and have an attribute group_names, which is public.",
            field="group_names",
        )
    return len(names) or None


def in_groups_of_event(train: Any, event: Event) -> Any:
    """Return the data with each person in the group, among the groups of their rows, that has the largest
    rate, or among equal rates the largest bound. If groups do not differ or examples are rows, return the
    data as it is."""
    if not event.shares or not isinstance(train, GroupedDataset):
        return train
    sizes = [(each.rate, each.bound) for each in event.shares]
    ranks = sorted({*sizes})
    return train.in_largest_groups([float(ranks.index(size)) for size in sizes])


def check_own_policy(policy: Policy, num_groups: int, noise_multiplier: float) -> None:
    """Test a user-defined policy to find its mistakes early; the guarantee depends only on the kernel.

    Raises:
        PolicyError: the message names the broken requirement.
    """
    if not type(policy).__module__.startswith("equidp.policies."):
        check_policy(policy, num_groups, noise_multiplier=noise_multiplier)


def chosen_loss(loss: LossFunction | None, plan: Plan, train: object) -> LossFunction:
    """Per-example loss: base loss times weights of class and row, summed over a person's rows, averaged over
    views.

    Raises:
        SettingError: the loss is not a function of outputs and targets, or is a class, or weights name
            classes that the data does not have.
    """
    loss = plan.loss_function if loss is None else loss
    if loss is not None and (isinstance(loss, type) or not callable(loss)):
        raise SettingError(
            f"loss={loss!r}; expected a function of outputs and targets, not its class or name, such as "
            "CrossEntropyLoss(reduction='none')."
        )
    if plan.class_weights is not None:
        if not class_names(train):
            raise SettingError(
                "class_weight is by class names, and this data has none; leave it out.", field="class_weight"
            )
        plain = nn.CrossEntropyLoss(reduction="none") if loss is None else loss
        weights = weights_of_classes(plan.class_weights, class_names(train))
        loss = Loss.of(plain).with_class_weights(weights)
    if isinstance(train, GroupedDataset):
        if train.weights is not None and plan.private and (largest := float(train.weights.max())) >= 2:
            warnings.warn(hidden_weights_sentence(largest), DataWarning, stacklevel=3)
        return plan.image_views.loss(train.training_loss(loss), train.targets.dtype)
    return nn.CrossEntropyLoss(reduction="none") if loss is None else loss


def open_ledger(
    ledger: Ledger | None, run_id: str | None, seeded: bool, train: Any, resolved: ResolvedPlan
) -> tuple[Ledger, str, Event]:
    """Return the ledger to record in, the run's name there, and the event with the column of its labels.

    Raises:
        BudgetError: the ledger has another unit of privacy, or the rest of the plan exceeds its limit.
    """
    unit, event = unit_of(train), resolved.event
    ledger = Ledger(unit=unit) if ledger is None else ledger
    if ledger.unit != unit:
        raise BudgetError(
            f"the ledger counts {ledger.unit}, and this run is on {unit}: what they spend cannot be added. "
            f"Give the run a ledger of its own, Ledger(unit={unit!r}); see equidp account --rows-per-person "
            "for what runs on rows cost people.",
            field="unit",
        )
    if event.shares:
        event = replace(event, column=ledger.column(train.group_names, train.groups))
    run = ledger.new_run(seeded=seeded) if run_id is None else run_id
    if left := entries_left(resolved, event, ledger.entries(run)):
        beside = [each for each in left if each[0] != event]
        ledger.check(event, dict(left).get(event, 0), beside=beside, delta=resolved.delta)
    return ledger, run, event


def check_drawn(plan: Plan, entries: EventCounts) -> None:
    """Reject a release that data or plan were to follow from, and that was not drawn.

    Raises:
        SettingError: names it.
    """
    paid = {event.name for event, _ in entries}
    for release in plan.releases:
        if release.prepares() and release.name not in paid:
            raise SettingError(
                f"{release.name}: equidp.train draws it before there is a Trainer, and this Trainer was made "
                "without; leave it out, or call equidp.train.",
                field="releases",
            )


def chosen_randomness(seed: int | Randomness | None, spent: int) -> Randomness:
    """Randomness of the operating system. Or, for research, a stream that depends on the seed and the number
    of earlier steps, so that noise never repeats."""
    if isinstance(seed, Randomness):
        return seed
    if seed is None:
        return SystemRandomness()
    return SeededRandomness(seed, *([spent] if spent else []))


def unit_of(train: object) -> str:
    """Unit of privacy of a run on a dataset, such as rows or people."""
    return train.unit if isinstance(train, GroupedDataset) else ROWS
