"""IndividualRelease: each group's mean individual epsilon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

from equidp._files import write_whole
from equidp.accounting.planned import INDIVIDUAL, RELEASE_EPSILON
from equidp.errors import SettingError
from equidp.individual import IndividualAccountant
from equidp.policies.methods import method_named
from equidp.policies.setting import MethodSetting
from equidp.runs.releases.release import RunRelease, Training
from equidp.training.plan import Plan
from equidp.training.run import Run
from equidp.training.trainer import Callback


@final
@dataclass(frozen=True)
class IndividualRelease(RunRelease):
    """Mean epsilon of each group's training examples, whose norms are taken once an epoch.

    Attributes:
        release_epsilon: that the release costs alone, which the run's epsilon includes.
    """

    name = INDIVIDUAL
    file = "released.json"
    contents = "individual privacy of each group, released with noise and counted in epsilon."
    after_training = True
    group = "Privacy of individuals"
    audited = ("individual/",)

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
            raise SettingError(f"release_epsilon={cost} is for individual privacy; give --individual too.")
        return None

    def epsilon(self, target: float | None) -> float | None:
        return self.release_epsilon

    def check(self, epsilon: float | None, method: str, plan: Plan) -> None:
        if not method_named(method).policy.private:
            raise SettingError(
                f"{method} takes no noise and has no epsilon to release; choose a private method, such as "
                "dpsgd.",
                field="method",
            )
        if epsilon is not None and self.release_epsilon >= epsilon:
            raise SettingError(
                f"release_epsilon={self.release_epsilon:g} leaves nothing of epsilon={epsilon:g} to train "
                "with."
            )

    def callbacks(self, folder: Path | None) -> Sequence[Callback]:
        # Only where histories are gone, as from a run that is complete, do steps count at their worst.
        return [IndividualAccountant(per_epoch=1, missed_at_worst=True)]

    def finish(self, training: Training) -> Run:
        """Write each group's mean epsilon with noise, paid for now, unless the folder has it already."""
        folder, trainer = training.folder, training.trainer
        if not trainer.processes.first or self.is_kept_in(folder):
            return training.run
        if training.finished:
            raise self.missing(folder)
        assert training.noise_multiplier is not None
        accountant = next(each for each in trainer.callbacks if isinstance(each, IndividualAccountant))
        payment = trainer.ledger.pay(self.name, training.noise_multiplier)  # which the report counts
        report = accountant.report(trainer, accountant="rdp" if trainer.accountant == "rdp" else "pld")
        means = report.means_by_group(payment)
        means["risk"] = [risk.values_by_name() for risk in report.group_risks().values()]
        write_whole(folder / self.file, means.to_json(orient="records", indent=2).encode())
        return training.run
