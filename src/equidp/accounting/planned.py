"""What a plan would spend, worked out from public numbers alone."""

from __future__ import annotations

from dataclasses import dataclass

import dp_accounting

from equidp._validate import check_whole, unknown_name
from equidp.accounting import ACCOUNTANTS, calibrate_noise, effective_noise_multiplier, run_event
from equidp.accounting.schedule import checked_schedule, default_delta
from equidp.errors import SettingError
from equidp.kernel.epsilon import checked_delta, epsilon
from equidp.kernel.ledger import StepEvent
from equidp.kernel.step import statistics_noise
from equidp.policies.methods import make_policy


@dataclass(frozen=True)
class PlannedRun:
    """Steps of one kind, and what they spend.

    Attributes:
        event: one step.
        steps: T.
        delta: of the whole run.
    """

    event: StepEvent
    steps: int
    delta: float

    def epsilon(self, accountant: str = "pld") -> float:
        """Epsilon of the whole run, by a name from `ACCOUNTANTS`."""
        return epsilon([(self.event, self.steps)], self.delta, accountant)

    def dp_event(self) -> dp_accounting.DpEvent:
        """The run as dp_accounting writes it, for whoever wants to check."""
        return run_event([(self.event, self.steps)])

    def in_words(self) -> list[str]:
        """Lines for a reader."""
        event = self.event
        noise = f"noise multiplier {event.noise_multiplier:.6g}"
        if event.statistics_noise is not None:
            joint = effective_noise_multiplier(event.noise_multiplier, event.statistics_noise)
            noise += f" for gradients and {event.statistics_noise:.6g} for statistics, together {joint:.6g}"
        return [
            f"{self.steps:,} steps, each on a Poisson sample at rate {event.sample_rate:.6g}; {noise}.",
            *(
                f"epsilon {_shown(self.epsilon(name))} at delta {self.delta:g} ({name})"
                for name in ACCOUNTANTS
            ),
            f"To check with dp_accounting: {self.dp_event()}",
        ]


def _shown(epsilon: float) -> str:
    """Four decimals, or four digits where it is small."""
    return f"{epsilon:.4f}" if epsilon >= 0.1 else f"{epsilon:.4g}"


def account(
    num_examples: int,
    batch_size: int,
    *,
    epochs: float | None = None,
    steps: int | None = None,
    noise_multiplier: float | None = None,
    target_epsilon: float | None = None,
    delta: float | None = None,
    method: str = "dpsgd",
    accountant: str = "pld",
) -> PlannedRun:
    """Epsilon from noise, or noise from epsilon. No data is touched.

    Args:
        num_examples: n.
        batch_size: b, expected.
        epochs, steps: one of the two.
        noise_multiplier, target_epsilon: one of the two.
        delta: None: a tenth of 1 / n, rounded down to a power of ten.
        method: a name from `METHODS`; its statistics, if it reads any, are accounted for at its usual sigma_s / sigma.
        accountant: whose epsilon the target is.

    Raises:
        SettingError: numbers that make no plan.
    """
    check_whole(1, num_examples=num_examples)
    if accountant not in ACCOUNTANTS:
        raise unknown_name("accountant", accountant, ACCOUNTANTS)
    policy = make_policy(method, {})
    if not policy.private:
        raise SettingError("sgd takes no noise and has no epsilon; name a private method.")
    if (noise_multiplier is None) == (target_epsilon is None):
        raise SettingError(
            f"noise_multiplier={noise_multiplier} and target_epsilon={target_epsilon}; expected exactly one of the two."
        )
    rate, steps = checked_schedule(num_examples, batch_size, epochs=epochs, steps=steps)
    delta = checked_delta(default_delta(num_examples) if delta is None else delta)
    if noise_multiplier is None:
        assert target_epsilon is not None
        noise_multiplier = calibrate_noise(
            target_epsilon, delta, rate, steps, policy.statistics_ratio, accountant
        )
    return PlannedRun(
        StepEvent(rate, float(noise_multiplier), statistics_noise(policy, noise_multiplier)), steps, delta
    )
