"""IndividualRelease: each group's mean individual epsilon."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, final

from equidp.accounting.planned import INDIVIDUAL, RELEASE_EPSILON
from equidp.errors import SettingError
from equidp.individual import Individual
from equidp.policies.setting import MethodSetting
from equidp.training.plan import Plan
from equidp.training.release import Release
from equidp.training.trainer import Trainer


@final
@dataclass(frozen=True)
class IndividualRelease(Release):
    """Mean epsilon of each group's training examples, whose norms are taken once an epoch.

    Attributes:
        release_epsilon: epsilon of the release by itself, which the run's epsilon includes.
    """

    name = INDIVIDUAL
    file = "released.json"
    individual = Individual(per_epoch=1)

    release_epsilon: float = RELEASE_EPSILON

    @classmethod
    def options(cls) -> list[MethodSetting]:
        cost = f"Epsilon of that release for each run; default: {RELEASE_EPSILON}."
        individual = "Account for each example, and release the mean epsilon of each group."
        return [
            MethodSetting("individual", bool, False, individual),
            MethodSetting("release_epsilon", float, None, cost),
        ]

    @classmethod
    def from_options(cls, given: Mapping[str, Any]) -> Self | None:
        cost = given.get("release_epsilon")
        if given.get("individual"):
            return cls() if cost is None else cls(cost)
        if cost is not None:
            raise SettingError(f"release_epsilon={cost} is for individual privacy; give individual=true too.")
        return None

    def to_options(self) -> dict[str, Any]:
        return {"individual": True, "release_epsilon": self.release_epsilon}

    def epsilon(self, target: float | None) -> float:
        return self.release_epsilon

    def check(self, plan: Plan) -> None:
        epsilon = plan.run_epsilon
        if not plan.private:
            raise SettingError(
                f"{plan.method_name} takes no noise and has no epsilon to release; choose a private method, "
                "such as dpsgd.",
                field="method",
            )
        if epsilon is not None and self.release_epsilon >= epsilon:
            raise SettingError(
                f"release_epsilon={self.release_epsilon:g} leaves nothing of epsilon={epsilon:g} to train "
                "with."
            )

    def after(self, trainer: Trainer) -> None:
        def draw(noise: float) -> Any:
            # The report counts this release, which is paid for by now.
            report = trainer.individual_report(accountant="rdp" if trainer.accountant == "rdp" else "pld")
            means = report.draw_means(noise)
            means = means.assign(risk=[risk.values_by_name() for risk in report.group_risks().values()])
            return json.loads(means.to_json(orient="records"))

        trainer.release(self, draw)
