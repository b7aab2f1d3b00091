"""TrainConfig: settings of one run of `equidp train`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from equidp._files import check_writable
from equidp._plain import fields_to_plain, read_part
from equidp._validate import check_number, check_seed, check_whole
from equidp.advice.chosen_plan import ChosenPlan, ChosenRun, SettingRow, setting_rows
from equidp.data import SOURCES, DataSource, DataSplit, Recipe, open_source
from equidp.data.features import check_not_varied
from equidp.data.table import ColumnSource, can_be_private
from equidp.engines import NAMES
from equidp.errors import DataWarning, SettingError
from equidp.evaluation.predictions import Decision
from equidp.kernel.noise import SeededRandomness
from equidp.ledger.ledger import Ledger
from equidp.runs.releases.preprocessing import PreprocessingRelease
from equidp.tables.encode import TableEncoder
from equidp.tables.release import Release
from equidp.training.option import check_options, one_of, option
from equidp.training.plan import Plan
from equidp.training.resolved import ResolvedPlan

MOST_NOTES = 20_000
"""Characters of notes on a card."""


@dataclass(frozen=True)
class RunData:
    """Data of a run: a named dataset or a table, and its split.

    Attributes:
        name: name from `equidp.data.SOURCES`, or a file.
        recipe: how a file is read.
        features: name from `equidp.data.features.FEATURES`. None: inputs as they are.
        binning: binning of a table's columns. None: "standard".
        seed: seed of the split and the initial weights. Samples and noise come from the operating system.
    """

    name: str
    recipe: Recipe = Recipe()
    features: str | None = None
    seed: int = 0
    binning: str | None = None

    def __post_init__(self) -> None:
        check_seed(self.seed)

    @classmethod
    def of(
        cls,
        data: str | os.PathLike[str],
        recipe: Recipe,
        features: str | None = None,
        seed: int = 0,
        binning: str | None = None,
    ) -> RunData:
        """Return the data of a run: a file by its absolute path."""
        name = os.fspath(data)
        if name not in SOURCES and Path(name).exists():
            name = str(Path(name).absolute())
        return cls(name, recipe, features, seed, binning)

    def source(self) -> DataSource:
        """Source of the data."""
        return open_source(self.name, recipe=self.recipe, features=self.features, binning=self.binning)


@dataclass(frozen=True)
class DatasetLedger:
    """Ledger of all runs on a dataset, and the limit of a new one.

    Attributes:
        path: path of its file.
        epsilon, delta: limit of a new ledger. None: the file's limit, or no limit.
    """

    path: Path
    epsilon: float | None = None
    delta: float | None = None

    def __post_init__(self) -> None:
        if (self.epsilon is None) != (self.delta is None):
            raise SettingError(
                f"ledger_epsilon={self.epsilon}, ledger_delta={self.delta}; a limit needs both: give "
                "--ledger-epsilon and --ledger-delta."
            )

    @property
    def limit(self) -> tuple[float, float] | None:
        """Limit that was given. None: none."""
        return None if self.epsilon is None or self.delta is None else (self.epsilon, self.delta)

    def open(self, unit: str) -> Ledger:
        """Open the file, which is made unless it exists."""
        return Ledger(self.path, limit=self.limit, unit=unit)

    def rehearse(self, unit: str) -> Ledger:
        """Return a ledger with what the file holds, to try out a plan. Nothing is written."""
        check_writable(self.path)
        if self.path.exists() and self.path.stat().st_size:
            return Ledger.read(self.path, limit=self.limit, unit=unit)
        return Ledger(limit=self.limit, unit=unit)


@dataclass(frozen=True)
class CardTexts:
    """Texts that the card shows as they are given: fields of [card] in run.toml; equidp checks none of them.

    Attributes:
        title: what the model predicts. "": from the names of target and data.
        intended_use, not_intended_for: what the model is for, and what not.
        group_reason: why the group columns were needed.
        group_deletion: when the group columns are deleted.
        contact: contact for questions.
        review_date: date of the next review of the model.
        runs_tried: number of runs that were tried on these data. None: not given.
        notes: further paragraphs.
        reasons: sentences on why these settings were chosen, if they were chosen for the kind of data.
        origins: setting -> its origin (`equidp.advice.chosen_plan`). Empty: not known.
    """

    title: str = ""
    intended_use: str = ""
    not_intended_for: str = ""
    group_reason: str = ""
    group_deletion: str = ""
    contact: str = ""
    review_date: str = ""
    runs_tried: int | None = None
    notes: str = ""
    reasons: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)

    NOT_GIVEN: ClassVar = ("reasons", "origins")
    """Fields that follow from the choice of settings, and are in no run.toml."""

    def __post_init__(self) -> None:
        if self.runs_tried is not None:
            check_whole(1, ", with this one", runs_tried=self.runs_tried)
        if len(self.notes) > MOST_NOTES:
            raise SettingError(
                f"notes of {len(self.notes):,} characters; expected at most {MOST_NOTES:,}.", field="notes"
            )


@dataclass(frozen=True)
class TrainConfig:
    """One private run on a named dataset or a table.

    Attributes:
        data: data for training and testing.
        plan: method, privacy and training.
        ledger: ledger of all runs on the data, including this one. None: the run has its own, in its folder.
        metric: metric by which the card judges the model, a name from `METRICS`. None: accuracy.
        decision: for two classes, the positive one and the threshold on its probability.
        card: texts for the card.
        engine: name in `engines.NAMES`.
        checkpoint_seconds: see `Checkpoints`.
    """

    data: RunData
    plan: Plan
    ledger: DatasetLedger | None = None
    metric: str | None = None
    decision: Decision = Decision()
    card: CardTexts = CardTexts()
    engine: str = option(
        "auto", "How the norms of gradients are measured; default: auto.", one_of(NAMES), NAMES
    )
    checkpoint_seconds: float = option(
        30.0,
        "Seconds between two checkpoints; default: 30.",
        lambda name, value: check_number("[0, inf]", **{name: value}),
    )

    def __post_init__(self) -> None:
        check_options(self)
        check_not_varied(self.data.features, self.plan.image_views)
        for each in self.plan.releases:
            each.check(self.plan)
        groups = self.plan.with_own_options().groups
        if groups and not self.plan.private:
            raise SettingError(
                f"method {self.plan.method_name!r} takes no noise and treats groups equally; leave out "
                f"{groups.field}, or choose a private method.",
                field=groups.field,
            )

    def load(self, encoder: TableEncoder | None = None) -> tuple[DataSplit, TableEncoder | None]:
        """Load the split, and the encoder of its columns, or None for data without columns, such as images.

        Args:
            encoder: encoder that the run began with. None: one of exact values. If preprocessing is private,
                None means an encoder of only noise, in the shape that it has without rows, to try things out
                before paying.
        """
        source, seed = self.data.source(), self.data.seed
        if self.preprocessing is not None:
            source = can_be_private(source)
        elif not isinstance(source, ColumnSource):
            return source.split(seed), None
        rows = source.split_rows(seed)
        if self.preprocessing is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DataWarning)  # of columns without rows
                nothing = replace(rows, train=rows.train[:0], people=None)
                drawn = encoder or source.fit_encoder(nothing, Release(1.0, SeededRandomness(0)))
        else:
            drawn = encoder or source.fit_encoder(rows)
        return rows.encode_split(drawn), drawn

    @property
    def preprocessing(self) -> PreprocessingRelease | None:
        """Private preprocessing. None: exact, which epsilon does not cover."""
        return next((each for each in self.plan.releases if isinstance(each, PreprocessingRelease)), None)

    def setting_rows(self, resolved: ResolvedPlan) -> tuple[SettingRow, ...]:
        """Return every setting of the run, worked out, with its value and its origin."""
        chosen = ChosenPlan(
            self.plan,
            self.plan.method_name,
            self.data.features,
            self.data.binning,
            self.card.origins,
        )
        epsilon, targeted = self.plan.run_epsilon, self.plan.noise_multiplier is None
        epsilons = () if epsilon is None else (epsilon,)
        return setting_rows([ChosenRun(chosen, resolved, targeted)], epsilons=epsilons)

    def to_plain(self) -> dict[str, Any]:
        """Return plain values that `from_plain` reads."""
        return fields_to_plain(self)

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> TrainConfig:
        """Read the values that `to_plain` returned."""
        return read_part(cls, content)
