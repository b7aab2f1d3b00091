"""Parts that a Trainer is assembled from: made from its arguments, or refused before anything is spent.

Functions stand in the order in which `Trainer.__init__` calls them; `Trainer.attach` calls some again, and
`Trainer.step` calls `check_engine_again`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from equidp._validate import check_number, check_some_weight, check_whole, unknown_name
from equidp.accounting.budget import PrivacyBudget
from equidp.accounting.calibration import calibrate_step
from equidp.accounting.groups import BUDGETS, GroupSettings
from equidp.accounting.planned import Schedule
from equidp.data.batches import (
    NOT_FINITE_TRIED,
    augmented_batches,
    batches,
    find_rows,
    loaded_batches,
    places_to_try,
    spread_places,
)
from equidp.data.collation import Collate, Collation, is_finite
from equidp.data.dataset import GroupedDataset
from equidp.data.views import Views
from equidp.engines import (
    TriedEngine,
    check_company,
    check_padding,
    checked_engine,
    made_up_examples,
)
from equidp.engines.functional import FunctionalEngine
from equidp.engines.model import call_model, device_of
from equidp.engines.trial.running import losses_of, outputs_of, try_model
from equidp.engines.units import by_row
from equidp.errors import DataError, ModelError, PrivacyWarning, SettingError, error_text
from equidp.kernel.bounding import example_context
from equidp.kernel.engine import Engine, LossFunction
from equidp.kernel.inputs import (
    Inputs,
    count_in,
    in_parts,
    join_batches,
    map_tensors,
    moved_to,
    taken,
    tensors,
)
from equidp.kernel.ledger import (
    ROWS,
    GroupedStepEvent,
    Ledger,
    MemoryLedger,
    StepEvent,
)
from equidp.kernel.loop import Batch
from equidp.kernel.noise import Randomness, SeededRandomness, SystemRandomness
from equidp.kernel.policy import Policy, check_settings
from equidp.losses import Loss, map_outputs
from equidp.policies.checks import check_policy

BEYOND_BUDGET = ("refuse", "stop")
IMAGES_AT_A_TIME = 128
"""Images that the engine sees at a time on a CPU, where their activations fit in a cache."""
_TRIED_AFTER = frozenset(100 * 4**power for power in range(20))
"""Numbers of steps after which an engine is tried once more."""
_LARGEST_TRIED = 256
"""Examples of the largest batch that a model is tried on."""
_ROWS_LOADED = 8
"""Rows of a torch Dataset that are put into a batch before training: evenly spread, whatever they are."""
_WHOLE_UP_TO = 256
"""Expected examples of a sample up to which parts save less than they cost."""

Load = Callable[[Iterable[torch.Tensor]], Iterator[Batch]]
"""Function from the indices of each sample, [batch], to their batches, lazily and in the same order."""


def check_kinds(
    model: object, train: object, policy: object, ledger: object, budget: object, callbacks: object
) -> None:
    """Refuse arguments of another kind that are easily mistaken for the right one.

    Raises:
        ModelError, DataError, SettingError, PolicyError: names the argument and what was expected.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"model={model!r}; expected a torch.nn.Module.")
    if isinstance(train, DataLoader):
        raise DataError(
            "train is a DataLoader, whose batches are not Poisson samples; pass its dataset "
            "(loader.dataset).",
            field="train",
        )
    if isinstance(train, tuple | list) and train and all(isinstance(each, torch.Tensor) for each in train):
        raise DataError(
            f"train is a {type(train).__name__} of tensors; expected a dataset of rows, such as "
            "torch.utils.data.TensorDataset(inputs, targets).",
            field="train",
        )
    within = find_rows(train, torch.zeros(0, dtype=torch.int64))
    if train is not within[0][0] and any(isinstance(rows, GroupedDataset) for rows, _, _ in within):
        raise DataError(
            f"train is a {type(train).__name__} of a GroupedDataset; pass its rows, as a GroupedDataset: "
            "data.subset(torch.tensor(subset.indices)).",
            field="train",
        )
    by_index = hasattr(train, "__len__") and hasattr(train, "__getitem__")
    by_index = by_index and not (isinstance(train, str | bytes | Mapping) or hasattr(train, "iloc"))
    if isinstance(train, IterableDataset) or not (by_index or isinstance(train, GroupedDataset)):
        raise DataError(
            f"train is a {type(train).__name__}; expected an equidp.GroupedDataset, or a dataset with "
            "len(train) and examples train[i], such as torch.utils.data.TensorDataset(inputs, targets): a "
            "Poisson sample takes examples by index.",
            field="train",
        )
    if isinstance(train, GroupedDataset) and train.weights is not None:
        check_some_weight(train.weights.cpu().numpy(), "the dataset's weight", "weights")
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


