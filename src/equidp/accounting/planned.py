"""Plans, from public numbers alone: sample rate and steps, releases beside them, and epsilon of the whole."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import dp_accounting

from equidp import policies
from equidp._validate import check_number, check_whole
from equidp.accounting.cache import epsilon
from equidp.accounting.calibration import (
    PROTECTIONS,
    calibrate_noise,
    calibrate_step,
    calibrate_step_to_risk,
)
from equidp.accounting.groups import ByGroup, GroupSettings
from equidp.accounting.risk import FALSE_POSITIVE_RATES, Risk, RiskTarget
from equidp.errors import SettingError
from equidp.kernel.epsilon import (
    checked_accountant,
    checked_delta,
    costliest_entries,
    epsilon_of_group,
    run_event,
)
from equidp.kernel.ledger import GroupedStepEvent, StepEvent
from equidp.policies.table import METHODS

PREPROCESSING, COUNTS, INDIVIDUAL = "preprocessing", "class counts", "individual privacy"
"""Names of what a run releases beside its steps."""
RELEASE_EPSILON = 0.1
"""Default epsilon of a release of individual privacy (Yu et al., Table 2)."""


class Schedule(NamedTuple):
    """Sample rate and number of steps of a run.

    Attributes:
        sample_rate: q = b / n, in (0, 1].
        steps: T >= 1.
    """

    sample_rate: float
    steps: int

    def ends_epoch(self, step: int) -> bool:
        """Return whether a step, counted from 1, ends an epoch: n examples more in expectation, or the run.

        >>> [step for step in range(1, 8) if Schedule(sample_rate=0.4, steps=7).ends_epoch(step)]
        [3, 5, 7]
        """
        before, after = (math.floor(count * self.sample_rate + 1e-9) for count in (step - 1, step))
        return after > before or step == self.steps


def default_delta(num_examples: int) -> float:
    """Return a tenth of 1 / n, rounded down to a power of ten."""
    return 10.0 ** math.floor(math.log10(0.1 / num_examples))


def checked_schedule(
    num_examples: int,
    batch_size: int,
    *,
    epochs: float | None = None,
    steps: int | None = None,
    sample_rate: float | None = None,
) -> Schedule:
    """Return sample rate q = b / n, unless it is given, and number of steps, T = floor(epochs / q).

    Raises:
        SettingError: a batch larger than the data, both or none of epochs and steps, or no step at all.

    >>> checked_schedule(1000, 50, epochs=2)
    Schedule(sample_rate=0.05, steps=40)
    """
    check_whole(1, batch_size=batch_size)
    if sample_rate is not None:
        check_number("(0, 1]", ", a probability", sample_rate=sample_rate)
    elif batch_size > num_examples:
        raise SettingError(
            f"batch_size={batch_size} is more than the {num_examples} training examples; choose a smaller "
            "batch size."
        )
    if (epochs is None) == (steps is None):
        raise SettingError(f"epochs={epochs} and steps={steps}; expected exactly one of the two.")
    if epochs is not None:
        check_number("(0, inf)", epochs=epochs)
        steps = math.floor(
            epochs * num_examples / batch_size if sample_rate is None else epochs / sample_rate
        )
        if steps < 1:
            raise SettingError(
                f"the plan has 0 steps: epochs={epochs} is less than a batch. Train for longer.",
                field="epochs",
            )
    check_whole(1, steps=steps)
    assert steps is not None
    rate = batch_size / num_examples if sample_rate is None else float(sample_rate)
    return Schedule(rate, int(steps))


def release_event(epsilon: float, delta: float) -> StepEvent:
    """Return what a release is charged as that alone costs (epsilon, delta).

    Its noise multiplier is that of `equidp.tables.release`. Together with a run it costs less than the sum of
    both epsilons: give it to `Plan.resolve(also_spent=((event, 1),))`.

    Raises:
        SettingError: an epsilon or a delta outside its range.

    >>> round(release_event(0.3, delta=1e-6).noise_multiplier, 1)
    13.0
    """
    return StepEvent(1.0, calibrate_noise(epsilon, delta, 1.0, 1))


def share_noise(name: str, share: float, epsilon: float | None, delta: float) -> float:
    """Return the noise multiplier of a release that takes a share of a target epsilon.

    Args:
        name: of the share, for errors.
        share: in (0, 1).
        epsilon: target of the whole run; None is refused.
        delta: of the whole run.

    Raises:
        SettingError: a share outside its range, or no target.

    >>> share_noise("counts_share", 0.1, 3.0, 1e-6) == release_event(0.1 * 3.0, 1e-6).noise_multiplier
    True
    """
    check_share(name, share, epsilon)
    assert epsilon is not None
    return release_event(share * epsilon, delta).noise_multiplier


def check_share(name: str, share: float | None, epsilon: float | None) -> None:
    """Raise a SettingError unless a release can take this share of a target epsilon; None: it takes none.

    >>> check_share("preprocessing_share", 0.1, 3.0)
    """
    if share is None:
        return
    check_number("(0, 1)", "", **{name: share})
    if epsilon is None:
        raise SettingError(
            f"{name}={share:g} takes a share of a target epsilon, which is not given; give --epsilon.",
            field=name,
        )


@dataclass(frozen=True)
class PlannedRun:
    """A run of equal steps, and what it spends.

    Attributes:
        event: one step.
        steps: T.
        delta: of the whole run.
    """

    event: StepEvent
    steps: int
    delta: float

    @property
    def entries(self) -> tuple[tuple[StepEvent, int], ...]:
        """(event, number) pairs of all that it spends."""
        return ((self.event, self.steps),)

    def epsilon_by_group(self, accountant: str = "pld") -> dict[str, float]:
        """Epsilon of each group by name, "*" for all others; empty where groups are equal."""
        if not isinstance(self.event, GroupedStepEvent):
            return {}
        return {
            each.name: epsilon_of_group(self.entries, each.name, self.delta, accountant)
            for each in self.event.by_group
        }

    def epsilon(self, accountant: str = "pld", rows: int = 1) -> float:
        """Epsilon of the whole run by a name from `ACCOUNTANTS`; of several rows of one person by "pld"."""
        return epsilon(self.entries, self.delta, accountant, rows)

    def risk(self, false_positive_rates: tuple[float, ...] = FALSE_POSITIVE_RATES, rows: int = 1) -> Risk:
        """The most that any membership attack achieves on the whole run; see `Risk`."""
        return Risk.of(self.entries, false_positive_rates, rows)

    def dp_event(self) -> dp_accounting.DpEvent:
        """The run as a dp_accounting event, of the group with the largest epsilon, to check it
        independently."""
        return run_event(costliest_entries(self.entries, self.delta))


def account(
    num_examples: int,
    batch_size: int,
    *,
    epochs: float | None = None,
    steps: int | None = None,
    noise_multiplier: float | None = None,
    target_epsilon: float | None = None,
    risk: RiskTarget | None = None,
    delta: float | None = None,
    method: str = "dpsgd",
    accountant: str = "pld",
    rates: ByGroup = None,
    bound_shares: ByGroup = None,
    epsilon_by_group: ByGroup = None,
    protect_by: str = PROTECTIONS[0],
) -> PlannedRun:
    """Plan a run from public numbers: epsilon from noise, or noise from epsilon or a risk.

    Args:
        num_examples: n.
        batch_size: b, expected.
        epochs, steps: one of the two.
        noise_multiplier, target_epsilon, risk: one of the three.
        delta: None: a tenth of 1 / n, rounded down to a power of ten.
        method: a name from `METHODS`, which decides whether statistics are paid for, at its default sigma_s /
            sigma.
        accountant: the one that `target_epsilon` is meant for.
        rates, bound_shares, epsilon_by_group, protect_by: by name of a group, as `equidp.Trainer` takes them;
            budgets take the place of `target_epsilon`, or go with it as the largest.

    Raises:
        SettingError: a number outside its range, or an unknown name.

    >>> plan = account(60_000, 256, epochs=30, noise_multiplier=1.0)
    >>> f"{plan.steps} steps, epsilon {plan.epsilon('rdp'):.2f} at delta {plan.delta}"
    '7031 steps, epsilon 2.42 at delta 1e-06'
    >>> plan = account(60_000, 256, epochs=30, epsilon_by_group="rare=1,*=3", accountant="rdp")
    >>> {name: round(each, 2) for name, each in plan.epsilon_by_group("rdp").items()}
    {'rare': 1.0, '*': 3.0}
    """
    check_whole(1, num_examples=num_examples)
    checked_accountant(accountant)
    row = METHODS.row(method)
    known = row or policies.make_policy(method, {})
    ratio = known.statistics_ratio
    if not known.private:
        raise SettingError("sgd takes no noise and has no epsilon; name a private method.", field="method")
    if row is not None:  # whose options the method fixes, as in a `Plan`
        protect_by = row.options.get("protect_by", protect_by)
    groups = GroupSettings.of(rates, bound_shares, epsilon_by_group, protect_by)
    groups.check_risk(risk)
    target_epsilon = groups.run_epsilon(target_epsilon)
    if (noise_multiplier, target_epsilon, risk).count(None) != 2:
        raise SettingError(
            f"noise_multiplier={noise_multiplier}, target_epsilon={target_epsilon} and risk={risk}; expected "
            "exactly one of the three."
        )
    rate, steps = checked_schedule(num_examples, batch_size, epochs=epochs, steps=steps)
    delta = checked_delta(default_delta(num_examples) if delta is None else delta)

    unit = groups.step_event(rate, 1.0, ratio)
    if risk is not None:
        noise_multiplier = calibrate_step_to_risk(risk, unit, steps)
    elif target_epsilon is not None:
        noise_multiplier = calibrate_step(target_epsilon, delta, unit, steps, accountant)
    assert noise_multiplier is not None
    noise = float(noise_multiplier)
    event = groups.step_event(rate, noise, ratio)
    groups = groups.meet_budgets(event, steps, delta, target_epsilon, accountant=accountant)
    return PlannedRun(groups.step_event(rate, noise, ratio), steps, delta)
