"""TrainConfig: all that `equidp train` was asked for."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from equidp._validate import check_number, unknown_name
from equidp.accounting.releases import (
    COUNTS,
    INDIVIDUAL,
    PREPROCESSING,
    RECALIBRATION,
    check_share,
    release_event,
)
from equidp.accounting.risk import RiskTarget
from equidp.accounting.schedule import default_delta
from equidp.data import DataSource, DataSplit, Recipe, open_source
from equidp.data.features import check_not_varied
from equidp.data.unencoded import EncodedSource, can_be_private
from equidp.data.views import Views
from equidp.errors import DataWarning, SettingError
from equidp.evaluation.metrics import metric_for
from equidp.evaluation.predictions import Cut
from equidp.kernel.epsilon import ACCOUNTANTS
from equidp.kernel.ledger import Payment, ReleaseEvent
from equidp.kernel.noise import SeededRandomness, SystemRandomness
from equidp.policies.methods import method_named
from equidp.tables.encode import TableEncoder
from equidp.tables.release import Release
from equidp.training.parts import BEYOND_BUDGET
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
        release_epsilon: account for each training example, its norm taken once an epoch, and release each
            group's mean epsilon at this epsilon, which the run's epsilon includes; None: neither.
        preprocessing_share: of epsilon, for private preprocessing, in (0, 1); None: exact preprocessing,
            which epsilon does not cover.
        counts_share: of epsilon, to count the training examples of each class, in (0, 1); None: not counted.
        balanced: weigh the losses of each class by one over its count, which takes a `counts_share`.
        metric: what the card judges the model by; a name from `METRICS`, or module:Name; None: accuracy, and
            of predicted numbers rmse.
        cut: of two classes, which is the positive one, and from which risk on it is answered. See `run_cut`.
        reasons: why these settings, in sentences, where they were chosen for the kind of data.
        cut_at_base_rate: answer it from its share of the training examples on, which takes a `counts_share`;
            then `cut` is made when they are counted.
        card_notes: paragraphs that the card shows as given: who answers, purpose, access, retention.
        choose: mean number of tries of a private choice among settings; None: the plan's own settings.
        choose_from: setting -> values to choose among, each combination of them; None: `default_space`.
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
    release_epsilon: float | None = None
    preprocessing_share: float | None = None
    counts_share: float | None = None
    balanced: bool = False
    metric: str | None = None
    cut: Cut = Cut()
    cut_at_base_rate: bool = False
    reasons: tuple[str, ...] = ()
    card_notes: str = ""
    choose: int | None = None
    choose_from: Mapping[str, Sequence[Any]] | None = None

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
        for name in ("preprocessing_share", "counts_share"):
            check_share(name, getattr(self, name), self.epsilon)
        if self.balanced and (self.counts_share is None or self.plan.class_weight is not None):
            raise SettingError(
                "balanced weights of classes take a share of epsilon to count them (counts_share), and no "
                "other class_weight."
            )
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
        (Cut(self.run_cut.positive, 0.5) if self.cut_at_base_rate else self.run_cut).index(class_names)

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
        if self.preprocessing_share is not None:
            source = can_be_private(source)
        elif not isinstance(source, EncodedSource):
            return source.split(self.seed), None
        rows = source.split_rows(self.seed)
        if self.preprocessing_share is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DataWarning)  # of columns without rows
                nothing = rows.training[:0], Release(1.0, SeededRandomness(0))
                drawn = encoder or rows.with_textual(source.private_encoder(*nothing))
        else:
            drawn = encoder or source.exact_encoder(rows)
        split = rows.encode_split(drawn, source.notes(drawn))
        return split, drawn if self.recipe.target or drawn.private else None

    def load_privately(self, payment: Payment) -> tuple[DataSplit, TableEncoder]:
        """The split by private preprocessing, which is drawn for this payment."""
        source = can_be_private(self.source())
        rows = source.split_rows(self.seed)
        release = Release(payment.draw(), SystemRandomness())
        encoder = rows.with_textual(source.private_encoder(rows.training, release))
        return rows.encode_split(encoder, source.notes(encoder)), encoder

    def risk_target(self) -> RiskTarget | None:
        """Risk that the noise is calibrated to; None if it is calibrated to epsilon, or given."""
        return None if self.risk is None else RiskTarget.parse(self.risk)

    def resolve(self, num_examples: int) -> ResolvedPlan:
        """The plan for this method and n training examples; epsilon pays for releases too.

        Raises:
            SettingError: an epsilon that the method cannot have, or that the release leaves nothing of.
        """
        private = method_named(self.method).policy.private
        if not private and self.release_epsilon is not None:
            raise SettingError(
                f"{self.method} takes no noise and has no epsilon to release; choose a private method, such "
                "as dpsgd."
            )
        if None not in (self.epsilon, self.release_epsilon) and self.release_epsilon >= self.epsilon:  # type: ignore[operator]
            raise SettingError(
                f"release_epsilon={self.release_epsilon:g} leaves nothing of epsilon={self.epsilon:g} to "
                "train with."
            )
        delta = self.plan.for_method(self.method).delta
        releases = self.releases(default_delta(num_examples) if delta is None else delta)
        return self.plan.resolve(
            self.method,
            num_examples,
            epsilon=self.epsilon,
            risk=self.risk_target(),
            accountant=self.accountant,
            also_spent=tuple((event, 1) for name, event in releases.items() if name != RECALIBRATION),
        )

    @property
    def _recalibration(self) -> float:
        """Share of epsilon for the recalibration; 0 for a method without privacy."""
        plan = self.plan.for_method(self.method)
        return plan.recalibration if method_named(self.method).policy.private else 0.0

    @property
    def recalibration_in_words(self) -> str:
        """Cost of a recalibration, for a reader."""
        share = self._recalibration
        return f"for a share of {share:g} of epsilon" if share and self.epsilon else "without noise"

    @property
    def release_costs(self) -> dict[str, float]:
        """Epsilon of each release beside the steps, alone, by name."""
        shares = {PREPROCESSING: self.preprocessing_share, COUNTS: self.counts_share}
        whole = self.epsilon or 0.0
        costs = {name: None if share is None else share * whole for name, share in shares.items()}
        costs[INDIVIDUAL] = self.release_epsilon
        costs[RECALIBRATION] = self._recalibration * whole or None
        return {name: cost for name, cost in costs.items() if cost is not None}

    def releases(self, delta: float) -> dict[str, ReleaseEvent]:
        """Releases beside the steps, by name; each is paid for when it is drawn.

        Args:
            delta: of the run.
        """
        noises = {name: release_event(cost, delta) for name, cost in self.release_costs.items()}
        return {name: ReleaseEvent(1.0, each.noise_multiplier, name=name) for name, each in noises.items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain values that `from_dict` reads."""
        content: dict[str, Any] = json.loads(json.dumps({**asdict(self), "recipe": self.recipe.to_plain()}))
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> TrainConfig:
        """Read the values that `to_dict` returned."""
        method_named(content["method"])  # one of the user's own brings the settings that a plan may have
        recipe, plan = Recipe.from_plain(content["recipe"]), Plan(**content["plan"])
        made = {"recipe": recipe, "plan": plan, "cut": Cut(**content["cut"])}
        return cls(**{**content, **made, "reasons": tuple(content["reasons"])})
