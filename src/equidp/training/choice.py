"""Private choice among settings: train a random number of times, release the best.

After Papernot and Steinke (2022). Each try draws one of the plans at random, trains a model, and scores it on
held-out examples of the training data: the accuracy of the worst group, from noisy counts. The number of
tries is random too (`accounting.choice`). The best model leaves with its settings and its score. Nothing of
the other tries is kept, logged or returned.
"""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from equidp.accounting.choice import number_of_tries
from equidp.data.dataset import GroupedDataset
from equidp.data.people import first_rows
from equidp.engines.model import device_of
from equidp.errors import SettingError
from equidp.evaluation.predict import predict
from equidp.kernel.ledger import ChoiceEvent, Ledger
from equidp.kernel.noise import Randomness
from equidp.tables.release import private_counts
from equidp.training.build import build
from equidp.training.plan import ResolvedPlan
from equidp.training.recalibration import recalibrate
from equidp.training.run import Run
from equidp.training.trainer import Trainer

HELD_OUT = 0.1
"""Share of the training examples that tries are scored on."""


@final
@dataclass(frozen=True)
class Chosen:
    """Release of a private choice: the best try and its noisy score.

    Attributes:
        run: of the best try; its entries are those of the ledger that paid for the choice.
        place: index of its plan among the plans to choose from.
        score: noisy accuracy of the worst group on the held-out examples.
    """

    run: Run
    place: int
    score: float


def drawn_out(num_examples: int, randomness: Randomness) -> Tensor:
    """Mask [n] of the examples to score on: about a tenth, each drawn independently.

    Adding or removing an example moves no other example to the other part, as it could if places or an exact
    number were drawn. So what is private on one of the parts is private on all. Draw once for a choice.

    Args:
        num_examples: n, all that are to be trained on or scored on.
        randomness: of the draw, which must not be known before.

    Raises:
        SettingError: fewer than 20 examples.
    """
    if num_examples < 20:
        raise SettingError(f"{num_examples} training examples; a private choice takes at least 20.")
    held = np.zeros(num_examples, dtype=np.bool_)
    while not 0 < held.sum() < num_examples:
        held = randomness.uniform(num_examples) < HELD_OUT
    return torch.from_numpy(held)


def split_held_out(train: GroupedDataset, held_out: Tensor) -> tuple[GroupedDataset, GroupedDataset]:
    """Split examples by a mask [n]: the examples to train on, and the masked ones, to score on."""
    return train.subset((~held_out).nonzero()[:, 0]), train.subset(held_out.nonzero()[:, 0])


def worst_group(run: Run, held_out: GroupedDataset, noise_multiplier: float, randomness: Randomness) -> float:
    """Returns the noisy accuracy of the worst group.

    Formal guarantee: each example counts in one of 2 K cells (its group, right or wrong), by its first row,
    so this is a Gaussian mechanism of this noise multiplier, without sampling.

    | case | outcome |
    | --- | --- |
    | a group whose noisy size is below 4 standard deviations of its noise | not judged |
    | no group that can be judged | accuracy of all groups together |
    | predictions that are NaN | wrong, or of class 0 |
    """
    held_out = first_rows(held_out)
    with randomness.for_model(device_of(run.model)):  # which may draw in evaluation too
        right = predict(run.model, held_out.inputs).argmax(dim=1) == held_out.targets.cpu()
    codes = (2 * held_out.groups.cpu() + right).numpy()
    cells = private_counts(
        codes, 2 * held_out.num_groups, noise_multiplier=noise_multiplier, randomness=randomness
    ).reshape(-1, 2)
    sizes = cells.sum(axis=1)
    known = sizes >= 4 * math.sqrt(2) * noise_multiplier
    if not known.any():
        return float(cells[:, 1].sum() / max(sizes.sum(), 1.0))
    return float((cells[known, 1] / sizes[known]).min())


