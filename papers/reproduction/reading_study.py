"""Why figures differ from Xu et al.'s MNIST row: readings of their setup as an item."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd

from equidp import default_plan
from equidp.comparison.cells import split_facts
from equidp.data import open_source
from equidp.data.dataset import ALL
from equidp.digest import without_words
from equidp.kernel.policy import statistics_noise
from equidp.store import FIGURES
from papers.reproduction import reading_runs, readings
from papers.reproduction.item import COLUMNS, XU, Item, Request
from papers.reproduction.pictures import Curves
from papers.reproduction.reading_runs import ReadingRun, load_or_train
from papers.reproduction.readings import READINGS, Planned, worth

FIRST = (
    "base", "fixed-batches", "realised-size", "present-groups", "noise-without-bound", "bounds-as-weights",
    "layers", "layers-whole", "no-noise", "momentum-.5", "momentum-.9", "learning-rate-10", "decay",
    "other-weights", "counts-floored", "noise-by-example", "epoch-less", "epoch-more",
)  # fmt: skip
"""Readings that are trained for a few epochs, to find those that matter."""
_LARGEST_BOUND = 2.65
"""Largest bound that DPSGD-F reaches on MNIST, over C."""
GROUPS_ALONE = ("present-groups", "noise-without-bound", "bounds-as-weights")
"""Readings that change nothing for DPSGD, which has one bound for all."""
_DRAWN = (ALL, "2", "8", "Male", "Female")
"""Groups whose accuracy is kept for each epoch: those of the pictures."""


@final
@dataclass(frozen=True)
class ReadingStudy:
    """A method under readings of a setup; rows call it "method, reading".

    Attributes:
        data: name of the source.
        method: to train with.
        readings: names in `READINGS`.
        hours: about how long one seed takes on one core.
        epochs: of each run, before those that a reading adds.
    """

    data: str
    method: str
    readings: tuple[str, ...]
    hours: float
    epochs: int = 60

    def shorten(self) -> ReadingStudy:
        """Return the short form: one epoch, or two where a reading takes one away."""
        return replace(self, epochs=2)

    def rows(self, request: Request) -> tuple[pd.DataFrame, float]:
        """Trains what is not kept; returns a row per figure and seed, `COLUMNS`, and seconds of all runs."""
        parts, seconds = [], 0.0
        names = list(self.readings)
        for seed in request.seeds:
            for done, name in enumerate(names):
                run = ReadingRun(self.method, name, self.epochs, seed, self.data, _code())
                found = load_or_train(run, request.directory)
                table = pd.DataFrame(found.rows).assign(method=f"{self.method}, {name}")
                last = table[table["at"] == table["at"].max()].assign(at=np.nan)
                parts += [
                    last,
                    table[(table["quantity"] == "accuracy") & table["group"].isin(_DRAWN)],
                    last[:1].assign(**self._epsilon(name, seed)),
                ]
                seconds += found.seconds
                if request.on_progress is not None:
                    request.on_progress(done + 1, len(names))
        return pd.concat(parts, ignore_index=True)[COLUMNS], seconds

    def _epsilon(self, name: str, seed: int) -> dict[str, Any]:
        """Epsilon of the runs of a reading, as changes of a row; infinite where nothing is proven."""
        examples = split_facts(open_source(self.data), seed).num_train
        resolved = default_plan(self.data).resolve(self.method, examples)
        planned = Planned(
            examples, resolved.plan.batch_size, resolved.noise_multiplier, resolved.learning_rate
        )
        value = math.inf
        if resolved.policy.private:
            found = worth(
                READINGS[name],
                planned,
                epochs=self.epochs,
                delta=resolved.delta,
                statistics_noise=statistics_noise(resolved.policy, resolved.noise_multiplier),
                largest_bound=_LARGEST_BOUND if resolved.policy.needs_groups else 1.0,
            )
            value = found.epsilon
        return {"group": ALL, "quantity": "epsilon", "value": value}


def _code() -> str:
    """A digest of all code that runs of readings follow from."""
    digest = hashlib.sha256(str(FIGURES).encode())
    for module in (readings, reading_runs):
        digest.update(without_words(Path(str(module.__file__)).read_text(encoding="utf-8")).encode())
    return digest.hexdigest()[:12]


def _item(name: str, title: str, studies: tuple[ReadingStudy, ...], note: str, seeds: int = 1) -> Item:
    sources = tuple(dict.fromkeys(study.data for study in studies))
    return Item(
        name, XU, title, studies, seeds=seeds, columns=("accuracy", "loss", "norm", "epsilon"),
        pictures=tuple(
            Curves(f"Accuracy over epochs: {data}", "accuracy", "accuracy", data=data,
                   groups=_DRAWN)
            for data in sources
        ),
        notes=(
            "Many of these readings break the guarantee, and none is part of a method here. Epsilon is the "
            "least that is proven (papers.reproduction.readings says how); without one, nothing is.",
            note,
        ),
    )  # fmt: skip


ITEMS = (
    _item(
        "xu-readings",
        "The MNIST row with one choice of the setup read otherwise, over 5 epochs",
        (
            ReadingStudy(
                "mnist", "dpsgd", tuple(name for name in FIRST if name not in GROUPS_ALONE), 0.4, 5
            ),
            ReadingStudy("mnist", "dpsgd-f-code", FIRST, 0.5, 5),
        ),
        "layers has a bound of C / 2 for each of four layers, layers-whole one of C. decay divides the "
        "learning rate by 10 after half of the epochs, and again after three quarters. counts-floored rounds "
        "released counts down. noise-by-example adds noise of sigma C to each gradient. present-groups and "
        "noise-without-bound scale noise to the largest bound in the batch, and to none.",
    ),
    _item(
        "xu-readings-in-full",
        "The MNIST row with the readings that matter, over 60 epochs",
        (
            ReadingStudy("mnist", "sgd", ("base", "momentum-.5"), 0.6),
            ReadingStudy("mnist", "dpsgd", ("base", "momentum-.5", "code-of-predecessor"), 1.0),
            ReadingStudy("mnist", "dpsgd-f-code", ("base", "momentum-.5", "code-of-authors"), 1.0),
        ),
        "code-of-predecessor is what the published code of Bagdasaryan et al. (NeurIPS 2019) does, whose "
        "setting Xu et al. say they replicate. Its learning rate of .01, b 256, 60 epochs, C 1 and "
        "sigma .8 are theirs too; its momentum of .5 they do not mention. Its batches are of 256, from "
        "shuffled passes whose rest is dropped, and it ends after 59 epochs. code-of-authors takes the "
        "bounds as weights too, as a public copy of Xu et al.'s loop does.",
    ),
    _item(
        "xu-readings-census",
        "The rows of Adult and Dutch with one choice of the setup read otherwise",
        tuple(
            ReadingStudy(data, method, names, 0.003 * len(names), 20)
            for data in ("adult", "dutch")
            for method, names in (
                ("sgd", ("base", "penalty-2", "momentum-.5")),
                ("dpsgd", ("base", "penalty-2", "fixed-batches", "momentum-.5")),
                ("dpsgd-f-code", ("base", "penalty-2", "fixed-batches", "momentum-.5", "bounds-as-weights")),
            )
        ),
        "penalty-2 penalizes the squared norm of the weights by .01, base half of it: the text has a "
        "regularization parameter of .01. fixed-batches are of 256, from shuffled passes whose rest is "
        "dropped.",
        seeds=3,
    ),
)  # fmt: skip