def check_loading(workers: object, physical_batch_size: object, views: object, randomness: object) -> None:
    """Refuse what rows cannot be loaded and sampled with.

    Raises:
        SettingError: names the argument and what was expected.
    """
    check_whole(0, workers=workers)
    if physical_batch_size is not None:
        check_whole(1, ", or None for all at once", physical_batch_size=physical_batch_size)
    if not isinstance(views, Views | None):
        raise SettingError(f"views={views!r}; expected equidp.Views(4), say, or None.")
    if not isinstance(randomness, Randomness | None):
        raise SettingError(f"randomness={randomness!r}; expected an equidp.kernel.noise.Randomness, or None.")


def has_repeats(train: object) -> bool:
    """Return True if a row of a dataset is several rows of the training data."""
    repeats = bool(getattr(train, "repeats_rows", False))
    if isinstance(train, Subset | ConcatDataset | list | tuple):
        places: dict[Any, list[Tensor]] = {}
        for rows, _, own in find_rows(train, torch.arange(len(train))):
            key: Any = id(rows)
            if type(rows) in (list, tuple):  # one object is one row, in whichever list
                key, own = "objects", torch.tensor([id(rows[at]) for at in own.tolist()], dtype=torch.int64)
            elif type(rows) is TensorDataset:
                key = tuple(map(id, rows.tensors))
            places.setdefault(key, []).append(own)
        repeats = any(len(each.unique()) < len(each) for each in map(torch.cat, places.values()))
    return repeats


def warn_of_repeats(train: object) -> None:
    """Warn where a row of a dataset is several rows of the training data: each is promised epsilon alone."""
    if has_repeats(train):
        warnings.warn(
            "rows stand several times in the training data, as in oversampling, and epsilon is promised to "
            "each of them alone: a person whose row is in it k times has the epsilon of k rows, "
            "Run.epsilon(rows=k), which is larger. To count a group or class more, take each row once, and "
            "use rates or weights.",
            PrivacyWarning,
            stacklevel=3,
        )


def checked_groups(policy: Policy, train: object, num_groups: int | None) -> int | None:
    """Return K, of a `GroupedDataset` or as given for a torch Dataset; None where no groups are needed."""
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
            "there are; let it give (input, target, group), and give num_groups=..., which is public.",
            field="num_groups",
        )
    return num_groups


def checked_group_settings(train: object, groups: GroupSettings) -> tuple[str, ...]:
    """Return the names of the data's groups; empty where a run treats all examples equally.

    Raises:
        SettingError: data without groups in memory, or an unknown group.
    """
    if not groups:
        return ()
    if not isinstance(train, GroupedDataset):
        raise SettingError(
            f"{groups.field} by group needs the group of each example before a sample is drawn, and the data "
            f"is a {type(train).__name__}; give an equidp.GroupedDataset.",
            field=groups.field,
        )
    return groups.names(train.group_names)


