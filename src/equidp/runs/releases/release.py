"""RunRelease: what a run on disk releases beside its steps, for a part of its epsilon."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from equidp.data import DataSource, DataSplit
from equidp.data.dataset import GroupedDataset
from equidp.errors import DataError
from equidp.evaluation.predictions import Decision
from equidp.kernel.ledger import Payment
from equidp.policies.setting import MethodSetting, settings_of
from equidp.runs.plain import plain_fields
from equidp.tables.encode import TableEncoder
from equidp.training.plan import Plan, ResolvedPlan
from equidp.training.run import Run
from equidp.training.trainer import Callback, Trainer


@dataclass(frozen=True)
class Preparation:
    """Parts of a run that releases before the first step read, and return changed.

    Attributes:
        source: of the data.
        seed: of its split.
        split: the data.
        encoder: of its columns, if the run keeps one.
        plan: to train by.
        decision: of two classes, see `TrainConfig.decision`.
    """

    source: DataSource
    seed: int
    split: DataSplit
    encoder: TableEncoder | None
    plan: ResolvedPlan
    decision: Decision


@dataclass(frozen=True)
class Training:
    """A training after its last step, as releases then read it.

    Attributes:
        folder: of the run.
        run: what was trained.
        trainer: that trained it.
        noise_multiplier: of the release; None: it costs nothing.
        finished: True if the folder holds the finished model already, so that nothing may be drawn again.
    """

    folder: Path
    run: Run
    trainer: Trainer
    noise_multiplier: float | None
    finished: bool


@dataclass(frozen=True)
class RunRelease(ABC):
    """One kind of release beside the steps of a run; subclasses are frozen dataclasses of its settings.

    It is charged as one Gaussian mechanism on all training examples, by its name, in the run's ledger and
    budget; drawn once for that payment; and kept in a file of the run's folder, which resumed runs and copies
    of the folder read. The dry run, the ledger, the notice of the folder and the card show it by these
    attributes; fields made by `equidp.training.plan.option` are options of `equidp train`.

    Attributes:
        name: in the ledger.
        file: of the run's folder that keeps what was drawn.
        contents: description of this file, which is shareable.
        after_training: True for a release after the last step.
        group: heading of its options on the command line.
        audited: files of `src/equidp` that hold its guarantee.
    """

    name: ClassVar[str]
    file: ClassVar[str]
    contents: ClassVar[str]
    after_training: ClassVar[bool] = False
    group: ClassVar[str] = "Releases"
    audited: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def options(cls) -> list[MethodSetting]:
        """Return its options on the command line, by default its fields with a help text."""
        return [each for each in settings_of(cls) if each.help]

    @classmethod
    def from_options(cls, given: Mapping[str, Any]) -> Self | None:
        """Return the release that options ask for; None where none of its own is given."""
        own = {each.name: given.get(each.name) for each in fields(cls)}
        own = {name: value for name, value in own.items() if value not in (None, False)}
        return cls(**own) if own else None

    def to_plain(self) -> dict[str, Any]:
        """Return its name and its settings as plain values."""
        return {"kind": self.name, **plain_fields(self)}

    @abstractmethod
    def epsilon(self, target: float | None) -> float | None:
        """Return the epsilon that it costs alone, at the run's target epsilon; None: it costs none."""

    def check(self, epsilon: float | None, method: str, plan: Plan) -> None:  # noqa: B027
        """Raise a SettingError unless it goes with a target epsilon, a method and a plan."""

    def check_data(self, train: GroupedDataset) -> None:  # noqa: B027
        """Raise a SettingError unless it goes with the training data."""

    def draw(self, preparation: Preparation, payment: Payment, folder: Path) -> Preparation:
        """Draw it before the first step, keep it in the folder, and return what trains with it.

        A kind that draws before training has this method, and the others `finish`.
        """
        raise NotImplementedError

    def callbacks(self, folder: Path | None) -> Sequence[Callback]:
        """Return callbacks that a release after training needs; called in each process.

        Args:
            folder: of the run; None in other processes than the first.
        """
        return ()

    def finish(self, training: Training) -> Run:
        """Draw it after the last step, unless the folder keeps it; return the run with it.

        Called in each process; the first has ledger and folder.
        """
        raise NotImplementedError

    def provisional_decision(self, decision: Decision) -> Decision:
        """Return a decision like the one that the run will have once the release is drawn."""
        return decision

    def card_entries(self, epsilon: float | None, folder: Path, units: str) -> dict[str, str]:
        """Return entries of the card beside what the ledger counts, by name; units: "rows" or "people"."""
        return {}

    def is_kept_in(self, folder: Path) -> bool:
        """Return True if the folder keeps what was drawn."""
        return (folder / self.file).exists()

    def missing(self, folder: Path) -> DataError:
        """Return the error of a folder whose file is gone, although it was paid for."""
        return DataError(
            f"{os.fspath(folder / self.file)!r} is gone. What it held was released, and paid for, once; "
            "bring it back.",
            field=self.file,
        )
