"""TrainConfig: settings of one run of `equidp train`, in parts."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, replace
from pathlib import Path
from typing import Any

from equidp._files import check_writable
from equidp._validate import check_number, check_seed
from equidp.accounting.budget import PrivacyBudget
from equidp.accounting.planned import default_delta, release_event
from equidp.accounting.target import Target
from equidp.advice.chosen_plan import ChosenPlan, ChosenRun, SettingRow, setting_rows
from equidp.data import DataSource, DataSplit, Recipe, open_source
from equidp.data.features import check_not_varied
from equidp.data.table import EncodedSource, can_be_private
from equidp.data.views import Views
from equidp.engines import ENGINES
from equidp.errors import DataWarning, SettingError
from equidp.evaluation.metrics import metric_for
from equidp.evaluation.predictions import Decision
from equidp.kernel.ledger import ReleaseEvent
from equidp.kernel.noise import SeededRandomness
from equidp.policies.methods import method_named
from equidp.runs.plain import part_of, plain_fields
from equidp.runs.releases import release_of
from equidp.runs.releases.preprocessing import PreprocessingRelease
from equidp.runs.releases.release import RunRelease
from equidp.tables.encode import TableEncoder
from equidp.tables.release import Release
from equidp.training.assemble import BEYOND_BUDGET
from equidp.training.plan import Plan, ResolvedPlan, check_options, one_of, option


@dataclass(frozen=True)
class RunData:
    """Data of a run: a named dataset or a table, and its split.

    Attributes:
        name: from `equidp.data.SOURCES`, or a file.
        recipe: how a file is read.
        features: a name from `equidp.data.features.FEATURES`; None: inputs as they are.
        encoding: of a table's columns; None: "standard".
        seed: of the split and the initial weights. Samples and noise come from the operating system.
    """

    name: str
    recipe: Recipe = Recipe()
    features: str | None = None
    seed: int = 0
    encoding: str | None = None

    def __post_init__(self) -> None:
        check_seed(self.seed)

    def source(self) -> DataSource:
        """Source of the data."""
        return open_source(self.name, recipe=self.recipe, features=self.features, encoding=self.encoding)


@dataclass(frozen=True)
class BudgetFile:
    """Budget of a run: its ledger file, and the limits of a new one. Fields are options of commands.

    Attributes:
        path: of the ledger file of a `PrivacyBudget`.
        epsilon, delta, data: see `PrivacyBudget`.
    """

    path: Path = option(MISSING, "Ledger of a budget that all runs on this data share.")
    epsilon: float | None = option(None, "Epsilon of a new budget.")
    delta: float | None = option(None, "Delta of a new budget.")
    data: str | None = option(
        None, "Name of the population that the budget is for, if the data has another name."
    )

    def open(self, run: str) -> PrivacyBudget:
        """Open the budget's file, which is made unless it exists; run: name of what is charged."""
        return self._open(self.path, run)

    @contextmanager
    def rehearse(self, run: str) -> Iterator[PrivacyBudget]:
        """Budget in memory with what the file holds, to try out a plan; the file is not written."""
        try:
            check_writable(self.path)
        except SettingError as error:
            if not os.path.isfile(self.path):
                raise
            raise SettingError(
                f"the budget {os.fspath(self.path)!r} cannot be written; make it writable: another file "
                "would be another budget, which counts none of what this one holds.",
                field="budget",
            ) from error
        with self._open(self.path if os.path.exists(self.path) else None, run) as budget:
            yield budget.rehearsal()

    def _open(self, path: Path | None, run: str) -> PrivacyBudget:
        return PrivacyBudget(path, epsilon=self.epsilon, delta=self.delta, data=self.data, run=run)


@dataclass(frozen=True)
class Execution:
    """Execution of a run's steps. `equidp train` takes its fields by --set.

    Attributes:
        engine: a name in `ENGINES`.
        beyond_budget: see `Trainer`.
        checkpoint_seconds: see `Checkpoints`.
    """

    engine: str = option(
        "ghost",
        "How the norms of gradients are measured; default: ghost.",
        one_of(ENGINES),
        ENGINES,
        flag=False,
    )
    beyond_budget: str = option(
        "refuse",
        "Action where the plan does not fit into the budget; default: refuse.",
        one_of(BEYOND_BUDGET),
        BEYOND_BUDGET,
        flag=False,
    )
    checkpoint_seconds: float = option(
        30.0,
        "Seconds between two checkpoints; default: 30.",
        lambda name, value: check_number("[0, inf]", **{name: value}),
        flag=False,
    )

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class Measures:
    """Measures of a trained model on its test examples: metric and decision.

    Attributes:
        metric: that the card judges it by; a name from `METRICS`; None: accuracy.
        decision: of two classes, which is the positive one, and from which risk on it is predicted. See
            `TrainConfig.decision`.
    """

    metric: str | None = None
    decision: Decision = Decision()


@dataclass(frozen=True)
class CardTexts:
    """Texts that the card shows as they are given.

    Attributes:
        reasons: why these settings, in sentences, where they were chosen for the kind of data.
        origins: setting -> its origin (`equidp.advice.chosen_plan`); empty: not known.
        notes: paragraphs: who answers, purpose, access, retention.
    """

    reasons: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)
    notes: str = ""


