"""The engine of a run, tried on rows that are made up or public, and the largest targets and tokens."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from equidp.data.dataset import GroupedDataset
from equidp.engines import check_padding, check_rows, checked_engine
from equidp.engines.check import ROWS_ALONE, outputs_of, trial
from equidp.engines.functional import FunctionalEngine
from equidp.engines.made_up import made_up_inputs, made_up_targets
from equidp.engines.model import Examples, call_model, device_of
from equidp.engines.units import by_row, reader_of
from equidp.errors import DataError, ModelError, SettingError, error_text
from equidp.kernel.bounding import example_context
from equidp.kernel.engine import Engine, LossFunction
from equidp.kernel.event import Event
from equidp.kernel.inputs import (
    Inputs,
    count_in,
    in_parts,
    map_tensors,
    moved_to,
    taken,
    tensors,
)
from equidp.kernel.policy import Policy
from equidp.losses import Loss, map_outputs
from equidp.training.collation import Collation
from equidp.training.loading import Loading, column

IMAGES_AT_A_TIME = 128
"""Number of images in the engine at a time on a CPU, so that their activations fit in a cache."""
_WHOLE_UP_TO = 256
"""Expected examples of a sample up to which parts save less than they cost."""


def chosen_physical_batch_size(
    given: int | None, train: GroupedDataset | Dataset[Any], model: nn.Module, event: Event
) -> int | None:
    """Largest number of examples that the engine sees at a time. None: the whole sample.

    On a CPU, large samples of images are processed in parts, which is faster and takes less memory. If
    statistics are released, they are not, because every part would go through the engine twice.
    """
    if given is not None or event.statistics_noise is not None or not isinstance(train, GroupedDataset):
        return given
    images = isinstance(train.inputs, Tensor) and train.inputs.dim() == 4
    large = event.rate * len(train) > _WHOLE_UP_TO
    return IMAGES_AT_A_TIME if images and large and device_of(model).type == "cpu" else None


def chosen_engine(
    engine: str | Engine,
    policy: Policy,
    model: nn.Module,
    loss: LossFunction,
    loading: Loading,
    train: object,
    examples: tuple[Inputs, Inputs] | Sequence[Any] | None,
    at_a_time: int | None,
) -> tuple[Engine, Examples | None]:
    """Return the given engine, or make the named one and check it on the model's device (`engines.check`).

    Also return public examples that model and loss accepted, or None for a given engine.
    """
    if not isinstance(engine, str):
        if not callable(engine) or isinstance(engine, type):
            raise SettingError(f"engine={engine!r}; expected a name or an engine, not its class.")
        return engine, None
    value = Loss.of(loss)
    if policy.loss_terms and value.row_weights:
        raise SettingError(
            f"{type(policy).__name__} adds terms to losses of rows that count once each; leave out "
            "weights of rows, several rows a person and views, or choose another method.",
            field="policy",
        )
    row: Any = taken(loading.tried[:2], slice(1))
    inputs, targets = by_row(row) if value.several_rows else row
    device = next((parameter.device for parameter in model.parameters()), tensors(targets)[0].device)
    row = moved_to((inputs, value.targets(targets)), device)
    public, collation = examples, loading.collation
    alone: list[Examples] = []
    if public is not None:
        if collation is not None and (collation.pads or isinstance(public, list)):
            alone = _collate_examples(public, collation)
            padded = (_pad_to_tried(collation, each) for each in alone)
            public = map_tensors(lambda *each: torch.cat(each), *padded)
        _check_examples(public, row)
        public = moved_to(public, device)
    checked, *known = checked_engine(
        engine, model, loss, row, class_names(train), examples=public, policy=policy, at_a_time=at_a_time
    )
    if collation is not None and collation.pads:
        _check_padding(collation, model, loss, alone, device)
    if not value.several_rows:
        _check_tokens(model, train)
    if not isinstance(train, GroupedDataset):
        whole = column(train, 1)
        _check_targets(model, loss, known[0], loading.tried.targets if whole is None else whole)
    return checked, (known[0], known[1])


def row_check(
    engine: Engine, policy: Policy, model: nn.Module, loss: LossFunction, at_a_time: int | None
) -> Callable[[Inputs, Inputs], None] | None:
    """Return a function of a sample that compares up to eight of its examples with backward passes of each.

    The step calls it once it is charged, and before anything is released. None for a policy without privacy,
    and for an engine whose gradients are made up.

    Args:
        engine, policy, model, loss: engine, policy, model and loss of the run.
        at_a_time: the most examples that the engine is given at a time. None: no limit.
    """
    if not policy.private or getattr(engine, "made_up", False):
        return None
    reads = reader_of(model, loss)
    most = ROWS_ALONE if at_a_time is None else min(ROWS_ALONE, max(2, at_a_time))

    def check(inputs: Inputs, targets: Inputs) -> None:
        count = count_in(targets)
        places = torch.linspace(0, count - 1, min(most, count)).long()
        try:
            check_rows(engine, reads, loss, *taken((inputs, targets), places))
        except ModelError as error:
            raise ModelError(
                f"on rows of the sample: {error} Nothing of them is released.",
                field=error.field,
            ) from error

    return check


def try_objective(engine: Engine, policy: Policy, state: Any, public: Examples | None) -> None:
    """Reject a model that an engine which was made by name cannot measure for a policy that changes losses.

    Raises:
        ModelError: the policy rejects the model, or there are no second derivatives.
    """
    if not (policy.loss_terms and isinstance(engine, FunctionalEngine) and public is not None):
        return
    inputs, targets = taken(public, slice(4))
    context = example_context(policy, state, tensors(targets)[0].new_zeros(count_in(targets)).long())
    try:
        with trial(engine.model):
            engine(inputs, targets, *context)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"{type(policy).__name__} needs second derivatives of model and loss: {error_text(error)}. "
            "Choose another method, or a model of plain layers.",
            field="policy",
        ) from error


def class_names(train: object) -> tuple[str, ...]:
    """Names of the classes, or empty if the dataset does not name them."""
    return train.class_names if isinstance(train, GroupedDataset) else ()


def _check_tokens(model: nn.Module, train: object) -> None:
    """Reject whole numbers in memory that no table of the model has a row for.

    The rows with the least and the largest number are tried on the CPU: a CUDA device would stop for good.

    Raises:
        DataError: the model fails on one of them.
    """
    if not any(isinstance(each, nn.Embedding | nn.EmbeddingBag) for each in model.modules()):
        return
    held = column(train, 0)
    whole = [each.flatten(1) for each in tensors(held) if isinstance(each, Tensor) and each.dim() > 1]
    whole = [each for each in whole if not each.is_floating_point() and each.numel()]
    places = {int(at) for each in whole for at in (each.amax(1).argmax(), each.amin(1).argmin())}
    model = model if device_of(model).type == "cpu" else copy.deepcopy(model).cpu()
    with trial(model), torch.no_grad():
        for place in sorted(places):
            try:
                call_model(model, moved_to(taken(held, [place, place]), "cpu"))
            except IndexError as error:
                raise DataError(
                    f"the model fails on the row at place {place}, which has the least or the largest number "
                    f"({error_text(error)}). Give the model a table with a row for each token, or correct "
                    "the inputs.",
                    field="inputs",
                ) from error


def _check_targets(model: nn.Module, loss: LossFunction, inputs: Inputs, targets: Any) -> None:
    """Reject a least or largest target for which the loss fails, such as a class beyond the model's outputs.

    Targets are tried on the CPU, since CUDA ends the process at an index out of range.

    Args:
        inputs: examples that the trial accepted.
        targets: [n]. Only whole numbers are checked.

    Raises:
        DataError: names the target.
    """
    if not isinstance(targets, Tensor) or targets.dim() != 1 or targets.is_floating_point():
        return
    with trial(model), torch.no_grad():
        outputs = map_outputs(Tensor.cpu, outputs_of(model, taken(inputs, slice(1))))
        for target in (targets.min(), targets.max()):
            try:
                loss(outputs, target[None].cpu())
            except Exception as error:
                raise DataError(
                    f"the loss fails for the target {int(target)} of an example ({error_text(error)}); "
                    "expected targets that it takes for the model's outputs, such as 0 to k - 1 for k "
                    "classes. Give the model more outputs, or correct the targets.",
                    field="targets",
                ) from error


def _collate_examples(examples: Any, collation: Collation) -> list[Examples]:
    """Collate public rows one by one, as inputs and targets [1, ...].

    Raises:
        DataError: they are not of the form of the data's.
    """
    try:
        return [collation([each])[:2] for each in examples]
    except DataError as error:
        raise DataError(
            f"a public row cannot be tried: {error} Give a list of rows, of the form of the data's.",
            field="examples",
        ) from error


def _pad_to_tried(collation: Collation, row: Examples) -> Any:
    """Return a row, [1, ...], padded to the longest of those that were tried."""
    return map_tensors(lambda form, each: form.resize(each, form.sizes), collation.forms[:2], row)


def _check_padding(
    collation: Collation, model: nn.Module, loss: LossFunction, public: list[Examples], device: torch.device
) -> None:
    """Reject a model or a loss that reads padding, as rows as short as the shortest that were tried show.

    Args:
        public: examples [1, ...] to try. None: they are made up, of the shortest length that is not 0.
    """
    rows = [each[:2] for each in collation.rows]
    if not public:
        short = map_tensors(lambda *each: each[0].new_zeros(1, *_smallest(each)), *rows)
        inputs, targets = moved_to(short, device)
        made = made_up_inputs(model, inputs, ROWS_ALONE)
        public = in_parts((made, made_up_targets(model, made, targets, None, ROWS_ALONE)), 1)
    empty = [row for row in rows if not all(each.numel() for each in tensors(row))]
    pairs = [(row, _pad_to_tried(collation, row)) for row in (*public, *empty[:1])]
    check_padding(model, loss, moved_to(tuple(pairs), device))


def _smallest(rows: Sequence[Tensor]) -> list[int]:
    """Return the smallest size above 0 of each dimension of rows, or 0 if all are 0."""
    sizes = zip(*(row.shape[1:] for row in rows), strict=True)
    return [min(filter(None, each), default=0) for each in sizes]


def _check_examples(examples: Any, row: Examples) -> None:
    """Reject public examples that are not of the form of the data, or too few.

    Args:
        examples: examples given by the user.
        row: inputs and targets [1, ...] of the data, of which shapes and types are read.

    Raises:
        DataError: says what was expected.
    """

    def form_of(_: Tensor, each: Tensor) -> str:
        return f"{list(each.shape[1:])} {each.dtype}"

    expected = map_tensors(form_of, row, row)
    try:
        inputs, targets = examples
        given = map_tensors(form_of, row, (inputs, targets))
        counts = {len(each) for each in tensors((inputs, targets))}
    except Exception as error:
        raise DataError(
            f"examples={type(examples).__name__}; expected (inputs, targets) of public rows, of the shapes "
            f"and types {expected}; with collate, a list of rows."
        ) from error
    if given != expected or len(counts) != 1 or min(counts) < 2:
        raise DataError(
            f"examples have {given}, in {sorted(counts)} rows; expected {expected}, in as many inputs as "
            "targets, 2 at least, that differ in what rows can differ in.",
            field="examples",
        )
