"""CountsRelease: noisy counts of the training examples of each class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

from equidp.accounting.planned import COUNTS, check_share
from equidp.data.class_counts import balanced_class_weights, check_balanced, count_classes
from equidp.data.dataset import GroupedDataset
from equidp.data.table import COUNTS_SHARE
from equidp.evaluation.predictions import base_rate_decision, check_base_rate
from equidp.kernel.noise import SystemRandomness
from equidp.training.option import option
from equidp.training.plan import Plan
from equidp.training.release import Release

if TYPE_CHECKING:
    from equidp.runs.begin import PreparedRun


@final
@dataclass(frozen=True)
class CountsRelease(Release):
    """Number of training examples of each class, released with noise before the first step.

    Attributes:
        counts_share: share of epsilon, in (0, 1).
        balanced: weigh the losses of each class by one over its count.
        base_rate_threshold: of two classes, predict the positive one from its share of the training
            examples on.
    """

    name = COUNTS
    file = "class-counts.json"

    counts_share: float = option(
        COUNTS_SHARE,
        "Share of --epsilon for noisy counts of the classes, which --class-weight balanced and --threshold "
        f"base-rate use; default: {COUNTS_SHARE} if one of these is given, otherwise 0.",
    )
    balanced: bool = False
    base_rate_threshold: bool = False

    def epsilon(self, target: float | None) -> float:
        assert target is not None
        return self.counts_share * target

    def check(self, plan: Plan) -> None:
        check_share("counts_share", self.counts_share, plan.run_epsilon)
        check_balanced(self.balanced, plan.class_weight)

    def check_data(self, train: GroupedDataset) -> None:
        if self.base_rate_threshold:
            check_base_rate(train.class_names)

    def prepare(self, run: PreparedRun, pay: Callable[..., Any]) -> PreparedRun:
        train, noise = run.split.train, run.plan.noise_of(self)
        counts = pay(self, lambda noise: count_classes(train, noise, SystemRandomness()))
        if self.balanced:
            plan = run.plan.with_class_weight(balanced_class_weights(counts, noise))
            run = replace(run, plan=plan, trainer=None)
        if self.base_rate_threshold:
            decision = base_rate_decision(run.config.decision.positive, counts)
            run = replace(run, config=replace(run.config, decision=decision))
        return run