def chosen_event(
    policy: Policy,
    noise_multiplier: float | None,
    target_epsilon: float | None,
    delta: float,
    schedule: Schedule,
    accountant: str,
    num_groups: int | None,
    groups: GroupSettings,
    group_names: tuple[str, ...],
) -> StepEvent:
    """Return the event of a step, with noise as given or calibrated, and rates or shares that meet budgets.

    A user-defined policy is tried at this noise (`check_own_policy`).

    Args:
        policy: the method.
        noise_multiplier, target_epsilon, delta, accountant: as those of `Trainer`; noise or target is given.
        schedule: sample rate and number of steps.
        num_groups: K; None: no groups are needed.
        groups: rates, bounds and budgets by group.
        group_names: names of the data's groups; empty where groups are treated equally.

    Raises:
        SettingError: budgets beside noise or of a method without privacy, or a target or budget that no noise
            meets.
        PolicyError: a user-defined policy breaks a promise.
    """
    if groups.budgets and (noise_multiplier is not None or not policy.private):
        given = f"noise_multiplier={noise_multiplier}" if policy.private else type(policy).__name__
        raise SettingError(
            f"{groups.field} beside {given}; expected budgets of a private method alone, or with "
            "target_epsilon: the noise follows from the largest.",
            field=BUDGETS,
        )

    rate, ratio = schedule.sample_rate, policy.statistics_ratio
    epsilon = groups.run_epsilon(target_epsilon, group_names)
    unit = groups.step_event(rate, 1.0, ratio, group_names)
    noise = _chosen_noise(policy, noise_multiplier, epsilon, delta, unit, schedule.steps, accountant)
    check_own_policy(policy, num_groups or 1, noise)
    largest = groups.step_event(rate, noise, ratio, group_names)
    met = groups.meet_budgets(
        largest, schedule.steps, delta, epsilon, accountant=accountant, group_names=group_names
    )
    return met.step_event(rate, noise, ratio, group_names)


def in_groups_of_event(train: Any, event: StepEvent) -> Any:
    """Return the data with each person in the group of the largest rate among those of their rows, and of the
    largest bound where rates are equal; the same data where groups do not differ or examples are rows."""
    if not isinstance(event, GroupedStepEvent) or not isinstance(train, GroupedDataset):
        return train
    sizes = [(each.sample_rate, each.bound_share) for each in event.by_group]
    ranks = sorted({*sizes})
    return train.in_largest_groups([float(ranks.index(size)) for size in sizes])


def _chosen_noise(
    policy: Policy,
    noise_multiplier: float | None,
    target_epsilon: float | None,
    delta: float,
    unit: StepEvent,
    steps: int,
    accountant: str,
) -> float:
    """Noise multiplier sigma, as given or calibrated to an epsilon; 0 for a policy without privacy."""
    if not policy.private:
        if noise_multiplier or target_epsilon is not None:
            raise SettingError(
                "plain SGD takes no noise and has no epsilon; give noise_multiplier=0, or a private policy.",
                field="noise_multiplier",
            )
        return 0.0
    if target_epsilon is None and noise_multiplier is not None:
        check_number("[0, inf)", noise_multiplier=noise_multiplier)
        return float(noise_multiplier)
    if target_epsilon is None or noise_multiplier is not None:
        raise SettingError(
            f"noise_multiplier={noise_multiplier} and target_epsilon={target_epsilon}; expected exactly one "
            "of the two."
        )
    return calibrate_step(target_epsilon, delta, unit, steps, accountant)


def check_own_policy(policy: Policy, num_groups: int, noise_multiplier: float) -> None:
    """Try a user-defined policy, to find its mistakes early; the guarantee rests on the kernel alone.

    Raises:
        PolicyError: names the promise that it breaks.
    """
    if not type(policy).__module__.startswith("equidp.policies."):
        check_policy(policy, num_groups, noise_multiplier=noise_multiplier)