@contextmanager
def _unseen() -> Iterator[None]:
    """Drops what Python code prints, logs or warns of inside."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            open(os.devnull, "w") as nowhere,
            redirect_stdout(nowhere),
            redirect_stderr(nowhere),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def choose(
    plans: Sequence[ResolvedPlan],
    train: GroupedDataset,
    held_out: GroupedDataset,
    event: ChoiceEvent,
    ledger: Ledger,
    *,
    seed: int,
    randomness: Randomness,
    engine: str = "ghost",
    device: torch.device | None = None,
) -> Chosen:
    """Tries plans a random number of times and returns the best; the whole is charged before the first.

    Formal guarantee: one `event`, of which each try is `event.tried`: the steps and releases of a plan, and a
    score. A choice that is stopped is spent; begun again, it is another one.

    The number of tries is secret, and what a try prints, logs or warns of would be counted: all of that is
    dropped, in the whole process, once each plan was made without. What a model of your own does elsewhere
    (files, native code that prints), and how long the call takes, tell it.

    Args:
        plans: to choose among; steps and noise are the same in all.
        train, held_out: examples to train on, and to score on.
        event: one try ends with a score at sample rate 1.
        ledger: charged once.
        seed: of the initial weights.
        randomness: where plans, number of tries and noise of scores come from. Noise of training comes from
            the operating system.
        engine, device: see `equidp.training.build.build`.

    Raises:
        SettingError, DataError, ModelError: a plan that cannot be trained, or costs something else than the
            event says; before anything is spent.
        BudgetError: the ledger cannot pay.

    >>> from equidp.kernel.ledger import MemoryLedger, StepEvent
    >>> from equidp.kernel.noise import SystemRandomness
    >>> from dataclasses import replace
    >>> from equidp.training.plan import Plan
    >>> inputs, groups = torch.randn(100, 3), torch.zeros(100, dtype=torch.int64)
    >>> data = GroupedDataset(inputs, torch.arange(100) % 2, groups, ("a",), ("n", "y"))
    >>> randomness = SystemRandomness()
    >>> fit, held = split_held_out(data, drawn_out(len(data), randomness))
    >>> asked = Plan(batch_size=len(fit) // 3, epochs=1)
    >>> plans = [replace(asked, learning_rate=rate).resolve("dpsgd", len(fit)) for rate in (0.1, 1.0)]
    >>> step = StepEvent(plans[0].sample_rate, 1.0)
    >>> event = ChoiceEvent(((step, plans[0].steps), (StepEvent(1.0, 5.0), 1)), 2.0)
    >>> found = choose(plans, fit, held, event, MemoryLedger(), seed=0, randomness=randomness)
    >>> found.run.entries == ((event, 1),)
    True
    """

    def trainer_of(plan: ResolvedPlan) -> Trainer:
        return build(plan, train, seed=seed, secure=True, engine=engine, device=device)

    *tried, (score, times) = event.tried
    for plan in plans:
        trainer = trainer_of(plan)
        costs = [(trainer.event, trainer.steps), *((each, 1) for each in plan.releases)]
        if costs != tried or (times, score.sample_rate) != (1, 1.0):
            raise SettingError(
                "the settings to choose among change what a step costs; leave sample rate, steps and noise "
                "as they are (batch_size, epochs, noise_multiplier, delta, recalibration)."
            )
    ledger.spend(event)
    ledger.settle()
    best: tuple[float, int, Run] | None = None
    with _unseen():
        for _ in range(number_of_tries(event.mean, randomness)):
            place = min(int(randomness.uniform(1)[0] * len(plans)), len(plans) - 1)
            trainer = trainer_of(plans[place])
            run = recalibrate(trainer.fit(), trainer, plans[place].recalibration_noise)
            found = worst_group(run, held_out, score.noise_multiplier, randomness)
            if best is None or found > best[0]:
                best = found, place, run
    assert best is not None
    value, place, run = best
    paid = Run(run.model, ledger.entries, run.delta, run.loss, "rdp", run.facts)
    return Chosen(paid, place, value)
