"""ComparisonPlan: what a comparison compares, and what it judges by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, final, get_args

from equidp._validate import check_number, unknown_name
from equidp.advice.advise import AUTO
from equidp.advice.chosen_plan import RECOMMENDED, SETTINGS
from equidp.comparison.cells import DecisionRule
from equidp.comparison.sweep import Sweep, named_methods
from equidp.comparison.tune import TuningPlan
from equidp.diagnostics import Diagnostics
from equidp.errors import SettingError
from equidp.evaluation.costs import check_gap_tolerance
from equidp.evaluation.intervals import check_level
from equidp.evaluation.metrics import Metric, metric_named
from equidp.evaluation.predictions import Decision
from equidp.policies.methods import MethodLike
from equidp.policies.table import BASELINE
from equidp.training.plan import Plan, checked_seeds
from equidp.training.record import Watch

Search = Literal["best", "plan"]
"""Baselines of a comparison: the best of several candidates, or plain SGD by the plan alone."""
DEFAULT_METHODS = ("sgd", "dpsgd", "dpsgd-f", "global-adapt", AUTO)


@final
@dataclass(frozen=True)
class ComparisonPlan:
    """Plan of a comparison, whatever the data, and wherever its runs are trained.

    Attributes:
        methods, seeds, plan, epsilons, sweep, gap_tolerance, level, metric, decision, base_rate_threshold,
            engine, release_epsilon, diagnosis, preprocessing_share, counts_share, balanced, settings,
            changes, against, baseline, tune, callbacks: see `equidp.compare`.

    Raises:
        SettingError, PolicyError: a value that no comparison can have.
    """

    methods: Sequence[MethodLike] = DEFAULT_METHODS
    seeds: int | Sequence[int] = 5
    plan: Plan | None = None
    epsilons: Sequence[float] = ()
    sweep: Sweep = field(default_factory=dict)
    gap_tolerance: float = 0.05
    level: float = 0.95
    metric: str | Metric = "accuracy"
    decision: Decision = Decision()
    base_rate_threshold: bool = False
    engine: str = "auto"
    release_epsilon: float | None = None
    diagnosis: Diagnostics | None = None
    preprocessing_share: float | None = None
    counts_share: float | None = None
    balanced: bool = False
    settings: str = RECOMMENDED
    changes: Mapping[str, Any] = field(default_factory=dict)
    against: str | None = None
    baseline: Search = "best"
    tune: int | TuningPlan | None = None
    callbacks: tuple[Watch, ...] = ()

    def __post_init__(self) -> None:
        check_level(self.level)
        check_gap_tolerance(self.gap_tolerance)
        if self.baseline not in get_args(Search):
            raise unknown_name("baseline", self.baseline, get_args(Search))
        if self.preprocessing_share is not None:
            check_number("(0, 1)", preprocessing_share=self.preprocessing_share)
        if self.base_rate_threshold and self.decision.threshold is not None:
            raise SettingError(
                f"base_rate_threshold beside a threshold of {self.decision.threshold:g}; give one of them.",
                field="base_rate_threshold",
            )
        if self.counts_share is not None:
            check_number("(0, 1)", counts_share=self.counts_share)
        if self.settings not in SETTINGS:
            raise unknown_name("settings", self.settings, SETTINGS)
        if self.plan is not None and self.settings != RECOMMENDED:
            raise SettingError(
                f"settings={self.settings!r} beside a plan, which has its own settings; give one of the two."
            )
        _ = self.seed_numbers, self.policies, self.cost_metric  # refuse what they cannot be
        if self.tuning is not None and self.sweep:
            raise SettingError(
                f"tune={self.tuning.draws} beside a sweep of {', '.join(self.sweep)}: settings are either "
                "chosen for each method or compared; leave out one of the two.",
                field="tune",
            )
        if self.against is not None:
            self._check_against(self.against)

    def _check_against(self, against: str) -> None:
        known = [*list(self.policies)[1:], *([AUTO] if AUTO in self.methods else [])]
        if against == BASELINE:
            raise SettingError(
                f"against={against!r}; expected a private method: differences from {BASELINE} are "
                "privacy costs, which each comparison has."
            )
        if against not in known:
            raise SettingError(
                f"against={against!r}, which is not compared; expected one of {', '.join(known)}, or add it "
                "to methods."
            )
        if len(known) < 2:
            raise SettingError(f"against={against!r}; expected another private method to compare with it.")

    @property
    def seed_numbers(self) -> list[int]:
        """Each seed; one run of each kind is trained by it."""
        return checked_seeds(self.seeds)

    @property
    def target_epsilons(self) -> list[float]:
        """Each target epsilon once, or that of the plan, or the largest budget of groups; empty: none was
        given."""
        if self.epsilons:
            return list(dict.fromkeys(self.epsilons))
        epsilon = (self.plan or Plan()).with_changes(self.changes).run_epsilon
        return [] if epsilon is None else [epsilon]

    @property
    def policies(self) -> Mapping[str, MethodLike]:
        """Methods by name without "auto", the baseline first."""
        return named_methods(self.methods)

    @property
    def cost_metric(self) -> Metric:
        """Metric of costs, gaps and tests."""
        return metric_named(self.metric)

    @property
    def decision_rule(self) -> DecisionRule:
        """Decision of each training."""
        return DecisionRule(self.decision, self.base_rate_threshold)

    @property
    def tuning(self) -> TuningPlan | None:
        """Plan of the search for settings, which leaves `changes` as they are; None without one."""
        if self.tune is None:
            return None
        plan = self.tune if isinstance(self.tune, TuningPlan) else TuningPlan(self.tune)
        return replace(plan, fixed=tuple(dict.fromkeys((*plan.fixed, *self.changes))))

    @property
    def swept(self) -> dict[str, tuple[Any, ...]]:
        """Swept settings by name, with their values."""
        return {name: tuple(values) for name, values in self.sweep.items()}