def check_randomness(randomness: Randomness | None, secure: bool, seed: int | None) -> None:
    """Refuse a seed, or `secure=False`, together with a `randomness`, which would ignore both."""
    if randomness is not None and (seed is not None or not secure):
        raise SettingError(
            f"seed={seed}, secure={secure} and randomness={type(randomness).__name__}; expected randomness "
            "alone, which draws all samples and noise. Leave seed and secure out, or leave randomness out."
        )


def chosen_loss(loss: LossFunction | None, train: object, views: Views) -> LossFunction:
    """Per-example loss: base loss times row weights, summed over a person's rows, averaged over views."""
    if isinstance(train, GroupedDataset):
        return views.loss(train.training_loss(loss), train.targets.dtype)
    return nn.CrossEntropyLoss(reduction="none") if loss is None else loss


def open_ledger(
    ledger: Ledger | None,
    budget: PrivacyBudget | None,
    train: object,
    event: StepEvent,
    steps: int,
    beyond: str,
) -> tuple[Ledger, int]:
    """Open the ledger to record in, charged to the budget if given; return it and the number of steps."""
    ledger = MemoryLedger() if ledger is None else ledger
    if budget is not None:
        budget.for_data(source_of(train), unit_of(train))
        ledger = budget.ledger(ledger)
        steps = _steps_within(budget, event, steps, ledger.count_of(event), beyond)
    ledger.take_unit(unit_of(train))
    return ledger, steps


def _steps_within(budget: PrivacyBudget, event: StepEvent, steps: int, done: int, beyond: str) -> int:
    """Number of planned steps, or with "stop" as many as fit; BudgetError where none, or not all, fit."""
    if beyond not in BEYOND_BUDGET:
        raise unknown_name("beyond_budget", beyond, BEYOND_BUDGET)
    left = max(0, steps - done)
    if beyond == "stop" and (fitting := budget.steps_that_fit(event, left)):
        return done + fitting
    if left:
        budget.check(event, left)
    return steps


def chosen_randomness(secure: bool, seed: int | None, spent: int) -> Randomness:
    """Randomness of the operating system; or, for research, a stream that depends on the seed and the number
    of steps spent before, so that noise never repeats."""
    if secure:
        if seed is not None:
            raise SettingError(
                f"seed={seed} with secure=True; noise that a seed determines protects nobody. For research, "
                "say secure=False; for release, leave the seed out."
            )
        return SystemRandomness()
    if seed is None:
        raise SettingError("secure=False without a seed; give seed=..., or leave secure=True.")
    check_whole(0, seed=seed)
    return SeededRandomness(seed, *([spent] if spent else []))


def tried_collator(
    collate: Collate | None,
    train: GroupedDataset | Dataset[Any],
    augment: Callable[[Inputs], Inputs] | None,
    workers: int,
    randomness: Randomness,
    num_groups: int | None,
) -> Collation | None:
    """Return the collator, once it was tried on each row of the data; None: there is none.

    Raises:
        SettingError, DataError: a collator beside tensors in memory or `augment`, or one that does more than
            pad rows (`data.collation`).
    """
    if collate is None:
        return None
    if not callable(collate):
        raise SettingError(
            f"collate={collate!r}; expected a function of a list of rows that returns one batch, or None."
        )
    if isinstance(train, GroupedDataset):
        raise SettingError(
            "collate is for rows of a torch Dataset, and a GroupedDataset holds tensors that are in one "
            "batch already; leave it out, or give the rows themselves (a list, say).",
            field="collate",
        )
    if augment is not None:
        raise SettingError(
            "augment is given examples that collate padded to the longest of their sample, so that what it "
            "makes of one could follow from others; let the dataset augment its rows.",
            field="augment",
        )
    return Collation.of(collate, train, workers, randomness.start_of_worker, num_groups)