@dataclass(frozen=True)
class TrainConfig:
    """One private run on a named dataset or a table.

    Attributes:
        data: what is trained and tested on.
        method: a name from `METHODS`.
        plan: how to train.
        target: that the noise is calibrated to; without an epsilon or a risk, the noise is the plan's.
        budget: that the run is charged to; None: none.
        releases: beside the steps, such as counts of classes.
        measures: of the trained model.
        card: texts for the card.
        execution: how steps are executed.
    """

    data: RunData
    method: str
    plan: Plan
    target: Target = Target()
    budget: BudgetFile | None = None
    releases: tuple[RunRelease, ...] = ()
    measures: Measures = Measures()
    card: CardTexts = CardTexts()
    execution: Execution = Execution()

    def __post_init__(self) -> None:
        method_named(self.method)
        check_not_varied(self.data.features, Views(self.plan.views, self.plan.augmentation))
        for each in self.releases:
            each.check(self.target.epsilon, self.method, self.plan)
        groups = self.plan.for_method(self.method).groups
        if groups and not method_named(self.method).policy.private:
            raise SettingError(
                f"method {self.method!r} takes no noise and treats groups equally; leave out {groups.field}, "
                "or choose a private method.",
                field=groups.field,
            )

    @property
    def name(self) -> str:
        """Name of the run in a ledger."""
        return f"train {self.method} on {self.data.source().name}"

    @property
    def decision(self) -> Decision:
        """The decision, with the positive class of the recipe where none was named."""
        decision = self.measures.decision
        return Decision(decision.positive or self.data.recipe.positive, decision.threshold)

    def with_decision(self, decision: Decision) -> TrainConfig:
        """Return this configuration with another decision."""
        return replace(self, measures=replace(self.measures, decision=decision))

    def check_measures(self, class_names: Sequence[str]) -> None:
        """Raise a SettingError unless data with these classes has the metric and the positive class."""
        metric_for(self.measures.metric, class_names)
        decision = self.decision
        for each in self.releases:
            decision = each.provisional_decision(decision)
        decision.index(class_names)

    def load(self, encoder: TableEncoder | None = None) -> tuple[DataSplit, TableEncoder | None]:
        """Load the split, and the encoder of its columns; None for data without columns, such as images.

        Args:
            encoder: that the run began with. None: one of exact values; or, where preprocessing is private,
                one of noise alone, in the shape that no rows give, to try things out before it is paid for.
        """
        source, seed = self.data.source(), self.data.seed
        if self.preprocessing is not None:
            source = can_be_private(source)
        elif not isinstance(source, EncodedSource):
            return source.split(seed), None
        rows = source.split_rows(seed)
        if self.preprocessing is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DataWarning)  # of columns without rows
                nothing = replace(rows, train=rows.train[:0], people=None)
                drawn = encoder or source.private_encoder(nothing, Release(1.0, SeededRandomness(0)))
        else:
            drawn = encoder or source.exact_encoder(rows)
        split = rows.encode_split(drawn, source.notes(drawn))
        return split, drawn

    @property
    def preprocessing(self) -> PreprocessingRelease | None:
        """Private preprocessing; None: exact, which epsilon does not cover."""
        return next((each for each in self.releases if isinstance(each, PreprocessingRelease)), None)

    def resolve(self, num_examples: int, group_names: Sequence[str] = ()) -> ResolvedPlan:
        """The plan for this method and n training examples; the target covers releases too.

        Args:
            num_examples: n.
            group_names: of the data, whose rates and bounds may differ; empty: not known.

        Raises:
            SettingError: a target that the method cannot have, or that the release leaves nothing of; an
                unknown group.
        """
        delta = self.plan.for_method(self.method).delta
        delta = default_delta(num_examples) if delta is None else delta
        spent = tuple((event, 1) for event in self.release_events(delta).values())
        return self.plan.resolve(
            self.method, num_examples, self.target, also_spent=spent, group_names=group_names
        )

    @property
    def all_releases(self) -> tuple[RunRelease, ...]:
        """Releases beside the steps in the order in which they are drawn."""
        return tuple(sorted(self.releases, key=lambda each: each.after_training))

    @property
    def release_costs(self) -> dict[str, float]:
        """Epsilon of each release beside the steps, alone, by name."""
        costs = {each.name: each.epsilon(self.target.epsilon) for each in self.all_releases}
        return {name: cost for name, cost in costs.items() if cost is not None}

    def release_events(self, delta: float) -> dict[str, ReleaseEvent]:
        """Return what releases beside the steps are charged as, by name, each when it is drawn.

        Args:
            delta: of the run.
        """
        costs = self.release_costs.items()
        noises = {name: release_event(cost, delta).noise_multiplier for name, cost in costs}
        return {name: ReleaseEvent(1.0, noise, name=name) for name, noise in noises.items()}

    def setting_rows(self, resolved: ResolvedPlan) -> tuple[SettingRow, ...]:
        """Return every setting of the run, worked out, with its value and its origin."""
        chosen = ChosenPlan(
            self.plan,
            self.method,
            self.data.features,
            self.data.encoding,
            self.card.origins,
        )
        epsilons = () if self.target.epsilon is None else (self.target.epsilon,)
        return setting_rows([ChosenRun(chosen, resolved, not self.target.is_open)], epsilons=epsilons)

    def to_plain(self) -> dict[str, Any]:
        """Return plain values that `from_plain` reads."""
        return plain_fields(self)

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> TrainConfig:
        """Read the values that `to_plain` returned."""
        method_named(content["method"])  # one of the user's own brings the settings that a plan may have
        made = part_of(cls, {**content, "releases": ()})
        return replace(made, releases=tuple(map(release_of, content["releases"])))
