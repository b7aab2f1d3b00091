"""Target: privacy that the noise of a run is calibrated to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from equidp._validate import check_number
from equidp.accounting.calibration import calibrate_step, calibrate_step_to_risk
from equidp.accounting.risk import RiskTarget
from equidp.errors import SettingError
from equidp.kernel.epsilon import checked_accountant
from equidp.kernel.ledger import StepEvent


@final
@dataclass(frozen=True)
class Target:
    """Privacy that the noise of a run is calibrated to: an epsilon, a risk, or neither.

    Attributes:
        epsilon: of the whole run, > 0.
        risk: of the whole run, instead of an epsilon.
        accountant: a name from `ACCOUNTANTS`, which this epsilon is meant for and the run is reported with.

    Raises:
        SettingError: both of them, an epsilon outside its range, an unknown accountant.

    Example:
        >>> import equidp
        >>> plan = equidp.Plan(batch_size=100, epochs=2, delta=1e-4)
        >>> round(plan.resolve("dpsgd", 1000, equidp.Target(epsilon=3.0)).noise_multiplier, 2)
        0.98
        >>> plan.resolve("dpsgd", 1000, equidp.Target()).noise_multiplier
        1.0
    """

    epsilon: float | None = None
    risk: RiskTarget | None = None
    accountant: str = "pld"

    def __post_init__(self) -> None:
        if None not in (self.epsilon, self.risk):
            raise SettingError(
                f"epsilon={self.epsilon} and risk={self.risk}: each decides the noise; give one of the two."
            )
        if self.epsilon is not None:
            check_number("(0, inf)", epsilon=self.epsilon)
        checked_accountant(self.accountant)

    @property
    def is_open(self) -> bool:
        """True without an epsilon and a risk: the noise is not calibrated, but given."""
        return self.epsilon is None and self.risk is None

    def noise_multiplier(
        self,
        delta: float,
        unit: StepEvent,
        steps: int,
        spent: tuple[tuple[StepEvent, int], ...] = (),
    ) -> float | None:
        """Noise multiplier, by `calibrate_step`, that keeps to the target; None where the target is open.

        Args:
            delta: of the whole run.
            unit: one step at noise multiplier 1; plain, or by group.
            steps: T.
            spent: what counts towards the target beside the steps.

        Raises:
            SettingError: no noise keeps to the target.
        """
        if self.risk is not None:
            return calibrate_step_to_risk(self.risk, unit, steps, spent)
        if self.epsilon is None:
            return None
        return calibrate_step(self.epsilon, delta, unit, steps, self.accountant, spent)