def loader(
    train: GroupedDataset | Dataset[Any],
    num_groups: int | None,
    workers: int,
    model: nn.Module,
    views: Views,
    randomness: Randomness,
    augment: Callable[[Inputs], Inputs] | None = None,
    collation: Collation | None = None,
) -> Load:
    """Make the loader of batches: from memory, in views, or by `workers` processes, for this model."""
    views.check(train)
    if augment is not None:
        if not callable(augment):
            raise SettingError(
                f"augment={augment!r}; expected a function of the inputs of one example, or None."
            )
        load = loader(train, num_groups, workers, model, views, randomness)
        return lambda samples: augmented_batches(load(samples), augment)
    if isinstance(train, GroupedDataset):
        return lambda samples: (views.of(batch, randomness) for batch in batches(train, samples))
    pinned = any(parameter.is_cuda for parameter in model.parameters())
    return partial(
        loaded_batches,
        train,
        collation=collation,
        num_groups=num_groups,
        workers=workers,
        pinned=pinned,
        start_of_worker=randomness.start_of_worker,
    )


class OddRow(NamedTuple):
    """A row that holds NaN or infinite numbers: inputs and target [1, ...], and its place in the data, where
    that is known."""

    place: int | None
    inputs: Inputs
    targets: Inputs


class LoadedRows(NamedTuple):
    """Rows that were loaded before training.

    Attributes:
        inputs, targets: one example, [1, ...]; its shapes and types are read, its values are not.
        other_targets: targets of the other rows, [n, ...] each.
        not_finite: a few of the other rows with NaN or infinite numbers.
    """

    inputs: Inputs
    targets: Inputs
    other_targets: list[Inputs]
    not_finite: list[OddRow]


def load_example(
    train: GroupedDataset | Dataset[Any],
    load: Load,
    batch_size: int,
    shard: slice,
    *,
    augmented: bool = False,
    collation: Collation | None = None,
) -> LoadedRows:
    """Load one example, for its shape and type, and other rows, to find errors before training.

    `chosen_engine` tries the loss on the targets of the other rows, and the model on the inputs of rows with
    NaN or infinite numbers.

    At most `batch_size` other rows are loaded; of a list, one row of each form (`places_to_try`). Errors are
    sought here because a sample that fails to load in training stays charged: which sample fails follows from
    the data, so that drawing another one in its place would be a choice among samples.

    Rows are loaded one by one, since a sample may consist of any one row. With `collation`, which tried each
    row already, the example is a row of zeros with the largest size of each dimension.

    Args:
        train: the data.
        load: function that loads samples, as in training.
        batch_size: b, expected.
        shard: places of this process' examples.
        augmented: True if `load` calls a function of the user's, which gives all examples one form.
        collation: a collator that was tried; None: rows are tensors already.

    Raises:
        DataError: rows of another form than the first, or groups beyond the number of groups.
    """
    samples = [torch.zeros(1, dtype=torch.int64)]
    if collation is not None:
        samples.append(spread_places(_ROWS_LOADED, shard))
    elif augmented or not isinstance(train, GroupedDataset):
        places = places_to_try(train, max(batch_size, _ROWS_LOADED), shard)
        samples += places.split(_ROWS_LOADED if augmented else 1)
    loaded = load(samples)
    example = next(loaded)
    targets: list[Inputs] = []
    odd: list[OddRow] = []
    for batch in loaded:
        targets.append(batch.targets)
        if len(odd) < NOT_FINITE_TRIED and not is_finite((batch.inputs, batch.targets)):
            rows = in_parts((batch.inputs, batch.targets), 1)
            own = zip(batch.indices.tolist(), rows, strict=True)
            odd += [OddRow(place, *row) for place, row in own if not is_finite(row)]
    if collation is not None:
        alone = collation.not_finite
        odd = [] if alone is None else [OddRow(None, *collation.pad_examples(alone))]
        inputs, own_targets = collation.example[:2]
        return LoadedRows(inputs, own_targets, [], odd)
    return LoadedRows(example.inputs, example.targets, targets, odd)


