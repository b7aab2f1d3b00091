"""Rates, bounds and budgets of groups: checked, and turned into shares of an event by public numbers only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

from equidp._validate import check_number, names, unknown_name
from equidp.accounting.calibration import (
    PROTECTIONS,
    calibrate_noise,
    calibrate_noise_to_risk,
    calibrate_share,
)
from equidp.accounting.risk import RiskTarget
from equidp.errors import BudgetError, SettingError
from equidp.kernel.epsilon import count_costs, epsilon as epsilon_of
from equidp.kernel.event import SMALLEST_SHARE, Event, EventCounts, Label, Share

OTHER_GROUPS = "*"
"""Name of all groups that are not named."""
ByGroup = Mapping[str, float] | str | None
"""Numbers by group name, also as a text such as "rare=2,*=1". None: none."""
BUDGETS = "epsilon_by_group"
"""Name of the setting that gives each group an epsilon."""
_RANGES = {
    "rates": ("[0, inf)", " for each group, a multiple of the sample rate"),
    "bound_shares": (f"[{SMALLEST_SHARE}, 1]", " for each group, a share of the bound"),
    BUDGETS: ("(0, inf)", " for each group, its budget"),
}


def numbers_by_group(setting: str, given: ByGroup) -> dict[str, float]:
    """Return numbers by group name, from a mapping or a text. {}: none are given.

    >>> numbers_by_group("rates", "rare=2, *=1")
    {'rare': 2.0, '*': 1.0}
    """
    if given is None or given == {}:
        return {}
    pairs = [part.rpartition("=")[::2] for part in names(given)] if isinstance(given, str) else ()
    try:
        numbers = {name.strip(): float(number) for name, number in pairs} if pairs else dict(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        numbers = {}
    if not numbers or "" in numbers or len(numbers) < len(pairs):
        raise SettingError(
            f"{setting}={given!r}; expected a number for each group, each group once, such as rare=0.5,*=1, "
            'or {"rare": 0.5, "*": 1} in Python.',
            field=setting,
        )
    for name, value in numbers.items():
        interval, hint = _RANGES[setting]
        check_number(interval, f"{hint}; group {name!r} has another", **{setting: value})
    return {str(name): float(value) for name, value in numbers.items()}


@final
@dataclass(frozen=True)
class GroupSettings:
    """Public numbers by group name, by which a run treats groups differently.

    Attributes:
        rates: multiples of the sampling rate, "*" for all groups that are not named. Default: 1.
        bound_shares: shares of the bound, in the same form.
        budgets: epsilon of each group. Other groups have the run's epsilon; if that is not given, it is the
            largest budget. Rates or shares follow from them.
        protect_by: "sampling": rates follow from budgets, for the given shares. "scaling": shares follow from
            budgets, for the given rates; without budgets, from the run's epsilon for all groups.

    Raises:
        SettingError: a number is outside its range, a name is unknown, or a value that follows is also given.
    """

    rates: Mapping[str, float] = field(default_factory=dict)
    bound_shares: Mapping[str, float] = field(default_factory=dict)
    budgets: Mapping[str, float] = field(default_factory=dict)
    protect_by: str = PROTECTIONS[0]

    def __post_init__(self) -> None:
        if self.protect_by not in PROTECTIONS:
            raise unknown_name("protect_by", self.protect_by, PROTECTIONS)
        if self.is_open and getattr(self, self._following):
            raise SettingError(
                f"{self._following} and {BUDGETS if self.budgets else 'rates'}: protect_by="
                f"{self.protect_by!r} derives the first from the second. Leave one of them out.",
                field=self._following,
            )

    @classmethod
    def of(
        cls,
        rates: ByGroup,
        bound_shares: ByGroup,
        epsilon_by_group: ByGroup,
        protect_by: str = PROTECTIONS[0],
    ) -> GroupSettings:
        """Read settings as users give them; raise as the class.

        >>> GroupSettings.of(None, None, "rare=1,*=3").budgets
        {'rare': 1.0, '*': 3.0}
        """
        given = {"rates": rates, "bound_shares": bound_shares, BUDGETS: epsilon_by_group}
        found = {setting: numbers_by_group(setting, value) for setting, value in given.items()}
        return cls(found["rates"], found["bound_shares"], found[BUDGETS], protect_by)

    def __bool__(self) -> bool:
        """Return True if groups may be treated differently."""
        return bool(self.rates or self.bound_shares or self.budgets)

    @property
    def is_open(self) -> bool:
        """True if rates or shares follow, and are not computed yet."""
        return bool(self.budgets) or (bool(self.rates) and self.protect_by == PROTECTIONS[1])

    @property
    def _following(self) -> str:
        """Name of the setting that follows from budgets."""
        return "rates" if self.protect_by == PROTECTIONS[0] else "bound_shares"

    @property
    def field(self) -> str:
        """Name of the first setting that is given."""
        return "rates" if self.rates else "bound_shares" if self.bound_shares else BUDGETS

    def names(self, group_names: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the names of the groups; if they are not known, the given names and "*".

        >>> GroupSettings(rates={"rare": 2.0}).names()
        ('rare', '*')
        """
        by_setting = {"rates": self.rates, "bound_shares": self.bound_shares, BUDGETS: self.budgets}
        given = [(setting, name) for setting, numbers in by_setting.items() for name in numbers]
        if not group_names:
            return tuple(dict.fromkeys([*(name for _, name in given), OTHER_GROUPS]))
        for setting, name in given:
            if name not in (*group_names, OTHER_GROUPS):
                raise unknown_name(f"{setting} (group)", name, (*group_names, OTHER_GROUPS))
        return tuple(group_names)

    def run_epsilon(self, epsilon: float | None, group_names: Sequence[str] = ()) -> float | None:
        """Return the epsilon of a run: as given, or the largest budget. None: neither is given.

        >>> GroupSettings(budgets={"rare": 1.0, "*": 3.0}).run_epsilon(None)
        3.0
        """
        return max(self._budgets(epsilon, group_names).values()) if self.budgets else epsilon

    def resolve(
        self,
        schedule: tuple[float, int],
        delta: float,
        statistics_ratio: float | None = None,
        *,
        epsilon: float | None = None,
        risk: RiskTarget | None = None,
        accountant: str = "pld",
        noise_multiplier: float | None = None,
        spent: EventCounts = (),
        group_names: Sequence[str] = (),
    ) -> tuple[GroupSettings, Event]:
        """Return the settings, with rates or shares instead of budgets, and the event of a step.

        Args:
            schedule: sampling rate q, that rates are multiples of, and number of steps T.
            delta: delta of the whole run.
            statistics_ratio: sigma_s / sigma of a policy with statistics. None: the policy has none.
            epsilon, risk: targets of the whole run to which the noise is calibrated. Neither: the largest
                budget.
            accountant: accountant that defines epsilon.
            noise_multiplier: noise multiplier sigma, if neither is given and there is no budget.
            spent: what counts for every group in addition to the steps, such as a release.
            group_names: names of all groups. Empty: not known.

        Raises:
            SettingError: a group is unknown, no noise meets the target, no rate or bound meets a budget, or a
                risk is the target although rates or shares follow (groups of equal epsilon differ in risk).

        >>> budgets = GroupSettings(budgets={"rare": 1.0, "*": 3.0})
        >>> met, event = budgets.resolve((0.02, 1000), 1e-5, accountant="rdp")
        >>> {name: round(rate, 2) for name, rate in met.rates.items()}, round(event.noise, 2)
        ({'rare': 0.34, '*': 1.0}, 1.22)
        """
        if risk is not None and self.is_open:
            given = BUDGETS if self.budgets else "rates"
            raise SettingError(
                f"{given} and risk {risk}: the {self._following} of groups follow from an epsilon, and "
                "their risks differ. Give an epsilon instead of the risk, or only rates and bound_shares.",
                field=given,
            )
        epsilon = self.run_epsilon(epsilon, group_names)
        rate, steps = schedule
        unit = self.step_event(rate, 1.0, statistics_ratio, group_names)
        if risk is not None:
            noise_multiplier = calibrate_noise_to_risk(risk, unit, steps, spent)
        elif epsilon is not None:
            noise_multiplier = calibrate_noise(epsilon, delta, unit, steps, accountant, spent)
        assert noise_multiplier is not None
        event = self.step_event(rate, noise_multiplier, statistics_ratio, group_names)
        if not self.is_open:
            return self, event
        met = self._meet_budgets(epsilon, accountant, event, steps, delta, spent, group_names)
        return met, met.step_event(rate, noise_multiplier, statistics_ratio, group_names)

    def step_event(
        self,
        sample_rate: float,
        noise_multiplier: float,
        statistics_ratio: float | None = None,
        group_names: Sequence[str] = (),
    ) -> Event:
        """Return the event of a step; without shares if no group differs, or while some numbers are open.

        Args and errors are as in `resolve`.

        >>> event = GroupSettings(rates={"rare": 2.0}).step_event(0.1, 1.0, None, ("rare", "usual"))
        >>> [(each.label, each.rate) for each in event.shares]
        [('rare', 0.2), ('usual', 0.1)]
        """
        statistics = None if statistics_ratio is None else float(statistics_ratio * noise_multiplier)
        shares = self._shares(group_names, sample_rate)
        rate = max((each.rate for each in shares), default=sample_rate)
        if all((each.rate, each.bound, each.row) == (rate, 1, 1) for each in shares):
            shares = ()
        return Event(rate, noise_multiplier, statistics, shares=shares)

    def _shares(self, group_names: Sequence[str], sample_rate: float) -> tuple[Share, ...]:
        """Rates and bounds of groups, in their order, or empty without any, or while some are open."""
        known = self.names(group_names)
        if self.is_open or not (self.rates or self.bound_shares):
            return ()
        rates, bounds = (
            {name: _number_of(given, name) for name in known} for given in (self.rates, self.bound_shares)
        )
        for name, rate in rates.items():
            if not rate * sample_rate <= 1:
                raise SettingError(
                    f"rates={rate:g} of group {name!r} times the sample rate {sample_rate:g} is above 1, and "
                    "no example can be drawn more surely; give a smaller rate, or a smaller batch size.",
                    field="rates",
                )
        if not any(rates.values()):
            raise SettingError("rates are 0 for every group; expected one above 0.", field="rates")
        return tuple(Share(name, rates[name] * sample_rate, bounds[name], bounds[name]) for name in known)

    def _budgets(self, epsilon: float | None, group_names: Sequence[str]) -> dict[str, float]:
        """Budget of each group by name; for a group without a budget, the epsilon of the run."""
        most = max(self.budgets.values(), default=0.0) if epsilon is None else epsilon
        others = self.budgets.get(OTHER_GROUPS, most)
        found = {name: self.budgets.get(name, others) for name in self.names(group_names)}
        largest = max(found.values())
        if largest > most or (epsilon is not None and largest < epsilon):
            raise SettingError(
                f"{BUDGETS} has at most {largest:g}, and epsilon of the run is {most:g}; expected the run's "
                "as the largest. Leave the epsilon out, or give some group that budget.",
                field=BUDGETS,
            )
        return found

    def _meet_budgets(
        self,
        epsilon: float | None,
        accountant: str,
        step: Event,
        steps: int,
        delta: float,
        spent: EventCounts,
        group_names: Sequence[str],
    ) -> GroupSettings:
        """Rates or shares that meet the budgets, in their place, for steps at the whole rate and bound."""
        if epsilon is None:
            epsilon = epsilon_of((*spent, (step, steps)), delta, accountant)
        budgets = self._budgets(epsilon, group_names)
        shares = GroupSettings(self.rates, self.bound_shares)._shares(group_names, step.rate)
        largest, met = max(budgets.values()), dict.fromkeys(budgets, 1.0)
        for share in shares or [Share(name, step.rate) for name in budgets]:
            budget = budgets[share.label]

            def for_bound(noise: float, bound: float = share.bound) -> float:  # that of its statistics too
                return noise / bound

            own = replace(step, rate=share.rate or step.rate).with_noises(for_bound)
            if share.rate and (own != step or budget < largest):  # the noise was calibrated to the others
                met[share.label] = calibrate_share(
                    budget, delta, own, steps, self.protect_by, accountant, spent
                )
        return replace(self, **{self._following: met}, budgets={}, protect_by=PROTECTIONS[0])


