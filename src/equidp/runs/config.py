"""What `equidp train` was told: all that a run follows from but its data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from equidp._validate import check_number, unknown_name
from equidp.accounting import ACCOUNTANTS, calibrate_noise
from equidp.accounting.schedule import checked_schedule, default_delta
from equidp.data import DataSource, DataSplit, TableSource, open_source
from equidp.data.encoding import TableEncoder
from equidp.data.table import TEST_SHARE
from equidp.errors import SettingError
from equidp.kernel.ledger import StepEvent
from equidp.policies.methods import METHODS
from equidp.training.plan import Plan, default_plan
from equidp.training.trainer import BEYOND_BUDGET


@dataclass(frozen=True)
class TrainConfig:
    """One private run on a named dataset or a table.

    Attributes:
        data: a name from `equidp.data.SOURCES`, or a file, with the settings of `equidp.data.open_source`.
        method: a name from `METHODS`.
        plan: how to train; once `resolved`, with the noise multiplier and delta that are used.
        epsilon: target; None: the plan's noise multiplier.
        seed: of the split and the initial weights. Samples and noise come from the operating system.
        accountant: a name from `ACCOUNTANTS`.
        budget: ledger file of a `PrivacyBudget`; budget_epsilon and budget_delta make a new one.
        beyond_budget: see `Trainer`.
        checkpoint_seconds: see `Checkpoints`.
        release_epsilon: account for each training example, its norm taken once an epoch, and release each group's mean epsilon at
            this epsilon, which the run's epsilon includes; None: neither.
    """

    data: str
    method: str
    plan: Plan
    target: str | None = None
    group: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    missing: str = "refuse"
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    test_share: float = TEST_SHARE
    epsilon: float | None = None
    seed: int = 0
    engine: str = "ghost"
    accountant: str = "pld"
    budget: str | None = None
    budget_epsilon: float | None = None
    budget_delta: float | None = None
    beyond_budget: str = "refuse"
    checkpoint_seconds: float = 30.0
    release_epsilon: float | None = None

    def __post_init__(self) -> None:
        for kind, given, known in (
            ("method", self.method, METHODS),
            ("accountant", self.accountant, ACCOUNTANTS),
            ("beyond_budget", self.beyond_budget, BEYOND_BUDGET),
        ):
            if given not in known:
                raise unknown_name(kind, given, known)
        if self.budget is None and (self.budget_epsilon is not None or self.budget_delta is not None):
            raise SettingError("budget_epsilon and budget_delta are of a budget's file; give budget too.")
        check_number("[0, inf]", checkpoint_seconds=self.checkpoint_seconds)
        if not 0 <= self.seed < 2**32:
            raise SettingError(f"seed={self.seed}; expected a whole number from 0 to 2^32 - 1.")

    def source(self) -> DataSource:
        return open_source(
            self.data,
            target=self.target,
            group=self.group,
            drop=self.drop,
            missing=self.missing,
            bounds=self.bounds,
            test_share=self.test_share,
        )

    def load(self) -> tuple[DataSplit, TableEncoder | None]:
        """The split, and for a table what made inputs of its columns."""
        source = self.source()
        if isinstance(source, TableSource):
            return source.prepared(self.seed)
        return source.split(self.seed), None

    def resolved(self, num_examples: int) -> TrainConfig:
        """This configuration with delta, noise multiplier and learning rate worked out.

        Raises:
            SettingError: a private method with neither epsilon nor noise multiplier, or plain SGD with an epsilon.
        """
        plan = self.plan.for_method(self.method)
        delta = default_delta(num_examples) if plan.delta is None else plan.delta
        rate, steps = checked_schedule(num_examples, plan.batch_size, epochs=plan.epochs)
        noise = plan.noise_multiplier
        if self.method == "sgd":
            if self.epsilon is not None or self.release_epsilon is not None:
                raise SettingError(
                    "sgd takes no noise and has no epsilon; choose a private method, such as dpsgd."
                )
            noise = 0.0
        elif self.epsilon is not None:
            if self.release_epsilon is not None and self.release_epsilon >= self.epsilon:
                raise SettingError(
                    f"release_epsilon={self.release_epsilon:g} leaves nothing of epsilon={self.epsilon:g} to train with."
                )
            ratio = METHODS[self.method].make(plan, 2).statistics_ratio
            release = self.release_event(delta)
            spent = () if release is None else ((release, 1),)
            noise = calibrate_noise(self.epsilon, delta, rate, steps, ratio, self.accountant, spent)
        learning_rate = steps**-0.5 if plan.learning_rate is None else plan.learning_rate
        return replace(
            self, plan=replace(plan, delta=delta, noise_multiplier=noise, learning_rate=learning_rate)
        )

    def release_event(self, delta: float | None = None) -> StepEvent | None:
        """What the release of individual privacy costs, at the run's delta; None where there is none."""
        if self.release_epsilon is None:
            return None
        delta = self.plan.delta if delta is None else delta
        assert delta is not None
        return StepEvent(1.0, calibrate_noise(self.release_epsilon, delta, 1.0, 1))

    def to_dict(self) -> dict[str, Any]:
        """Plain values that `from_dict` reads."""
        content: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> TrainConfig:
        plan = Plan(**content["plan"])
        names = {name: tuple(content[name]) for name in ("group", "drop")}
        bounds = {name: (low, high) for name, (low, high) in content["bounds"].items()}
        return cls(**{**content, **names, "bounds": bounds, "plan": plan})


def plan_for(data: str, changes: Mapping[str, Any]) -> Plan:
    """The plan of a named dataset or of a table, with what was given instead."""
    return default_plan(data).with_changes(changes)
