"""Rates, bounds and budgets of groups: read, checked, and worked out from public numbers before training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

from equidp._validate import check_number, names, unknown_name
from equidp.accounting.calibration import PROTECTIONS, calibrate_share
from equidp.errors import SettingError
from equidp.kernel.epsilon import epsilon as epsilon_of
from equidp.kernel.ledger import SMALLEST_SHARE, GroupedStepEvent, GroupShare, StepEvent, make_step_event

OTHER_GROUPS = "*"
"""Name of all groups that are not named."""
ByGroup = Mapping[str, float] | str | None
"""Numbers by name of a group, also as a text such as "rare=2,*=1"; None: none."""
BUDGETS = "epsilon_by_group"
"""Name of the setting that gives each group an epsilon."""
_RANGES = {
    "rates": ("[0, inf)", " for each group, a multiple of the sample rate"),
    "bound_shares": (f"[{SMALLEST_SHARE}, 1]", " for each group, a share of the bound"),
    BUDGETS: ("(0, inf)", " for each group, its budget"),
}


def numbers_by_group(setting: str, given: ByGroup) -> dict[str, float]:
    """Return numbers by name of a group, of a mapping or a text; {}: none are given.

    Raises:
        SettingError: of the field `setting`: another form, or a number outside its range.

    >>> numbers_by_group("rates", "rare=2, *=1")
    {'rare': 2.0, '*': 1.0}
    """
    if given is None:
        return {}
    example = 'rare=0.5,*=1, or {"rare": 0.5, "*": 1} in Python'
    if isinstance(given, str):
        given = _parse_text(setting, given, example)
    if not isinstance(given, Mapping):
        raise SettingError(f"{setting}={given!r}; expected numbers by name of a group, such as {example}.")
    for name, value in given.items():
        interval, hint = _RANGES[setting]
        check_number(interval, f"{hint}; group {name!r} has another", **{setting: value})
    return {str(name): float(value) for name, value in given.items()}


def _parse_text(setting: str, text: str, example: str) -> dict[str, Any]:
    numbers: dict[str, Any] = {}
    for part in names(text):
        name, _, number = (each.strip() for each in part.rpartition("="))
        try:
            value = float(number)
        except ValueError:
            name = ""
        if not name or name in numbers:
            raise SettingError(
                f"{setting}={text!r}, whose part {part!r} is not a number of a group; expected group=number, "
                f"each group once, such as {example}."
            )
        numbers[name] = value
    if not numbers:
        raise SettingError(f"{setting}={text!r}; expected group=number, such as {example}.")
    return numbers


@final
@dataclass(frozen=True)
class GroupSettings:
    """Public numbers by name of a group, by which a run treats examples of groups differently.

    Attributes:
        rates: multiples of the sample rate, "*" for all groups that are not named; left out: 1.
        bound_shares: shares of the bound, in the same form.
        budgets: epsilon of each group; left out: that of the run, which is the largest budget where it is not
            given. Rates or shares follow from them.
        protect_by: "sampling": rates follow from budgets, for the shares that are given; "scaling": shares
            follow, for the rates that are given, and without budgets from the epsilon of the run for all.

    Raises:
        SettingError: a number outside its range, an unknown name, or what follows given too.

    >>> settings = GroupSettings(rates={"rare": 2.0})
    >>> [(each.name, each.sample_rate) for each in settings.shares(("rare", "usual"), 0.1)]
    [('rare', 0.2), ('usual', 0.1)]
    """

    rates: Mapping[str, float] = field(default_factory=dict)
    bound_shares: Mapping[str, float] = field(default_factory=dict)
    budgets: Mapping[str, float] = field(default_factory=dict)
    protect_by: str = PROTECTIONS[0]

    def __post_init__(self) -> None:
        if self.protect_by not in PROTECTIONS:
            raise unknown_name("protect_by", self.protect_by, PROTECTIONS)
        if self.is_open and getattr(self, self._following):
            given = BUDGETS if self.budgets else "rates"
            raise SettingError(
                f"{self._following} beside {given}, which they follow from with protect_by="
                f"{self.protect_by!r}; leave one of the two out.",
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
        """Read settings as users give them.

        Raises:
            SettingError: as the class.

        >>> GroupSettings.of(None, None, "rare=1,*=3").budgets
        {'rare': 1.0, '*': 3.0}
        """
        given = {"rates": rates, "bound_shares": bound_shares, BUDGETS: epsilon_by_group}
        numbers = [numbers_by_group(setting, value) for setting, value in given.items()]
        return cls(numbers[0], numbers[1], numbers[2], protect_by)

    def __bool__(self) -> bool:
        """Return True where groups may be treated differently."""
        return bool(self.rates or self.bound_shares or self.budgets)

    @property
    def is_open(self) -> bool:
        """True where rates or shares follow, and are not worked out yet."""
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
        """Return the names of the groups; where they are not known, those that are given, and "*".

        Raises:
            SettingError: a name that no group has.

        >>> GroupSettings(rates={"rare": 2.0}).names()
        ('rare', '*')
        """
        by_setting = {"rates": self.rates, "bound_shares": self.bound_shares, BUDGETS: self.budgets}
        if not group_names:
            return tuple(
                dict.fromkeys([*(name for each in by_setting.values() for name in each), OTHER_GROUPS])
            )
        for setting, given in by_setting.items():
            for name in given:
                if name not in (*group_names, OTHER_GROUPS):
                    raise unknown_name(f"{setting} (group)", name, (*group_names, OTHER_GROUPS))
        return tuple(group_names)

    def shares(self, group_names: Sequence[str], sample_rate: float) -> tuple[GroupShare, ...]:
        """Return rates and bounds of groups, in their order; empty without any, or while some are open.

        Args:
            group_names: names of all groups; empty: not known.
            sample_rate: q that rates are multiples of.

        Raises:
            SettingError: an unknown group, a rate above 1, or no rate above 0.
        """
        known = self.names(group_names)
        if self.is_open or not (self.rates or self.bound_shares):
            return ()
        found = [(name, _number_of(self.rates, name), _number_of(self.bound_shares, name)) for name in known]
        for name, rate, _ in found:
            if not rate * sample_rate <= 1:
                raise SettingError(
                    f"rates={rate:g} of group {name!r} times the sample rate {sample_rate:g} is above 1, and "
                    "no example can be drawn more surely; give a smaller rate, or a smaller batch size.",
                    field="rates",
                )
        if not any(rate for _, rate, _ in found):
            raise SettingError("rates are 0 for every group; expected one above 0.", field="rates")
        return tuple(GroupShare(name, rate * sample_rate, bound, bound) for name, rate, bound in found)

    def step_event(
        self,
        sample_rate: float,
        noise_multiplier: float,
        statistics_ratio: float | None = None,
        group_names: Sequence[str] = (),
    ) -> StepEvent:
        """Return the event of a step; a plain one where no group differs, or while some numbers are open.

        Args:
            sample_rate: q that rates are multiples of.
            noise_multiplier: sigma.
            statistics_ratio: sigma_s / sigma of a policy with statistics; None: the policy has none.
            group_names: names of all groups; empty: not known.

        Raises:
            SettingError: as `shares`.

        >>> GroupSettings().step_event(0.1, 2.0, 3.0)
        StepEvent(sample_rate=0.1, noise_multiplier=2.0, statistics_noise=6.0)
        """
        statistics = None if statistics_ratio is None else float(statistics_ratio * noise_multiplier)
        shares = self.shares(group_names, sample_rate)
        return make_step_event(sample_rate, noise_multiplier, statistics, shares)

    def check_risk(self, risk: object) -> None:
        """Refuse a target risk where rates or shares follow: from budgets, or from one epsilon for all.

        Groups of equal epsilon at one delta differ in risk, so that one could exceed the target.

        Raises:
            SettingError: of the field that rates or shares follow from.
        """
        if risk is not None and self.is_open:
            given = BUDGETS if self.budgets else "rates"
            raise SettingError(
                f"{given} beside risk {risk}, and the {self._following} of groups follow from an epsilon, at "
                "which their risks differ; give an epsilon in place of the risk, or rates and bound_shares "
                "alone.",
                field=given,
            )

    def run_epsilon(self, epsilon: float | None, group_names: Sequence[str] = ()) -> float | None:
        """Return the epsilon of a run: as given, or the largest budget; None: neither is given.

        Raises:
            SettingError: an unknown group, a budget above the epsilon, or all of them below it.

        >>> GroupSettings(budgets={"rare": 1.0, "*": 3.0}).run_epsilon(None)
        3.0
        """
        if not self.budgets:
            return epsilon
        return max(self._budgets(epsilon, group_names).values())

    def _budgets(self, epsilon: float | None, group_names: Sequence[str]) -> dict[str, float]:
        """Budget of each group by name; of one without a budget, the epsilon of the run."""
        most = max(self.budgets.values(), default=0.0) if epsilon is None else epsilon
        others = self.budgets.get(OTHER_GROUPS, most)
        found = {name: self.budgets.get(name, others) for name in self.names(group_names)}
        largest = max(found, key=found.__getitem__)
        if found[largest] > most:
            raise SettingError(
                f"{BUDGETS} has {found[largest]:g} for {largest!r}, above epsilon {most:g} of "
                "the run; give a smaller budget, or a larger epsilon.",
                field=BUDGETS,
            )
        if epsilon is not None and found[largest] < epsilon:
            raise SettingError(
                f"{BUDGETS} has at most {found[largest]:g}, and nobody the epsilon {epsilon:g} "
                "of the run; leave the epsilon out, or give some that budget.",
                field=BUDGETS,
            )
        return found

    def meet_budgets(
        self,
        step: StepEvent,
        steps: int,
        delta: float,
        epsilon: float | None,
        *,
        accountant: str = "pld",
        spent: tuple[tuple[StepEvent, int], ...] = (),
        group_names: Sequence[str] = (),
    ) -> GroupSettings:
        """Return the rates or shares that meet the budgets, in their place; the same where nothing is open.

        Args:
            step: what a step costs an example at the sample rate and with the whole bound.
            steps: T.
            delta: of the whole run.
            epsilon: of the run; None: the largest budget, or what the run costs at the sample rate.
            accountant: a name from `ACCOUNTANTS`.
            spent: what counts for every group beside the steps, such as a release.
            group_names: names of all groups; empty: not known.

        Raises:
            SettingError: a budget that no rate, or no bound, meets.

        >>> budgets = GroupSettings(budgets={"rare": 1.0, "*": 3.0})
        >>> met = budgets.meet_budgets(StepEvent(0.02, 1.22), 1000, 1e-5, None, accountant="rdp")
        >>> {name: round(rate, 2) for name, rate in met.rates.items()}
        {'rare': 0.35, '*': 1.0}
        """
        if not self.is_open:
            return self
        if epsilon is None and not self.budgets:
            epsilon = epsilon_of((*spent, (step, steps)), delta, accountant)
        budgets = self._budgets(epsilon, group_names)
        by_hand = GroupSettings(self.rates, self.bound_shares)
        shares = by_hand.shares(group_names, step.sample_rate)
        largest, met = max(budgets.values()), dict.fromkeys(budgets, 1.0)
        for share in shares or [GroupShare(name, step.sample_rate) for name in budgets]:
            if not share.sample_rate:
                continue
            noises = step.noise_multiplier, step.statistics_noise
            own = GroupedStepEvent(share.sample_rate, *noises, (share,)).of_group(share.name)
            budget = budgets[share.name]
            assert own is not None  # shares of a bound are above 0
            if own != step or budget < largest:  # the noise was calibrated to the others
                met[share.name] = calibrate_share(
                    budget, delta, own, steps, self.protect_by, accountant, spent
                )
        if self.protect_by == PROTECTIONS[0]:
            return replace(self, rates=met, budgets={})
        return replace(self, bound_shares=met, budgets={}, protect_by=PROTECTIONS[0])


def _number_of(given: Mapping[str, float], name: str) -> float:
    return given.get(name, given.get(OTHER_GROUPS, 1.0))
