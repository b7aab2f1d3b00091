"""Engines, by name: per-example norms and weighted sums of gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from equidp._validate import unknown_name
from equidp.engines.compatible import make_compatible
from equidp.engines.functional import FunctionalEngine
from equidp.engines.ghost import GhostEngine
from equidp.engines.measurement import Examples, MeasuredBatch, dataset_norms
from equidp.engines.trial.gradients import (
    EngineRefusal,
    check_company,
    check_engine,
    check_padding,
    check_repetition,
)
from equidp.engines.trial.mixing import check_model, keeps_examples_apart
from equidp.engines.trial.rows import GivenRows, MadeUp, TrialRows, made_up_examples
from equidp.engines.units import as_units, reader_of
from equidp.errors import DataWarning, ModelError, error_text
from equidp.kernel.engine import Engine, LossFunction
from equidp.kernel.inputs import count_in, taken
from equidp.kernel.policy import Policy
from equidp.losses import Loss

__all__ = [
    "ENGINES",
    "MeasuredBatch",
    "TriedEngine",
    "check_company",
    "check_engine",
    "check_model",
    "check_padding",
    "checked_engine",
    "dataset_norms",
    "made_up_examples",
    "make_compatible",
    "make_engine",
    "runs_batches",
]

TriedEngine = GhostEngine | FunctionalEngine
"""An engine with its model, its loss and the examples of their trial."""


def runs_batches(engine: Engine, *, evaluating: bool = False) -> bool:
    """Return whether a release may give the model a batch, as the engine's steps do.

    Another engine may isolate examples from each other (`FunctionalEngine`), or was given as an object, which
    no trial looked at: a release then gives the model one example at a time.

    Args:
        engine: of the steps.
        evaluating: True for a release that runs the model in evaluation mode, which steps do not: it is
            tried in this mode too, on the examples of the engine's trial.

    >>> cross_entropy = nn.CrossEntropyLoss(reduction="none")
    >>> [runs_batches(make_engine(name, nn.Linear(2, 2), cross_entropy)) for name in ENGINES]
    [True, False]
    """
    if not isinstance(engine, GhostEngine):
        return False
    return not evaluating or engine.public is None or keeps_examples_apart(engine.model, *engine.public)


ENGINES: dict[str, Callable[[nn.Module, LossFunction], TriedEngine]] = {
    "ghost": GhostEngine,
    "functional": FunctionalEngine,
}


def make_engine(name: str, model: nn.Module, loss: LossFunction, policy: Policy | None = None) -> TriedEngine:
    """Return the named engine for a model and a per-example loss.

    Args:
        policy: that the engine measures for. One that changes losses has the functional engine, whatever is
            named.

    Raises:
        SettingError: an unknown name.

    >>> import torch
    >>> model = nn.Linear(2, 2)
    >>> engine = make_engine("ghost", model, nn.CrossEntropyLoss(reduction="none"))
    >>> measured = engine(torch.zeros(3, 2), torch.tensor([0, 1, 1]))
    >>> measured.norms.shape
    torch.Size([3])
    >>> measured.weighted_sum(torch.ones(3))
    >>> model.bias.grad.shape
    torch.Size([2])
    """
    if name not in ENGINES:
        raise unknown_name("engine", name, ENGINES)
    if policy is not None and policy.loss_terms:
        return FunctionalEngine(model, loss, objective=policy.objective)
    return ENGINES[name](model, loss)


def checked_engine(
    name: str,
    model: nn.Module,
    loss: LossFunction,
    row: Examples,
    class_names: Sequence[str] = (),
    *,
    policy: Policy | None = None,
    examples: Examples | None = None,
    batch_size: int = 64,
    at_a_time: int | None = None,
) -> TriedEngine:
    """Return the engine of that name, after model, loss and engine were tried on made-up examples.

    Args:
        model: reads rows, [batch, ...]; restored at the end.
        loss: of examples of one row, or a `Loss` of several.
        row: inputs and targets of one row at least, whose shapes and types are read and no value: what is
            accepted tells nothing about data.
        class_names: one per class, where targets are classes.
        policy: as in `make_engine`.
        examples: public rows of these shapes and types, for a model that demands more of a row than these;
            made-up ones are tried too if the model takes them.
        batch_size: number of examples in the largest trial batch.
        at_a_time: the most examples that training gives the engine at a time; None: no limit.

    Raises:
        SettingError: an unknown name.
        ModelError: the model, the loss or the engine failed the trial.

    >>> loss = nn.CrossEntropyLoss(reduction="none")
    >>> import torch
    >>> checked_engine("ghost", nn.Linear(2, 2), loss, (torch.zeros(1, 2), torch.tensor([1])), ("no", "yes"))
    <equidp.engines.ghost.GhostEngine object at ...>
    """
    several = Loss.of(loss).several_rows
    of_row = Loss.of(loss).by_row() if several else loss
    made = MadeUp.like(model, of_row, *row, len(class_names) or None)
    trials: list[tuple[TrialRows, Any, Any]] = []
    if examples is not None:
        few = taken(examples, torch.arange(16) % count_in(examples[1]))
        trials.append((GivenRows(examples[0]), *few))
    if examples is None or made.takes(model, of_row):
        trials.append((made.rows, *made.examples()))
    for rows, inputs, targets in trials:
        check_model(model, of_row, inputs, targets, class_names, rows, at_a_time)
    if examples is None:
        _warn_of_failures(made)

    def tried_with(name: str) -> TriedEngine:
        engine = make_engine(name, reader_of(model, loss), loss, policy)
        for rows, inputs, targets in trials:
            of_units: TrialRows | None = rows
            if several:
                inputs, targets = as_units(inputs, targets, rows=2)
                of_units = GivenRows(inputs) if isinstance(rows, GivenRows) else None
            check_engine(
                engine, reader_of(model, loss), loss, inputs, targets, of_units, batch_size, at_a_time
            )
            engine.public = engine.public or (inputs, targets)
        return engine

    try:
        return tried_with(name)
    except EngineRefusal as error:
        if policy is not None and policy.loss_terms:
            raise
        for _, inputs, targets in trials:
            check_repetition(model, of_row, inputs, targets)
        for other in (each for each in ENGINES if each != name):
            taken_by = None
            with suppress(ModelError):
                taken_by = tried_with(other)
            if taken_by is not None:
                raise ModelError(f"{error} engine={other!r} takes this model.", field="engine") from error
        raise ModelError(
            f"{error} No other engine takes this model. Where examples take ways of their own (experts, "
            "early exit, rows that a mask picks), compute every way for every example and choose by a weight "
            "or by torch.where: outputs are the same, and engines take it.",
            field="model",
        ) from error


def _warn_of_failures(made: MadeUp) -> None:
    """Warn of rows that would end training, as far as made-up rows show."""
    left = [place for place in range(count_in(made.targets)) if place not in made.running]
    if made.error is None or not left:
        return
    warnings.warn(
        f"the model or the loss fails on rows that are {made.rows.describe_row(left[0])} "
        f"({error_text(made.error)}). A row of the data on which it fails ends training, and "
        "its step stays charged. Let it take them (such as lengths.clamp(min=1) before packing).",
        DataWarning,
        stacklevel=4,
    )