def chosen_physical_batch_size(
    given: int | None, train: GroupedDataset | Dataset[Any], model: nn.Module, event: StepEvent
) -> int | None:
    """Largest number of examples that the engine sees at a time; None: the whole sample.

    Large samples of images go in parts on a CPU, which is faster and takes less memory; not where statistics
    are released, since every part would go through the engine twice.
    """
    if given is not None or event.statistics_noise is not None or not isinstance(train, GroupedDataset):
        return given
    large = event.sample_rate * len(train) > _WHOLE_UP_TO
    return IMAGES_AT_A_TIME if are_images(train.inputs) and large and device_of(model).type == "cpu" else None


def chosen_engine(
    engine: str | Engine,
    policy: Policy,
    model: nn.Module,
    loss: LossFunction,
    like: LoadedRows,
    train: object,
    examples: tuple[Inputs, Inputs] | Sequence[Any] | None,
    batch_size: int,
    at_a_time: int | None,
    collation: Collation | None = None,
) -> Engine:
    """Return the given engine, or make the named one and try it on the model's device.

    The trial checks on public examples, or on made-up ones of the form of a row, that norms and sums equal
    those of single examples, whatever else is in the batch of at most `_LARGEST_TRIED` (`engines.trial`). A
    policy that changes losses has the functional engine (`make_engine`).
    """
    if not isinstance(engine, str):
        if not callable(engine) or isinstance(engine, type):
            raise SettingError(f"engine={engine!r}; expected a name or an engine, not its class.")
        return engine
    device = next((parameter.device for parameter in model.parameters()), tensors(like.targets)[0].device)
    (inputs, targets, others, odd), value = like, Loss.of(loss)
    if value.several_rows:
        inputs, targets = by_row((inputs, targets))
    targets = value.targets(targets)
    row, names = moved_to((inputs, targets), device), class_names(train)
    public: list[tuple[Inputs, Inputs]] = []
    if examples is not None and collation is not None:
        public = _collate_examples(examples, collation)
        examples = join_batches(*map(collation.pad_examples, public))
    tried: Any = examples
    if tried is not None:
        _check_examples(tried, row, train)
        tried = moved_to(tried, device)
    if policy.loss_terms and value.row_weights:
        raise SettingError(
            f"{type(policy).__name__} adds terms to losses of rows that count once each; leave out "
            "weights of rows, several rows a person and views, or choose another method.",
            field="policy",
        )
    checked = checked_engine(
        engine,
        model,
        loss,
        row,
        names,
        examples=tried,
        policy=policy,
        batch_size=min(batch_size, at_a_time or batch_size, _LARGEST_TRIED),
        at_a_time=at_a_time,
    )
    if collation is not None and collation.pads:
        _try_padding(collation, model, loss, public, device)
    if not value.several_rows and checked.public is not None:
        _check_targets(model, loss, checked.public[0], [value.targets(each) for each in others])
        _check_finite(model, loss, checked.public, odd)
    return checked


def _check_targets(model: nn.Module, loss: LossFunction, inputs: Inputs, targets: Sequence[Inputs]) -> None:
    """Refuse targets for which the loss fails, such as a class beyond the model's outputs.

    In training, an example whose loss fails ends the run. Targets are tried on the CPU, since CUDA ends the
    process at an index out of range.

    Args:
        model, loss: of the run.
        inputs: examples that the trial accepted; the first one is used.
        targets: targets of the loaded rows; only whole numbers, [n] each, are tried.

    Raises:
        DataError: the loss takes one of the targets, and fails for another.
    """
    kinds = [each for each in targets if isinstance(each, Tensor) and each.dim() == 1]
    values = torch.cat(kinds).unique().cpu() if kinds else torch.empty(0)
    if len(values) < 2 or values.is_floating_point():
        return
    with try_model(model):
        outputs = map_outputs(Tensor.cpu, outputs_of(model, taken(inputs, slice(1))))
        errors = [_error_of(loss, outputs, value) for value in values.unsqueeze(1)]
    failed = [(value, error) for value, error in zip(values.tolist(), errors, strict=True) if error]
    if failed and len(failed) < len(values):
        value, error = failed[-1]
        raise DataError(
            f"the loss fails for the target {value} of an example ({error_text(error)}); expected targets "
            "that it takes for the model's outputs, such as 0 to k - 1 for k classes. Give the model more "
            "outputs, or correct the targets.",
            field="targets",
        )