def _number_of(given: Mapping[str, float], name: str) -> float:
    return given.get(name, given.get(OTHER_GROUPS, 1.0))


@final
@dataclass(frozen=True)
class LabelBudgets:
    """Epsilon that a run may cost each label at most.

    Attributes:
        by_label: epsilon of each label; for None: for everyone.
        plan: everything that the run plans to spend. It counts in full, taken or not.
        delta, accountant: delta and accountant of the epsilons.
    """

    by_label: Mapping[Label | None, float]
    plan: EventCounts
    delta: float
    accountant: str = "pld"

    def __call__(self, spent: EventCounts) -> None:
        """Raise a BudgetError if spending outside the plan takes a label above its budget."""
        for label, budget in self.by_label.items():
            planned = count_costs(self.plan, label)
            whole = planned | count_costs(spent, label)
            if whole == planned:
                continue
            costs = [(Event(*cost), count) for cost, count in whole.items()]
            if (found := epsilon_of(costs, self.delta, self.accountant)) > budget:
                event, whose = spent[-1][0], "everyone" if label is None else label.name
                raise BudgetError(
                    f"with {event.name} ({event}), epsilon of {whose} would be {found:.4g}, and "
                    f"the budget is {budget:g} for all that the run releases. Give it to "
                    "Plan(releases=...), or leave it out; nothing was spent.",
                    field=BUDGETS,
                )
