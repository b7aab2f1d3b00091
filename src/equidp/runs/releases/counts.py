"""CountsRelease: noisy counts of the training examples of each class."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from equidp._files import write_whole
from equidp.accounting.planned import COUNTS, check_share
from equidp.data.class_counts import balanced_class_weights, check_balanced, count_classes
from equidp.data.dataset import GroupedDataset
from equidp.data.table import COUNTS_SHARE
from equidp.evaluation.predictions import Decision, base_rate_decision, check_base_rate
from equidp.kernel.ledger import Payment
from equidp.kernel.noise import SystemRandomness
from equidp.runs.releases.release import Preparation, RunRelease
from equidp.training.plan import Plan, option


@final
@dataclass(frozen=True)
class CountsRelease(RunRelease):
    """Number of training examples of each class, released with noise before the first step.

    Attributes:
        counts_share: share of epsilon, in (0, 1).
        balanced: weigh the losses of each class by one over its count.
        base_rate_threshold: of two classes, predict the positive one from its share of the training
            examples on.
    """

    name = COUNTS
    file = "class-counts.json"
    contents = "how many training examples each class has, released with noise and counted in epsilon."
    group = "Preprocessing"
    audited = ("tables/release.py",)

    counts_share: float = option(
        COUNTS_SHARE,
        "Share of --epsilon to count the classes with, by noise, for --class-weight balanced and "
        f"--threshold base-rate; default: {COUNTS_SHARE} where one of these is given, else none.",
    )
    balanced: bool = False
    base_rate_threshold: bool = False

    def epsilon(self, target: float | None) -> float | None:
        return None if target is None else self.counts_share * target

    def check(self, epsilon: float | None, method: str, plan: Plan) -> None:
        check_share("counts_share", self.counts_share, epsilon)
        check_balanced(self.balanced, plan.class_weight)

    def check_data(self, train: GroupedDataset) -> None:
        if self.base_rate_threshold:
            check_base_rate(train.class_names)

    def draw(self, preparation: Preparation, payment: Payment, folder: Path) -> Preparation:
        train, noise = preparation.split.train, payment.draw()
        named = count_classes(train, noise, SystemRandomness())
        write_whole(folder / self.file, (json.dumps(named, indent=2) + "\n").encode())
        if self.balanced:
            weights = balanced_class_weights(named, noise)
            preparation = replace(preparation, plan=preparation.plan.with_class_weight(weights))
        if self.base_rate_threshold:
            preparation = replace(
                preparation, decision=base_rate_decision(preparation.decision.positive, named)
            )
        return preparation

    def provisional_decision(self, decision: Decision) -> Decision:
        return Decision(decision.positive, 0.5) if self.base_rate_threshold else decision