def _check_finite(
    model: nn.Module, loss: LossFunction, public: tuple[Inputs, Inputs], odd: Sequence[OddRow]
) -> None:
    """Refuse rows with NaN or infinite numbers of which the model has no finite gradient.

    In training, such an example adds nothing, and how many there are is private. A model that takes missing
    numbers has a gradient: it is tried on a public example with NaN where the row has them.

    Args:
        public: inputs and targets that the trial accepted; one example is used.
        odd: rows of the data.

    Raises:
        DataError: there is no finite gradient.
    """
    like = taken(public, [0])
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def has_gradient(example: tuple[Inputs, Inputs]) -> bool:
        try:
            losses = losses_of(loss, call_model(model, example[0]), example[1])
            found = torch.autograd.grad(losses.sum(), trained, allow_unused=True)
        except Exception:
            return False
        return all(each is None or bool(torch.isfinite(each).all()) for each in found)

    with try_model(model), torch.enable_grad():
        if not odd or not has_gradient(like):
            return
        for place, inputs, targets in odd:
            if not has_gradient(map_tensors(_with_odd_numbers, like, (inputs, targets))):
                part = "targets" if is_finite(inputs) else "inputs"
                row = "a row" if place is None else f"the row at place {place}"
                raise DataError(
                    f"the {part} of {row} hold NaN or infinite numbers, and the model has no finite gradient "
                    "of such a row: it would add nothing in training, without another word. Leave such rows "
                    "out, fill or encode what is missing, or let model and loss take it (torch.nan_to_num).",
                    field=part,
                )


def _with_odd_numbers(like: Tensor, row: Tensor) -> Tensor:
    """Return an example's numbers, [1, ...], replaced by a row's numbers where these are not finite."""
    if not row.is_floating_point():
        return like
    row = row.to(like)
    return torch.where(torch.isfinite(row), like, row)


def _error_of(loss: LossFunction, outputs: Any, target: Tensor) -> Exception | None:
    try:
        loss(outputs, target)
    except Exception as error:
        return error
    return None


def _collate_examples(examples: object, collation: Collation) -> list[tuple[Inputs, Inputs]]:
    """Collate public rows, each alone, as inputs and targets [1, ...].

    Raises:
        DataError: they are no list of rows, or not of the form of the data's.
    """
    if not isinstance(examples, list):
        raise DataError(
            f"examples={type(examples).__name__}; with collate, expected a list of public rows, in the form "
            "that the dataset gives its own."
        )
    try:
        return [collation([each])[:2] for each in examples]
    except DataError as error:
        raise DataError(
            f"a public row cannot be tried: {error} Give rows of the form of the data's, none longer than "
            "the longest of those.",
            field="examples",
        ) from error


