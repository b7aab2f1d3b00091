"""TrainConfig: settings of one run of `equidp train`."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from equidp._validate import check_number, unknown_name
from equidp.accounting.planned import default_delta, release_event
from equidp.accounting.risk import RiskTarget
from equidp.data import DataSource, DataSplit, Recipe, open_source
from equidp.data.features import check_not_varied
from equidp.data.table import EncodedSource, can_be_private
from equidp.data.views import Views
from equidp.errors import DataWarning, SettingError
from equidp.evaluation.metrics import metric_for
from equidp.evaluation.predictions import Cut
from equidp.kernel.epsilon import ACCOUNTANTS
from equidp.kernel.ledger import ReleaseEvent
from equidp.kernel.noise import SeededRandomness
from equidp.policies.methods import method_named
from equidp.runs.releases import RecalibrationRelease, release_from_plain, release_to_plain
from equidp.runs.releases.preprocessing import PreprocessingRelease
from equidp.runs.releases.release import RunRelease
from equidp.tables.encode import TableEncoder
from equidp.tables.release import Release
from equidp.training.assemble import BEYOND_BUDGET
from equidp.training.plan import Plan, ResolvedPlan


@dataclass(frozen=True)
class TrainConfig:
    """One private run on a named dataset or a table.

    Attributes:
        data: a name from `equidp.data.SOURCES`, or a file.
        method: a name from `METHODS`.
        plan: how to train.
        recipe: how a file is read.
        features: a name from `equidp.data.features.FEATURES`, or module:name; None: inputs as they are.
        epsilon: target; None: the plan's noise multiplier.
        risk: target instead of epsilon, as `RiskTarget.parse` reads it; None: none.
        seed: of the split and the initial weights. Samples and noise come from the operating system.
        accountant: a name from `ACCOUNTANTS`.
        budget: ledger file of a `PrivacyBudget`; budget_epsilon and budget_delta make a new one.
        budget_data: see `PrivacyBudget`'s data.
        beyond_budget: see `Trainer`.
        checkpoint_seconds: see `Checkpoints`.
        releases: beside the steps, such as counts of classes; a recalibration follows from the plan.
        metric: what the card judges the model by; a name from `METRICS`, or module:Name; None: accuracy, and
            of predicted numbers rmse.
        cut: of two classes, which is the positive one, and from which risk on it is answered. See `run_cut`.
        reasons: why these settings, in sentences, where they were chosen for the kind of data.
        card_notes: paragraphs that the card shows as given: who answers, purpose, access, retention.
    """

    data: str
    method: str
    plan: Plan
    recipe: Recipe = Recipe()
    features: str | None = None
    epsilon: float | None = None
    risk: str | None = None
    seed: int = 0
    engine: str = "ghost"
    accountant: str = "pld"
    budget: str | None = None
    budget_epsilon: float | None = None
    budget_delta: float | None = None
    budget_data: str | None = None
    beyond_budget: str = "refuse"
    checkpoint_seconds: float = 30.0
    releases: tuple[RunRelease, ...] = ()
    metric: str | None = None
    cut: Cut = Cut()
    reasons: tuple[str, ...] = ()
    card_notes: str = ""

    def __post_init__(self) -> None:
        method_named(self.method)
        for name, known in {"accountant": ACCOUNTANTS, "beyond_budget": BEYOND_BUDGET}.items():
            if getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known)
        of_budget = (self.budget_epsilon, self.budget_delta, self.budget_data)
        if self.budget is None and of_budget != (None, None, None):
            raise SettingError(
                "budget_epsilon, budget_delta and budget_data are of a budget's file; give budget too."
            )
        self.risk_target()
        check_not_varied(self.features, Views(self.plan.views, self.plan.augmentation))
        for each in self.releases:
            each.check(self.epsilon, self.method, self.plan)
        check_number("[0, inf]", checkpoint_seconds=self.checkpoint_seconds)
        if not 0 <= self.seed < 2**32:
            raise SettingError(f"seed={self.seed}; expected a whole number from 0 to 2^32 - 1.")

    @property
    def run_cut(self) -> Cut:
        """The cut, with the positive class of the recipe where none was named."""
        return Cut(self.cut.positive or self.recipe.positive, self.cut.threshold)

    def check_measures(self, class_names: Sequence[str]) -> None:
        """Raises a SettingError unless data with these classes has the metric and the positive class."""
        metric_for(self.metric, class_names)
        cut = self.run_cut
        for each in self.releases:
            cut = each.provisional_cut(cut)
        cut.index(class_names)

    def source(self) -> DataSource:
        """Source of the data."""
        return open_source(self.data, recipe=self.recipe, features=self.features)

    def load(self, encoder: TableEncoder | None = None) -> tuple[DataSplit, TableEncoder | None]:
        """Load the split, and the encoder of its columns: only for a table or private preprocessing.

        Args:
            encoder: that the run began with. None: one of exact figures; or, where preprocessing is private,
                one of noise alone, in the shape that no rows give, to try things out before it is paid for.
        """
        source = self.source()
        if self.preprocessing is not None:
            source = can_be_private(source)
        elif not isinstance(source, EncodedSource):
            return source.split(self.seed), None
        rows = source.split_rows(self.seed)
        if self.preprocessing is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DataWarning)  # of columns without rows
                nothing = rows.training[:0], Release(1.0, SeededRandomness(0))
                drawn = encoder or rows.with_textual(source.private_encoder(*nothing))
        else:
            drawn = encoder or source.exact_encoder(rows)
        split = rows.encode_split(drawn, source.notes(drawn))
        return split, drawn if self.recipe.target or drawn.private else None

    @property
    def preprocessing(self) -> PreprocessingRelease | None:
        """Private preprocessing; None: exact, which epsilon does not cover."""
        return next((each for each in self.releases if isinstance(each, PreprocessingRelease)), None)

    def risk_target(self) -> RiskTarget | None:
        """Risk that the noise is calibrated to; None if it is calibrated to epsilon, or given."""
        return None if self.risk is None else RiskTarget.parse(self.risk)

    def resolve(self, num_examples: int) -> ResolvedPlan:
        """The plan for this method and n training examples; epsilon pays for releases too.

        Raises:
            SettingError: an epsilon that the method cannot have, or that the release leaves nothing of.
        """
        delta = self.plan.for_method(self.method).delta
        delta = default_delta(num_examples) if delta is None else delta
        beside = self.release_events(delta, self.releases)  # those of the plan itself are added there
        return self.plan.resolve(
            self.method,
            num_examples,
            epsilon=self.epsilon,
            risk=self.risk_target(),
            accountant=self.accountant,
            also_spent=tuple((event, 1) for event in beside.values()),
        )

    @property
    def all_releases(self) -> tuple[RunRelease, ...]:
        """Releases beside the steps in the order in which they are drawn, a recalibration among them."""
        share = self.plan.for_method(self.method).recalibration
        private = method_named(self.method).policy.private
        fits = (RecalibrationRelease(share, private),) if share else ()
        before = tuple(each for each in self.releases if not each.after_training)
        return (*before, *fits, *(each for each in self.releases if each.after_training))

    @property
    def release_costs(self) -> dict[str, float]:
        """Epsilon of each release beside the steps, alone, by name."""
        costs = {each.name: each.epsilon(self.epsilon) for each in self.all_releases}
        return {name: cost for name, cost in costs.items() if cost is not None}

    def release_events(
        self, delta: float, releases: Sequence[RunRelease] | None = None
    ) -> dict[str, ReleaseEvent]:
        """Return what releases beside the steps are charged as, by name, each when it is drawn.

        Args:
            delta: of the run.
            releases: whose events; None: all of the run.
        """
        names = [each.name for each in (self.all_releases if releases is None else releases)]
        costs = {name: cost for name, cost in self.release_costs.items() if name in names}
        noises = {name: release_event(cost, delta).noise_multiplier for name, cost in costs.items()}
        return {name: ReleaseEvent(1.0, noise, name=name) for name, noise in noises.items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain values that `from_dict` reads."""
        releases = [release_to_plain(each) for each in self.releases]
        own = {**asdict(self), "recipe": self.recipe.to_plain(), "releases": releases}
        content: dict[str, Any] = json.loads(json.dumps(own))
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> TrainConfig:
        """Read the values that `to_dict` returned."""
        method_named(content["method"])  # one of the user's own brings the settings that a plan may have
        recipe, plan = Recipe.from_plain(content["recipe"]), Plan(**content["plan"])
        releases = tuple(map(release_from_plain, content["releases"]))
        made = {"recipe": recipe, "plan": plan, "cut": Cut(**content["cut"]), "releases": releases}
        return cls(**{**content, **made, "reasons": tuple(content["reasons"])})