def _try_padding(
    collation: Collation,
    model: nn.Module,
    loss: LossFunction,
    public: list[tuple[Inputs, Inputs]],
    device: torch.device,
) -> None:
    """Refuse a model or a loss that reads padding, as rows as short as the shortest and as long show.

    Args:
        public: examples [1, ...] to try; none: they are made up, of the shortest length that is not 0.
    """

    def check(alone: list[tuple[Inputs, Inputs]]) -> None:
        check_padding(model, loss, [moved_to((each, collation.pad_examples(each)), device) for each in alone])

    if not public:
        inputs, targets = moved_to(collation.short_example, device)
        made = made_up_examples(model, loss, inputs, targets, count=_ROWS_LOADED)
        public = in_parts(made, 1)
    check(public)
    if collation.empty_example is None:
        return
    try:
        check([collation.empty_example])
    except ModelError as error:
        if error.field != "padding":
            return  # neither form adds anything
        raise ModelError(
            "a row of length 0 adds nothing by itself, or something else than when it is padded, and how far "
            "it is padded follows from other rows. Let the dataset leave such rows out, or collate give them "
            "one position of their own, such as a word for an empty text.",
            field="padding",
        ) from error


def _check_examples(examples: object, row: tuple[Inputs, Inputs], train: object) -> None:
    """Refuse public examples that are not of the form of the data, too few, or rows of the data itself.

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
            f"examples have {given}; expected rows of the shapes and types of the data's, {form}.",
            field="examples",
        )
    if len(counts) != 1 or min(counts) < 2:
        raise DataError(
            f"examples have {sorted(counts)} rows; expected as many inputs as targets, 2 at least, that "
            "differ in what rows can differ in.",
            field="examples",
        )
    own = {each.untyped_storage().data_ptr() for each in tensors(getattr(train, "inputs", ()))}
    if any(each.untyped_storage().data_ptr() in own for each in tensors(inputs)):
        raise DataError(
            "examples are rows of the training data, and what is accepted would tell about them. Give rows "
            "that are public: made up, or of another source.",
            field="examples",
        )


def try_objective(engine: Engine, policy: Policy, state: Any) -> None:
    """Refuse a model that an engine which was made by name cannot measure for a policy that changes losses.

    Raises:
        ModelError: the policy refuses the model, or there are no second derivatives.
    """
    if not (policy.loss_terms and isinstance(engine, FunctionalEngine) and engine.public is not None):
        return
    inputs, targets = taken(engine.public, slice(4))
    context = example_context(policy, state, tensors(targets)[0].new_zeros(count_in(targets)).long())
    try:
        with try_model(engine.model):
            engine(inputs, targets, *context)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"{type(policy).__name__} needs second derivatives of model and loss: {error_text(error)}. "
            "Choose another method, or a model of plain layers.",
            field="policy",
        ) from error


def check_engine_again(engine: Engine, policy: Policy, steps_done: int) -> None:
    """Try the engine once more after 100 steps, 400, 1,600 and so on, on what it was tried on before.

    A dependence between examples may appear with trained parameters only, as where a score that is learnt
    sorts them.
    The parameters are released and the examples public, so that a refusal tells nothing about anybody.

    Raises:
        ModelError: an example's norm, or what it adds to a sum, changes with the others by now.
    """
    if not policy.private or steps_done not in _TRIED_AFTER:
        return
    if not isinstance(engine, TriedEngine) or engine.public is None:
        return
    try:
        check_company(engine, engine.model, engine.loss, *engine.public)
    except ModelError as error:
        raise ModelError(
            f"after {steps_done} steps, on the examples that the model was tried on before: {error} Steps "
            "so far may not keep to their epsilon either; this was found without looking at data.",
            field=error.field,
        ) from error


def source_of(train: object) -> str:
    """Name of the dataset's source; "" if the dataset does not name one."""
    return train.source if isinstance(train, GroupedDataset) else ""


def unit_of(train: object) -> str:
    """Unit of privacy of a run on a dataset, such as rows or people."""
    return train.unit if isinstance(train, GroupedDataset) else ROWS


def class_names(train: object) -> tuple[str, ...]:
    """Names of the classes; empty if the dataset does not name them."""
    return train.class_names if isinstance(train, GroupedDataset) else ()


def are_images(inputs: Inputs) -> bool:
    """True for inputs that are taken for images: one tensor, [n, channels, height, width]."""
    return isinstance(inputs, Tensor) and inputs.dim() == 4
